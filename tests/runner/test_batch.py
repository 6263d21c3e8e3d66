"""dpjax.batch: the runs that `dpjax.run` makes, and what a data set spends in all."""

import dataclasses
import functools
import importlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dpjax
from dpjax import privacy, proposals
from dpjax.models import logistic_regression
from dpjax.privacy.shown import rounded_up

module = importlib.import_module("dpjax.runner.batch")

CHAINS, REPETITIONS, N = 3, 2, 40
RNG = np.random.default_rng(0)
DATA = 1.0 + RNG.normal(size=(3, N, 2))
STARTS = np.ones((CHAINS, 2))
KEY = jax.random.key(5)
BARKER = functools.partial(dpjax.barker, step_size=0.1, clip_bound=0.05)


def logprior(theta):
    return -0.5 * jnp.sum(theta**2) / 100


def loglikelihood(theta, record):
    return -0.5 * jnp.sum((record - theta) ** 2)


def target(data, **changes):
    return dpjax.Posterior(logprior, loglikelihood, data, **changes)


POSTERIORS = [target(data) for data in DATA]


def go(settings, posteriors=POSTERIORS, num_steps=25, **changes):
    options = dict(
        initial_position=STARTS,
        num_chains=CHAINS,
        num_repetitions=REPETITIONS,
        verbose=False,
        unsafe_key=KEY,
    )
    return dpjax.batch(settings, posteriors, num_steps, **options | changes)


def budget(epsilon, **changes):
    return dpjax.Budget(epsilon, 1e-5, **changes)


SETTINGS = {
    "barker": {
        "strict": (
            functools.partial(BARKER, clip_bound=0.01, laziness=0.3),
            budget(0.5),
        ),
        "loose": (BARKER, budget(4.0)),
    },
    "sgld": {
        scale: (
            functools.partial(
                dpjax.sgld, step_size=scale, dim=2, l2_clip_norm=1.0, sampling_prob=0.3
            ),
            budget(300.0),
        )
        for scale in (1e-2, 1e-3)
    },
    "dpvi": {
        0: (
            functools.partial(
                dpjax.dpvi,
                optimizer=optax.sgd(1e-3),
                guide=dpjax.guides.MeanField(2),
                l2_clip_norm=1.0,
                noise_multiplier=2.0,
            ),
            budget(400.0),
        )
    },
}


@pytest.mark.parametrize(
    ("kernel", "together"),
    [
        ("barker", 3),
        *(
            pytest.param(*case, marks=pytest.mark.thorough)
            for case in (("barker", 2), ("sgld", 3), ("dpvi", 3))
        ),
    ],
)
def test_a_batch_makes_the_runs_that_run_makes(kernel, together, monkeypatch):
    """To the last bit, one data set after another and several at once."""
    monkeypatch.setattr(module, "_num_together", lambda num_terms: together)
    found = go(SETTINGS[kernel], posteriors=POSTERIORS)
    for name, (algorithm_fn, allowed) in SETTINGS[kernel].items():
        for i, j in ((0, 0), (2, 1)):
            run = dpjax.run(
                algorithm_fn,
                POSTERIORS[i],
                25,
                initial_position=STARTS,
                num_chains=CHAINS,
                budget=allowed,
                verbose=False,
                unsafe_key=jax.random.fold_in(jax.random.fold_in(KEY, i), j),
            )
            every = (
                (run.positions, found.positions[name]),
                (run.acceptance_rate, found.acceptance_rate[name]),
                (run.infos, found.infos[name]),
            )
            for of_one, of_all in every:
                of_all = jax.tree.map(lambda leaf, at=(i, j): leaf[at], of_all)
                jax.tree.map(np.testing.assert_array_equal, of_one, of_all)
            alone = found.run_statements[name]._replace(randomness="")
            assert alone == run.statement._replace(randomness="")


def test_a_budget_says_how_many_steps_each_setting_takes():
    settings = {e: (BARKER, budget(e)) for e in (0.7, 1.4)}
    found = go(settings, num_steps=None)
    for epsilon, statement in found.run_statements.items():
        assert statement.epsilon <= epsilon
        draws = found.positions[epsilon].shape[3]
        assert draws == -(-statement.num_steps // 2)
    assert found.run_statements[0.7].num_steps < found.run_statements[1.4].num_steps


def test_the_runs_on_a_data_set_add_up():
    """All settings and repetitions, and those on its copies."""
    settings = {
        "few": SETTINGS["barker"]["strict"],
        "many": SETTINGS["barker"]["loose"],
    }
    copied = [*POSTERIORS, target(DATA[1].copy())]
    found = go(settings, copied)

    def spent(num_runs):
        events = [
            (event, 25 * CHAINS * num_runs)
            for algorithm_fn, _ in settings.values()
            for event, _ in algorithm_fn(copied[0]).privacy(1)
        ]
        return privacy.epsilon(events, 1e-5)

    epsilons = [each.epsilon for each in found.statements]
    assert epsilons == [spent(n * REPETITIONS) for n in (1, 2, 1, 2)]
    assert [each.num_runs for each in found.statements] == [4, 8, 4, 8]
    assert found.statement.epsilon == spent(4 * REPETITIONS) > max(epsilons)
    text = str(found)
    shown = map(rounded_up, (*epsilons, spent(4 * REPETITIONS)))
    assert all(f"epsilon = {value} at" in text for value in shown)
    table = found.table()
    of_data_sets = table.groupby("data_set")["epsilon"].unique()
    assert [list(each) for each in of_data_sets] == [[value] for value in epsilons]
    alone = {k: each.epsilon for k, each in found.run_statements.items()}
    assert dict(table.groupby("setting")["epsilon_of_run"].first()) == alone


def test_a_run_without_a_budget_makes_the_statements_say_so():
    settings = {"loose": (BARKER, budget(4.0)), "generated": (BARKER, None)}
    found = go(settings)
    assert np.all(found.table()["epsilon"] == np.inf)
    assert "NOT PRIVATE" in str(found)
    assert "unsafe_key" in str(go({"loose": (BARKER, budget(4.0))}))


def test_entropy_differs_between_runs():
    # Equal noise in two settings would cancel in their difference.
    found = go(dict.fromkeys("ab", (BARKER, budget(4.0))), unsafe_key=None)
    assert "unsafe" not in str(found)
    last = np.stack([found.positions[name][..., -1, 0] for name in "ab"])
    assert len(np.unique(last)) == last.size


def test_every_release_of_the_loop_is_charged():
    """Also where `algorithm_fn` makes others in the one trace that is executed."""
    calls, cheated = [], None

    def algorithm_fn(posterior):
        calls.append(posterior)
        cheats = len(calls) == cheated

        def propose(words, position, walk, step_size):
            if cheats:
                other = dpjax.barker(posterior, step_size=1.0, clip_bound=9.0)
                state = other.init(0 * position)
                position = other.step(jax.random.key(0), state)[0].position
            return proposals.Move(position + 1.0, 1.0, walk, walk)

        gaussian = proposals.gaussian._replace(propose=propose)
        return BARKER(posterior, proposal=gaussian)

    settings = {"a": (algorithm_fn, budget(4.0))}
    honest = go(settings, num_steps=1).positions["a"]
    for cheated in range(1, len(calls) + 1):  # noqa: B007, of the closure
        calls.clear()
        try:
            found = go(settings, num_steps=1).positions["a"]
        except ValueError as error:
            assert "charged for 1 releases" in str(error)
        else:
            np.testing.assert_array_equal(found, honest)


def tuned(posterior, step_size, clip_bound):
    return dpjax.barker(posterior, step_size, clip_bound=clip_bound)


@pytest.mark.thorough
def test_settings_that_differ_in_arrays_share_one_compiled_loop(compilations):
    sizes = {
        size: functools.partial(tuned, step_size=jnp.asarray(size), clip_bound=0.05)
        for size in (0.05, 0.1, 0.2)
    }
    found = go({name: (fn, budget(4.0)) for name, fn in sizes.items()}, num_steps=60)
    assert compilations.count("jit(loop)") == 1
    jumps = [np.abs(np.diff(found.positions[s], axis=3)).max() for s in sizes]
    assert jumps == sorted(jumps) and jumps[0] < jumps[2] / 2


def test_the_table_says_what_intervals_cover():
    def exponential(position):
        return {"rate": jnp.exp(position[0]), "both": position}

    posteriors = [dataclasses.replace(p, constrain_fn=exponential) for p in POSTERIORS]
    found = go({"a": (BARKER, None)}, posteriors)
    truths = {"rate": np.array([0.0, 2.7, 2.7]), "both": np.ones(2)}
    table = found.table(truths, probability=0.5)
    assert table.index.names == ["setting", "data_set", "repetition", "component"]
    row = table.loc["a", 2, 1, "both[1]"]
    draws = found.positions["a"]["both"][2, 1, ..., 1].astype(np.float64)
    low, high = np.quantile(draws, [0.25, 0.75])
    wanted = [draws.mean(), draws.std(), low, high, 1.0, low <= 1 <= high]
    np.testing.assert_allclose(row.iloc[:6].astype(float), wanted)
    assert not table.xs("rate", level="component").loc["a", 0]["is_covered"].any()
    for wrong in (np.ones(2), {"rate": np.ones(2), "both": np.ones(2)}):
        with pytest.raises(ValueError, match="truth"):
            found.table(wrong)
    with pytest.raises(ValueError, match="probability"):
        found.table(probability=1.0)


HELD = DATA[-1, :5, 0].copy()


def holds_records(theta, record):
    """Of the last data set."""
    return loglikelihood(theta, record) + 0 * HELD[0]


def tuned_on_records(posterior):
    return dpjax.barker(posterior, jnp.std(posterior.data), clip_bound=0.05)


ONE = {"a": (BARKER, budget(4.0))}
HOLDING = [dpjax.Posterior(logprior, holds_records, data) for data in DATA]
OTHER = budget(1.0, neighboring_relation="REPLACE_SPECIAL")


@pytest.mark.parametrize(
    ("settings", "posteriors", "error", "message"),
    [
        ({}, POSTERIORS, TypeError, "settings must be"),
        ({"a": BARKER}, POSTERIORS, TypeError, "pair"),
        ({"a": (BARKER, 1.0)}, POSTERIORS, TypeError, "Budget"),
        (ONE, POSTERIORS[0], TypeError, "sequence"),
        (ONE, [], ValueError, "at least one"),
        (ONE, [target(DATA[0]), target(DATA[1][1:])], ValueError, "same shapes"),
        (ONE, [*POSTERIORS[:2], HOLDING[2]], ValueError, "same functions"),
        (ONE, HOLDING, ValueError, "'HELD'"),
        (ONE | {"b": (BARKER, OTHER)}, POSTERIORS, ValueError, "same delta"),
        (
            ONE | {"b": (BARKER, budget(0.1))},
            POSTERIORS,
            privacy.BudgetError,
            "pays for",
        ),
        (
            {"a": (tuned_on_records, budget(4.0))},
            POSTERIORS,
            TypeError,
            "may not read the records",
        ),
    ],
)
def test_bad_input_is_refused_before_a_step(
    settings, posteriors, error, message, monkeypatch
):
    monkeypatch.setattr(module.loop, "sample", None)
    with pytest.raises(error, match=message):
        go(settings, posteriors)


def test_arrays_on_disk_are_refused(tmp_path):
    mapped = np.memmap(tmp_path / "records", float, "w+", shape=(N, 2))
    with pytest.raises(ValueError, match="in memory"):
        go(ONE, [target(mapped)])


@pytest.mark.thorough
def test_regressions_batch():
    """Their matrix products are those of a run where data sets take turns."""
    x = RNG.normal(size=(2, 30, 2))
    posteriors = [logistic_regression(each, each[:, 0] > 0) for each in x]
    found = go({"a": (BARKER, None)}, posteriors, num_repetitions=1)
    for i, posterior in enumerate(posteriors):
        key = jax.random.fold_in(jax.random.fold_in(KEY, i), 0)
        run = dpjax.run(
            BARKER, posterior, 25, initial_position=STARTS, num_chains=CHAINS,
            budget=None, verbose=False, unsafe_key=key,
        )  # fmt: skip
        np.testing.assert_array_equal(found.positions["a"][i, 0], run.positions)
