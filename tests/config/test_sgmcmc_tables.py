"""Configurations of stochastic gradient MCMC: what they calibrate and refuse."""

import functools
from pathlib import Path

import numpy as np
import pytest

from dpjax import config, privacy
from tests import jobs

TOML = jobs.JOB.format(algorithm='name = "sgld"')
read = functools.partial(jobs.read, TOML)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "changes",
    [
        {},
        dict(algorithm__step_size={"schedule": "power_decay", "exponent": 0.5}),
        dict(algorithm__step_size={"schedule": "cosine_decay", "decay_steps": 80}),
        dict(algorithm__name="sghmc", algorithm__friction=0.1),
        dict(algorithm__name="sgnht", algorithm__friction=0.1, algorithm__gain=0.1),
    ],
)
def test_step_sizes_spend_the_budget_on_the_steps_of_all_chains(changes):
    job = read(**changes)
    events = [(e, 2 * n) for e, n in job.algorithm_fn(job.outline).privacy(80)]
    assert 1.99 < privacy.epsilon(events, 1e-5) <= 2.0
    assert job.algorithm_fn.keywords["dim"] == 2


def test_step_sizes_are_those_of_the_nominal_number_of_records():
    few, more = (
        read(algorithm__nominal_num_records=1900, data__num_records=size)
        for size in (2000, 2001)
    )
    first, second = (one.algorithm_fn.keywords["step_size"] for one in (few, more))
    assert first == second


def test_given_step_sizes_are_kept():
    assert read(algorithm__step_size=0.2).algorithm_fn.keywords["step_size"] == 0.2
    table = {"schedule": "power_decay", "exponent": 0.5, "init_value": 0.3}
    found = read(algorithm__step_size=table).algorithm_fn.keywords["step_size"]
    assert np.asarray(found(np.array([0, 3]))) == pytest.approx([0.3, 0.15])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(run__num_steps=None), "num_steps to spend"),
        (dict(algorithm__friction=0.1), "unknown key 'friction'"),
        (dict(algorithm__name="sghmc"), "lacks the key 'friction'"),
        (dict(algorithm__dim=3), "unknown key 'dim'"),
        (dict(algorithm__step_size={"schedule": "linear"}), "schedule must be one of"),
        (dict(algorithm__step_size={"exponent": 1.0}), "schedule must be one of"),
        (
            dict(algorithm__step_size={"schedule": "power_decay", "alpha": 0.1}),
            "unknown key 'alpha'",
        ),
        (dict(algorithm__step_size=-1.0), "step_size must be positive"),
        (dict(adaptation__num_warmup=10), "not for sgld"),
    ],
)
def test_bad_configurations_raise(changes, message):
    with pytest.raises(config.ConfigError, match=message):
        read(**changes)


@pytest.mark.thorough
def test_shipped_configuration_can_be_read():
    path = Path(__file__).parents[2] / "configs" / "sgmcmc" / "adult.toml"
    assert config.load(path).budget.epsilon == 1.0
