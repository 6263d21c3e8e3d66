"""The commands: what they write, what they refuse, and that plan reads no data."""

import errno
import functools
import gc
import json
import os
import re
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

import arviz
import jax
import numpy as np
import pytest

import dpjax
from dpjax import bounds, cli, config, fisher, privacy, proposals
from dpjax.adaptation import adapted
from dpjax.config import data, model
from dpjax.models.banana import FisherInformation
from dpjax.privacy.shown import rounded_up
from dpjax.runner import checkpoint, ledger, loop
from tests.tiers import tiered

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
        "ledger.jsonl.head",
        "privacy.json",
        "report.html",
        "summary.csv",
        *(f"{name}.png" for name in ("budget", "densities", "pairs", "ranks")),
    }
    statement = json.loads((out / "privacy.json").read_text())
    draws = arviz.from_netcdf(out / "draws.nc")
    assert 0 < statement["epsilon"] <= 2.0 == config.load(toml).budget.epsilon
    assert draws.attrs["epsilon"] == statement["epsilon"]
    assert list(draws.posterior["component"].values) == ["theta[0]", "theta[1]"]
    loaded = dpjax.load(out)
    assert loaded.statement == dpjax.load(out / "draws.nc").statement
    assert loaded.configuration["algorithm"]["name"] == "barker"
    page = (out / "report.html").read_text()
    assert "<h1>job</h1>" in page and page.count("<img") == 4
    assert "fewer chains" in page and "fewer chains" in capsys.readouterr().out
    assert cli.main(["compare", str(out), str(out / "draws.nc")]) == 0
    first, second, _, *rows = capsys.readouterr().out.splitlines()
    assert first[5:] == second[5:] and f"epsilon = {statement['epsilon']:.4g}" in first
    assert [row.split()[0] for row in rows] == ["theta[0]", "theta[1]"]
    assert all(row.split()[-2:] == ["0", "1"] for row in rows)
    assert cli.main(["run", str(toml), "--out", str(out)]) == 1
    assert "one more step" in capsys.readouterr().err


def test_draws_that_could_not_be_written_are_not_lost(toml, tmp_path, monkeypatch):
    """A disk that is full when the run ends: the next call writes the paid draws."""
    out = tmp_path / "out"
    toml.write_text(TOML + "num_steps = 20\n")
    monkeypatch.setattr(cli.report, "write", lambda *a, **k: None)
    positions = []

    def run(*arguments, **options):
        result = dpjax.run(*arguments, **options)
        positions.append(result.positions)
        return result

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(cli, "run", run)
    with monkeypatch.context() as patch:
        patch.setattr(arviz.InferenceData, "to_netcdf", full)
        assert cli.main(["run", str(toml), "--out", str(out)]) == 1
    charged = (out / "ledger.jsonl").read_bytes()
    assert cli.main(["run", str(toml), "--out", str(out)]) == 0
    np.testing.assert_array_equal(*positions)
    draws = arviz.from_netcdf(out / "draws.nc").posterior["position"]
    np.testing.assert_array_equal(draws.values, positions[0])
    assert (out / "ledger.jsonl").read_bytes() == charged
    assert not (out / "checkpoint.npz").exists()


STOPPED = TOML.replace("bound = 0.05", "bound = 0.001") + (
    "num_steps = 60\nunsafe_seed = 5\n"
)


def posterior_draws(out):
    return arviz.from_netcdf(out / "draws.nc").posterior["position"].values


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_stopped_run_says_how_it_goes_on(toml, tmp_path, monkeypatch, capsys, name):
    """By a signal that comes while the ledger is written, and one after five chunks."""
    toml.write_text(STOPPED)
    whole, out, number = tmp_path / "whole", tmp_path / "my out", signal.Signals[name]
    monkeypatch.setattr(cli.report, "write", lambda *a, **k: None)
    assert cli.main(["run", str(toml), "--out", str(whole)]) == 0
    handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    save, reserve, saved = checkpoint.save, ledger.reserve, []

    def stopped_reserve(*arguments, **options):
        os.kill(os.getpid(), number)
        return reserve(*arguments, **options)

    def stopped_save(*arguments):
        save(*arguments)
        saved.append(arguments[-1].start)
        if len(saved) == 7:
            os.kill(os.getpid(), number)

    command = ["run", str(toml), "--out", str(out)]
    for stopped in (("reserve", stopped_reserve), ("save", stopped_save)):
        capsys.readouterr()
        with monkeypatch.context() as patch:
            patch.setattr(ledger if stopped[0] == "reserve" else checkpoint, *stopped)
            assert cli.main(command) == 128 + number
        said = capsys.readouterr().err
        assert f"stopped by {name}" in said and "the charge stays in the ledger" in said
        assert f"dpjax run {toml} --out '{out}'" in said
        assert (out / "checkpoint.npz").exists() and not (out / "draws.nc").exists()
        charged = (out / "ledger.jsonl").read_bytes()
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert 0 < saved[-1] < 60
    assert cli.main(command) == 0
    np.testing.assert_array_equal(posterior_draws(out), posterior_draws(whole))
    assert (out / "ledger.jsonl").read_bytes() == charged
    assert len(charged.splitlines()) == 1 and not (out / "checkpoint.npz").exists()


def test_a_signal_while_the_bar_is_made_prints_no_traceback(
    toml, tmp_path, monkeypatch, capsys
):
    """Python would print it of a bar that is half made when it is collected."""
    toml.write_text(STOPPED)

    class Bar(loop.tqdm):
        @classmethod
        def _get_free_pos(cls, instance=None):
            os.kill(os.getpid(), signal.SIGTERM)
            return super()._get_free_pos(instance)

    monkeypatch.setattr(loop, "tqdm", Bar)
    out = tmp_path / "out"
    assert cli.main(["run", str(toml), "--out", str(out)]) == 128 + signal.SIGTERM
    gc.collect()
    assert "the charge stays in the ledger" in capsys.readouterr().err


def test_a_run_stopped_before_its_charge_says_so(toml, tmp_path, monkeypatch, capsys):
    """Its folder is named even if the user named none."""
    monkeypatch.chdir(tmp_path)

    def stopped(*arguments, **options):
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(cli, "write_run", stopped)
    assert cli.main(["run", str(toml)]) == 130
    printed = capsys.readouterr()
    assert f"dpjax run {toml} --out results/job-" in printed.out
    assert "nothing was charged" in printed.err


@pytest.mark.thorough
def test_a_process_that_is_stopped_can_be_gone_on_with(toml, tmp_path):
    text = STOPPED.replace("num_records = 2000", "num_records = 50_000")
    toml.write_text(text.replace("num_steps = 60", "num_steps = 6000"))
    out, whole = tmp_path / "out", tmp_path / "whole"
    go = "import sys; from dpjax.cli import main; sys.exit(main(sys.argv[1:]))"

    def start(folder):
        command = [sys.executable, "-c", go, "run", str(toml), "--out", str(folder)]
        return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT)

    def age():
        path = out / "checkpoint.npz"
        return path.stat().st_mtime_ns if path.exists() else 0

    for number in (signal.SIGINT, signal.SIGTERM):
        before, stopped = age(), start(out)
        while age() == before and stopped.poll() is None:
            time.sleep(0.01)
        stopped.send_signal(number)
        said = stopped.communicate(timeout=300)[1]
        assert stopped.returncode == 128 + number, said
        assert "Traceback" not in said
        assert "the charge stays in the ledger" in said
        assert age() > before
    for folder in (out, whole):
        assert start(folder).communicate(timeout=300) and (folder / "draws.nc").exists()
    np.testing.assert_array_equal(posterior_draws(out), posterior_draws(whole))
    assert len((out / "ledger.jsonl").read_text().splitlines()) == 1


def test_a_ledger_lies_beside_the_configuration(toml, tmp_path, monkeypatch):
    """Wherever the command is called from, it is one ledger."""
    toml.write_text(TOML.replace("delta = 1e-5", 'delta = 1e-5\nledger = "spent"'))
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        assert config.load("../job.toml").run["ledger"].resolve() == tmp_path / "spent"
    assert config.load(toml).run["ledger"] == tmp_path / "spent"


def test_ledger_show_says_what_is_spent_and_left(tmp_path, capsys):
    path, budget = tmp_path / "records.csv.ledger.jsonl", dpjax.Budget(2.0, 1e-5)
    noise = privacy.GaussianRelease(4.0)
    for is_seeded in (False, True):
        ledger.reserve(
            path,
            [(noise, 1)],
            "REPLACE_ONE",
            lambda spent: None,
            rule=privacy.AdaptiveRule.of([(noise, 1)], budget),
            data_fn=lambda: b"data",
            nonce_fn=lambda state: f"{state}0a",
            unsafe_key=is_seeded,
        )
    command = ["ledger", "show", str(path), "--epsilon", "2", "--delta", "1e-5"]
    assert cli.main(command) == 0
    shown, *rows, spent, note, left = capsys.readouterr().out.splitlines()
    assert "2 runs" in shown and "REPLACE_ONE" in shown
    assert [f"1 x {noise}" in row for row in rows] == [True, True]
    assert ["(unsafe key)" in row for row in rows] == [False, True]
    rule = ledger.read(path, "REPLACE_ONE").rule
    epsilon = rule.epsilon(2 * [[(noise, 1)]], 1e-5)
    assert spent == f"spent so far: epsilon = {epsilon:.4g} at delta = 1e-05"
    assert note.startswith("if a run was chosen in view of those before it")
    # That release just fits.
    multiplier = float(left.split("noise multiplier ")[1])
    alone = privacy.epsilon([(privacy.GaussianRelease(multiplier), 1)], 1e-5)
    said = float(left.split("a fit at epsilon = ")[1].split()[0])
    assert said == pytest.approx(alone, rel=0.02)
    for factor, fits in ((1.02, True), (0.98, False)):
        more = [(privacy.GaussianRelease(factor * multiplier), 1)]
        assert (rule.delta([*2 * [[(noise, 1)]], more], 2.0) < 1e-5) == fits
    assert cli.main(["ledger", "show", str(path), "--epsilon", "0.1"]) == 0
    assert capsys.readouterr().out.endswith("delta = 1e-06: nothing\n")
    assert cli.main(["ledger", "show", str(tmp_path / "no")]) == 1
    assert "there is no ledger" in capsys.readouterr().err


def test_ledgers_about_the_same_people_add_up(tmp_path, capsys):
    budget, noise = privacy.Budget(2.0, 1e-5), privacy.GaussianRelease(4.0)
    rules = [privacy.AdaptiveRule.renyi([(noise, 1)], budget)]
    rules += 2 * [privacy.AdaptiveRule(4.0, 0.0)]
    paths = [str(tmp_path / name) for name in ("old", "new", "blanks")]
    relations = ["REPLACE_ONE", "REPLACE_ONE", "REPLACE_SPECIAL"]
    for path, relation, rule in zip(paths, relations, rules, strict=True):
        ledger.reserve(
            path,
            [(noise, 1)],
            relation,
            lambda spent: None,
            rule=rule,
            data_fn=lambda: b"data",
            nonce_fn=lambda state: f"{state}0a",
        )
    show = ["ledger", "show", "--delta", "1e-5", "--epsilon", "9"]
    assert cli.main([*show, paths[1], paths[0]]) == 0
    *_, together, _, left = capsys.readouterr().out.splitlines()
    runs = 2 * [[(noise, 1)]]
    # Either may have been the first.
    first, second = (rule.epsilon(runs, 1e-5) for rule in rules[:2])
    assert first < second
    epsilon = rounded_up(second)
    assert together.endswith(f"same people: epsilon = {epsilon} at delta = 1e-05")
    budget = privacy.Budget(9.0, 1e-5)
    least, less = (rule.least_noise(runs, budget) for rule in rules[:2])
    assert less < least
    assert f"noise multiplier {least:.3g}" in left
    assert cli.main([*show, *paths[1:]]) == 1
    assert "REPLACE_SPECIAL" in capsys.readouterr().err


def test_a_seed_is_called_unsafe(toml, capsys):
    toml.write_text(TOML + "unsafe_seed = 3\n")
    assert "unsafe_key" in config.load(toml).run
    toml.write_text(TOML + "seed = 3\n")
    assert cli.main(["plan", str(toml)]) == 1
    assert "unknown key 'seed' in [run]" in capsys.readouterr().err


@pytest.mark.thorough
def test_plan_prints_the_table_without_data(toml, monkeypatch, capsys):
    def touched(*args, **kwargs):
        raise AssertionError("data were read")

    touchy = model.FAMILIES["banana"]._replace(simulate=touched)
    monkeypatch.setitem(model.FAMILIES, "banana", touchy)
    monkeypatch.setattr(data.adult, "load_adult", touched)
    with pytest.raises(AssertionError, match="data were read"):
        config.load(toml).load()
    out = toml.parent / "planned"
    assert cli.main(["plan", str(toml), "--out", str(out)]) == 0
    assert {file.name for file in out.iterdir()} == {"plan.csv", "plan.png"}
    assert len((out / "plan.csv").read_text().splitlines()) == 7
    printed = capsys.readouterr().out
    step = config.load(toml).algorithm_fn(config.load(toml).outline).privacy(2)
    steps = privacy.max_steps(step, epsilon=2.0, delta=1e-5)
    assert re.search(rf"^ +2 .* {steps} .*<- budget$", printed, re.M)
    assert cli.main(["plan", str(ROOT / "configs/adult_logistic.toml")]) == 0


SMALL = """
[model]
name = "banana"
curvature = 5.0
tempering = 0.5
[data]
source = "generated"
num_records = 2000
dim = 2
seed = 1
[privacy]
epsilon = 8.0
delta = 1e-5
[run]
num_chains = 2
num_steps = 60
start = [0.2, 2.8]
unsafe_seed = 4
"""

FISHER_INFORMATION = FisherInformation(2000, curvature=5.0, tempering=0.5)


def covariance():
    with jax.enable_x64(True):
        return np.linalg.inv(
            np.asarray(FISHER_INFORMATION(jax.numpy.array([0.2, 2.8])))
        )


METRIC = covariance()
"""The inverse of the information at the start."""

JOBS = {
    "penalty": (
        'proposal = "one_component"\nclip_per_distance = 1.5\n'
        "test_noise_multiplier = 60.0",
        functools.partial(
            dpjax.penalty,
            step_size=0.05,
            proposal=proposals.one_component,
            clip_bound=dpjax.Lipschitz(1.5),
            test_noise_multiplier=60.0,
        ),
    ),
    "hmc": (
        "num_integration_steps = 2\nl2_clip_norm = 0.5\nclip_per_distance = 0.5\n"
        "noise_multiplier = 30.0\ntest_noise_multiplier = 20.0",
        functools.partial(
            dpjax.hmc,
            step_size=0.05,
            num_integration_steps=2,
            l2_clip_norm=0.5,
            noise_multiplier=30.0,
            clip_bound=dpjax.Lipschitz(0.5),
            test_noise_multiplier=20.0,
        ),
    ),
    "minibatch_penalty": (
        "batch_size = 200\nclip_bound = 0.05\ntest_noise_multiplier = 5.0",
        functools.partial(
            dpjax.minibatch_penalty,
            step_size=0.05,
            batch_size=200,
            clip_bound=0.05,
            test_noise_multiplier=5.0,
        ),
    ),
    "minibatch_barker": (
        "batch_size = 200",
        functools.partial(dpjax.minibatch_barker, step_size=0.05, batch_size=200),
    ),
    "barker fisher": (
        'metric = "fisher"\nclip_bound = 0.05',
        functools.partial(
            dpjax.barker, step_size=0.05, clip_bound=0.05, inverse_mass_matrix=METRIC
        ),
    ),
    "penalty geodesic": (
        'metric = "geodesic"\nclip_bound = 0.05\ntest_noise_multiplier = 60.0',
        functools.partial(
            dpjax.penalty,
            step_size=0.05,
            clip_bound=0.05,
            test_noise_multiplier=60.0,
            proposal=fisher.geodesic(FISHER_INFORMATION),
        ),
    ),
    "barker adapted": (
        "clip_bound = 0.05\nlaziness = 0.5\n"
        "[adaptation]\nnum_warmup = 30\ntarget_acceptance_rate = 0.3",
        functools.partial(
            adapted,
            sampler=dpjax.barker,
            num_warmup=30,
            initial_step_size=0.05,
            target_acceptance_rate=0.3,
            clip_bound=0.05,
            laziness=0.5,
        ),
    ),
    "minibatch_penalty adapted fisher": (
        'metric = "fisher"\nbatch_size = 200\nclip_bound = 0.05\n'
        "test_noise_multiplier = 5.0\n[adaptation]\nnum_warmup = 30\n"
        "target_acceptance_rate = 0.05",
        functools.partial(
            adapted,
            sampler=dpjax.minibatch_penalty,
            target_acceptance_rate=0.05,
            num_warmup=30,
            is_mass_matrix_diagonal=False,
            initial_inverse_mass_matrix=METRIC,
            initial_step_size=0.05,
            batch_size=200,
            clip_bound=0.05,
            test_noise_multiplier=5.0,
        ),
    ),
}


def written(name, lines):
    return f'{SMALL}[algorithm]\nname = "{name}"\nstep_size = 0.05\n{lines}\n'


@pytest.mark.parametrize("job", tiered(JOBS, ["minibatch_barker"]))
def test_a_job_is_the_run_that_it_describes(job, tmp_path, monkeypatch, capsys):
    """Same seed, same draws, same price as the call that the file stands for."""
    lines, algorithm_fn = JOBS[job]
    path, out = tmp_path / "job.toml", tmp_path / "out"
    path.write_text(written(job.split()[0], lines))
    monkeypatch.setattr(cli.report, "write", lambda *a, **k: None)
    assert cli.main(["plan", str(path), "--epsilons"]) == 0
    printed = capsys.readouterr().out
    loaded = config.load(path)
    posterior, _, _ = loaded.load()
    for event, count in algorithm_fn(posterior).privacy(1):
        assert f"releases {count} x {event}" in printed
    assert cli.main(["run", str(path), "--out", str(out)]) == 0
    direct = dpjax.run(
        algorithm_fn,
        posterior,
        num_steps=60,
        num_chains=2,
        initial_position=np.array(2 * [[0.2, 2.8]]),
        budget=dpjax.Budget(8.0, 1e-5),
        verbose=False,
        unsafe_key=jax.random.key(4),
    )
    draws = arviz.from_netcdf(out / "draws.nc").posterior["position"]
    np.testing.assert_array_equal(draws.values, direct.positions)
    # The seed, which would undo the privacy, stays where it was.
    configuration = dpjax.load(out).configuration
    assert configuration["run"]["num_steps"] == 60
    assert "unsafe_seed" not in json.dumps(configuration)
    assert np.ptp(direct.positions, axis=1).any()
    statement = json.loads((out / "privacy.json").read_text())
    assert statement["epsilon"] == direct.statement.epsilon


@pytest.mark.parametrize(
    ("name", "lines", "message"),
    [
        ("nuts", "", "[algorithm] name must be one of"),
        ("barker", "clip_bound = 0.05\nbatch_size = 9", "unknown key 'batch_size'"),
        ("penalty", "clip_bound = 0.05", "lacks the key 'test_noise_multiplier'"),
        ("hmc", "clip_bound = 0.05", "lacks the key 'num_integration_steps'"),
        ("minibatch_barker", "", "lacks the key 'batch_size'"),
        ("minibatch_barker", "batch_size = 1001", "batch"),
        (
            "minibatch_barker",
            "batch_size = 9\nclip_per_distance = 1.0",
            "unknown key 'clip_per_distance'",
        ),
        ("barker", 'clip_bound = "lipschitz"', "there is no public bound"),
        ("barker", 'clip_bound = "range"', "must be one of lipschitz, got 'range'"),
        ("barker", 'clip_bound = 0.05\nmetric = "flat"', "metric must be one of"),
        (
            "barker",
            'clip_bound = 0.05\nmetric = "fisher"\ninverse_mass_matrix = [1.0, 1.0]',
            "metric or inverse_mass_matrix",
        ),
        ("barker", "clip_bound = 0.05\ninverse_mass_matrix = [1.0]", "2 numbers"),
        (
            "minibatch_barker",
            'batch_size = 9\nmetric = "geodesic"',
            "must be one of barker, penalty",
        ),
        (
            "barker",
            'clip_bound = 0.05\nmetric = "geodesic"\nproposal = "gaussian"',
            "proposal or metric",
        ),
        (
            "barker",
            'clip_per_distance = 1.0\nmetric = "geodesic"',
            "needs a proposal of constant length",
        ),
        (
            "barker",
            'clip_bound = 0.05\nmetric = "geodesic"\n[adaptation]\nnum_warmup = 9',
            "has one already",
        ),
        ("barker", "clip_bound = 0.05\n[adaptation]", "lacks the key 'num_warmup'"),
        (
            "barker",
            "clip_bound = 0.05\n[adaptation]\nnum_warmup = 9\ninitial_step_size = 1.0",
            "unknown key 'initial_step_size'",
        ),
        (
            "barker",
            "clip_per_distance = 1.0\n[adaptation]\nnum_warmup = 9",
            "give clip_bound in nats",
        ),
        (
            "barker",
            'clip_bound = 0.05\nmetric = "fisher"\n[adaptation]\nnum_warmup = 9\n'
            "is_mass_matrix_diagonal = true",
            "must have shape (2,)",
        ),
        (
            "barker",
            "clip_bound = 0.05\n[adaptation]\nnum_warmup = 9\n"
            "target_acceptance_rate = 0.6",
            "out of reach",
        ),
    ],
)
def test_bad_algorithms_are_refused(tmp_path, capsys, name, lines, message):
    path = tmp_path / "job.toml"
    path.write_text(written(name, lines))
    assert cli.main(["plan", str(path)]) == 1
    assert message in capsys.readouterr().err


MIXTURE = """
[model]
name = "gaussian_mixture"
half_width = 1.0
[data]
source = "generated"
num_records = 500
seed = 1
[algorithm]
name = "barker"
step_size = 0.1
clip_bound = "lipschitz"
[privacy]
epsilon = 20.0
delta = 1e-5
[run]
num_chains = 1
start = 0.5
num_steps = 5
"""


def test_public_bounds_are_those_of_the_model(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(MIXTURE)
    job = config.load(path)
    known = bounds.GaussianMixture(half_width=1.0)
    assert job.algorithm_fn.keywords["clip_bound"] == dpjax.Lipschitz(known.lipschitz)
    assert job.run["initial_position"].tolist() == [[0.5, 0.5]]
    posterior, names, _ = job.load()
    assert posterior.num_records == job.outline.num_records and len(names) == 2
    digits = MIXTURE.replace("gaussian_mixture", "logistic_regression")
    digits = digits.replace("half_width", "radius").replace("generated", "mnist")
    digits = digits.replace("num_records = 500\nseed = 1", "digits = [7, 9]")
    path.write_text(digits)
    job = config.load(path)
    assert job.algorithm_fn.keywords["clip_bound"] == dpjax.Lipschitz(1.0)
    assert job.outline.data[0].shape == (12_214, 50)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("step_size", "inverse_mass_matrix = [1.0, 1.0]\nstep_size", "not in a metric"),
        ("0.1", '0.1\nmetric = "fisher"', "not in a metric"),
        ("num_records = 500", "num_records = 500\ndim = 2", "unknown key 'dim'"),
    ],
)
def test_public_bounds_are_refused_where_they_do_not_hold(
    tmp_path, capsys, old, new, message
):
    path = tmp_path / "job.toml"
    path.write_text(MIXTURE.replace(old, new, 1))
    assert cli.main(["plan", str(path)]) == 1
    assert message in capsys.readouterr().err


def test_the_information_of_logistic_regression_is_refused(tmp_path, capsys):
    path = tmp_path / "job.toml"
    text = (ROOT / "configs/adult_logistic.toml").read_text()
    path.write_text(text.replace("laziness", 'metric = "fisher"\nlaziness'))
    assert cli.main(["plan", str(path)]) == 1
    assert "no public law is known" in capsys.readouterr().err


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
        (
            "num_records = 2000",
            "num_records = 0",
            "num_records must be a whole number",
        ),
        ("num_chains = 2", "num_chains = 0", "num_chains"),
        ("[0.0, 3.0]", "[0.0]", "start must be a list of 2 numbers"),
        ("step_size = 0.05", "step_size = 0.05\nlaziness = 2.0", "laziness"),
        ("[run]", "[run", "not valid TOML"),
    ],
)
def test_bad_configurations_are_refused(toml, capsys, old, new, message):
    toml.write_text(TOML.replace(old, new, 1))
    assert cli.main(["plan", str(toml)]) == 1
    assert message in capsys.readouterr().err


def test_missing_files_are_refused(capsys):
    assert cli.main(["run", "nowhere.toml"]) == 1
    assert "no configuration file nowhere.toml" in capsys.readouterr().err


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.toml")), ids=str)
def test_shipped_configurations_load(path):
    assert config.load(path).run["num_chains"] >= 1


@pytest.mark.parametrize(
    "command", ["", "run", "plan", "schema", "audit", "compare", "ledger show"]
)
def test_help_shows_an_example_that_the_command_takes(command, monkeypatch, capsys):
    """Also where it is called as a module."""
    monkeypatch.setattr(sys, "argv", ["python", *command.split(), "--help"])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_module("dpjax", run_name="__main__")
    assert stopped.value.code == 0
    lines = re.split("\n\n|$", capsys.readouterr().out.split("example: dpjax ")[1])
    words = " ".join(lines[0].split())
    assert words.startswith(command) and cli._parser().parse_args(words.split())


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_commands_are_completed_in_the_shell(shell, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["--completion", shell])
    assert stopped.value.code == 0
    script = capsys.readouterr().out
    for word in ("plan", "compare", "ledger", "epsilons", "trials"):
        assert word in script


def test_bash_completes_a_command_and_a_file(tmp_path, capsys):
    """As when TAB is pressed after ``dpjax pl`` and ``dpjax run j``."""
    (tmp_path / "job.toml").touch()
    with pytest.raises(SystemExit):
        cli.main(["--completion", "bash"])
    script = capsys.readouterr().out
    (function,) = re.findall(r"^complete .*-F (\S+) dpjax$", script, re.M)
    for words in ("dpjax pl", "dpjax run j"):
        script += f"""
COMP_WORDS=({words}); COMP_CWORD={len(words.split()) - 1}; {function}
echo "${{COMPREPLY[@]}}"
"""
    found = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert found.stdout.split() == ["plan", "job.toml"]


def test_the_version_is_that_of_the_package(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"dpjax {dpjax.__version__}\n"


@pytest.mark.thorough
@pytest.mark.parametrize("is_kept", [True, False])
def test_programs_are_kept_unless_the_user_wants_none(tmp_path, is_kept):
    job, folder = tmp_path / "job.toml", tmp_path / "dpjax" / "programs"
    job.write_text(TOML)
    drop = "JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"
    env = {name: value for name, value in os.environ.items() if name not in drop}
    env |= {"XDG_CACHE_HOME": str(tmp_path), drop[1]: "0"}
    env["JAX_ENABLE_COMPILATION_CACHE"] = str(is_kept).lower()
    command = [sys.executable, "-m", "dpjax", "plan", str(job)]
    subprocess.run(command, env=env, cwd=ROOT, check=True, capture_output=True)
    assert bool(list(folder.iterdir())) == is_kept
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.thorough
def test_warnings_name_no_line_of_the_command(toml, tmp_path):
    toml.write_text(TOML.replace("delta = 1e-5", "delta = 1e-3"))
    command = [sys.executable, "-m", "dpjax", "run", str(toml), "--out", str(tmp_path)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert re.search("^dpjax: warning: delta = 0.001 is not", found.stderr, re.M)
    assert "UserWarning" not in found.stderr
    strict = os.environ | {"PYTHONWARNINGS": "error:delta ="}
    found = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env=strict
    )
    assert found.returncode == 1
    assert re.search("^dpjax: delta = 0.001 is not", found.stderr, re.M), found.stderr
    assert "Traceback" not in found.stderr


def test_a_stopped_run_says_whether_it_was_charged(tmp_path):
    """A report of an earlier run in the folder says nothing of this one."""
    for name, started, said in (
        (None, 0.0, "nothing was charged"),
        ("report.html", 0.0, "is complete and was charged"),
        ("report.html", time.time() + 60, "nothing was charged"),
        ("checkpoint.npz", 0.0, "the charge stays in the ledger"),
    ):
        if name is not None:
            (tmp_path / name).touch()
        assert said in cli._left(tmp_path, "dpjax run job.toml", started)
