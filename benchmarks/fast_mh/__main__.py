"""The experiments of Zhang and Zhang (2023), DP-Fast MH, at what they really cost.

    python -m benchmarks.fast_mh --quick
    python -m benchmarks.fast_mh --figure 1
    python -m benchmarks.fast_mh --repaired

Figures 1 and 2 are of the Gaussian mixture, 3 of MNIST; `--repaired` is the table of
accept rates, draws and costs of the corrected sampler. Without either, all are made,
which takes hours. Cells that the folder `--out` holds, of the same settings, are not
run again.
"""

import argparse
import dataclasses
from pathlib import Path

import jax
import numpy as np
from tqdm import tqdm

from benchmarks.fast_mh import figures, repaired, settings, sweep
from benchmarks.thesis import report
from dpjax.evaluation import histogram, symmetric_kl
from dpjax.models.mixture import exact_sample, grid_posterior

QUICK = 0.02
"""Share of the steps that are run to see that all works."""


def run_cells(model: str, names, options: sweep.Options, folder: Path):
    """Run what is not finished, and write and print it cell by cell."""
    entries = settings.load(model)
    posterior, _, test = entries["fast_mh"].job.load()
    score_fn = sweep.scorer(model, posterior, test)
    cells = [
        (entry, epsilon)
        for name, entry in entries.items()
        if name in (names or entries)
        for epsilon in settings.epsilons(model, name)
    ]
    with tqdm(cells, unit="cell") as bar:
        for entry, epsilon in bar:
            bar.set_postfix_str(f"{entry.job.name} {epsilon:g}")
            done = sweep.read(folder, model)
            rows = sweep.cell(entry, epsilon, options, posterior, score_fn, done)
            if rows is not None:
                report.append(folder / f"{model}.csv", rows)
                line = figures.table({(entry.name, epsilon): rows})[0]
                tqdm.write("  ".join(map(str, line.values())))
    return posterior


def draw_densities(posterior, options, folder: Path):
    """Figure 2: one chain of each of three algorithms beside the posterior."""
    scale = (-sweep.BOX, sweep.BOX, sweep.NUM_BINS)
    panels = {
        "posterior": grid_posterior(
            posterior.data, sweep.NUM_BINS, tempering=posterior.tempering
        )
    }
    one = dataclasses.replace(options, num_chains=1)
    for name in ("fast_mh", "uncentred", "tuna"):
        entry = settings.load("mixture")[name]
        budget = figures.SHOWN_AT["mixture"]
        draws = []

        def keep(chain, draws=draws):
            draws.append(histogram(chain, *scale))
            return [0.0]

        sweep.cell(entry, budget, one, posterior, keep, {})
        panels[figures.NAMES[name]] = draws[0]
    figures.densities(folder, panels)


def exact_score(posterior, num_draws: int) -> float:
    """The symmetric KL of independent draws of the mixture's posterior."""
    constants = dict(tempering=posterior.tempering)
    grid = grid_posterior(posterior.data, sweep.NUM_BINS, **constants)
    draws = exact_sample(jax.random.key(0), posterior.data, num_draws, **constants)
    return symmetric_kl(
        histogram(np.asarray(draws), -sweep.BOX, sweep.BOX, sweep.NUM_BINS), grid
    )


def parse():
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--figure", nargs="+", choices=("1", "2", "3"))
    add("--repaired", action="store_true")
    add("--algorithm", nargs="+", choices=tuple(figures.NAMES))
    add("--chains", type=int, default=20)
    add("--seed", type=int, default=0)
    add("--out", type=Path, default=Path("results/fast_mh"))
    add("--quick", action="store_true", help="minutes: short chains")
    add("--read", action="store_true", help="draw what is finished, run nothing")
    return parser.parse_args()


def main():
    arguments = parse()
    folder, names = arguments.out, arguments.algorithm
    wanted = arguments.figure or ([] if arguments.repaired else ["1", "2", "3"])
    options = sweep.Options(arguments.chains, arguments.seed)
    if arguments.quick:
        folder = folder / "quick"
        options = sweep.Options(min(arguments.chains, 4), arguments.seed, QUICK)
    folder.mkdir(parents=True, exist_ok=True)
    for name in wanted:
        model = "mnist" if name == "3" else "mixture"
        if name == "2":
            posterior = settings.load(model)["fast_mh"].job.load()[0]
            draw_densities(posterior, options, folder)
            continue
        if arguments.read:
            posterior = settings.load(model)["fast_mh"].job.outline
        else:
            posterior = run_cells(model, names, options, folder)
            if model == "mixture":
                number = round(10_000 * options.scale)
                score = exact_score(posterior, number)
                print(f"{number} independent draws score {score:.3g}")
        figures.draw(name, folder, posterior.num_records)
    if arguments.repaired or not arguments.figure:
        repaired.write(folder, 8, round(repaired.STEPS * options.scale))


if __name__ == "__main__":
    main()
