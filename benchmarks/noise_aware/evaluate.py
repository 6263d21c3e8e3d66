"""Coverage errors of the exponential families, and the paper's."""

import contextlib

import numpy as np

from dpjax.evaluation import coverage_rmse, noise_floor
from dpjax.evaluation.tarp import LEVELS, coverage, rmse_with_error

__all__ = ["figure", "numbers", "quintiles", "sheet", "summary"]

PAPER = {
    ("noise_aware", "gamma_exponential", 0.1): 0.023,
    ("noise_aware", "beta_bernoulli", 0.1): 0.016,
    ("noise_aware", "dirichlet_categorical", 0.1): 0.020,
    ("last_iterate", "gamma_exponential", 0.1): 0.232,
    ("last_iterate", "beta_bernoulli", 0.1): 0.273,
    ("last_iterate", "dirichlet_categorical", 0.1): 0.355,
    ("dpvim", "gamma_exponential", 0.1): 0.038,
    ("dpvim", "beta_bernoulli", 0.1): 0.044,
    ("dpvim", "dirichlet_categorical", 0.1): 0.251,
    ("bernstein_sheldon", "gamma_exponential", 0.1): 0.034,
    ("bernstein_sheldon", "beta_bernoulli", 0.1): 0.018,
    ("bernstein_sheldon", "dirichlet_categorical", 0.1): 0.017,
}
"""The paper's table 1, whose epsilon its rows tell."""


def numbers(rows: list[dict], name: str) -> np.ndarray:
    """A column of texts of several numbers, ``(rows, numbers)``."""
    return np.array([[float(word) for word in row[name].split()] for row in rows])


def cells(rows: list[dict]) -> dict:
    """Rows by variant, method, model and epsilon."""
    found = {}
    for row in rows:
        key = row["variant"], row["method"], row["model"], float(row["epsilon"])
        found.setdefault(key, []).append(row)
    return found


def scores(rows: list[dict]) -> np.ndarray:
    """Truth minus posterior mean over posterior sd, ``(rows, components)``."""
    gaps = numbers(rows, "truth") - numbers(rows, "mean")
    return gaps / numbers(rows, "sd")


def summary(rows: list[dict]) -> list[dict]:
    """A row for every method, model and epsilon.

    `rmse` is the coverage error and `error` its sd over the draws; `floor` and
    `floor_95` are mean and 95 % quantile of a perfect posterior with as many draws.
    `marginal` has the coverage errors of the components, each on its own. `z_sd` is
    that of truth minus mean over sd, one if the sd is right.
    """
    rng = np.random.default_rng(0)
    found, floors = [], {}
    for (variant, method, model, epsilon), cell in cells(rows).items():
        draws = len(cell)
        if draws not in floors:
            floors[draws] = noise_floor(rng, draws)
        rmse, error = rmse_with_error(rng, numbers(cell, "shares").T)
        z = scores(cell)
        shares = numbers(cell, "marginal").reshape(draws, z.shape[1], -1)
        marginal = coverage_rmse(coverage(shares.transpose(1, 2, 0))).mean(axis=1)
        found.append(
            dict(
                variant=variant,
                method=method,
                model=model,
                epsilon=epsilon,
                draws=draws,
                rmse=rmse,
                error=error,
                floor=float(floors[draws].mean()),
                floor_95=float(np.quantile(floors[draws], 0.95)),
                paper=np.nan
                if variant == "ours"
                else PAPER.get((method, model, epsilon), np.nan),
                marginal=" ".join(f"{error:.3g}" for error in marginal),
                sd=float(numbers(cell, "sd").mean()),
                z_mean=float(z.mean()),
                z_sd=float(z.std()),
            )
        )
    return found


def quintiles(rows: list[dict]) -> list[dict]:
    """Mean z of the first component in each fifth of its truths: a bias shows here."""
    found = []
    for (variant, method, model, epsilon), cell in cells(rows).items():
        truth, z = numbers(cell, "truth")[:, 0], scores(cell)[:, 0]
        fifths = np.array_split(np.argsort(truth), 5)
        row = dict(variant=variant, method=method, model=model, epsilon=epsilon)
        row |= {
            f"fifth_{i + 1}": float(z[part].mean()) for i, part in enumerate(fifths)
        }
        found.append(row)
    return found


@contextlib.contextmanager
def sheet(path, num_rows: int, num_columns: int, stated: str, found: str):
    """Panels ``(num_rows, num_columns)`` with a diagonal, written to `path` at the end.

    The first has the legend; `stated` and `found` name the axes.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    size = 3 * num_columns, 3 * num_rows
    axes = dict(sharex=True, sharey=True, squeeze=False)
    figure, panels = pyplot.subplots(num_rows, num_columns, figsize=size, **axes)
    yield panels
    for panel in panels.flat:
        panel.plot([0, 1], [0, 1], "k:")
    panels[0, 0].legend(fontsize=7)
    figure.supxlabel(stated)
    figure.supylabel(found)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def figure(rows: list[dict], path) -> None:
    """Coverage against level: a panel for every variant and model, a line an epsilon.

    The noise-aware posterior in full lines, the guide at the last iterate in dashed.
    """
    styles = {"noise_aware": "-", "last_iterate": "--"}
    found = {key: cell for key, cell in cells(rows).items() if key[1] in styles}
    variants = list(dict.fromkeys(key[0] for key in found))
    models = list(dict.fromkeys(key[2] for key in found))
    epsilons = sorted({key[3] for key in found})
    with sheet(path, len(variants), len(models), "level", "coverage") as panels:
        for (variant, method, model, epsilon), cell in found.items():
            panel = panels[variants.index(variant), models.index(model)]
            panel.set_title(f"{variant}, {model}", fontsize=8)
            panel.plot(
                LEVELS,
                coverage(numbers(cell, "shares").T).mean(axis=0),
                styles[method],
                color=f"C{epsilons.index(epsilon)}",
                label=f"{method.replace('_', ' ')}, epsilon {epsilon:g}",
            )
