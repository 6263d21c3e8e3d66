"""The experiments of Li, Chen, Liu and Carin (2019), Connecting SG-MCMC and privacy.

    python -m benchmarks.sgmcmc --quick
    python -m benchmarks.sgmcmc --experiment step_sizes adult
    python -m benchmarks.sgmcmc --experiment mnist --methods published_sgld dp_sgd
    python -m benchmarks.sgmcmc --table

`claims` compares the claims of table 1 with what is sound, for MNIST and SVHN, whose
images are not here; `step_sizes` draws figures 1 and 2, `adult` figure 3, `mnist` makes
the rest of table 1, and `speed` times a step beside jax-privacy's. Settings are in
configs/sgmcmc. Rows that the folder `--out` holds are not run again.
"""

import argparse
import tomllib
from pathlib import Path

from benchmarks.sgmcmc import adult, mnist, speed, step_sizes
from benchmarks.thesis import report

FOLDER = Path(__file__).parents[2] / "configs" / "sgmcmc"
EPOCHS = 1, 10, 100
EXPERIMENTS = ("claims", "step_sizes", "adult", "mnist", "speed")


def settings(name: str) -> dict:
    """The file of that name in configs/sgmcmc."""
    return tomllib.loads((FOLDER / f"{name}.toml").read_text())


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--experiment", nargs="+", choices=EXPERIMENTS, default=EXPERIMENTS
    )
    parser.add_argument("--methods", nargs="+", help="of adult or mnist")
    parser.add_argument("--quick", action="store_true", help="minutes, not hours")
    parser.add_argument("--table", action="store_true", help="print what is finished")
    parser.add_argument("--out", type=Path, default=Path("results/sgmcmc"))
    options = parser.parse_args()
    folder = options.out / "quick" if options.quick else options.out
    if options.table:
        for path in sorted(folder.glob("*.csv")):
            print(f"{path.stem}\n{report.markdown(report.read(path))}\n")
        return
    quick, methods = options.quick, options.methods
    if "claims" in options.experiment:
        for name in ("mnist", "svhn"):
            path = folder / f"claims_{name}.csv"
            if not path.exists():
                report.append(
                    path, mnist.claims(settings(name), EPOCHS[:2] if quick else EPOCHS)
                )
    if "step_sizes" in options.experiment:
        step_sizes.run(settings("step_sizes"), folder, quick)
    if "adult" in options.experiment:
        adult.run(settings("adult_figure"), folder, quick, methods)
    if "mnist" in options.experiment:
        mnist.run(settings("mnist"), folder, quick, methods)
    if "speed" in options.experiment:
        speed.run(settings("mnist"), quick)


if __name__ == "__main__":
    main()
