"""The figure of the README: errors of the best published sampler and of ours."""

import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from benchmarks.pages import RESULTS, number, table
from benchmarks.thesis import published
from dpjax.models import THESIS_MODELS

__all__ = ["FIGURE", "draw", "numbers", "sentence"]

FIGURE = RESULTS.parent / "figures/headline.svg"
TRUE_SAMPLES = 0.02
"""MMD of as many independent draws from the exact posterior."""


def numbers() -> dict[str, list[tuple[float, float, float]]]:
    """(epsilon, error of the best published, error of `barker`) by model."""
    found = {}
    for row in table("thesis"):
        epsilon = number(row["eps"])
        _, best = published.best(row["model"], epsilon)
        found.setdefault(row["model"], []).append((epsilon, best, number(row["ours"])))
    return found


def sentence() -> str:
    """What the numbers say together."""
    ratios = [ours / best for rows in numbers().values() for _, best, ours in rows]
    return (
        f"In {len(ratios)} comparisons the error is {min(ratios):.2f} to "
        f"{max(ratios):.2f} of the best published one at the same epsilon, in the "
        f"median {np.median(ratios):.2f}."
    )


def draw(path: Path = FIGURE) -> None:
    """Write the figure, with its numbers in its description."""
    drawing, axes = plt.subplots(2, 4, figsize=(10, 4.4), layout="constrained")
    for axis, (model, rows) in zip(axes.flat, numbers().items(), strict=True):
        epsilon, best, ours = zip(*rows, strict=True)
        axis.plot(epsilon, best, "o--", color="C1", label="best published")
        axis.plot(epsilon, ours, "o-", color="C0", label="dpjax.barker")
        if model != "circle":
            axis.axhline(TRUE_SAMPLES, color="grey", linestyle=":", label="exact draws")
        axis.set(title=THESIS_MODELS[model].name, xticks=epsilon)
        axis.set_ylim(bottom=0)
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_ylabel("error of the mean" if model == "circle" else "MMD")
    for axis in axes[1]:
        axis.set_xlabel("epsilon")
    axes.flat[0].legend(frameon=False, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    with plt.rc_context({"svg.hashsalt": "dpjax"}):
        drawing.savefig(
            path, metadata={"Date": None, "Description": json.dumps(numbers())}
        )
    plt.close(drawing)
