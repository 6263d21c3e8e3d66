"""Configurations of variational inference: what they calibrate, write and refuse."""

import functools
import json
from pathlib import Path

import arviz
import numpy as np
import pytest

from dpjax import cli, config, privacy
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


def test_run_writes_draws_from_the_fit(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(TOML)
    assert cli.main(["run", str(path), "--out", str(tmp_path / "out")]) == 0
    draws = arviz.from_netcdf(tmp_path / "out" / "draws.nc")
    assert draws.posterior["position"].shape == (2, 40, 2)
    assert set(draws.groups()) == {"posterior"}
    statement = json.loads((tmp_path / "out" / "privacy.json").read_text())
    assert 1.999 < statement["epsilon"] <= 2.0
    assert np.isfinite(draws.posterior["position"]).all()


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
