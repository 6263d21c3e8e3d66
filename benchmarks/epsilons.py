"""How wide the draws of a fit are foretold to be, by epsilon and number of records.

    python -m benchmarks.epsilons [--only NAME ...] [--json FILE]

`dpjax.numpyro.plan` on examples of configs/numpyro, whose records are not read.
benchmarks/epsilons.json holds what docs/epsilons.md shows.
"""

import argparse
import dataclasses
import json
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

import dpjax
import dpjax.numpyro
from benchmarks.numpyro_models import CONFIGS
from dpjax import config

MODELS = ("poisson", "logistic", "adult", "hierarchical")
EPSILONS = (0.1, 0.3, 1.0, 4.0)
RECORDS = tuple(round(n) for n in np.geomspace(1e3, 1e6, 7))
DELTA = 1e-6


def rows(name: str) -> list[dict]:
    """For each number of records and epsilon, the widths over the exact posterior's."""
    posterior: Any
    posterior, _, _ = config.load(CONFIGS / f"{name}.toml").load()
    found = []
    for num_records in RECORDS:
        shapes = jax.tree.map(
            lambda leaf, n=num_records: jax.ShapeDtypeStruct(
                (n, *leaf.shape[1:]), leaf.dtype
            ),
            posterior.data,
        )
        plan = dpjax.numpyro.plan(
            dataclasses.replace(posterior, data=shapes),
            budget=dpjax.Budget(1.0, DELTA),
            epsilons=EPSILONS,
        )
        table = plan.to_dataframe().groupby("epsilon")
        for epsilon, of_epsilon in table:
            found.append(
                dict(
                    model=name,
                    parameters=len(of_epsilon),
                    records=num_records,
                    epsilon=float(epsilon),
                    width=round(float(of_epsilon["width"].median()), 4),
                    widest=round(float(of_epsilon["width"].max()), 4),
                    resolution=round(float(of_epsilon["resolution"].iloc[0]), 4),
                )
            )
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--json", type=Path, help="a file that the rows are written to")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    found = []
    for name in tqdm(options.only):
        for row in rows(name):
            found.append(row)
            tqdm.write(json.dumps(row))
    if options.json:
        lines = ",\n".join(json.dumps(row) for row in found)
        options.json.write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
