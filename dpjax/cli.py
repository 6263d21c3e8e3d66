"""The commands of ``dpjax``: plan, run, audit, compare, ledger and schema."""

import argparse
import dataclasses
import json
import math
import shlex
import signal
import sys
import time
import warnings
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np
import shtab
from jax.experimental.compilation_cache import compilation_cache

from dpjax import config, privacy, report
from dpjax.datasets.files import user_cache
from dpjax.privacy.shown import rounded_up
from dpjax.records import Schema, template
from dpjax.runner import ledger as ledgers
from dpjax.runner import processes
from dpjax.runner.attack import Attack, attack
from dpjax.runner.files import sync
from dpjax.runner.plan import EPSILONS, Plan, plan
from dpjax.runner.results import Fit, load
from dpjax.runner.run import run
from dpjax.runner.signals import Stopped, deferred, raised
from dpjax.runner.spread import spread
from dpjax.runner.statement import listed

__all__ = [
    "audited",
    "compared",
    "main",
    "planned",
    "predictive",
    "spending",
    "write_plan",
    "write_run",
]

AUDIT_OPTIONS = {
    "trials": "trials on either data set; default: 2048 to 8192",
    "steps": "steps of a trial; default: as many as make the claim an epsilon of 4",
    "seed": "of records and randomness; default 0",
}

JOB = "a TOML file, see configs/"

EPILOG = """\
example: dpjax run configs/quickstart.toml

exit status:
  0        done
  1        refused or failed, with the reason on the standard error; of audit, also:
           the claim does not hold
  2        the command line is wrong
  128 + n  stopped by signal n; dpjax run then says how to go on without another charge

Compiled programs are kept in ~/.cache/dpjax/programs for later commands.
JAX_COMPILATION_CACHE_DIR names another folder; JAX_ENABLE_COMPILATION_CACHE=false keeps
none.
"""

SHOWN_DELTA = 1e-6
"""The delta at which `spending` states epsilon by default."""


def main(arguments=None) -> int:
    """Entry point of the command; returns the exit status, as `EPILOG` lists them.

    `arguments` are those of the command line; None takes them from `sys.argv`.
    """
    options = _parser().parse_args(arguments)
    if arguments is None:
        _keep_programs()
        _shorten_warnings()
    out, started = None, time.time()
    try:
        with raised():
            if options.command == "compare":
                print(compared(options.first, options.second))
                return 0
            if options.command == "ledger":
                print(spending(options.ledgers, options.delta, options.epsilon))
                return 0
            if options.command == "schema":
                if options.unsafe_check is None:
                    print(template(options.records), end="")
                else:
                    print(Schema(options.unsafe_check).unsafe_check(options.records))
                return 0
            if options.command == "run" and not jax.distributed.is_initialized():
                joining = options.processes, options.process_id, options.coordinator
                if joining != (None, None, None):
                    arguments = sys.argv[1:] if arguments is None else arguments
                    processes.begin_again(arguments, *joining)
            job = config.load(options.config)
            if options.command == "plan":
                write_plan(job, options.out, options.epsilons)
            elif options.command == "audit":
                given = {name: getattr(options, name) for name in AUDIT_OPTIONS}
                found = audited(
                    job, **{k: v for k, v in given.items() if v is not None}
                )
                print(found)
                return int(found.is_refuted)
            else:
                stamp = time.strftime("%Y%m%d-%H%M%S")
                out = Path(options.out or f"results/{job.name}-{stamp}")
                if processes.is_first():
                    print(f"a run that is stopped goes on with: {_again(options, out)}")
                write_run(job, out)
    except (ValueError, OSError, RuntimeError, UserWarning) as error:
        print(f"dpjax: {error}", file=sys.stderr)
        return processes.leave(1, error)
    except Stopped as stop:
        (number,) = stop.args
        print(f"dpjax: stopped by {signal.Signals(number).name}", file=sys.stderr)
        if out is not None and processes.is_first():
            print(_left(out, _again(options, out), started), file=sys.stderr)
        return processes.leave(128 + number, stop)
    return 0


def _shorten_warnings() -> None:
    """Have warnings of dpjax printed in the form of its errors.

    They name the line that called into dpjax, which is here the last one of the command
    itself. Those of the user's model keep the line that they name.
    """
    python_form = warnings.formatwarning

    def shown(message, category, filename, lineno, line=None):
        if filename == getattr(sys.modules["__main__"], "__file__", None):
            return f"dpjax: warning: {message}\n"
        return python_form(message, category, filename, lineno, line)

    warnings.formatwarning = shown


def _keep_programs() -> None:
    """Have JAX keep compiled programs in the user's cache, and log nothing of it.

    They are not kept if JAX has a folder for compiled programs already, or if the cache
    cannot be created.
    """
    if jax.__version_info__[:2] == (0, 9):
        # It logs errors, which are none, for all programs that it reads from a folder.
        jax.config.update("jax_logging_level", "CRITICAL")
    if jax.config.values["jax_compilation_cache_dir"] is not None:
        return
    folder = user_cache() / "programs"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    # BlackJAX computes when it is imported, so JAX has looked for its cache before. It
    # looks again only after a reset.
    compilation_cache.reset_cache()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dpjax",
        description="Posterior samples under differential privacy.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--version", action="version", version=f"dpjax {version('dpjax')}"
    )
    shtab.add_argument_to(
        parser, "--completion", "print a script that completes commands in this shell"
    )
    commands = parser.add_subparsers(dest="command", required=True)
    plans = _command(
        commands,
        "plan",
        "say what the job would give for several budgets, without touching data",
        "dpjax plan configs/quickstart.toml --out results/planned",
    )
    _path(plans, "config", JOB)
    _path(plans, "--out", "folder for plan.csv and plan.png", shtab.DIRECTORY)
    plans.add_argument(
        "--epsilons",
        type=float,
        nargs="*",
        help=f"budgets beside that of the job; by default {EPSILONS}, or "
        "none if the steps of a kernel differ",
    )
    run = _command(
        commands,
        "run",
        "draw samples and write them to a folder",
        "dpjax run configs/quickstart.toml --out results/first",
    )
    _path(run, "config", JOB)
    meaning = "folder to write; default results/NAME-TIME"
    _path(run, "--out", meaning, shtab.DIRECTORY)
    run.add_argument(
        "--processes",
        metavar="N",
        help="make one run in N processes, which all get this command and all files; "
        "the records are spread over their devices; 'auto' asks SLURM, Kubernetes or "
        "what else jax.distributed knows",
    )
    run.add_argument(
        "--process-id", type=int, metavar="I", help="which process this is, from 0 on"
    )
    run.add_argument(
        "--coordinator",
        metavar="HOST:PORT",
        help="where process 0 listens, on a network that is trusted: what the "
        "processes exchange is secret and not encrypted",
    )
    audit = _command(
        commands,
        "audit",
        "attack the job's kernel on made-up records, not on its data",
        "dpjax audit configs/quickstart.toml --trials 4096",
    )
    _path(audit, "config", JOB)
    for name, meaning in AUDIT_OPTIONS.items():
        audit.add_argument(f"--{name}", type=int, help=meaning)
    compare = _command(
        commands,
        "compare",
        "show the draws of two runs side by side",
        "dpjax compare results/first results/second",
    )
    for name in ("first", "second"):
        _path(compare, name, "a folder of dpjax run, or its draws.nc")
    schema = _command(
        commands,
        "schema",
        "print a template of a table's public schema, from its columns' names alone",
        "dpjax schema records.csv",
    )
    _path(schema, "records", "a .csv, .csv.gz, .parquet or .npz file")
    _path(
        schema,
        "--unsafe-check",
        "say, for the owner of the records alone, what this schema makes of the cells",
    )
    example = "dpjax ledger show records.csv.ledger.jsonl --epsilon 2"
    ledger = _command(
        commands, "ledger", "say what the runs on a data set spent", example
    )
    show = _command(
        ledger.add_subparsers(dest="action", required=True),
        "show",
        "list the runs of a ledger, what they spent and what is left; of several "
        "ledgers, about the same people, also what all of them spent together",
        example,
    )
    _path(show, "ledgers", "such as records.csv.ledger.jsonl", nargs="+")
    show.add_argument("--epsilon", type=float, help="a budget, to say what is left")
    show.add_argument(
        "--delta", type=float, default=SHOWN_DELTA, help="default %(default)s"
    )
    return parser


def _command(commands, name: str, meaning: str, example: str):
    return commands.add_parser(
        name, help=meaning, description=f"{meaning}.", epilog=f"example: {example}"
    )


def _path(command, name: str, meaning: str, kind=shtab.FILE, **options) -> None:
    """Add an argument that is a path, so that shells complete it."""
    argument: Any = command.add_argument(name, help=meaning, **options)
    argument.complete = kind


def _again(options, out: Path) -> str:
    """The command that continues a stopped run, as a line of text."""
    again = shlex.join(["dpjax", "run", options.config, "--out", str(out)])
    return again + " --processes ..., as before" * (options.processes is not None)


def _left(out: Path, again: str, started: float) -> str:
    """The message on what a run leaves behind that `started` then and was stopped.

    A charged run has a checkpoint until its report has been written. So a run was not
    charged if the folder has neither a checkpoint nor a report of its time.
    """
    if not any(out.glob("checkpoint.npz*")):
        report_file = out / "report.html"
        if report_file.exists() and report_file.stat().st_mtime >= started:
            return f"the run is complete and was charged: its files are in {out}"
        return "the run had not begun: nothing was charged"
    return (
        f"the charge stays in the ledger, and what was sampled is saved in {out}; to "
        f"go on without another charge: {again}"
    )


def planned(job: config.Job, epsilons: Iterable[float] | None = None) -> Plan:
    """The plan of a job for its own budget and for others; no data are read.

    Parameters
    ----------
    job
        The job.
    epsilons
        The epsilons of the other budgets. None leaves them to `dpjax.plan`.
    """
    options: dict[str, Any] = {"budget": job.budget}
    if epsilons is not None:
        options["epsilons"] = epsilons
    if job.plan_fn is not None:
        for name in ("num_draws", "num_chains", "method", "robust"):
            options[name] = job.run[name]
        return job.plan_fn(job.outline, **options)
    assert job.algorithm_fn is not None
    for name in ("num_steps", "initial_position", "num_chains"):
        options[name] = job.run.get(name)
    return plan(job.algorithm_fn, job.outline, **options)


def write_plan(
    job: config.Job, out: str | None, epsilons: Iterable[float] | None = None
) -> None:
    """Print the plan of a job, and write plan.csv and plan.png to the folder `out`.

    If `out` is None, no file is written. `epsilons` are as in `planned`.
    """
    found = planned(job, epsilons)
    print(found)
    if job.file is not None and not job.file.exists():
        print(
            f"there is no file {job.file} yet, from which dpjax run reads the records"
        )
    ledger = job.run["ledger"]
    if ledger is not None and Path(ledger).exists():
        print(
            "all of this is for the first run on these records; what earlier ones "
            f"spent: {ledgers.listing(ledger, job.budget.delta)}"
        )
    if out is not None:
        folder = Path(out)
        folder.mkdir(parents=True, exist_ok=True)
        found.to_dataframe().to_csv(folder / "plan.csv", index=False)
        found.plot().savefig(folder / "plan.png", dpi=150)
        print(f"written: {folder}/plan.csv, plan.png")


def compared(first, second) -> str:
    """The table of `dpjax.compare` for two runs, below what each of them spent.

    `first` and `second` are folders or files, as in `dpjax.load`.

    Raises
    ------
    ValueError, OSError
        As in `dpjax.load` and `dpjax.compare`.
    """
    table = report.compare(load(first), load(second))
    runs = [f"{name}: {spent}" for name, spent in table.attrs.items()]
    return "\n".join([*runs, table.to_string(float_format="{:.4g}".format)])


def spending(paths, delta: float = SHOWN_DELTA, epsilon: float | None = None) -> str:
    """The runs of ledgers and the epsilon that they spent, as text.

    Parameters
    ----------
    paths
        The files of the ledgers. Several of them are about the same people, such as
        those of a data file before and after it was corrected. What they spent together
        is told as well.
    delta
        The delta at which epsilon is stated.
    epsilon
        If it is given, the text says what is left of the budget of this epsilon and
        `delta`, after all that the ledgers spent.

    Raises
    ------
    LedgerError
        As `dpjax.runner.ledger.entries` does.
    ValueError
        If delta or epsilon is out of range, or the ledgers have several neighbouring
        relations.

    Notes
    -----
    Runs of several ledgers add up by the rule of the ledger that was first, because no
    output had been seen when that rule was fixed. A clock may be wrong, so the sum is
    the largest over all ledgers that may have been first.
    """
    read = [(path, *ledgers.entries(path)) for path in paths]
    lines = []
    for path, spent, entries in read:
        num_runs = sum(not entry.is_plan for entry in entries)
        lines.append(f"{path}: {num_runs} runs, neighbours: {entries[0].relation}")
        for entry in entries:
            marks = " (plan)" * entry.is_plan + " (unsafe key)" * entry.unsafe_key
            lines.append(f"{entry.time}{marks}  {listed(entry.events)}")
        if spent.left:
            lines.append(f"left of the plan: {listed(spent.left.items())}")
        found = rounded_up(spent.epsilon(delta))
        lines.append(f"spent so far: epsilon = {found} at delta = {delta:g}")
    totals = []  # The rule and all runs, for each ledger that may have been first.
    for _, first, _ in read:
        assert first.rule is not None
        others = [
            run for _, spent, _ in read if spent is not first for run in spent.runs
        ]
        totals.append((first.rule, first.runs + others))
    if len(paths) > 1:
        relations = sorted({entries[0].relation for _, _, entries in read})
        if len(relations) > 1:
            raise ValueError(
                "costs of ledgers with different neighbouring relations, here "
                f"{' and '.join(relations)}, do not add up: show them one by one"
            )
        found = rounded_up(max(rule.epsilon(runs, delta) for rule, runs in totals))
        lines.append(
            "spent in all of these ledgers, if they are about the same people: "
            f"epsilon = {found} at delta = {delta:g}"
        )
    if len(totals[0][1]) > 1:
        lines.append(
            "if a run was chosen in view of those before it, state the budget that all "
            "of them had in place of what is spent"
        )
    if epsilon is not None:
        budget = privacy.Budget(epsilon, delta)
        noise = max(rule.least_noise(runs, budget) for rule, runs in totals)
        left = f"left of epsilon = {epsilon:g} at delta = {delta:g}: "
        if noise == math.inf:
            left += "nothing"
        else:
            alone = privacy.epsilon([(privacy.GaussianRelease(noise), 1)], delta)
            left += (
                f"about what a fit at epsilon = {alone:.3g} spends if it is alone (the "
                f"budget to give it here is that of all runs, epsilon = {epsilon:g}), "
                f"or one Gaussian release with noise multiplier {noise:.3g}"
            )
        lines.append(left)
    return "\n".join(lines)


def audited(job: config.Job, **options: int) -> Attack:
    """Attack the job's kernel on made-up records (`dpjax.runner.attack`).

    No data are read. The options are ``trials``, ``steps`` and ``seed``, as in
    `AUDIT_OPTIONS`.

    Raises
    ------
    ConfigError
        If the job has no ``[algorithm]``.
    ValueError
        As `attack` does.
    """
    if job.algorithm_fn is None:
        raise config.ConfigError(
            "a job without [algorithm] is a fit, which this command does not attack; "
            "add an [algorithm]"
        )
    names = {"trials": "num_trials", "steps": "num_steps", "seed": "seed"}
    return attack(
        job.algorithm_fn,
        job.outline,
        jax.tree.map(lambda leaf: leaf[0], job.run["initial_position"]),
        job.budget.neighboring_relation,
        **{names[option]: value for option, value in options.items()},
    )


def write_run(job: config.Job, out: Path) -> None:
    """Run the job; write draws.nc, summary.csv, privacy.json and a report to `out`.

    `dpjax.load` reads the folder. A run that was killed, or whose draws could not be
    written, leaves a checkpoint in `out`, from which the next call continues. The
    checkpoint is deleted when all files are written.
    """
    with processes.agreed():
        posterior, names, test = job.load()
    if processes.are_many():
        posterior = spread(posterior)
    ledger = job.run["ledger"] or out / "ledger.jsonl"

    def prepare():
        out.mkdir(parents=True, exist_ok=True)
        ledgers.check_writable(ledger)

    processes.first(prepare)
    options = {
        **job.run,
        "ledger": ledger,
        "budget": job.budget,
        "checkpoint": out / "checkpoint.npz",
    }
    if job.sample_fn is not None:
        result = job.sample_fn(posterior, **options)
    else:
        assert job.algorithm_fn is not None
        result = run(job.algorithm_fn, posterior, **options)
    result = dataclasses.replace(
        result, component_names=names, configuration=job.tables
    )
    prior = posterior.prior_draws()
    processes.first(lambda: _write(result, out, test, prior, job.name, ledger))


def _write(result, out: Path, test, prior, name: str, ledger) -> None:
    """Write the files of a run to `out`, print its summary, and delete its checkpoint.

    Parameters
    ----------
    test
        Held-out features and labels, or None.
    prior
        Draws from the prior for the report, or None.
    name
        Title of the report.
    ledger
        File of the ledger, for the report.
    """
    result.save(out / "draws.nc")
    (out / "privacy.json").write_text(json.dumps(result.statement._asdict(), indent=2))
    for saved in (out / "privacy.json", out):
        sync(saved)
    components, values = result.components()
    table = result.summary_of(components, values)
    table.to_csv(out / "summary.csv")
    print(table.to_string())
    for check in result.checks(table):
        if not check.is_fine:
            print(check)
        elif not isinstance(result, Fit):  # A fit has printed what it knows.
            print(f"{check.name}: {check.value}")
    if test is not None:
        print(predictive(result.positions, *test))
    report.write(result, out, title=name, prior=prior, ledger=ledger)
    with deferred():
        for checkpoint in out.glob("checkpoint.npz*"):
            checkpoint.unlink()
    print(f"written to {out}: draws.nc, summary.csv, privacy.json, report.html")


def predictive(positions, features, labels) -> str:
    """Accuracy and mean log-likelihood of the posterior predictive on a test set.

    The model is a logistic regression. About 500 of the draws are used.

    Parameters
    ----------
    positions
        Draws of the coefficients, ``(chains, draws, d)``.
    features
        ``(n, d)``.
    labels
        In {0, 1}, ``(n,)``.
    """
    coefficients = positions.reshape(-1, positions.shape[-1])
    thin = max(len(coefficients) // 500, 1)
    logits = features @ coefficients[::thin].T
    chance = np.mean(1 / (1 + np.exp(-logits)), axis=1)
    accuracy = np.mean((chance > 0.5) == labels)
    loglikelihood = np.mean(np.log(np.where(labels == 1, chance, 1 - chance)))
    return (
        f"test records (held out, treated as public): accuracy {accuracy:.4f}, mean "
        f"log-likelihood {loglikelihood:.4f}"
    )
