"""The experiments of noise-aware DPVI (AISTATS 2025, arXiv 2410.19371).

    python -m benchmarks.noise_aware --quick
    python -m benchmarks.noise_aware --experiment families --variants published
    python -m benchmarks.noise_aware --table

`families` has the coverage of three exponential families (table 1), `regression` that
of a linear regression (table 2), `adult` the calibration of a logistic regression
(table 3). Settings are in configs/noise_aware. Rows that the folder `--out` holds are
not run again.
"""

import argparse
import tomllib
from pathlib import Path

from tqdm import tqdm

from benchmarks.noise_aware import adult, evaluate, families, linear_regression
from benchmarks.thesis import report

FOLDER = Path(__file__).parents[2] / "configs" / "noise_aware"
EXPERIMENTS = {"families": families, "regression": linear_regression, "adult": adult}


def settings(name: str) -> dict:
    """The file of that name in configs/noise_aware."""
    return tomllib.loads((FOLDER / f"{name}.toml").read_text())


def merged(job: dict, changes: dict) -> dict:
    """The job with changes, tables within tables too."""
    return job | {
        key: merged(job[key], value) if isinstance(value, dict) else value
        for key, value in changes.items()
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--experiment", nargs="+", choices=EXPERIMENTS, default=list(EXPERIMENTS))
    add("--variants", nargs="+", choices=families.VARIANTS, help="of families")
    add("--quick", action="store_true", help="minutes: few draws of short runs")
    add("--table", action="store_true", help="print what is finished, run nothing")
    add("--out", type=Path, default=Path("results/noise_aware"))
    options = parser.parse_args()
    folder = options.out / "quick" if options.quick else options.out
    for name in options.experiment:
        path = folder / f"{name}.csv"
        if not options.table:
            job = settings(EXPERIMENTS[name].__name__.rpartition(".")[2])
            if options.quick:
                job = merged(job, job["quick"])
            job["finished"] = report.read(path)
            if name == "families":
                job["variants"] = options.variants or families.VARIANTS
            for row in tqdm(EXPERIMENTS[name].rows(job), name, unit="row"):
                report.append(path, [row])
        rows = report.read(path)
        if name == "families":
            print(f"{name}\n{report.markdown(evaluate.summary(rows))}\n")
            fifths = report.markdown(evaluate.quintiles(rows))
            print(f"mean z by fifths of the truth\n{fifths}\n")
            if rows:
                evaluate.figure(rows, folder / "families.png")
        else:
            table = adult.summary(rows) if name == "adult" else rows
            if name == "adult" and rows:
                adult.figure(rows, folder / "adult.png")
            print(f"{name}\n{report.markdown(table)}\n")


if __name__ == "__main__":
    main()
