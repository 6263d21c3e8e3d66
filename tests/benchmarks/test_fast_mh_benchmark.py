"""The experiments of DP-Fast MH: what they run, what it costs, what the audit found."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from benchmarks.fast_mh import odometer, settings, sweep
from benchmarks.thesis import report
from dpjax import bounds, config, privacy, proposals
from dpjax.models.mixture import exact_sample, gaussian_mixture, simulate

pytestmark = pytest.mark.thorough

KNOWN = bounds.GaussianMixture()
RANGE = dpjax.Range(KNOWN, KNOWN.half_range)
CENTRED = functools.partial(
    dpjax.fast_mh, step_size=0.2, clip_bound=RANGE, expected_batch_size=20.0
)
MIXTURE = settings.load("mixture")


def small():
    return gaussian_mixture(simulate(jax.random.key(1), 2_000), tempering=0.05)


@pytest.mark.parametrize("model", ["mixture", "mnist"])
def test_shipped_jobs_keep_their_budget_before_they_run(model):
    job = config.load(settings.FOLDER / f"{model}.toml")
    events = job.algorithm_fn(job.outline).privacy(job.run["num_steps"])
    found = privacy.epsilon(events, job.budget.delta)
    assert 0.8 * job.budget.epsilon < found <= job.budget.epsilon


@pytest.mark.parametrize("model", ["mixture", "mnist"])
def test_every_algorithm_is_a_job_on_the_same_posterior(model):
    entries = settings.load(model)
    first = entries["fast_mh"].job
    assert next(iter(entries)) == "fast_mh" and len(entries) >= 6
    for name, entry in entries.items():
        assert entry.job.outline.num_records == first.outline.num_records
        assert entry.job.outline.tempering == first.outline.tempering
        assert settings.epsilons(model, name)


def test_a_walk_remembers_what_it_proposed():
    starts = jnp.zeros((2, 2))
    key = jax.random.key(0)
    path = odometer.walk(CENTRED, proposals.gaussian, small(), starts, 30, key)
    assert path.proposed.shape == (2, 30, 2)
    moved = np.where(path.is_accepted[..., None], path.proposed, path.positions)
    np.testing.assert_array_equal(moved[:, :-1], path.positions[:, 1:])
    assert 0 < path.is_accepted.mean() < 1
    halves = odometer.half_ranges(RANGE, path)
    longest = KNOWN.half_range * np.linalg.norm(path.proposed - path.positions, axis=-1)
    assert np.all((0 < halves) & (halves <= longest * (1 + 1e-5)))
    lipschitz = odometer.half_ranges(dpjax.Lipschitz(KNOWN.half_range), path)
    np.testing.assert_allclose(lipschitz, longest, rtol=1e-5)


def test_events_add_up_and_read_what_the_kernel_reads():
    posterior = small()
    halves = np.array([0.1] * 300 + [0.4] * 100)
    events = odometer.events(CENTRED, posterior, halves, 4_000)
    assert [count for _, count in events] == [3_000, 1_000]
    tempered = [event.bound for event, _ in events]
    np.testing.assert_allclose(tempered, [0.005, 0.02], rtol=1e-9)
    # lambda + n H, 20 + 2000 H.
    read = odometer.records(events, 2_000)
    assert read == pytest.approx((3 * 30 + 60) / 4)
    lazy = functools.partial(CENTRED, laziness=0.5)
    events = odometer.events(lazy, posterior, halves, 4_000)
    assert odometer.records(events, 2_000) == pytest.approx(read / 2)


def test_the_worst_step_bounds_every_path():
    """A path of steps of constant length costs less than its certificate."""
    posterior = small()
    starts = jnp.tile(jnp.array([[0.5, -0.5]]), (4, 1))
    key = jax.random.key(3)
    path = odometer.walk(CENTRED, proposals.fixed_length, posterior, starts, 250, key)
    halves = odometer.half_ranges(RANGE, path).ravel()
    events = odometer.events(CENTRED, posterior, halves, 1_000)
    went = privacy.epsilon(events, 1e-5, "rdp")
    certified = privacy.epsilon(CENTRED(posterior).privacy(1_000), 1e-5, "rdp")
    assert 0.4 * certified < went < certified


@pytest.mark.parametrize("name", ["lazy", "barker", "penalty"])
def test_plans_spend_the_budget(name):
    entry = MIXTURE[name]
    for epsilon in (0.02, 5.0):
        plan = sweep.plan(entry, epsilon, entry.num_steps)
        events = plan.algorithm_fn(entry.job.outline).privacy(plan.num_steps)
        spent = privacy.epsilon(events, 1e-5, "rdp")
        step_size = plan.algorithm_fn.keywords["step_size"]
        assert plan.num_steps == entry.num_steps
        if epsilon < 1:
            assert 0.99 * epsilon < spent <= epsilon and step_size < 0.2
        else:
            assert spent < epsilon and step_size == 0.2


def test_plans_without_a_step_size_to_shorten():
    entry = MIXTURE["minibatch_barker"]
    plan = sweep.plan(entry, 0.5, 100_000)
    paid = privacy.max_steps(
        entry.algorithm_fn(entry.job.outline).privacy(1),
        epsilon=0.5,
        delta=1e-5,
        method="rdp",
    )
    assert plan.num_steps == paid < 100_000
    published = sweep.plan(MIXTURE["published"], 0.2, 50)
    assert published.algorithm_fn.keywords["epsilon"] == 0.2
    assert sweep.plan(MIXTURE["tuna"], math.inf, 50).num_steps == 50


def test_a_cell_is_scored_and_not_run_again(tmp_path):
    posterior = small()
    score_fn = sweep.scorer("mixture", posterior, None)
    options = sweep.Options(num_chains=2, scale=0.004)
    for name, epsilon in (("fast_mh", 0.05), ("published", 0.5), ("tuna", math.inf)):
        entry = MIXTURE[name]
        entry = dataclasses.replace(
            entry, job=dataclasses.replace(entry.job, outline=posterior)
        )
        rows = sweep.cell(entry, epsilon, options, posterior, score_fn, {})
        report.append(tmp_path / "mixture.csv", rows)
        done = sweep.read(tmp_path, "mixture")
        assert sweep.cell(entry, epsilon, options, posterior, score_fn, done) is None
        assert [row["chain"] for row in done[name, epsilon]] == ["0", "1"]
        row = done[name, epsilon][0]
        assert len(row["curve"]) == 20
        assert row["curve"][-1] == pytest.approx(row["score"], rel=1e-4)
        assert (row["epsilon_spent"] <= 0.05) == (name == "fast_mh")
        assert (row["delta_spent"] > 1e-5) == (name != "fast_mh")
    other = dataclasses.replace(options, seed=1)
    assert sweep.cell(entry, epsilon, other, posterior, score_fn, done) is not None


def test_scores():
    posterior = small()
    constants = dict(tempering=posterior.tempering)
    draws = np.asarray(
        exact_sample(jax.random.key(0), posterior.data, 4_000, **constants)
    )
    curve = sweep.scorer("mixture", posterior, None)(draws)
    assert len(curve) == 20 and curve[0] > 2 * curve[-1] > 0
    features = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]])
    labels = np.array([1, 0, 0])
    score_fn = sweep.scorer("mnist", None, (features, labels))
    for end, right in ((-0.5, 2), (-4.0, 1)):
        chain = np.concatenate([np.full((20, 2), 1.0), np.full((20, 2), end)])
        # Means (1, 1), and in the end (.25, .25) or (-1.5, -1.5).
        assert score_fn(chain)[0] == pytest.approx(2 / 3)
        assert score_fn(chain)[-1] == pytest.approx(right / 3)
