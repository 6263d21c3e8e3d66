"""The thesis's experiments: settings, steps, clip counts, and a sweep that resumes."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from benchmarks.thesis import clipping, entries, published, replay, report, sweep
from benchmarks.thesis.settings import FOLDER, load
from dpjax import privacy, proposals
from dpjax.config import ConfigError
from dpjax.models import THESIS_MODELS

pytestmark = pytest.mark.thorough

EXPERIMENTS = {key: load(FOLDER / f"{key}.toml") for key in THESIS_MODELS}


def outline(model):
    """A posterior with the model's number of records, which is all accounting reads."""
    shape = (model.num_records, *((model.dim,) if model.key != "circle" else ()))
    return model.posterior(np.broadcast_to(0.0, shape))


def entry(key, name, epsilon):
    experiment = EXPERIMENTS[key]
    model, settings = experiment.model, experiment.algorithms[name]
    return entries.build(model, outline(model), name, settings, epsilon)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("tau = 0.1", "lacks the key 'clip_per_distance'"),
        ("tau = 0.1\nstep_size = 1\nclip_per_distance = 2\nbeta = 1", "unknown key"),
        ("tau = -0.1\nstep_size = 1\nclip_per_distance = 2", "tau must be a positive"),
        ("tau = true\nstep_size = 1\nclip_per_distance = 2", "tau must be a positive"),
    ],
)
def test_settings_are_checked(tmp_path, line, message):
    path = tmp_path / "model.toml"
    text = f'model = "easy-2d"\nepsilons = [1.0]\n[algorithms.dpps]\n{line}\n'
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load(path)
    path.write_text(text.replace("easy-2d", "easy-3d"))
    with pytest.raises(ConfigError, match="unknown model"):
        load(path)


@pytest.mark.parametrize(
    ("key", "name", "epsilon", "count"),
    [
        ("easy-2d", "dpps", 4, 702),
        ("tempered-10d", "dppa", 1, 104),
        ("gauss-30d", "hmc", 1, 10),
        ("hard-gauss-2d", "dpps", 6, 1335),
        ("circle", "hmc", 0.5, 108),
    ],
)
def test_steps_are_the_thesis_codes(key, name, epsilon, count):
    assert entry(key, name, epsilon).num_steps == count


@pytest.mark.parametrize("key", ["easy-2d", "hard-gauss-2d"])
def test_ours_spends_the_budget_or_takes_the_largest_step(key):
    experiment = EXPERIMENTS[key]
    settings = experiment.algorithms["ours"]
    for epsilon in (0.25, 6.0):
        found = entry(key, "ours", epsilon)
        assert found.num_steps == settings["num_passes"] / settings["laziness"]
        algorithm = found.algorithm_fn(outline(experiment.model))
        spent = privacy.epsilon(
            algorithm.privacy(found.num_steps), experiment.model.delta, "rdp"
        )
        assert spent <= epsilon
        largest = found.step_size == settings["largest_step_size"]
        assert largest or spent > 0.99 * epsilon
    assert largest and entry(key, "ours", 0.25).step_size < found.step_size


def test_replays_count_the_records_clipped():
    model = dataclasses.replace(THESIS_MODELS["hard-gauss-2d"], num_records=5_000)
    posterior = model.posterior()
    metric = np.linalg.inv(np.asarray(model.fisher_information()(jnp.zeros(2))))
    proposal = proposals.in_metric(proposals.fixed_length, metric)
    positions = jnp.tile(jnp.mean(posterior.data, axis=0)[None], (40, 1))
    for sds, share in ((1.0, 0.3173), (2.0, 0.0455)):
        replay_fn = replay.walk(proposal, 0.5, sds * 0.5 / 5_000**0.5)
        found, gradients = replay.clip_fractions(
            replay_fn, jax.random.key(0), posterior, positions
        )
        # Ratios over the 5,000 records are normal; 6.5 standard errors of one replay.
        error = math.sqrt(share * (1 - share) / 5_000)
        assert abs(found.mean() - share) < 6.5 * error
        assert np.all(np.isnan(gradients))


def test_replays_of_hmc_count_the_gradients_clipped():
    model = dataclasses.replace(THESIS_MODELS["gauss-30d"], num_records=4_000)
    posterior = model.posterior()
    mean = jnp.mean(posterior.data, axis=0)
    residuals = np.asarray(posterior.data) - np.asarray(mean)
    bound = float(np.median(np.linalg.norm(residuals[:, 2:], axis=1)))
    replay_fn = replay.leapfrog(
        1e-5,
        dpjax.Lipschitz(1e-9),
        num_integration_steps=3,
        l2_clip_norm=bound,
        noise_multiplier=2.0,
    )
    ratios, gradients = replay.clip_fractions(
        replay_fn, jax.random.key(0), posterior, jnp.tile(mean[None], (3, 1))
    )
    gradient = residuals * np.array([0.05, 0.4] + [1.0] * 28)
    exact = np.mean(np.linalg.norm(gradient, axis=1) > bound)
    np.testing.assert_allclose(gradients, exact, atol=0.02)
    assert np.all(ratios > 0.99)


def test_a_cell_is_scored_and_not_run_again(tmp_path):
    experiment = EXPERIMENTS["easy-2d"]
    model = dataclasses.replace(experiment.model, num_records=2_000)
    experiment = dataclasses.replace(experiment, model=model)
    case = sweep.problem(experiment, sweep.Options(num_chains=2, most_passes=20))
    for name in ("hmc", "ours"):
        report.append(tmp_path / "easy-2d.csv", sweep.cell(case, name, 6.0, {}))
    done = sweep.read(tmp_path, "easy-2d")
    for (name, epsilon), rows in done.items():
        assert [row["chain"] for row in rows] == ["0", "1"]
        row = rows[0]
        assert row["passes"] <= 20 and row["steps"] <= row["budget_steps"]
        for score in ("acceptance", "mmd", "mmd_thesis", "ratio_clip"):
            assert 0 <= row[score] <= 1.5, (name, score)
        assert np.isfinite(row["gradient_clip"]) == (name == "hmc")
        assert sweep.cell(case, name, epsilon, done) is None
    other = dataclasses.replace(case, options=sweep.Options(2, 0, 1, 20))
    assert sweep.cell(other, "ours", 6.0, done) is not None


def test_distances_of_the_clipping_study():
    jump = jnp.array([0.1, -0.1])
    assert float(clipping.DISTANCES["L2"](jump)) == pytest.approx(0.02**0.5)
    assert float(clipping.DISTANCES["code"](jump)) == pytest.approx(0, abs=1e-9)
    posterior = outline(THESIS_MODELS["easy-2d"])
    proposal = clipping._proposal(posterior, "code")
    words = jax.random.bits(jax.random.key(0), (2,), jnp.uint32)
    move = proposal.propose(words, jnp.zeros(2), (), 1.0)
    assert float(move.distance) == pytest.approx(abs(float(move.position.sum())))


def test_published_numbers():
    assert published.best("gauss-30d", 4.0) == ("dppa", 0.355)
    assert published.best("circle", 0.75) == ("dpps", 0.684)
    assert published.steps("easy-10d", "mdppa", 4.0) == 1347
    assert math.isnan(published.median("mmd_thesis", "easy-10d", "mdppa", 1.0))
    assert published.median("ratio_clip", "easy-2d", "barker", 4.0) == 0.379
