"""The experiments of Raisa (2021), Differentially Private Metropolis-Hastings.

    python -m benchmarks.thesis --quick
    python -m benchmarks.thesis --model easy-2d --epsilon 1 4
    python -m benchmarks.thesis --figure 6.3
    python -m benchmarks.thesis --table
    python -m benchmarks.thesis --headline

Without arguments all cells (model, algorithm, epsilon) are run, which takes hours.
Those that the folder `--out` holds, of the same settings, are not run again. `--figure`
runs the cells that the figure lacks, or none with `--read`. `--headline` draws the
figure of the README from the table in docs/results/thesis.md.
"""

import argparse
import dataclasses
from pathlib import Path

import numpy as np
from tqdm import tqdm

from benchmarks.thesis import (
    clipping,
    counts,
    figures,
    headline,
    report,
    settings,
    sweep,
    table,
)

COLUMNS = ("acceptance", "mmd", "mmd_thesis", "ratio_clip", "gradient_clip")
QUICK = dict(epsilons=(1.0, 4.0), num_chains=6, most_passes=100)


def run_cells(experiments, options, names, folder):
    """Run what is not finished, and write and print it cell by cell."""
    cells = [
        (experiment, name, epsilon)
        for experiment in experiments
        for name in experiment.algorithms
        if name in names
        for epsilon in experiment.epsilons
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
            report.append(folder / f"{experiment.model.key}.csv", rows)
            numbers = [np.median([row[key] for row in rows]) for key in COLUMNS]
            tqdm.write(
                f"{experiment.model.key:<14}{name:<10}{epsilon:5g}{rows[0]['steps']:8d}"
                + "".join(f"{number:14.3f}" for number in numbers)
                + f"{rows[0]['seconds']:9.1f}"
            )


def parse():
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = sorted(["6.1", "6.2", *figures.FIGURES])
    models, algorithms = list(settings.THESIS_MODELS), settings.ALGORITHMS
    add = parser.add_argument
    add("--model", nargs="+", choices=models, default=models)
    add("--algorithm", nargs="+", choices=algorithms, default=algorithms)
    add("--epsilon", nargs="+", type=float, help="instead of the files'")
    add("--chains", type=int, default=20)
    add("--seed", type=int, default=0)
    add("--data-seed", type=int, help="other data of the same law, for tuning")
    add("--out", type=Path, default=Path("results/thesis"))
    add("--quick", action="store_true", help="minutes: short chains, two dimensions")
    add("--figure", choices=names)
    add("--table", action="store_true", help="of what is finished")
    add("--headline", action="store_true", help="draw the figure of the README")
    add("--read", action="store_true", help="draw what is finished, run nothing")
    return parser.parse_args()


def main():
    arguments = parse()
    if arguments.headline:
        headline.draw()
        print(headline.sentence())
        return None
    folder, chains, seed = arguments.out, arguments.chains, arguments.seed
    experiments = {
        model: settings.load(settings.FOLDER / f"{model}.toml")
        for model in settings.THESIS_MODELS
    }
    options = sweep.Options(chains, seed, arguments.data_seed)
    wanted = [experiments[model] for model in arguments.model]
    names = arguments.algorithm
    if arguments.quick:
        folder = folder / "quick"
        options = dataclasses.replace(
            options,
            num_chains=QUICK["num_chains"],
            most_passes=QUICK["most_passes"],
        )
        wanted = [
            dataclasses.replace(
                experiment,
                epsilons=tuple(set(experiment.epsilons) & set(QUICK["epsilons"])),
            )
            for experiment in wanted
            if experiment.model.dim == 2
        ]
    if arguments.epsilon:
        wanted = [dataclasses.replace(e, epsilons=arguments.epsilon) for e in wanted]
    if arguments.figure == "6.1":
        return counts.figure(folder, experiments["easy-2d"])
    if arguments.figure == "6.2":
        if not arguments.read:
            clipping.run(folder, chains, seed)
        return clipping.figure(folder)
    if arguments.figure:
        panels = figures.FIGURES[arguments.figure]
        models = {model for model, _ in panels}
        wanted = [e for e in wanted if e.model.key in models]
        if all(score == "gradient_clip" for _, score in panels):
            names = ["hmc"]
    if not (arguments.table or arguments.read):
        run_cells(wanted, options, names, folder)
    if arguments.figure:
        figures.draw(arguments.figure, folder, experiments)
    if arguments.table or arguments.quick:
        table.write(folder, wanted)


if __name__ == "__main__":
    main()
