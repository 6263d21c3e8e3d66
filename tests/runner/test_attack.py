"""Attacks on jobs: honest claims survive them, and kernels that release more do not.

An honest claim is refuted with a chance of 1e-6, as `attack.SIGNIFICANCE` says.
"""

import dataclasses
import re

import pytest

from dpjax import cli, config
from dpjax.release import exact_sums, log_ratios, vector_sums
from dpjax.runner import attack

JOB = """
[model]
name = "correlated_gaussian"
[data]
source = "generated"
num_records = 2000
dim = 2
seed = 1
[algorithm]
{algorithm}
[privacy]
epsilon = 2.0
delta = 1e-5
neighboring_relation = "{relation}"
[run]
num_chains = 2
num_steps = 100
start = [0.0, 0.0]
"""
MOVES = """
name = "{}"
step_size = 0.05
clip_bound = 0.25
"""
SUMS = """
name = "{}"
l2_clip_norm = 1.0
"""
ALGORITHMS = {
    "barker": MOVES,
    "fast_mh": MOVES + "expected_batch_size = 16.0",
    "dpvi": SUMS
    + """
    guide = { name = "mean_field" }
    optimizer = { name = "adam", learning_rate = 0.03 }
    noise_multiplier = 4.0
    """,
    "sgld": SUMS + "sampling_prob = 0.5",
    "tuna": MOVES + "expected_batch_size = 16.0",
}


@pytest.fixture
def audit(tmp_path, monkeypatch, capsys):
    """``(name, *options) -> exit status, [claim, bound], what is printed``."""
    monkeypatch.setattr(attack, "PILOT", 2**13)
    monkeypatch.setattr(attack, "SMALL_PILOT", 2**12)
    load = config.load

    def without_data(path):
        return dataclasses.replace(load(path), load=lambda: pytest.fail("reads data"))

    monkeypatch.setattr(config, "load", without_data)

    def run(name, *options, relation="REPLACE_ONE"):
        path = tmp_path / "job.toml"
        algorithm = ALGORITHMS[name].replace("{}", name)
        path.write_text(JOB.format(algorithm=algorithm, relation=relation))
        status = cli.main(["audit", str(path), *options])
        printed = "".join(capsys.readouterr())
        numbers = re.findall(r"epsilon >?= ([0-9.e+-]+)", printed)
        return status, list(map(float, numbers)), printed

    return run


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["barker", "fast_mh", "sgld"])
def test_an_honest_claim_survives(audit, name):
    status, (claim, bound), printed = audit(name, "--trials", "5000")
    assert status == 0
    assert 0.2 * claim < bound <= claim
    assert "5000 trials" in printed and "seed 0" in printed and "1e-06" in printed


@pytest.mark.thorough
def test_an_honest_claim_about_a_blank_survives(audit):
    options = ("--trials", "5000", "--seed", "1")
    status, (claim, bound), printed = audit(
        "barker", *options, relation="REPLACE_SPECIAL"
    )
    assert status == 0
    assert 0.05 * claim < bound <= claim
    assert "REPLACE_SPECIAL" in printed


def loose_ratios(ratio, clip_bound, cells=log_ratios._cells):
    return 3 * cells(ratio, 3 * clip_bound)


def loose_vectors(vectors, kept, l2_clip_norm, *rest, clip=exact_sums.clip_to_grid):
    return [3 * cells for cells in clip(vectors, kept, 3 * l2_clip_norm, *rest)]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "module", "function", "wrong"),
    [
        ("barker", log_ratios, "_cells", loose_ratios),
        ("dpvi", vector_sums, "clip_to_grid", loose_vectors),
    ],
)
def test_a_kernel_that_clips_at_three_times_its_bound_is_refuted(
    audit, monkeypatch, name, module, function, wrong
):
    monkeypatch.setattr(module, function, wrong)
    # A bound of more than 5 nats would take more trials.
    options = ("--trials", "5000", "--steps", "3")
    status, (claim, bound), printed = audit(name, *options)
    assert bound > claim
    assert status == 1
    assert "REFUTED: the kernel releases more than it is charged for." in printed


def test_what_cannot_be_audited_is_refused(audit):
    status, _, printed = audit("tuna")
    assert status == 1 and "no finite epsilon" in printed
    for option in ("--trials", "--steps"):
        status, _, printed = audit("barker", option, "0")
        assert status == 1 and "must be between 1 and" in printed


def test_a_job_that_chooses_its_kernels_is_refused(audit, tmp_path, capsys):
    assert cli.main(["audit", "configs/numpyro/poisson.toml"]) == 1
    assert "add an [algorithm]" in capsys.readouterr().err
