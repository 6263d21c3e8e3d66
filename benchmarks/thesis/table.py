"""All finished cells in two tables: scores beside the best published, and steps."""

from pathlib import Path

import numpy as np

from benchmarks.thesis import published, report, sweep
from benchmarks.thesis.settings import ALGORITHMS

__all__ = ["write"]


def write(folder: Path, experiments) -> None:
    """Print the tables and write them to ``table.md`` in `folder`."""
    scores, steps = [], []
    for experiment in experiments:
        cells = sweep.read(folder, experiment.model.key)
        for epsilon in experiment.epsilons:
            scores.append(_scores(experiment.model.key, epsilon, cells))
        steps += [_steps(rows) for rows in cells.values()]
    text = (
        "Median MMD over the chains, with the thesis's bandwidth (the circle: error of "
        "the mean). `*`: stopped before the budget was spent.\n\n"
        + report.markdown(scores)
        + "\n\nSteps of a chain: those run, those the budget pays by the accountant "
        "named, and the thesis code's where its accountant is another.\n\n"
        + report.markdown(steps)
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.md").write_text(text + "\n")
    print(text)


def _scores(model, epsilon, cells):
    score = "mean_error" if model == "circle" else "mmd_thesis"
    best_name, best = published.best(model, epsilon)
    line = {
        "model": model,
        "eps": epsilon,
        "best published": f"{best:.3g} {best_name}" if best_name else "",
    }
    for name in ALGORITHMS:
        rows = cells.get((name, epsilon))
        line[name] = f"{_median(rows, score):.3f}{_star(rows[0])}" if rows else ""
    ours = cells.get(("ours", epsilon))
    line["ours fixed bandwidth"] = _median(ours, "mmd")
    line["ours / published"] = _median(ours, score) / best
    line["ours clipped"] = _median(ours, "ratio_clip")
    return line


def _steps(rows):
    row = rows[0]
    return {
        "model": row["model"],
        "algorithm": row["algorithm"],
        "eps": row["epsilon"],
        "steps run": row["steps"],
        "budget pays": row["budget_steps"],
        "accountant": row["accountant"],
        "thesis's code": row["published_steps"],
        "step size": row["step_size"],
        "acceptance": _median(rows, "acceptance"),
        "log ratios clipped": _median(rows, "ratio_clip"),
        "gradients clipped": _median(rows, "gradient_clip"),
        "seconds": row["seconds"],
    }


def _star(row):
    return "*" if row["steps"] < row["budget_steps"] else ""


def _median(rows, key):
    return float(np.median([row[key] for row in rows])) if rows else np.nan
