"""Configurations of variational inference: what they calibrate, write and refuse."""

import functools
import json
from pathlib import Path

import arviz
import jax
import numpy as np
import pytest

import dpjax
from dpjax import cli, config, privacy
from dpjax.vi.dpvi import DPVIInfo
from dpjax.vi.guides import FullRank, LowRank, MeanField
from tests import jobs

TOML = jobs.JOB.format(
    algorithm="""
name = "dpvi"
guide = { name = "full_rank" }
optimizer = { name = "adam", learning_rate = 0.05 }
"""
)
read = functools.partial(jobs.read, TOML)


def spent(job):
    step = job.algorithm_fn(job.outline).privacy(1)
    events = [(event, count * 2 * 80) for event, count in step]
    return privacy.epsilon(events, 1e-5)


def test_noise_spends_the_budget_on_the_steps_of_all_chains():
    assert 1.999 < spent(read()) <= 2.0
    given = read(algorithm__noise_multiplier=25.0, run__num_steps=None)
    ((event, _),) = given.algorithm_fn(given.outline).privacy(1)
    assert event.noise_multiplier == 25.0


@pytest.mark.parametrize(
    ("table", "guide"),
    [
        ({"name": "mean_field", "init_scale": 0.3}, MeanField(2, 0.3)),
        ({"name": "low_rank", "rank": 1}, LowRank(2, rank=1)),
        ({"name": "full_rank"}, FullRank(2)),
    ],
)
def test_guides(table, guide):
    job = read(algorithm__guide=table, algorithm__noise_multiplier=9.0)
    assert job.algorithm_fn.keywords["guide"] == guide


@pytest.mark.thorough
def test_run_writes_draws_from_the_fit(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(TOML)
    assert cli.main(["run", str(path), "--out", str(tmp_path / "out")]) == 0
    draws = arviz.from_netcdf(tmp_path / "out" / "draws.nc")
    assert draws.posterior["position"].shape == (2, 40, 2)
    assert set(draws.groups()) == {"posterior", "sample_stats"}
    statement = json.loads((tmp_path / "out" / "privacy.json").read_text())
    assert 1.999 < statement["epsilon"] <= 2.0
    assert np.isfinite(draws.posterior["position"]).all()


NOISE_AWARE = jobs.JOB.format(
    algorithm="""
name = "dpvi"
guide = { name = "mean_field" }
optimizer = { name = "noise_scaled_sgd", distance = { location = 0.5, rho = 0.1 } }
aligned = false
preconditioner = { location = 1.0, rho = 20.0 }
"""
)


@pytest.mark.thorough
def test_the_folder_gives_the_noise_aware_posterior(tmp_path, monkeypatch):
    path, out, runs = tmp_path / "job.toml", tmp_path / "out", []

    def run(*args, **kwargs):
        runs.append(dpjax.run(*args, **kwargs))
        return runs[-1]

    path.write_text(NOISE_AWARE)
    monkeypatch.setattr(cli, "run", run)
    monkeypatch.setattr(cli.report, "write", lambda *a, **k: None)
    assert cli.main(["run", str(path), "--out", str(out)]) == 0
    infos = dpjax.load(out).infos
    assert isinstance(infos, DPVIInfo)
    for part, distance in (("location", 0.5), ("rho", 0.1)):
        # 80 steps, four parameters.
        rate = distance / (80 * 4) ** 0.5 / infos.noise_sd[part]
        moved = np.diff(infos.parameters[part], axis=1)
        expected = (rate * infos.gradient[part])[:, :-1]
        np.testing.assert_allclose(moved, expected, rtol=1e-3, atol=1e-6)
    found, expected = (
        dpjax.noise_aware(each, sampling_error_sd=10.0).draws(
            jax.random.key(0), MeanField(2), 100
        )
        for each in (infos, runs[0].infos)
    )
    assert expected.shape == (2, 100, 2)
    np.testing.assert_array_equal(found, expected, strict=True)


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (dict(num_steps=80), "unknown key 'num_steps'"),
        (dict(learning_rate=0.1), "unknown key 'learning_rate'"),
        (dict(distance=-1.0), "distance must be positive"),
        (dict(distance={"location": 1.0}), "like the parameters .* 'rho'"),
        (dict(distance="far"), "distance must be a number"),
    ],
)
def test_bad_steps_raise(optimizer, message):
    optimizer = {"name": "noise_scaled_sgd", **optimizer}
    with pytest.raises(config.ConfigError, match=message):
        jobs.read(NOISE_AWARE, algorithm__optimizer=optimizer)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            dict(algorithm__aligned=None, algorithm__preconditioner=None),
            "aligned=False",
        ),
        (
            dict(algorithm__noise_multiplier=9.0, run__num_steps=None),
            r"noise_scaled_sgd needs \[run\] num_steps",
        ),
    ],
)
def test_steps_need_noise_and_their_number(changes, message):
    with pytest.raises(config.ConfigError, match=message):
        jobs.read(NOISE_AWARE, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(run__num_steps=None), "num_steps to spend"),
        (dict(algorithm__step_size=0.1), "unknown key 'step_size'"),
        (dict(algorithm__l2_clip_norm=None), "lacks the key 'l2_clip_norm'"),
        (dict(algorithm__optimizer=None), "lacks the key 'optimizer'"),
        (dict(algorithm__optimizer={"name": "adam"}), "lacks the key 'learning_rate'"),
        (
            dict(algorithm__optimizer={"name": "lbfgs", "learning_rate": 1.0}),
            "optimizer name must be one of",
        ),
        (dict(algorithm__guide={"name": "flow"}), "guide name must be one of"),
        (dict(algorithm__guide="mean_field"), "guide must be a table"),
        (dict(algorithm__guide={"name": "mean_field", "rank": 2}), "rank"),
        (dict(algorithm__sampling_prob=2.0), "sampling_prob"),
        (dict(adaptation__num_warmup=10), "not for dpvi"),
    ],
)
def test_bad_configurations_raise(changes, message):
    with pytest.raises(config.ConfigError, match=message):
        read(**changes)


def test_shipped_configuration_can_be_read():
    path = Path(__file__).parents[2] / "configs" / "dpvi" / "adult.toml"
    job = config.load(path)
    assert job.algorithm_fn.keywords["guide"] == FullRank(9)
