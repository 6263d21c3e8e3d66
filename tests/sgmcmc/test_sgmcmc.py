"""SGLD, SGHMC and SGNHT: updates, noise as it is charged, schedules, refusals, runs."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

import dpjax
from dpjax import Posterior, privacy, schedules
from dpjax.privacy import step_size as step_sizes
from dpjax.sgmcmc.temperature import excess_temperature
from tests.tiers import tiered

SPECIAL = privacy.NeighboringRelation.REPLACE_SPECIAL
REPLACE = privacy.NeighboringRelation.REPLACE_ONE
DIM, RECORDS, CLIP, CHANCE, TEMPERING = 3, 40, 2.0, 0.25, 0.7


def logprior(position):
    return -0.5 * jnp.sum(position["a"] ** 2) - jnp.sum(position["b"] ** 4)


def loglikelihood(position, record):
    shifted = record - jnp.append(position["a"], position["b"])
    return -jnp.sum(jnp.sqrt(1 + shifted**2))


def silent(position, record):
    return 0.0 * position["b"][0]


def make_posterior(loglikelihood=loglikelihood, scale=1.0):
    data = scale * np.random.default_rng(1).normal(size=(RECORDS, DIM))
    data = jnp.asarray(data, jnp.result_type(float))
    return Posterior(logprior, loglikelihood, data, tempering=TEMPERING)


POSITION = {"a": np.array([0.4, -1.0]), "b": np.array([0.3])}
COMMON = dict(
    dim=DIM, l2_clip_norm=CLIP, sampling_prob=CHANCE, nominal_num_records=RECORDS
)
KERNELS = {
    "sgld": functools.partial(dpjax.sgld, **COMMON),
    "published": functools.partial(dpjax.sgld, temperature=0.5, **COMMON),
    "sghmc": functools.partial(dpjax.sghmc, friction=0.3, **COMMON),
    "raised": functools.partial(
        dpjax.sghmc, friction=0.01, noise_multiplier=2.0, **COMMON
    ),
    "sgnht": functools.partial(dpjax.sgnht, friction=0.3, **COMMON),
    "loud": functools.partial(
        dpjax.sgnht, friction=0.01, noise_multiplier=2.0, **COMMON
    ),
}
UNIT = math.sqrt(2 * RECORDS / 0.05) * CHANCE / (CLIP * TEMPERING)
"""Noise multiplier of SGLD at a step size of .05."""
MULTIPLIERS = {
    "sgld": UNIT,
    "published": UNIT * math.sqrt(0.5),
    "sghmc": UNIT * math.sqrt(0.3),
    "raised": 2.0,
    "sgnht": UNIT * math.sqrt(0.3),
    "loud": 2.0,
}


def take(algorithm, seed, state):
    """A step, its results in NumPy."""
    moved = jax.jit(algorithm.step)(jax.random.key(seed), state)
    return jax.tree.map(np.asarray, moved)


@pytest.mark.parametrize("name", tiered(KERNELS, ["sgld", "raised", "sgnht"]))
def test_noise_is_as_loud_as_it_is_charged(name):
    """Records whose gradients are zero: what is released is the noise."""
    algorithm = KERNELS[name](make_posterior(silent), step_size=0.05)
    state = algorithm.init(POSITION)
    keys = jax.random.split(jax.random.key(0), 4000)
    _, info = jax.jit(jax.vmap(algorithm.step, (0, None)))(keys, state)
    prior = jax.grad(logprior)(state.position)
    noise = [np.asarray(info.gradient[key]) - np.asarray(prior[key]) for key in "ab"]
    noise = np.concatenate(noise, axis=1).ravel()
    ((event, count),) = algorithm.privacy(10, SPECIAL)
    assert count == 10
    charged = event.noise_multiplier * CLIP * TEMPERING / CHANCE
    # Chance of a false alarm below 1e-6.
    square = np.sum(noise**2) / charged**2
    low, high = stats.chi2(noise.size).ppf([5e-7, 1 - 5e-7])
    assert low < square < high
    assert info.noise_sd[0] == pytest.approx(charged, rel=1e-5)
    assert event.noise_multiplier == pytest.approx(MULTIPLIERS[name], rel=1e-5)
    assert event.noise_multiplier < MULTIPLIERS[name]
    assert event.sampling_prob == CHANCE
    assert event.failure_prob > 0


def test_the_accountant_agrees_with_step_size_bounds():
    setting = dict(num_records=RECORDS, sampling_prob=CHANCE)
    noise = step_sizes.langevin_noise(0.05, l2_clip_norm=CLIP * TEMPERING, **setting)
    assert noise == pytest.approx(UNIT, rel=1e-12)


def quiet(name, **changes):
    """A kernel whose step size is so large that the noise is small."""
    parameters = {**COMMON, "l2_clip_norm": 50.0, "sampling_prob": 1.0, **changes}
    algorithm_fn = KERNELS[name].func
    extra = {} if name == "sgld" else dict(friction=0.3)
    return algorithm_fn(make_posterior(), step_size=1e6, **extra, **parameters)


@pytest.mark.parametrize("name", ["sgld", "sghmc", "sgnht"])
def test_updates_follow_the_gradient_of_the_posterior(name):
    """Unclipped, all records: ascent on log posterior / N, then with momentum."""
    posterior = make_posterior()
    algorithm = quiet(name)
    state = jax.tree.map(np.asarray, algorithm.init(POSITION))
    moved, info = take(algorithm, 0, state)
    exact = jax.tree.map(np.asarray, jax.grad(posterior)(state.position))
    for key, leaf in exact.items():
        # Noise, and rounding of the records' gradients to the grid.
        error = 6 * float(info.noise_sd) + 2 * RECORDS * TEMPERING * 50 / 2**16
        assert np.max(abs(info.gradient[key] - leaf)) < error < 0.2
        update = 1e6 * info.gradient[key] / RECORDS
        found = moved.position[key] - state.position[key]
        assert found == pytest.approx(update, rel=1e-4)
    again, info = take(algorithm, 1, moved)
    kept = {"sgld": 0.0, "sghmc": 0.7, "sgnht": 0.7}[name]
    if name == "sgnht":
        kept = 1 - float(moved.optimizer_state.friction)
    for key in exact:
        first = moved.position[key] - state.position[key]
        found = again.position[key] - moved.position[key]
        expected = kept * first + 1e6 * info.gradient[key] / RECORDS
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-3 * 1e6 / RECORDS)
    assert again.num_steps == 2


@pytest.mark.thorough
def test_full_friction_is_langevin_dynamics():
    posterior = make_posterior()
    one = KERNELS["sgld"](posterior, step_size=0.05)
    two = dpjax.sghmc(posterior, step_size=0.05, friction=1.0, **COMMON)
    states = [one.init(POSITION), two.init(POSITION)]
    for seed in range(3):
        states = [take(a, seed, s)[0] for a, s in zip((one, two), states, strict=True)]
    for left, right in zip(*(jax.tree.leaves(s.position) for s in states), strict=True):
        assert left == pytest.approx(right, rel=1e-5)


def test_clipping_bounds_records_but_not_the_prior():
    """Gradients of length sqrt(3) at far records, clipped to one, and a steep prior."""
    posterior = make_posterior(scale=1e4)
    algorithm = dpjax.sgld(
        posterior, step_size=1e6, dim=DIM, l2_clip_norm=1.0, sampling_prob=1.0
    )
    position = {"a": np.array([0.0, 0.0]), "b": np.array([10.0])}
    state = algorithm.init(position)
    _, info = take(algorithm, 0, state)
    signs = np.sign(posterior.data) / math.sqrt(DIM)
    expected = TEMPERING * signs.sum(0) + np.array([0, 0, -4000.0])
    found = np.append(info.gradient["a"], info.gradient["b"])
    assert found == pytest.approx(expected, abs=6 * float(info.noise_sd) + 0.01)


@pytest.mark.parametrize("name", tiered(KERNELS, ["sgld", "published", "sgnht"]))
def test_states_know_the_sum_alone(name):
    """Other data with the same sum of clipped gradients leave the same trace."""
    posterior = make_posterior()
    shuffled = Posterior(
        logprior, loglikelihood, posterior.data[::-1], tempering=TEMPERING
    )
    found = []
    for data in (posterior, shuffled):
        arguments = dict(KERNELS[name].keywords, sampling_prob=1.0)
        algorithm = KERNELS[name].func(data, step_size=0.05, **arguments)
        state, info = take(algorithm, 5, algorithm.init(POSITION))
        found.append(jax.tree.leaves((state, info)))
    assert all(np.array_equal(a, b) for a, b in zip(*found, strict=True))


SCHEDULES = {
    "power": schedules.power_decay(0.3),
    "cosine": optax.cosine_decay_schedule(0.3, 200, alpha=0.01),
    # Rounded in another way where it is compiled, by six digits of float32.
    "linear": optax.linear_schedule(0.3, 1e-3, 200),
}


@pytest.mark.parametrize("name", ["sgld", "sghmc", "raised", "loud"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules_are_followed_and_charged(name, schedule):
    algorithm = KERNELS[name](make_posterior(silent), step_size=SCHEDULES[schedule])
    events = algorithm.privacy(200, REPLACE)
    assert sum(count for _, count in events) == 200
    charged = [event.noise_multiplier for event, count in events for _ in range(count)]
    state = algorithm.init(POSITION)

    @jax.jit
    def noise_sd(count):
        _, info = algorithm.step(jax.random.key(0), state._replace(num_steps=count))
        return info.noise_sd

    counts = np.array([0, 1, 17, 100, 199])
    found = np.array([noise_sd(jnp.int32(count)) for count in counts])
    found *= CHANCE / (CLIP * TEMPERING)
    sizes = np.asarray(SCHEDULES[schedule](counts), float)
    own = np.sqrt(2 * RECORDS / sizes) * CHANCE / (CLIP * TEMPERING)
    friction = KERNELS[name].keywords.get("friction", 1.0)
    least = KERNELS[name].keywords.get("noise_multiplier", 0.0)
    expected = np.maximum(own * math.sqrt(friction), least)
    assert found == pytest.approx(expected, rel=1e-5)
    if name in ("sgld", "sghmc"):
        ratio = found / np.array(charged)[counts]
        assert np.all((ratio > 1) & (ratio < 1.006))


def test_schedules_whose_integers_overflow_are_refused():
    """In 32 bits the power of 256 is zero, and that of 216 negative."""
    posterior = make_posterior(silent)
    for schedule in (
        lambda k: 0.3 / (1 + k**4) + 0.01,
        lambda k: 0.3 / (1 + k**4 / 1e6),
    ):
        algorithm = KERNELS["sgld"](posterior, step_size=schedule)
        algorithm.privacy(200)
        with pytest.raises(ValueError, match="integers stay below"):
            algorithm.privacy(257)


def test_a_schedule_that_depends_on_rounding_is_refused(monkeypatch):
    """Whether XLA rounds in another way depends on the machine. Here it does."""
    algorithm = KERNELS["sgld"](make_posterior(silent), step_size=SCHEDULES["power"])
    algorithm.privacy(200)

    def rounded(function):
        return lambda count: 1.002 * function(count)

    with monkeypatch.context() as patch:
        patch.setattr(jax, "jit", rounded)
        with pytest.raises(ValueError, match="depends on how it is rounded"):
            algorithm.privacy(200)


def test_a_schedule_that_changes_is_refused():
    sizes = iter([0.02, 0.3, 0.1, 0.2, 0.4])
    with pytest.raises(ValueError, match="does not change"):
        KERNELS["sgld"](
            make_posterior(silent), step_size=lambda count: next(sizes) / (1 + count)
        )


@jax.custom_batching.custom_vmap
def small_in_batches(count):
    return 2.0 + 0.0 * count


@small_in_batches.def_vmap
def _(size, is_batched, count):
    return 0.002 + 0.0 * count, True


@pytest.mark.parametrize(
    "schedule",
    [
        small_in_batches,
        # Of several keys of this generator, JAX draws from the first.
        lambda count: jax.random.uniform(
            jax.random.fold_in(jax.random.key(0, impl="rbg"), count)
        ),
        lambda count: jax.pure_callback(
            lambda count: np.float32(0.1), jax.ShapeDtypeStruct((), "float32"), count
        ),
    ],
    ids=["a rule for batches", "random", "a callback"],
)
def test_a_schedule_is_arithmetic(schedule):
    with pytest.raises(ValueError, match="step_size does the operation"):
        KERNELS["sgld"](make_posterior(silent), step_size=schedule)


def test_friction_follows_the_schedule():
    """Twice the friction of the noise at twice the step size, at a given multiplier."""
    algorithm = KERNELS["raised"](
        make_posterior(silent), step_size=lambda count: 0.05 * (count + 1)
    )
    state = algorithm.init(POSITION)
    states = [state, state._replace(num_steps=jnp.int32(1))]
    squares = [take(algorithm, 0, s)[1].noise_sd for s in states]
    assert squares[0] == pytest.approx(float(squares[1]), rel=1e-5)
    decays = []
    for _ in range(3):
        state, _ = take(algorithm, 0, state)
        decays.append(1 - float(state.optimizer_state[1].hyperparams["decay"]))
    alpha = (2.0 / UNIT) ** 2
    assert decays == pytest.approx([alpha, 2 * alpha, 3 * alpha], rel=1e-4)


def test_refusals():
    posterior = make_posterior()
    for change, words in (
        (dict(step_size=0.0), "step_size must be positive"),
        (dict(step_size=lambda count: -1.0), "step_size must be positive"),
        (dict(l2_clip_norm=-1.0), "l2_clip_norm"),
        (dict(sampling_prob=1.5), "sampling_prob"),
        (dict(temperature=0.0), "temperature"),
        (dict(temperature=np.ones(4)), "temperature must be one number"),
        (dict(step_size=lambda count: np.ones(4)), "step_size must be one number"),
        (dict(dim=0), "dim must be"),
    ):
        with pytest.raises(ValueError, match=words):
            KERNELS["sgld"](posterior, **{"step_size": 0.1, **change})
    for change, words in (
        (dict(friction=1.1), "friction must be at most 1"),
        (dict(friction=0.0), "friction must be positive"),
        (dict(noise_multiplier=-1.0), "not negative"),
    ):
        for name in ("sghmc", "sgnht"):
            with pytest.raises(ValueError, match=words):
                KERNELS[name](posterior, step_size=0.1, **change)
    with pytest.raises(ValueError, match="divide the step size"):
        KERNELS["sghmc"](posterior, step_size=0.05, noise_multiplier=1.01 * UNIT)
    with pytest.raises(ValueError, match="gain"):
        KERNELS["sgnht"](posterior, step_size=0.1, gain=0.0)
    for schedule, words in (
        (1e-12, "from the step 1 on .* more than the 32768 .*: raise step_size"),
        (schedules.power_decay(0.1, 5.0), "num_steps, at most [1-9]"),
    ):
        with pytest.raises(ValueError, match=words):
            KERNELS["sgld"](posterior, step_size=schedule).privacy(2**11)
    never = optax.cosine_decay_schedule(0.1, 10)
    with pytest.raises(ValueError, match="more than zero"):
        KERNELS["sgld"](posterior, step_size=never).privacy(11)
    with pytest.raises(ValueError, match="num_steps"):
        KERNELS["sgld"](posterior, step_size=schedules.power_decay(0.1)).privacy(10**8)
    algorithm = KERNELS["sgld"](posterior, step_size=0.1)
    with pytest.raises(ValueError, match="4 components"):
        state = algorithm.init({"a": np.zeros(3), "b": np.zeros(1)})
        algorithm.transition.num_words(state)
    with pytest.raises(ValueError, match="two draws"):
        excess_temperature(np.zeros((2, 1, 3)), np.ones((2, 1)))


@pytest.mark.thorough
@pytest.mark.parametrize("step_size", [0.02, schedules.power_decay(0.05)])
def test_runs_spend_their_budget(step_size, tmp_path):
    """Steps that differ are charged as they are, and a ledger adds up runs."""
    posterior = make_posterior()
    starts = jax.tree.map(lambda leaf: np.stack([leaf, leaf]), POSITION)

    def go(num_steps, epsilon):
        return dpjax.run(
            functools.partial(KERNELS["sgld"], step_size=step_size),
            posterior,
            num_steps,
            initial_position=starts,
            num_chains=2,
            budget=dpjax.Budget(epsilon, 1e-5),
            ledger=tmp_path / "ledger.json",
            verbose=False,
            unsafe_key=jax.random.key(0),
        )

    run = go(None, 4.0)
    steps = run.statement.num_steps
    assert 0.9 * 4.0 < run.statement.epsilon <= 4.0
    algorithm = KERNELS["sgld"](posterior, step_size=step_size)
    more = [(event, 2 * n) for event, n in algorithm.privacy(steps + 1)]
    assert privacy.epsilon(more, 1e-5) > 4.0
    assert run.positions["a"].shape == (2, steps - steps // 2, 2)
    assert run.infos.gradient["b"].shape == (2, steps - steps // 2, 1)
    assert run.infos.noise_sd.shape == (2, steps - steps // 2)
    with pytest.raises(privacy.BudgetError, match="would spend"):
        go(steps, 4.5)
    assert len(run.statement.events) < 500


@pytest.mark.parametrize("name", ["sghmc", "sgnht"])
def test_positions_keep_their_precision_with_x64_on(name):
    with jax.enable_x64(True):
        algorithm = KERNELS[name](make_posterior(), step_size=0.1)
        position = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), POSITION)
        state = algorithm.init(position)
        moved, _ = take(algorithm, 0, state)
    before, after = (
        [leaf.dtype for leaf in jax.tree.leaves(each)] for each in (state, moved)
    )
    assert before == after and jnp.float32 in after


def test_kernels_in_three_layers():
    posterior = make_posterior()
    algorithm = KERNELS["sgld"](posterior, step_size=0.1)
    parameters = KERNELS["sgld"].keywords
    state = dpjax.sgld.init(POSITION, posterior, 0.1, **parameters)
    kernel = dpjax.sgld.build_kernel()

    @jax.jit
    def step(key, state, posterior):
        return kernel(key, state, posterior, 0.1, **parameters)

    one, _ = step(jax.random.key(0), state, posterior)
    two, _ = take(algorithm, 0, state)
    assert np.array_equal(one.position["a"], two.position["a"])
