"""dpjax.run: exact draws, budgets kept, ledger first, errors before the data."""

import collections
import dataclasses
import functools
import json
from typing import NamedTuple

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax import privacy
from dpjax.runner import checkpoint, loop, program
from dpjax.runner import ledger as ledgers
from dpjax.runner.fit import least_noise
from tests.tiers import tiered


def logprior(theta):
    return -0.5 * jnp.sum(theta**2) / 100


def loglikelihood(theta, record):
    return -0.5 * jnp.sum((record - theta) ** 2)


N, CHAINS = 400, 8
BUDGET = dpjax.Budget(3.0, 1e-5)


@pytest.fixture(scope="module")
def posterior():
    data = 1.0 + jax.random.normal(jax.random.key(0), (N, 2))
    return dpjax.Posterior(logprior, loglikelihood, data)


BARKER = functools.partial(dpjax.barker, step_size=0.1, clip_bound=0.05)
STARTS = np.ones((CHAINS, 2))


def go(posterior, algorithm_fn=BARKER, key=0, **changes):
    options = dict(
        num_steps=40,
        initial_position=STARTS,
        num_chains=CHAINS,
        budget=None,
        verbose=False,
    )
    key = None if key is None else jax.random.key(key)
    return dpjax.run(algorithm_fn, posterior, **{**options, **changes}, unsafe_key=key)


@pytest.mark.thorough
@pytest.mark.parametrize("laziness", [1.0, 0.3])
@pytest.mark.parametrize("wide", [False, True])
def test_draws_follow_the_posterior(posterior, laziness, wide):
    """Mean and variance of the closed form; wide records take the remembering path.

    40 chains of 4000 steps; z-scores from the chains' own spread, two-sided at 8 sds:
    below 1e-7 with 39 degrees of freedom (t), over eight comparisons.
    """
    data = posterior.data
    if wide:
        data = jnp.concatenate([data, jnp.zeros((N, 14))], axis=1)
        likelihood = wide_loglikelihood
    else:
        likelihood = loglikelihood
    target = dpjax.Posterior(logprior, likelihood, data)
    algorithm = functools.partial(
        dpjax.barker, step_size=0.15, clip_bound=float("inf"), laziness=laziness
    )
    mean = np.asarray(posterior.data).sum(0) / (N + 0.01)
    sd = (N + 0.01) ** -0.5
    starts = mean + sd * np.random.default_rng(0).normal(size=(40, 2))
    run = go(
        target,
        algorithm,
        num_steps=4000,
        num_chains=40,
        initial_position=starts,
        warmup_fraction=0.1,
    )
    centred = (run.positions - mean) / sd
    for moment, expected in ((centred, 0.0), (centred**2, 1.0)):
        means = moment.mean(axis=1)
        z = (means.mean(0) - expected) / (means.std(0, ddof=1) / 40**0.5)
        assert np.all(np.abs(z) < 8), z
    assert run.positions.shape == (40, 3600, 2)


def wide_loglikelihood(theta, record):
    return -0.5 * jnp.sum((record[:2] - theta) ** 2)


def test_lazy_runs_repeat_states_and_count_steps(posterior):
    """A lazy run moves at a third of the steps at most, and thins by steps."""
    algorithm = functools.partial(BARKER, laziness=0.3)
    full = go(posterior, algorithm, num_steps=300, warmup_fraction=0.0)
    thin = go(posterior, algorithm, num_steps=300, warmup_fraction=0.0, thinning=7)
    np.testing.assert_array_equal(full.positions[:, 5::7], thin.positions)
    moved = np.any(np.diff(full.positions, axis=1) != 0, axis=2)
    np.testing.assert_array_equal(moved, full.acceptance_rate[:, 1:] == 1)
    assert 0.05 < moved.mean() < 0.3
    gained = full.acceptance_rate[:, 6:].reshape(CHAINS, 42, 7)
    np.testing.assert_allclose(gained.mean(2), thin.acceptance_rate[:, 1:])


def test_a_key_repeats_a_run_and_entropy_does_not(posterior):
    np.testing.assert_array_equal(go(posterior).positions, go(posterior).positions)
    first, second = go(posterior, key=None), go(posterior, key=None)
    assert not np.array_equal(first.positions, second.positions)
    assert "seed" not in first.statement.randomness
    assert "key" in go(posterior).statement.randomness


def test_chains_differ(posterior):
    positions = go(posterior).positions
    assert len(np.unique(positions[:, -1, 0])) == CHAINS


@pytest.mark.thorough
def test_chains_in_groups_give_the_same_draws(posterior, monkeypatch):
    options = dict(num_chains=5, initial_position=STARTS[:5], num_steps=17)
    whole = go(posterior, **options)
    jax.clear_caches()
    monkeypatch.setattr(program, "MAX_CHAINS_AT_ONCE", 2)
    np.testing.assert_array_equal(go(posterior, **options).positions, whole.positions)
    jax.clear_caches()


def test_budget_is_for_all_chains_together(posterior):
    run = go(posterior, num_steps=None, budget=BUDGET, key=None)
    statement = run.statement
    step = BARKER(posterior).privacy(1)
    assert statement.num_steps == privacy.max_steps(
        [(event, CHAINS * count) for event, count in step], epsilon=3.0, delta=1e-5
    )
    events = BARKER(posterior).privacy(statement.num_steps * CHAINS)
    assert statement.epsilon == privacy.epsilon(events, 1e-5) <= 3.0
    one = BARKER(posterior).privacy(statement.num_steps)
    assert statement.epsilon_per_chain == privacy.epsilon(one, 1e-5)
    message = f"would spend .* which pays for {statement.num_steps} steps"
    with pytest.raises(privacy.BudgetError, match=message):
        go(posterior, num_steps=statement.num_steps + 1, budget=BUDGET)
    with pytest.raises(privacy.BudgetError, match=r"more than 500 of 3.* for 0 steps"):
        go(posterior, num_steps=40, budget=dpjax.Budget(3.0, 1e-14))


def test_cost_is_printed_before_the_run(posterior, capsys):
    go(posterior, num_steps=2, budget=BUDGET, verbose=True)
    printed = capsys.readouterr().out
    assert "8 chains x 2 steps" in printed
    assert "for one chain alone" in printed
    assert "replace one record" in printed


def test_ledger_is_written_first_and_shared(posterior, tmp_path, monkeypatch):
    path = tmp_path / "ledger.jsonl"

    def killed(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(loop, "advance", killed)
        with pytest.raises(KeyboardInterrupt):
            go(posterior, num_steps=None, budget=BUDGET, ledger=path)
    spent = ledgers.read(path, "REPLACE_ONE")
    assert spent.rule.epsilon(spent.runs, 1e-5) > 2.5
    with pytest.raises(privacy.BudgetError, match="one more step"):
        go(posterior, num_steps=None, budget=BUDGET, ledger=path)
    message = f"earlier runs .* pays for 0 steps.*ledger show {path}"
    with pytest.raises(privacy.BudgetError, match=message):
        go(posterior, num_steps=1, budget=BUDGET, ledger=path)
    assert ledgers.read(path, "REPLACE_ONE") == spent
    larger = dpjax.Budget(5.0, 1e-5)
    statement = go(posterior, num_steps=None, budget=larger, ledger=path).statement
    assert statement.epsilon < statement.epsilon_of_ledger == 5.0
    assert "together: at most epsilon = 5 at delta" in str(statement)
    spent = ledgers.read(path, "REPLACE_ONE")
    assert len(spent.runs) == 2 and spent.rule.epsilon(spent.runs, 1e-5) <= 5.0


def test_a_later_run_is_charged_as_chosen_in_view_of_the_first(posterior, tmp_path):
    """What fits if both runs are fixed in advance does not fit once one was seen."""
    budget = dpjax.Budget(1.0, 1e-6)
    noise = functools.partial(
        dpjax.sghmc,
        l2_clip_norm=1.0,
        step_size=1e-3,
        dim=2,
        friction=1.0,
        sampling_prob=1.0,
        noise_multiplier=160.0,
    )
    common = dict(
        budget=budget,
        ledger=tmp_path / "ledger",
        num_chains=1,
        initial_position=STARTS[:1],
    )
    go(posterior, noise, num_steps=100, **common)
    rule, (first,), _ = ledgers.read(tmp_path / "ledger", "REPLACE_ONE")
    step = BARKER(posterior).privacy(1)
    planned = privacy.max_steps(step, epsilon=1.0, delta=1e-6, spent=first)
    paid = rule.max_steps(step, [first], budget)
    assert 10 < paid < planned
    with pytest.raises(privacy.BudgetError, match="earlier runs"):
        go(posterior, num_steps=planned, **common)
    assert go(posterior, num_steps=None, **common).statement.num_steps == paid


@pytest.mark.parametrize("killed_at", tiered(range(4), [3]))
def test_a_killed_run_goes_on_as_if_it_had_not_been(
    posterior, tmp_path, monkeypatch, killed_at
):
    """Killed in any chunk, it is charged once and gives the same draws.

    Once it has ended, it gives them again without a step.
    """
    algorithm = functools.partial(BARKER, laziness=0.5)
    files = dict(ledger=tmp_path / "ledger", checkpoint=tmp_path / "checkpoint")
    options = dict(algorithm_fn=algorithm, num_steps=20, budget=BUDGET, thinning=3)
    whole = go(posterior, **options)
    advance, calls = loop.advance, []

    def killed(*arguments):
        if len(calls) == killed_at:
            raise KeyboardInterrupt
        calls.append(1)
        return advance(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "advance", killed)
        with pytest.raises(KeyboardInterrupt):
            go(posterior, **options, **files)
    charged = files["ledger"].read_bytes()
    assert oct(files["checkpoint"].stat().st_mode)[-3:] == "600"
    with pytest.raises(checkpoint.CheckpointError, match="other settings"):
        go(posterior, **{**options, "thinning": 2}, **files)

    @checkpoint.holding
    def beside(checkpoint):
        """Another run of the checkpoint."""
        return go(posterior, **options, **files)

    with pytest.raises(checkpoint.CheckpointError, match="another run is at work"):
        beside(checkpoint=files["checkpoint"])
    resumed = go(posterior, **options, **files)
    assert not list(tmp_path.glob("*.lock"))
    np.testing.assert_array_equal(resumed.positions, whole.positions)
    np.testing.assert_array_equal(resumed.acceptance_rate, whole.acceptance_rate)
    statement = whole.statement._replace(epsilon_of_ledger=BUDGET.epsilon)
    assert resumed.statement == statement
    with monkeypatch.context() as patch:
        patch.setattr(loop, "advance", killed)
        again = go(posterior, **options, **files)
    np.testing.assert_array_equal(again.positions, whole.positions)
    assert files["ledger"].read_bytes() == charged


def test_arviz_carries_the_statement_and_nothing_secret(posterior, tmp_path):
    import arviz

    run = go(posterior, num_steps=16, budget=BUDGET, key=None)
    run.save(tmp_path / "draws.nc")
    stored = arviz.from_netcdf(tmp_path / "draws.nc")
    assert stored.attrs["epsilon"] == run.statement.epsilon
    assert stored.attrs["neighboring_relation"] == "REPLACE_ONE"
    assert set(stored.groups()) == {"posterior", "sample_stats"}
    assert list(stored.sample_stats) == ["acceptance_rate"]
    np.testing.assert_array_equal(stored.posterior["position"], run.positions)
    json.dumps(run.statement._asdict())


def test_positions_may_be_pytrees(posterior):
    def likelihood(position, record):
        return loglikelihood(jnp.stack([position["a"], position["b"]]), record)

    target = dpjax.Posterior(
        lambda position: logprior(position["a"]), likelihood, posterior.data
    )
    starts = {"a": np.ones(CHAINS), "b": np.zeros(CHAINS)}
    run = go(target, initial_position=starts)
    assert set(run.to_arviz().posterior) == {"a", "b"}
    assert run.components()[0] == ["a", "b"]


NOT_READ = jax.ShapeDtypeStruct((N, 2), jnp.result_type(float))
"""Data that raise when read."""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("key, function, posterior", "first argument must .* type .*Key.* unsafe_key="),
        ("None, function, posterior", "first argument must be a function of the poste"),
        ("posterior, function", "first argument must be a function .* type Posterior"),
        ("algorithm, posterior", "not the Algorithm: a run makes it itself"),
        ("nothing, posterior", "must return an Algorithm of dpjax.* got SamplingAlgo"),
        ("function, data", "expected a dpjax.Posterior"),
    ],
)
def test_arguments_in_another_order_are_explained(posterior, arguments, message):
    """Without a word of the records."""
    given = dict(
        key=jax.random.key(0),
        function=BARKER,
        posterior=posterior,
        algorithm=BARKER(posterior),
        nothing=lambda posterior: blackjax.nuts(posterior, 0.1, np.ones(2)),
        data=posterior.data,
    )
    called = [given.get(name) for name in arguments.split(", ")]
    with pytest.raises(TypeError, match=message) as refusal:
        dpjax.run(*called, initial_position=STARTS, num_chains=CHAINS, budget=BUDGET)
    assert len(str(refusal.value)) < 400


def test_a_budget_too_small_for_a_fit_says_what_is_enough(posterior):
    def noisy(posterior, noise_multiplier):
        released = [(privacy.GaussianRelease(noise_multiplier), 1)]
        return BARKER(posterior)._replace(privacy=lambda *_: released)

    with pytest.raises(privacy.BudgetError, match="which takes epsilon = ") as refusal:
        least_noise(noisy, posterior, dpjax.Budget(1e-3, 1e-6))
    enough = float(str(refusal.value).split("takes epsilon = ")[1].split(" or")[0])
    least_noise(noisy, posterior, dpjax.Budget(1.1 * enough, 1e-6))


def test_a_fit_spends_what_earlier_runs_left(posterior, tmp_path):
    """Resumed, it does not count what it was charged itself."""

    def released(noise_multiplier):
        return [(privacy.GaussianRelease(noise_multiplier), 1)]

    def noisy(posterior, noise_multiplier):
        cost = released(noise_multiplier)
        return BARKER(posterior)._replace(privacy=lambda *_: cost)

    path, saved = tmp_path / "ledger.jsonl", tmp_path / "checkpoint.npz"
    alone = least_noise(noisy, posterior, BUDGET, ledger=path)
    rule = privacy.AdaptiveRule.of(released(3.0), BUDGET)
    own = ledgers.reserve(
        path,
        released(3.0),
        "REPLACE_ONE",
        lambda spent: None,
        rule=rule,
        data_fn=lambda: b"data",
        nonce_fn=lambda state: "0a",
    )
    found = least_noise(noisy, posterior, BUDGET, ledger=path)
    epsilon = rule.epsilon([released(3.0), released(found)], BUDGET.delta)
    assert found > alone and 0.995 * BUDGET.epsilon < epsilon <= BUDGET.epsilon
    checkpoint.save(saved, {}, checkpoint.Checkpoint(b"", own, 1, 0, ()))
    options = dict(ledger=path, checkpoint=saved)
    assert least_noise(noisy, posterior, BUDGET, **options) == alone
    with pytest.raises(privacy.BudgetError, match=f"earlier runs in {path} leave"):
        least_noise(noisy, posterior, dpjax.Budget(1.0, 1e-5), ledger=path)


@pytest.mark.parametrize(
    "key", [3, np.int64(3), "3", np.zeros(2, np.uint32), jnp.zeros(2)]
)
def test_only_a_key_is_an_unsafe_key(posterior, key):
    options = dict(initial_position=STARTS, num_chains=CHAINS, budget=None)
    with pytest.raises(TypeError, match=r"such as jax.random.key\(0\), got"):
        dpjax.run(BARKER, posterior, 4, **options, unsafe_key=key)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(num_chains=0), "num_chains"),
        (dict(num_chains=3), "leading axis"),
        (dict(thinning=0), "thinning"),
        (dict(num_steps=0), "num_steps"),
        (dict(num_steps=2.5), "num_steps"),
        (dict(num_steps=None), "without a budget"),
        (dict(warmup_fraction=1.0), "warmup_fraction"),
        (dict(initial_position=np.full((CHAINS, 2), np.nan)), "not finite"),
        (dict(initial_position=np.zeros((CHAINS, 2), int)), "give floats of 32 or 64"),
        (dict(initial_position={}), "holds no arrays"),
        (dict(num_steps=10**6, budget=BUDGET), "would spend"),
        (
            dict(algorithm_fn=functools.partial(BARKER, step_size=float("nan"))),
            "step_size must be positive",
        ),
        (dict(initial_position=np.ones((CHAINS, 3))), "cannot be evaluated"),
        (
            dict(algorithm_fn=functools.partial(BARKER, clip_bound=-1.0)),
            "clip_bound must be positive",
        ),
        (
            dict(algorithm_fn=functools.partial(BARKER, clip_bound=float("nan"))),
            "clip_bound must be positive",
        ),
        (
            dict(
                algorithm_fn=functools.partial(BARKER, clip_bound=jnp.array(0.05)),
                budget=BUDGET,
            ),
            "is an array: pass clip bounds",
        ),
        (
            dict(
                algorithm_fn=functools.partial(BARKER, clip_bound=np.array(0.05)),
                budget=BUDGET,
            ),
            "is an array: pass clip bounds",
        ),
        (
            dict(
                algorithm_fn=functools.partial(BARKER, clip_bound=float("inf")),
                budget=BUDGET,
            ),
            "sensitivity",
        ),
        (
            dict(
                algorithm_fn=functools.partial(
                    dpjax.penalty,
                    step_size=0.1,
                    clip_bound=0.1,
                    test_noise_multiplier=float("nan"),
                )
            ),
            "test_noise_multiplier",
        ),
        (
            dict(
                algorithm_fn=functools.partial(
                    BARKER,
                    clip_bound=dpjax.Lipschitz(1.0),
                    proposal=dpjax.proposals.gaussian,
                )
            ),
            "constant length",
        ),
    ],
)
def test_bad_input_is_refused_before_the_data_are_read(changes, message):
    target = dpjax.Posterior(logprior, loglikelihood, NOT_READ)
    with pytest.raises(ValueError, match=message):
        go(target, **changes)


def test_a_run_without_compilation_is_refused(posterior):
    with jax.disable_jit(), pytest.raises(RuntimeError, match="to debug a model"):
        go(posterior, budget=BUDGET)


def test_nothing_is_computed_of_records_that_a_prior_holds(posterior):
    """That the density is zero would tell of them."""
    held = posterior.data[:9] + 0
    target = dataclasses.replace(
        posterior, logprior_fn=lambda theta: -jnp.inf * jnp.sum(held)
    )
    with pytest.raises(ValueError, match="logprior_fn holds 'held'"):
        go(target, budget=BUDGET)
    with pytest.raises(ValueError, match="density is zero"):
        go(target)


def test_an_undefined_prior_is_never_entered(posterior):
    """Where the prior density is undefined, every proposal is rejected."""
    target = dpjax.Posterior(
        lambda theta: jnp.where(theta[0] > 1.0, jnp.nan, 0.0),
        loglikelihood,
        posterior.data,
    )
    run = go(target, num_steps=200, warmup_fraction=0.0)
    assert np.all(run.positions[..., 0] <= 1.0)
    assert run.acceptance_rate.mean() > 0.05


def test_vector_loglikelihood_is_refused():
    target = dpjax.Posterior(logprior, lambda theta, record: record - theta, NOT_READ)
    with pytest.raises(ValueError, match="scalar"):
        go(target)


def test_plain_logdensity_is_refused():
    with pytest.raises(TypeError, match="Posterior"):
        go(logprior)


@pytest.mark.parametrize("kind", [dpjax.Posterior, dpjax.Budget])
def test_what_a_run_is_charged_for_is_not_overridden(kind):
    with pytest.raises(TypeError, match="no class may be derived"):
        type("Other", (kind,), {})


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Centred:
    """A container that mixes the records when JAX makes it anew."""

    x: jax.Array

    def __post_init__(self):
        if isinstance(self.x, jax.Array):
            self.x = self.x - jnp.mean(self.x, axis=0, keepdims=True)


class Named(NamedTuple):
    x: jax.Array


class Mean(Named):
    def __new__(cls, x):
        return super().__new__(cls, x - jnp.mean(x, axis=0, keepdims=True))


def test_containers_of_records_do_not_compute(posterior):
    data = posterior.data
    for held in (Centred(data), [dict(a=Centred(data))], Mean(data)):
        with pytest.raises(ValueError, match="whose class could compute"):
            dataclasses.replace(posterior, data=held)
    for held in (Named(data), {"a": [(data, None)]}, collections.OrderedDict(a=data)):
        dataclasses.replace(posterior, data=held)


class Shifted(np.ndarray):
    """Records that are mixed when they are converted."""

    def astype(self, *arguments, **options):
        plain = np.asarray(self)
        return (plain - plain.mean(axis=0)).astype(*arguments, **options)


def test_arrays_of_records_do_not_compute(posterior):
    data = np.asarray(posterior.data)
    masked = np.ma.masked_array(data)
    for held in (data.view(Shifted), {"a": (masked,)}):
        with pytest.raises(ValueError, match="whose class could compute"):
            dataclasses.replace(posterior, data=held)
    with pytest.raises(ValueError, match="byte order"):
        dataclasses.replace(posterior, data=data.astype(">f8"))


@pytest.mark.parametrize("kind", [np.asarray, jnp.asarray])
def test_records_that_change_in_place_do_not_reach_a_run(
    posterior, kind, tmp_path, monkeypatch
):
    """As in a notebook, whose next cell is executed while a run goes on."""
    shape, dtype = posterior.data.shape, posterior.data.dtype
    # JAX shares the memory of arrays that begin at a multiple of 64 bytes.
    memory = np.empty(posterior.data.nbytes + 64, np.uint8)
    memory = memory[-memory.ctypes.data % 64 :][: posterior.data.nbytes]
    records = memory.view(dtype).reshape(shape)
    save, saved = checkpoint.save, []

    def drawn(change, name):
        saved.clear()

        def save_and_change(*arguments):
            save(*arguments)
            saved.append(name)
            if len(saved) > 1:  # The first checkpoint is written before any step.
                change()

        monkeypatch.setattr(checkpoint, "save", save_and_change)
        records[:] = posterior.data
        target = dataclasses.replace(posterior, data=kind(records))
        options = dict(num_steps=20, budget=BUDGET, checkpoint=tmp_path / name)
        return go(target, key=3, **options).positions

    def centre():
        np.subtract(records, 100, out=records)

    expected, found = drawn(lambda: None, "calm"), drawn(centre, "changed")
    assert not np.array_equal(records, posterior.data)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("kind", [np.float16, functools.partial(np.array, dtype="f2")])
def test_half_precision_does_not_round_what_is_charged(posterior, kind):
    half, full = kind(0.3), float(np.float16(0.3))

    def penalty(number):
        return dpjax.penalty(
            posterior, 0.1, test_noise_multiplier=number, clip_bound=number
        )

    def sgld(number):
        return dpjax.sgld(posterior, 0.1, dim=2, l2_clip_norm=number, sampling_prob=1.0)

    def tempered(number):
        return BARKER(dataclasses.replace(posterior, tempering=number))

    def lipschitz(number):
        bound, lengths = dpjax.Lipschitz(number), dpjax.proposals.fixed_length
        return BARKER(posterior, clip_bound=bound, proposal=lengths)

    for make in (penalty, sgld, tempered, lipschitz):
        assert make(half).privacy(3) == make(full).privacy(3)


def test_the_first_states_hold_no_records(posterior):
    shape, dtype = posterior.data.shape, posterior.data.dtype
    stored = np.asarray(posterior.data).tobytes()

    def rows():
        return jnp.asarray(np.frombuffer(stored, dtype).reshape(shape))

    def starting(init):
        proposal = dpjax.proposals.gaussian._replace(init=init)
        return lambda posterior: BARKER(posterior, proposal=proposal)

    calls = []

    def once_executed(position):
        calls.append(position)
        is_executed = not isinstance(calls[-1], jax.core.Tracer) or len(calls) > 2
        return rows() if is_executed else jnp.ones(shape)

    for init in (lambda position: rows(), once_executed):
        with pytest.raises(ValueError, match="holds an array of shape"):
            go(posterior, starting(init), budget=BUDGET, key=None)


def test_large_delta_is_warned_about(posterior):
    with pytest.warns(UserWarning, match="1/n") as found:
        go(posterior, num_steps=1, budget=dpjax.Budget(3.0, 0.01))
    assert found[0].filename == __file__
    with pytest.warns(UserWarning, match="1/n"):
        dpjax.plan(
            BARKER,
            posterior,
            initial_position=jnp.zeros((1, 2)),
            num_chains=1,
            budget=dpjax.Budget(3.0, 0.01),
        )


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [(0, 0.1), (-1, 0.1), (np.nan, 0.1), (1, 0), (1, 1), (1, np.nan)],
)
def test_bad_budgets_are_refused(epsilon, delta):
    with pytest.raises(ValueError):
        dpjax.Budget(epsilon, delta)
