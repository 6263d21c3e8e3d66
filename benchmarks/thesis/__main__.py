"""The experiments of Raisa (2021), Differentially Private Metropolis-Hastings.

python -m benchmarks.thesis --quick
python -m benchmarks.thesis --model easy-2d --epsilon 1 4
"""

import argparse
from pathlib import Path

import numpy as np
from tqdm import tqdm

from benchmarks.thesis import settings, sweep

COLUMNS = ("acceptance", "mmd", "mmd_thesis", "ratio_clip", "gradient_clip")


def run_cells(experiments, options, names, epsilons, folder):
    """Run what is not finished, and write and print it cell by cell."""
    cells = [
        (experiment, name, epsilon)
        for experiment in experiments
        for name in experiment.algorithms
        if not names or name in names
        for epsilon in epsilons or experiment.epsilons
    ]
    print(
        f"{'model':<14}{'algorithm':<10}{'eps':>5}{'steps':>8}"
        + "".join(f"{name:>14}" for name in COLUMNS)
        + f"{'seconds':>9}"
    )
    case = None
    with tqdm(cells, unit="cell") as bar:
        for experiment, name, epsilon in bar:
            bar.set_postfix_str(f"{experiment.model.key} {name} {epsilon:g}")
            if case is None or case.experiment is not experiment:
                case = sweep.problem(experiment, options)
            done = sweep.read(folder, experiment.model.key)
            rows = sweep.cell(case, name, epsilon, done)
            if rows is None:
                continue
            sweep.append(folder, rows)
            numbers = [np.median([row[key] for row in rows]) for key in COLUMNS]
            tqdm.write(
                f"{experiment.model.key:<14}{name:<10}{epsilon:5g}{rows[0]['steps']:8d}"
                + "".join(f"{number:14.3f}" for number in numbers)
                + f"{rows[0]['seconds']:9.1f}"
            )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    files = {path.stem: path for path in settings.FOLDER.glob("*.toml")}
    models = [name for name in settings.THESIS_MODELS if name in files]
    parser.add_argument("--model", nargs="+", choices=models, default=models)
    parser.add_argument("--algorithm", nargs="+", choices=settings.ALGORITHMS)
    parser.add_argument("--epsilon", nargs="+", type=float)
    parser.add_argument("--chains", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data-seed", type=int)
    parser.add_argument("--out", type=Path, default=Path("results/thesis"))
    arguments = parser.parse_args()
    options = sweep.Options(arguments.chains, arguments.seed, arguments.data_seed)
    experiments = [settings.load(files[name]) for name in arguments.model]
    run_cells(
        experiments, options, arguments.algorithm, arguments.epsilon, arguments.out
    )


if __name__ == "__main__":
    main()
