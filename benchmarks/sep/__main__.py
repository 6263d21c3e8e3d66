"""The experiments of Vinaroz and Park (2022), Differentially private stochastic EP.

    python -m benchmarks.sep --quick
    python -m benchmarks.sep --experiment regression --data power --splits 10
    python -m benchmarks.sep --experiment mixture checks
    python -m benchmarks.sep --table

Regression rows that the folder `--out` holds are not run again; the other experiments
take minutes and start afresh. `--tune` holds out training records instead of the test
set. Data sets are found in ``$DPJAX_DATA``.
"""

import argparse
import math
import tomllib
from pathlib import Path

import jax
import numpy as np
from tqdm import tqdm

from benchmarks.sep import mixture, regression, tables
from benchmarks.thesis import report

FOLDER = Path(__file__).parents[2] / "configs" / "sep"
DATA = ("naval", "kin8nm", "power", "wine_red", "protein")
PAPER = {
    "naval": (0.002, 4.686, 0.010, 3.253),
    "kin8nm": (0.078, 1.125, 0.098, 0.928),
    "power": (4.032, -2.814, 4.350, -3.077),
    "wine_red": (0.627, -0.938, 0.734, -1.213),
    "protein": (4.585, -2.941, 4.934, -3.049),
}
"""RMSE and log-likelihood of the paper's DP-SEP and DP-VI (tables 3 and 4)."""
SCORES = ("rmse", "log_likelihood", "posterior_sd", "coverage_95")


def settings(name: str) -> dict:
    """The file of that name in `configs/sep`."""
    return tomllib.loads((FOLDER / f"{name}.toml").read_text())


def run_regression(arguments, folder):
    """Rows of ``regression.csv`` that are missing, split by split."""
    path = folder / ("tuning.csv" if arguments.tune else "regression.csv")
    done = {(r["data"], r["method"], int(r["split"])) for r in report.read(path)}
    common = settings("regression")
    if arguments.quick:
        common["num_steps"] = 20
        for options in common["algorithms"].values():
            for key in set(options) & {"num_epochs", "num_steps"}:
                options[key] = 2
    cells = [
        (data, method, split)
        for split in range(arguments.splits)
        for data in arguments.data
        for method in arguments.method
        if (data, method, split) not in done
    ]
    with tqdm(cells, unit="cell") as bar:
        for data, method, split in bar:
            bar.set_postfix_str(f"{data} {method} {split}")
            own = settings(data)
            options = common["algorithms"][method]
            options = options | own.get("algorithms", {}).get(method, {})
            row = regression.evaluate(
                data, own, method, options, common, split, arguments.tune
            )
            report.append(path, [row])


def summary(folder) -> list[dict]:
    """Mean and standard error over the splits, beside the paper's numbers."""
    rows = report.read(folder / "regression.csv")
    found = []
    for data in DATA:
        for method in regression.METHODS:
            cell = [r for r in rows if (r["data"], r["method"]) == (data, method)]
            if not cell:
                continue
            row = dict(data=data, method=method, splits=len(cell))
            for score in SCORES:
                values = np.array([float(r[score]) for r in cell])
                row[score] = float(values.mean())
                if score in SCORES[:2] and len(values) > 1:
                    row[f"{score}_se"] = float(values.std(ddof=1) / len(values) ** 0.5)
                elif score in SCORES[:2]:
                    row[f"{score}_se"] = math.nan
            place = {"dp_sep": 0, "dp_vi": 2}.get(method)
            row["paper_rmse"], row["paper_ll"] = (
                (math.nan, math.nan)
                if place is None
                else PAPER[data][place : place + 2]
            )
            found.append(row)
    return found


def run_mixture(arguments, folder):
    """All rows of ``mixture.csv``, and their medians over the seeds."""
    options = settings("mixture")
    if arguments.quick:
        options |= dict(num_seeds=1, num_records=200, epsilons=[5.0])
        options["nominal_num_records"] = 200
        options["published"]["num_epochs"] = 2
        options["sep"]["num_epochs"] = 10
        options["dp_sep"]["num_steps"] = 20
    path = folder / "mixture.csv"
    path.unlink(missing_ok=True)
    for row in tqdm(mixture.rows(options), unit="row"):
        report.append(path, [row])


def mixture_summary(folder) -> list[dict]:
    """Medians over the seeds."""
    rows = report.read(folder / "mixture.csv")
    found = []
    for key in dict.fromkeys((r["method"], r["epsilon"], r["clip"]) for r in rows):
        cell = [r for r in rows if (r["method"], r["epsilon"], r["clip"]) == key]
        row = dict(zip(("method", "epsilon", "clip"), key, strict=True))
        for name in ("mean", "covariance", "average", "paper"):
            row[name] = float(np.median([float(r[name]) for r in cell]))
        found.append(row)
    return found


def run_checks(arguments, folder):
    """The one-parameter tables."""
    with jax.enable_x64(True):
        found = {
            "steps": tables.steps(),
            "noise": tables.noise(),
            "private": tables.private(4 if arguments.quick else 200),
        }
    for name, rows in found.items():
        path = folder / f"{name}.csv"
        path.unlink(missing_ok=True)
        report.append(path, rows)
        print(f"{name}\n{report.markdown(rows)}")


EXPERIMENTS = {
    "checks": run_checks,
    "mixture": run_mixture,
    "regression": run_regression,
}


def parse():
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--experiment", nargs="+", choices=EXPERIMENTS, default=list(EXPERIMENTS))
    add("--data", nargs="+", choices=DATA, default=DATA)
    add("--method", nargs="+", choices=regression.METHODS, default=DEFAULT)
    add("--splits", type=int, default=10)
    add("--out", type=Path, default=Path("results/sep"))
    add("--quick", action="store_true", help="minutes: short runs of the small sets")
    add("--tune", action="store_true", help="score on a tenth of the training records")
    add("--table", action="store_true", help="print what is finished, run nothing")
    return parser.parse_args()


DEFAULT = ("dp_sep", "dp_vi", "sep", "vi", "pbp")


def main():
    arguments = parse()
    folder = arguments.out
    if arguments.quick:
        folder = folder / "quick"
        arguments.splits = 1
        arguments.data = [name for name in arguments.data if name == "wine_red"]
    if not arguments.table:
        for name in arguments.experiment:
            EXPERIMENTS[name](arguments, folder)
    for name, rows in (
        ("mixture", mixture_summary(folder)),
        ("regression", summary(folder)),
    ):
        print(f"{name}\n{report.markdown(rows)}")


if __name__ == "__main__":
    main()
