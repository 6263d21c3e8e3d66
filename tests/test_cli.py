"""The commands: what they write, what they refuse, and that account reads no data."""

import json
from pathlib import Path

import arviz
import pytest

from dpjax import cli, config, privacy

ROOT = Path(__file__).parents[1]

TOML = """
[model]
name = "banana"
[data]
source = "generated"
num_records = 2000
dim = 2
seed = 1
[algorithm]
name = "barker"
step_size = 0.05
clip_bound = 0.05
[privacy]
epsilon = 2.0
delta = 1e-5
[run]
num_chains = 2
start = [0.0, 3.0]
"""


@pytest.fixture
def toml(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(TOML)
    return path


def test_run_writes_draws_summary_statement_and_plots(toml, tmp_path, capsys):
    out = tmp_path / "out"
    assert cli.main(["run", str(toml), "--out", str(out)]) == 0
    names = {file.name for file in out.iterdir()}
    assert names == {
        "draws.nc",
        "ledger.jsonl",
        "pairs.png",
        "privacy.json",
        "summary.csv",
        "trace.png",
    }
    statement = json.loads((out / "privacy.json").read_text())
    draws = arviz.from_netcdf(out / "draws.nc")
    assert 0 < statement["epsilon"] <= 2.0 == config.load(toml).budget.epsilon
    assert draws.attrs["epsilon"] == statement["epsilon"]
    assert list(draws.posterior["component"].values) == ["theta[0]", "theta[1]"]
    assert "epsilon" in capsys.readouterr().out
    assert cli.main(["run", str(toml), "--out", str(out)]) == 1
    assert "one more step" in capsys.readouterr().err


def test_account_prints_the_table_without_data(toml, monkeypatch, capsys):
    def touched(*args, **kwargs):
        raise AssertionError("data were read")

    monkeypatch.setattr(config, "simulate_banana", touched)
    monkeypatch.setattr(config.data, "load_adult", touched)
    assert cli.main(["account", str(toml)]) == 0
    printed = capsys.readouterr().out
    step = config.load(toml).algorithm_fn(config.load(toml).outline).privacy(2)
    steps = privacy.max_steps(step, epsilon=2.0, delta=1e-5)
    assert f"{steps}  <- budget" in printed
    assert cli.main(["account", str(ROOT / "configs/adult_logistic.toml")]) == 0


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('name = "banana"', 'name = "banana"\ncurvatur = 3', "unknown key 'curvatur'"),
        ("[run]", "[runs]", "unknown key 'runs'"),
        ("seed = 1", "", "lacks the key 'seed'"),
        ('name = "banana"', 'name = "apple"', "must be one of"),
        ("epsilon = 2.0", "epsilon = 0", "epsilon"),
        ("epsilon = 2.0", "epsilon = nan", "epsilon"),
        ("delta = 1e-5", "delta = 1.0", "delta"),
        ("clip_bound = 0.05", "clip_bound = -0.05", "clip_bound must be positive"),
        ("clip_bound = 0.05", "", "clip_bound or clip_per_distance"),
        ("num_records = 2000", "num_records = 0", "positive integers"),
        ("num_chains = 2", "num_chains = 0", "num_chains"),
        ("step_size = 0.05", "step_size = 0.05\nlaziness = 2.0", "laziness"),
        ("[run]", "[run", "not valid TOML"),
    ],
)
def test_bad_configurations_are_refused(toml, capsys, old, new, message):
    toml.write_text(TOML.replace(old, new, 1))
    assert cli.main(["account", str(toml)]) == 1
    assert message in capsys.readouterr().err


def test_missing_files_are_refused(capsys):
    assert cli.main(["run", "nowhere.toml"]) == 1
    assert "no configuration file nowhere.toml" in capsys.readouterr().err


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.toml")), ids=str)
def test_shipped_configurations_load(path):
    assert config.load(path).run["num_chains"] >= 1
