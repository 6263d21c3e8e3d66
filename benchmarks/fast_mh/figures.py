"""Figures 1 to 3 of the paper with the cost that is certified, and the tables."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from benchmarks.fast_mh import sweep
from benchmarks.thesis import report

__all__ = ["draw", "table"]

LABELS = {"mixture": "symmetric KL", "mnist": "test accuracy"}
NAMES = {
    "fast_mh": "fast_mh, centred",
    "lazy": "fast_mh, centred, lazy",
    "uncentred": "fast_mh, uncentred",
    "barker": "Barker, all records",
    "penalty": "penalty, all records",
    "minibatch_barker": "DP Barker (2019)",
    "tuna": "TunaMH, not private",
    "published": "DP-Fast MH as published",
}
SHOWN_AT = {"mixture": 0.2, "mnist": 2.0}
"""Budget at which scores are drawn against steps, time and records."""


def draw(name: str, folder: Path, num_records: int) -> None:
    """Write figure 1 (mixture) or 3 (MNIST) from the rows in `folder`."""
    model = {"1": "mixture", "3": "mnist"}[name]
    cells = sweep.read(folder, model)
    figure, axes = plt.subplots(1, 5, figsize=(22, 4))
    for number, algorithm in enumerate(NAMES):
        style = dict(color=f"C{number}", label=NAMES[algorithm])
        own = {eps: rows for (of, eps), rows in cells.items() if of == algorithm}
        if not own:
            continue
        budgets = sorted(own)
        scores = np.array([_quartiles(own[eps], "score") for eps in budgets])
        read = [own[eps][0]["records"] for eps in budgets]
        if algorithm == "tuna":
            axes[0].axhline(scores[0, 1], linestyle="--", **style)
            axes[1].axhline(read[0], linestyle="--", **style)
        else:
            line = "--" if algorithm == "published" else "-"
            error = np.abs(scores[:, [0, 2]] - scores[:, 1:2]).T
            axes[0].errorbar(budgets, scores[:, 1], error, linestyle=line, **style)
            axes[1].plot(budgets, read, line, **style)
        shown = own.get(SHOWN_AT[model], own[budgets[0]])
        curve = np.median([row["curve"] for row in shown], axis=0)
        share = np.linspace(0, 1, len(curve) + 1)[1:]
        for axis, total in zip(axes[2:], _totals(shown[0]), strict=True):
            axis.plot(share * total, curve, **style)
    axes[0].set(xscale="log", xlabel="epsilon of a chain (published: claimed, a step)")
    axes[1].set(xscale="log", yscale="log", ylabel="records read by a step")
    axes[1].axhline(num_records, color="black", linewidth=0.5)
    axes[1].set(xlabel="epsilon")
    budgets = sorted({epsilon for _, epsilon in cells if np.isfinite(epsilon)})
    for axis in axes[:2]:
        axis.set_xticks(budgets, [f"{epsilon:g}" for epsilon in budgets])
        axis.set_xticks([], minor=True)
    axes[2].set(xlabel="steps")
    axes[3].set(xlabel="seconds a chain", xscale="log")
    axes[4].set(xlabel="records read", xscale="log")
    for axis in axes[[0, 2, 3, 4]]:
        axis.set(ylabel=LABELS[model])
        if model == "mixture":
            axis.set(yscale="log")
    axes[0].legend(fontsize=7)
    report.finish(figure, folder, name, table(cells))


def densities(folder: Path, panels: dict[str, np.ndarray]) -> None:
    """Write figure 2: densities on the box, `panels` by title, ``(bins, bins)``."""
    figure, axes = plt.subplots(
        1, len(panels), figsize=(3.2 * len(panels), 3.2), squeeze=False
    )
    for axis, (title, shares) in zip(axes[0], panels.items(), strict=True):
        box = (-sweep.BOX, sweep.BOX) * 2
        axis.imshow(shares.T, origin="lower", extent=box, cmap="viridis")
        axis.set(title=title, xlabel="theta 1", ylabel="theta 2")
    figure.tight_layout()
    figure.savefig(folder / "figure_2.png", dpi=150)
    print(f"written: {folder / 'figure_2.png'}")


def table(cells) -> list[dict]:
    """A line for every cell: what it cost, what it read, how it did."""
    lines = []
    for (algorithm, epsilon), rows in cells.items():
        low, middle, high = _quartiles(rows, "score")
        first = rows[0]
        lines.append(
            {
                "algorithm": algorithm,
                "budget": epsilon,
                "epsilon": first["epsilon_spent"],
                "delta": first["delta_spent"],
                "steps": first["steps"],
                "step size": first["step_size"],
                "acceptance": float(np.mean([row["acceptance"] for row in rows])),
                "records": first["records"],
                "score": middle,
                "quartiles": f"{low:.3g}-{high:.3g}",
                "chains": len(rows),
                "seconds": first["seconds"],
            }
        )
    return lines


def _totals(row):
    """Steps of a chain, its seconds, and the records that it read."""
    return row["steps"], row["seconds"], row["steps"] * row["records"]


def _quartiles(rows, key):
    return np.quantile([row[key] for row in rows], (0.25, 0.5, 0.75))
