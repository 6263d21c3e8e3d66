"""What a step charges is what the kernel does, and nothing else leaves it."""

import functools
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import NeighboringRelation as Relation

import dpjax
from dpjax import acceptance, privacy, proposals
from dpjax.mcmc import metropolis_hastings
from dpjax.posterior import Posterior
from dpjax.release import accept_bit, clip_bounds, log_ratios
from dpjax.release.exact_sums import GRID

BOTH = [Relation.REPLACE_ONE, Relation.REPLACE_SPECIAL]
STEP = 0.25
KERNELS = {
    "barker": lambda p: dpjax.barker(p, STEP, clip_bound=0.5),
    "lazy barker": lambda p: dpjax.barker(p, STEP, clip_bound=0.5, laziness=0.3),
    "Lipschitz barker": lambda p: dpjax.barker(
        p, STEP, clip_bound=clip_bounds.Lipschitz(3.0)
    ),
    "penalty": lambda p: dpjax.penalty(
        p, STEP, clip_bound=0.5, test_noise_multiplier=0.7
    ),
    "Lipschitz penalty": lambda p: dpjax.penalty(
        p,
        STEP,
        clip_bound=clip_bounds.Lipschitz(3.0),
        test_noise_multiplier=0.7,
        proposal=proposals.fixed_length,
    ),
}


def test_a_move_is_as_long_as_is_charged():
    """Clip bounds grow with the distance. This proposal moves farther than it says."""
    proposal = proposals.gaussian._replace(longest=lambda step_size: step_size)
    words = jax.random.bits(jax.random.key(0), (100, 2), jnp.uint32)
    state = metropolis_hastings.init(jnp.zeros(2), proposal=proposal)
    moves = jax.vmap(
        lambda row: metropolis_hastings.propose(proposal, row, state, STEP)
    )(words)
    assert np.max(np.linalg.norm(moves.position, axis=1)) > 2 * STEP
    assert np.all(moves.distance == STEP)


LAZY = {
    "barker": dict(clip_bound=0.1),
    "fast_mh": dict(clip_bound=0.1, expected_batch_size=4.0),
}


@pytest.mark.parametrize("name", LAZY)
def test_a_lazy_step_may_not_remember_rejections(name, tmp_path):
    """A guided walk turns where a step is rejected, and goes on where it is lazy."""
    kernel = functools.partial(
        getattr(dpjax, name),
        step_size=STEP,
        laziness=0.5,
        proposal=proposals.guided_walk,
        **LAZY[name],
    )
    posterior = Posterior(jnp.sum, lambda x, record: jnp.sum(x) * record, jnp.ones(64))
    ledger = tmp_path / "ledger"
    with pytest.raises(ValueError, match="must look like a rejected one"):
        dpjax.run(
            kernel,
            posterior,
            10,
            initial_position=jnp.zeros((2, 2)),
            num_chains=2,
            budget=dpjax.Budget(100.0, 1e-5),
            ledger=ledger,
            verbose=False,
        )
    assert not ledger.exists()


ONE_LENGTH = {
    "barker": dict(clip_bound=clip_bounds.Lipschitz(3.0)),
    "penalty": dict(clip_bound=clip_bounds.Lipschitz(3.0), test_noise_multiplier=0.7),
    "minibatch_penalty": dict(
        clip_bound=clip_bounds.Lipschitz(3.0), test_noise_multiplier=0.7, batch_size=2
    ),
    "fast_mh": dict(clip_bound=clip_bounds.Lipschitz(3.0), expected_batch_size=2.0),
}


@pytest.mark.parametrize("name", ONE_LENGTH)
def test_a_length_is_asked_once(name):
    """One that grows with every question would be charged as the first."""

    class Growing(proposals.Proposal):
        """A subclass, whose attribute is not the item of the tuple."""

        longest = property(lambda self: lambda step_size: 1e3 * step_size)

    asked = []

    def longest(step_size):
        asked.append(step_size)
        return step_size * len(asked)

    proposal = Growing(*proposals.fixed_length._replace(longest=longest))
    posterior = Posterior(no_prior, slope, jnp.ones((8, 1)))
    settings = ONE_LENGTH[name]
    kernel = getattr(dpjax, name)(posterior, STEP, proposal=proposal, **settings)
    kernel.privacy(1)
    state = kernel.init(jnp.zeros(2))
    jax.eval_shape(kernel.step, jax.random.key(0), state)
    assert asked == [STEP]


def no_prior(position):
    return jnp.zeros((), position.dtype)


def slope(position, record):
    """Log ratios are the record's size times the move along the first axis."""
    return record[0] * position[0]


def quadratic(position, record):
    return -0.125 * jnp.sum((record - position) ** 2)


@pytest.fixture
def seen(monkeypatch):
    """Arguments of every `accept_bit.draw` outside `jit`."""
    calls = []
    draw = accept_bit.draw

    def spy(words, family, log_ratio, noise_sd=0.0):
        calls.append((family, log_ratio, noise_sd))
        return draw(words, family, log_ratio, noise_sd)

    monkeypatch.setattr(accept_bit, "draw", spy)
    return calls


def step_once(algorithm_fn, data, tempering):
    posterior = Posterior(no_prior, slope, data, tempering)
    algorithm = algorithm_fn(posterior)
    return algorithm.step(jax.random.key(1), algorithm.init(jnp.zeros(2)))


@pytest.mark.parametrize("tempering", [1.0, 0.25])
@pytest.mark.parametrize("name", KERNELS)
def test_charges_what_the_kernel_does(seen, name, tempering):
    calm = np.zeros((6, 1))
    loud, reverse = calm.copy(), calm.copy()
    loud[2], reverse[2] = 1e9, -1e9
    data = {"replace": (loud, reverse), "remove": (loud, np.delete(loud, 2, 0))}
    posterior = Posterior(no_prior, slope, jnp.asarray(calm), tempering)
    for relation, pair in zip(BOTH, data.values(), strict=True):
        seen.clear()
        for part in pair:
            step_once(KERNELS[name], jnp.asarray(part), tempering)
        [(event, count)] = KERNELS[name](posterior).privacy(7, relation)
        assert count == 7 and isinstance(event, privacy.AcceptBit)
        families, ratios, sds = zip(*seen, strict=True)
        # The record saturates its clip bound: the charge is attained up to rounding.
        moved = abs(float(ratios[0]) - float(ratios[1]))
        assert moved < event.sensitivity < moved * (1 + 1e-6)
        assert {event.acceptance.family} == set(families)
        for sd in sds:
            assert float(sd) == event.acceptance.noise_sd
        assert event.acceptance.laziness == (0.3 if name == "lazy barker" else 1)


def test_events_follow_the_formulas():
    posterior = Posterior(no_prior, quadratic, jnp.zeros((9, 2)), 0.5)
    for relation, factor in zip(BOTH, (2, 1), strict=True):
        [(event, count)] = KERNELS["penalty"](posterior).privacy(3, relation)
        expected = acceptance.penalty(0.5 * 0.7 * 2 * 0.5)
        assert (event.acceptance, count) == (expected, 3)
        assert event.sensitivity == pytest.approx(0.5 * factor * 0.5, rel=1e-6)
        multiplier = event.gaussian.noise_multiplier
        assert multiplier == pytest.approx(0.7 * 2 / factor, rel=1e-6)
        [(event, _)] = KERNELS["Lipschitz barker"](posterior).privacy(1, relation)
        exact = 0.5 * clip_bounds.sensitivity(3.0 * STEP, relation)
        assert exact < event.sensitivity < exact * (1 + 1e-6)
        growing = dpjax.penalty(
            posterior,
            STEP,
            clip_bound=clip_bounds.Lipschitz(3.0),
            test_noise_multiplier=0.7,
        )
        [(event, count)] = growing.privacy(5, relation)
        assert isinstance(event, privacy.GaussianRelease) and count == 5
        exact = 0.7 * 2 / factor
        assert exact * (1 - 1e-6) < event.noise_multiplier < exact


def test_rounding_of_log_ratios_is_charged():
    """Sums of 2^30 records at random clip bounds and temperings, exactly."""
    rng = np.random.default_rng(0)
    worst = dict.fromkeys(BOTH, 0)
    for _ in range(2000):
        bound, tempering = rng.uniform(0.1, 1.0, 2)
        cells = int(rng.integers(2**45, 2**46))
        for relation, moved in zip(BOTH, (2 * GRID, GRID), strict=True):
            pair = [
                Fraction(tempering * (total * (bound / GRID)))
                for total in (float(cells), float(cells - moved))
            ]
            charged = clip_bounds.log_ratio_sensitivity(tempering * bound, relation)
            exact = clip_bounds.sensitivity(tempering * bound, relation)
            excess = (pair[0] - pair[1] - Fraction(exact)) / Fraction(charged - exact)
            worst[relation] = max(worst[relation], excess)
    assert all(0.1 < excess <= 1 for excess in worst.values())


def test_more_records_than_their_rounding_is_charged_for_are_refused(monkeypatch):
    monkeypatch.setattr(log_ratios, "MAX_RECORDS", 5)
    with pytest.raises(ValueError, match="2\\^30 records"):
        step_once(KERNELS["barker"], jnp.zeros((6, 1)), 1.0)


def test_growing_clip_bounds_keep_the_ratio_of_noise_to_sensitivity(seen):
    def kernel(posterior):
        return dpjax.penalty(
            posterior,
            STEP,
            clip_bound=clip_bounds.Lipschitz(3.0),
            test_noise_multiplier=0.7,
        )

    for size in (1e9, -1e9):
        step_once(kernel, jnp.array([[size], [0.0]]), 0.5)
    (_, up, sd), (_, down, same) = seen
    assert float(sd) == float(same)
    assert float(sd) / abs(float(up) - float(down)) == pytest.approx(0.7, rel=1e-6)


def test_privacy_reads_no_data():
    with pytest.raises(ValueError, match="not private"):
        empty = Posterior(no_prior, quadratic, jnp.full((2, 2), jnp.nan))
        dpjax.penalty(empty, 0.1, clip_bound=1.0, test_noise_multiplier=0.0).privacy(1)
    one, other = (
        Posterior(no_prior, quadratic, jnp.full((size, 2), value))
        for size, value in ((3, 0.0), (500, jnp.nan))
    )
    for kernel in KERNELS.values():
        assert kernel(one).privacy(11) == kernel(other).privacy(11)


@pytest.mark.parametrize("kernel", ["barker", "penalty"])
def test_unbounded_sums_cannot_be_charged(kernel):
    posterior = Posterior(no_prior, quadratic, jnp.zeros((3, 2)))
    settings = {} if kernel == "barker" else {"test_noise_multiplier": 1.0}
    algorithm = getattr(dpjax, kernel)(posterior, 0.1, clip_bound=np.inf, **settings)
    with pytest.raises(ValueError):
        algorithm.privacy(1)


def chain(algorithm_fn, data, loglikelihood=quadratic, num_steps=60):
    @jax.jit
    def run(posterior):
        algorithm = algorithm_fn(posterior)
        return jax.lax.scan(
            lambda state, key: algorithm.step(key, state),
            algorithm.init(jnp.zeros(data.shape[1])),
            jax.random.split(jax.random.key(2), num_steps),
        )

    return run(Posterior(no_prior, loglikelihood, data))


def assert_same(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)
    accepted = np.mean(one[1].is_accepted)
    assert 0 < accepted < 1


@pytest.mark.parametrize("name", KERNELS)
def test_order_of_records_does_not_leave(name, dyadic_data):
    data = dyadic_data(200, 2)
    shuffled = data[np.random.default_rng(3).permutation(200)]
    assert_same(chain(KERNELS[name], data), chain(KERNELS[name], shuffled))


@pytest.mark.parametrize("name", KERNELS)
def test_data_of_equal_clipped_sums_give_equal_chains(name):
    # One record has ratios far above the clip bound; how far must not be seen.
    base = np.tile([[0.5, 0.0]], (6, 1))
    outputs = []
    for size in (1e6, 3e7):
        base[0], base[1] = [size, 0.0], [-2 * size, 1.0]
        data = jnp.asarray(base, jnp.result_type(float))
        outputs.append(chain(KERNELS[name], data, slope))
    assert_same(*outputs)


def test_other_data_give_other_chains(dyadic_data):
    one, other = (chain(KERNELS["barker"], dyadic_data(200, 2, s)) for s in (0, 1))
    assert np.any(one[1].is_accepted != other[1].is_accepted)


@pytest.mark.parametrize("name", ["barker", "penalty"])
def test_memory_gives_the_chain_of_single_steps(name, dyadic_data):
    # The runner carries log-likelihoods along; a plain step evaluates them again.
    def coarse(position, record):
        return quadratic(jnp.round(position * 16) / 16, record)

    data = dyadic_data(50, 16)
    algorithm = KERNELS[name](Posterior(no_prior, coarse, data))
    transition = algorithm.transition
    keys = jax.random.split(jax.random.key(2), 40)
    state = algorithm.init(jnp.zeros(16))
    count = transition.num_words(state)
    rows = jax.vmap(lambda k: jax.random.bits(k, (count + 2,), jnp.uint32))(keys)

    def move(carry, words):
        state, memory = carry
        state, info, memory = transition.move(words[2:], state, memory)
        return (state, memory), info

    first = (state, transition.recall(state))
    assert first[1] is not None
    (final, _), info = jax.lax.scan(move, first, rows)
    assert_same((final, info), chain(KERNELS[name], data, coarse, 40))
