"""Pictures of a run's draws and of its privacy cost.

Each picture shows as many components as can be read, and says how many it leaves out,
so it serves for two parameters and for hundreds. Densities are drawn as histograms and
not smoothed, because a chain that stands still repeats its value.
"""

import datetime
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dpjax.fit.names import short_sites_first
from dpjax.runner import ledger as ledgers
from dpjax.runner.results import Fit, Run

__all__ = ["pictures"]

MAX_DENSITIES, MAX_PAIRED, MAX_ROWS = 12, 5, 30
"""Largest numbers of components: in histograms and rank plots, in pairs, and in rows of
intervals."""

MAX_RUNS = 20
"""Largest number of runs of a ledger in the picture of the budget. If there are more,
the last ones are shown."""

NUM_BINS = 40
NUM_RANK_BINS, MIN_RANKED = 20, 20
"""Largest number of bins of ranks, and about the least number of draws of a chain for
each bin: with fewer draws there are fewer bins."""

NUM_DRAWN_CHAINS = 8
"""Largest number of chains that have a line each in a histogram. If there are more, no
chain has a line."""

INTERVAL = 0.94
"""Probability of the intervals, as in ArviZ's summary."""

BLUE, ORANGE, GREY = "#2a6099", "#d1702a", "#8a8f98"
STYLE = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9,
    "axes.edgecolor": GREY,
    "figure.dpi": 100,
    "savefig.dpi": 160,
    "legend.frameon": False,
}


def pictures(
    run: Run, *, prior: Any = None, ledger=None, shown: Sequence[str] | None = None
) -> dict[str, Any]:
    """Pictures of a run, by name.

    Parameters
    ----------
    run
        The run to show.
    prior
        Draws from the prior, a pytree like the positions of the run, with leaves
        ``(1, num_draws, ...)``.
    ledger
        Path of the ledger in which the run was charged.
    shown
        Names of the components that come first, as in the run's summary. Of the others,
        those of short sites come first if there are many.

    Returns
    -------
    Figures of matplotlib: ``"densities"``; ``"ranks"`` if the run has several chains
    and is not a fit; ``"pairs"`` if there are several components; ``"prior"`` if draws
    from the prior are given; ``"width"`` if the run is a fit; and ``"budget"`` if a
    ledger is given.

    Raises
    ------
    ValueError
        If `shown` names no component of the run.
    LedgerError
        If the ledger is damaged or of another version: see `dpjax.runner.ledger.read`.

    Notes
    -----
    *Formal guarantees.* Pictures are functions of the draws, of what a fit released, of
    the prior, and of the times and events in the ledger. No records are read.
    """
    import matplotlib

    style: Any = STYLE
    names, draws = run.components()
    order = _order(names, shown)
    names, draws = [names[i] for i in order], draws[..., order].astype(float)
    with matplotlib.rc_context(style):
        has_chains = len(draws) > 1 and not isinstance(run, Fit)
        has_lines = has_chains and len(draws) <= NUM_DRAWN_CHAINS
        found = {"densities": _densities(names, draws, has_lines)}
        if has_chains:
            found["ranks"] = _ranks(names, draws)
        if len(names) > 1:
            found["pairs"] = _pairs(names, draws)
        if prior is not None:
            found["prior"] = _prior(names, draws, Run(prior, None, run.statement))
        if isinstance(run, Fit):
            found["width"] = _width(run.known)
        if ledger is not None:
            found["budget"] = _budget(ledger, run.statement)
    return found


def _order(names: list[str], shown: Sequence[str] | None) -> list[int]:
    first = list(shown or [])
    if missing := [name for name in first if name not in names]:
        raise ValueError(
            f"the run has no component {missing[0]!r}: `Run.summary()` lists them"
        )
    places = [names.index(name) for name in first]
    others = short_sites_first(names, MAX_DENSITIES)
    return places + [i for i in others if i not in set(places)]


def _figure(num_rows: int, num_columns: int, width: float, height: float):
    """A figure and its array of axes, each of `width` and `height`, in inches."""
    # Figures of pyplot would stay in memory, and would need a display.
    from matplotlib.figure import Figure

    size = num_columns * width, num_rows * height
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(num_rows, num_columns, squeeze=False)


def _left_out(figure, names: list[str], num_shown: int) -> None:
    if len(names) > num_shown:
        text = f"{num_shown} of {len(names)} parameters; the others are left out"
        figure.supxlabel(text, fontsize=8, color=GREY)


def _grid(names: list[str], panel: Callable, most: int):
    """A figure with one panel for each component, of at most `most` components.

    ``panel(axes, index)`` draws the panel of a component.
    """
    count = min(len(names), most)
    num_columns = min(count, 3)
    num_rows = math.ceil(count / num_columns)
    figure, axes = _figure(num_rows, num_columns, 2.9, 1.7)
    for index, each in enumerate(axes.flat):
        if index < count:
            panel(each, index)
            each.set_title(names[index])
            each.set_yticks([])
            each.spines["left"].set_visible(False)
        else:
            each.set_axis_off()
    _left_out(figure, names, count)
    return figure


def _interval(values) -> np.ndarray:
    """Both ends of the central interval with the probability `INTERVAL`."""
    tail = (1 - INTERVAL) / 2
    return np.quantile(values, [tail, 1 - tail])


def _edges(values):
    """Edges of bins over the bulk of the values; a few outliers may lie outside."""
    low, high = np.quantile(values, [0.001, 0.999])
    pad = 0.05 * (high - low) or 0.5
    return np.linspace(low - pad, high + pad, NUM_BINS + 1)


def _densities(names, draws, has_lines: bool):
    """Histograms with mean and interval; with `has_lines`, a line for every chain."""

    def panel(axes, index):
        chains = draws[..., index]
        edges = _edges(chains)
        axes.hist(chains.ravel(), edges, density=True, color=BLUE, alpha=0.25)
        for chain in chains if has_lines else ():
            axes.hist(chain, edges, density=True, histtype="step", lw=0.8)
        top = axes.get_ylim()[1]
        axes.plot(_interval(chains.ravel()), [-0.05 * top] * 2, color="black", lw=2)
        axes.plot(chains.mean(), -0.05 * top, "o", color="black", ms=4)

    return _grid(names, panel, MAX_DENSITIES)


def _ranks(names, draws):
    """Ranks of each chain's draws among those of all chains, counted in bins.

    If the chains have mixed, the ranks of each chain are spread evenly. The rank plots
    of Vehtari et al. (2021), section 4.4, are histograms. Here each chain is a row, and
    the colour is the number of its draws in a bin, so that a hundred chains can be seen
    at once.
    """
    from scipy.stats import rankdata

    num_chains, num_draws, _ = draws.shape
    num_bins = min(max(num_draws // MIN_RANKED, 4), NUM_RANK_BINS)

    def panel(axes, index):
        chains = draws[..., index]
        ranks = rankdata(chains, "ordinal").reshape(chains.shape).astype(int) - 1
        bins = ranks * num_bins // chains.size
        counts = np.array([np.bincount(row, minlength=num_bins) for row in bins])
        image = axes.imshow(
            counts * num_bins / num_draws,
            cmap="RdBu_r",
            vmin=0,
            vmax=2,
            aspect="auto",
            interpolation="nearest",
            extent=(0, 1, num_chains + 0.5, 0.5),
        )
        axes.set_xticks([0, 1], ["lowest", "highest"])
        axes.set_ylabel("chains")
        images.append(image)

    images: list[Any] = []
    figure = _grid(names, panel, MAX_DENSITIES)
    bar = figure.colorbar(images[0], ax=figure.axes, ticks=[0, 1, 2])
    bar.set_label("draws / expected")
    return figure


def _pairs(names, draws):
    """Densities of pairs of components, as counts in hexagons."""
    count = min(len(names), MAX_PAIRED)
    flat = draws.reshape(-1, draws.shape[-1])
    figure, axes = _figure(count, count, 1.7, 1.6)
    edges = [_edges(flat[:, i]) for i in range(count)]
    for row in range(count):
        for column in range(count):
            each = axes[row, column]
            if column > row:
                each.set_axis_off()
                continue
            each.set_xlim(edges[column][[0, -1]])
            if column == row:
                each.hist(flat[:, row], edges[row], color=BLUE, alpha=0.4)
                each.set_yticks([])
            else:
                x, y = edges[column][[0, -1]], edges[row][[0, -1]]
                each.hexbin(
                    flat[:, column],
                    flat[:, row],
                    gridsize=25,
                    extent=(*x, *y),
                    mincnt=1,
                    cmap="Blues",
                    linewidths=0,
                )
                each.set_ylim(y)
            each.locator_params(nbins=3)
            each.tick_params(labelsize=7)
            if row == count - 1:
                each.set_xlabel(names[column])
            else:
                each.set_xticklabels([])
            if column > 0:
                each.set_yticklabels([])
            elif row > 0:
                each.set_ylabel(names[row])
    _left_out(figure, names, count)
    return figure


def _prior(names, draws, prior: Run):
    """Intervals of the draws and of the prior, in standard deviations of the prior."""
    known = dict(zip(*_columns(prior), strict=True))
    found = [(i, known[name]) for i, name in enumerate(names) if name in known]
    rows = found[:MAX_ROWS]
    figure, axes = _figure(1, 1, 6.5, 0.6 + 0.22 * max(len(rows), 2))
    (each,) = axes.flat
    for row, (index, column) in enumerate(rows):
        mean, sd = column.mean(), column.std() or 1.0
        values = (draws[..., index].ravel() - mean) / sd
        each.plot(
            _interval((column - mean) / sd), [row] * 2, color=GREY, lw=7, alpha=0.4
        )
        each.plot(_interval(values), [row] * 2, color=BLUE, lw=3)
        each.plot(values.mean(), row, "o", color=BLUE, ms=4)
    each.set_yticks(range(len(rows)), [names[index] for index, _ in rows])
    each.set_ylim(len(rows) - 0.5, -0.5)
    each.set_xlabel("sds of the prior from its mean: prior (grey), posterior (blue)")
    if len(found) > len(rows):
        text = f"{len(rows)} of {len(found)} parameters; the others are left out"
        each.set_title(text, fontsize=8, color=GREY)
    return figure


def _columns(run: Run):
    names, draws = run.components()
    return names, draws.reshape(-1, len(names)).T.astype(float)


def _width(known):
    """Shares of the draws' variance that are due to the records, the prior and noise.

    `known` is that of a `dpjax.runner.Fit`.
    """
    if hasattr(known, "noise"):
        shares = {"records": known.records, "prior": known.prior}
        noise = known.noise
    else:
        noise = 1 - 1 / (1 + known.position_error**2)
        shares = {"records and prior": 1 - noise}
    shares["noise and clipping"] = noise
    colors = {"records": BLUE, "records and prior": BLUE, "prior": GREY}
    figure, axes = _figure(1, 1, 6.5, 1.1)
    (each,) = axes.flat
    start = 0.0
    for name, share in shares.items():
        each.barh(0, share, left=start, color=colors.get(name, ORANGE), label=name)
        if share > 0.06:
            text = f"{share:.0%}"
            each.text(start + share / 2, 0, text, ha="center", va="center", color="w")
        start += share
    each.set_xlim(0, 1)
    each.set_axis_off()
    each.legend(ncols=3, loc="lower center", bbox_to_anchor=(0.5, -0.55))
    return figure


def _budget(ledger, statement):
    """For each run in a ledger, the epsilon of this and all earlier runs together."""
    (rule, runs, _), entries = ledgers.entries(ledger)
    assert rule is not None
    first = max(len(runs) - MAX_RUNS, 0)
    spent = [
        rule.epsilon(runs[:stop], statement.delta)
        for stop in range(first + 1, len(runs) + 1)
    ]
    figure, axes = _figure(1, 1, 6.5, 2.2)
    (each,) = axes.flat
    places = np.arange(len(spent))
    each.bar(places, spent, width=0.5, color=BLUE)
    each.set_xlim(-1, max(len(spent), 4))
    labels = [str(number) for number in range(first + 1, len(runs) + 1)]
    # Runs within a plan are charged for nothing, so there may be fewer runs that were
    # charged than entries. Then it is not known which entry a run belongs to.
    if len(entries) == len(runs):
        times = [datetime.datetime.fromisoformat(entry.time) for entry in entries]
        labels = [f"{time:%Y-%m-%d\n%H:%M}" for time in times[first:]]
    every = math.ceil(len(spent) / 8)
    each.set_xticks(places[::every], labels[::every], fontsize=7)
    each.set_ylabel(f"epsilon at delta = {statement.delta:g}")
    each.set_xlabel("runs on these records")
    return figure
