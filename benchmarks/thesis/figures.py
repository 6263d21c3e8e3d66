"""Figures 6.3 to 6.8: box plots over the chains, beside the published medians."""

from pathlib import Path

import jax
import matplotlib.pyplot as plt
import numpy as np

from benchmarks.thesis import published, report, sweep
from benchmarks.thesis.settings import ALGORITHMS, THESIS_MODELS
from dpjax.evaluation import mmd, reference_bandwidth

__all__ = ["FIGURES", "draw"]

_BANANAS = ("easy-2d", "tempered-2d", "easy-10d", "tempered-10d")
_HARD = ("gauss-30d", "hard-2d", "hard-gauss-2d")

FIGURES = {
    "6.3": [(model, "mmd_thesis") for model in _BANANAS],
    "6.4": [(model, "mmd_thesis") for model in _HARD],
    "6.5": [(model, "ratio_clip") for model in _BANANAS],
    "6.6": [(model, "ratio_clip") for model in _HARD],
    "6.7": [("circle", score) for score in ("mean_error", "mmd", "ratio_clip")],
    "6.8": [(model, "gradient_clip") for model in (*_BANANAS, *_HARD, "circle")],
}
"""Panels: model and column of `sweep`."""

LABELS = {
    "mmd_thesis": "MMD, the thesis's bandwidth",
    "mmd": "MMD",
    "ratio_clip": "share of log ratios clipped",
    "gradient_clip": "share of gradients clipped",
    "mean_error": "error of the mean",
}


def draw(name: str, folder: Path, experiments: dict) -> None:
    """Write a figure and its table from the rows in `folder`.

    Parameters
    ----------
    experiments
        `settings.Experiment` by model.
    """
    panels = FIGURES[name]
    columns = min(len(panels), 4) if len(panels) != 4 else 2
    rows = -(-len(panels) // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(4.6 * columns, 3.4 * rows), squeeze=False
    )
    lines = []
    for axis, (model, score) in zip(axes.flat, panels, strict=True):
        lines += _panel(axis, experiments[model], score, sweep.read(folder, model))
        if "mmd" in score:
            _truth(axis, experiments[model])
    axes.flat[0].legend(fontsize=7)
    report.finish(figure, folder, name, lines)


def _panel(axis, experiment, score, cells):
    """Boxes of all algorithms at all budgets; returns the lines of the table."""
    model = experiment.model
    names = [name for name in ALGORITHMS if name in experiment.algorithms]
    if score == "gradient_clip":
        names = ["hmc"]
    width = 0.8 / len(names)
    lines = []
    for number, name in enumerate(names):
        places = np.arange(len(experiment.epsilons)) - 0.4 + (number + 0.5) * width
        samples, medians = [], []
        for epsilon in experiment.epsilons:
            rows = cells.get((name, epsilon), [])
            samples.append([row[score] for row in rows])
            medians.append(published.median(score, model.key, name, epsilon))
            if rows:
                low, middle, high = np.quantile(samples[-1], (0.25, 0.5, 0.75))
                lines.append(
                    dict(
                        model=model.key,
                        algorithm=name,
                        epsilon=epsilon,
                        score=score,
                        median=float(middle),
                        quartiles=f"{low:.3g}-{high:.3g}",
                        published=medians[-1],
                    )
                )
        colour = f"C{ALGORITHMS.index(name)}"
        report.boxes(axis, places, samples, 0.85 * width, colour, name)
        report.marks(axis, places, medians)
    axis.set_xticks(range(len(experiment.epsilons)), experiment.epsilons)
    axis.set(title=model.name, xlabel="epsilon", ylabel=LABELS[score])
    axis.set_ylim(bottom=0)
    return lines


def _truth(axis, experiment):
    """The scores of ten independent samples of the posterior."""
    model = THESIS_MODELS[experiment.model.key]
    data, reference = model.simulate(), model.reference()
    bandwidth = reference_bandwidth(reference)
    for key in jax.random.split(jax.random.key(4623878), 10):
        score = mmd(model.exact_sample(key, data, 1000), reference, bandwidth)
        axis.axhline(float(score), color="black", linewidth=0.4)
