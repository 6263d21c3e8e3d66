"""Figure 6.1: the steps that each accountant allows, on the flat banana with d = 2.

Counts by the thesis's code (`thesis_counts`) stand beside ours where ours differ.
"""

import functools
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import dpjax
from benchmarks.thesis import entries, report
from benchmarks.thesis.settings import Experiment
from benchmarks.thesis_counts import thesis_count
from dpjax import privacy

__all__ = ["figure"]

EPSILONS = (0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0)


def figure(folder: Path, experiment: Experiment) -> None:
    """Write figure 6.1 and its table."""
    model = experiment.model
    # Accounting reads the number of records only.
    outline = model.posterior(np.broadcast_to(0.0, (model.num_records, model.dim)))
    rows = [
        {"panel": panel, "accountant": name, **dict(zip(_HEADER, steps, strict=True))}
        | {"remark": remark}
        for panel, name, remark, steps in _rows(experiment, outline)
    ]
    panels = list(dict.fromkeys(row["panel"] for row in rows))
    drawing, axes = plt.subplots(1, len(panels), figsize=(4.4 * len(panels), 4))
    for axis, panel in zip(axes, panels, strict=True):
        for row in rows:
            if row["panel"] == panel:
                steps = [row[key] for key in _HEADER]
                axis.plot(EPSILONS, steps, "o-", markersize=3, label=row["accountant"])
        axis.set(title=panel, xlabel="epsilon", ylabel="steps allowed")
        axis.legend(fontsize=7)
    report.finish(drawing, folder, "6.1", rows)


_HEADER = [f"eps {epsilon:g}" for epsilon in EPSILONS]


def _rows(experiment, outline):
    """Panel, accountant, remark and steps at every epsilon."""
    model, algorithms = experiment.model, experiment.algorithms

    def ours(algorithm_fn, method):
        events = algorithm_fn(outline).privacy(1)
        return [
            privacy.max_steps(events, epsilon=e, delta=model.delta, method=method)
            for e in EPSILONS
        ]

    def theirs(name, accountant):
        return [thesis_count(model.key, name, e, accountant) for e in EPSILONS]

    def named(name):
        settings = algorithms[name]
        step_size = settings["step_size"]
        return entries.algorithm(model, outline, name, settings, step_size)[0]

    panel, penalty = "DP penalty", named("dpps")
    yield panel, "zCDP", "Theorem 3.1", ours(penalty, "zcdp")
    yield panel, "tight", "Theorem 3.2, what the thesis ran", ours(penalty, "gdp")
    fixed = _of_fixed_length(penalty, model.dim)
    remark = "only the accept bit is released; steps of constant length"
    for method in ("rdp", "exact"):
        yield panel, f"{method}, the bit", remark, ours(fixed, method)
    # Exact composition of the many bits of a lazy chain takes hours.
    for laziness, methods in ((1.0, ("rdp", "exact")), (0.2, ("rdp",))):
        barker = functools.partial(
            dpjax.barker,
            step_size=fixed.keywords["step_size"],
            clip_bound=fixed.keywords["clip_bound"],
            laziness=laziness,
        )
        remark = f"Barker's bit, laziness {laziness:g}, the same steps and clip bound"
        for method in methods:
            label = f"{method}, Barker {laziness:g}"
            yield panel, label, remark, ours(barker, method)
    panel, minibatch = "Minibatch DP penalty", named("mdpps")
    remark = "Theorem 3.5 as coded: unsound, its sum stops one term early"
    yield panel, "RDP, thesis", remark, theirs("mdpps", "rdp")
    corrected = theirs("mdpps", "rdp-corrected")
    yield panel, "RDP, corrected", "Theorem 3.5, all terms", corrected
    remark = "as coded: valid but loose, takes neighbours for twice as far apart"
    yield panel, "Fourier, thesis", remark, theirs("mdpps", "fourier")
    yield panel, "RDP", "all terms, tighter conversion", ours(minibatch, "rdp")
    remark = "privacy loss distribution of the sampled release"
    yield panel, "PLD", remark, ours(minibatch, "pld")
    panel, hmc = "DP HMC", named("hmc")
    yield panel, "zCDP", "Theorem 4.2", ours(hmc, "zcdp")
    yield panel, "tight", "Theorem 4.3, what the thesis ran", ours(hmc, "gdp")
    panel, barker = "DP Barker", named("barker")
    yield panel, "RDP, thesis", "Theorem 3.3 as coded", theirs("barker", "rdp")
    yield panel, "RDP", "tighter divergence and conversion", ours(barker, "rdp")


def _of_fixed_length(penalty, dim):
    """The penalty method with jumps of its typical length and a constant clip bound."""
    length = penalty.keywords["step_size"] * dim**0.5
    return functools.partial(
        dpjax.penalty,
        step_size=length,
        clip_bound=penalty.keywords["clip_bound"].constant * length,
        test_noise_multiplier=penalty.keywords["test_noise_multiplier"],
    )
