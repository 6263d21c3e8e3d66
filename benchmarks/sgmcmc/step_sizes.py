"""Figures 1 and 2: step sizes that are sound beside those that papers give.

Every cell has a fixed step size and the first of steps that fall as t^(-1/3): sound
under both neighbouring relations, by Theorems 3 and 4 of Li et al. with the constants
of their proofs, and by Wang et al. 2015.
"""

import math

import matplotlib
from tqdm import tqdm

from benchmarks.thesis import report
from dpjax.comparisons import sgld_claims
from dpjax.privacy import NeighboringRelation
from dpjax.privacy.step_size import max_step_size
from dpjax.sgmcmc.schedules import power_decay

RELATIONS = {
    "add": NeighboringRelation.ADD_OR_REMOVE_ONE,
    "replace": NeighboringRelation.REPLACE_ONE,
}
CURVES = {
    "fixed_add": "sound, add or remove",
    "fixed_replace": "sound, replace",
    "fixed_theorem": "Li et al., theorem",
    "wang": "Wang et al. 2015",
    "decreasing_add": "sound, add or remove",
    "decreasing_replace": "sound, replace",
    "decreasing_theorem": "Li et al., theorem",
}
STYLES = dict(add="C0-", replace="C1-", theorem="C3--", wang="C7:")


def cell(setting: dict, temperature: float) -> dict:
    """One row of the table: see the module's docstring."""
    row = dict(setting)
    setting = dict(setting)
    figure = setting.pop("figure")
    num_steps = setting.pop("num_steps")
    for name, relation in RELATIONS.items():
        for schedule, decay in (("fixed", None), ("decreasing", power_decay(1.0))):
            row[f"{schedule}_{name}"] = max_step_size(
                num_steps,
                schedule=decay,
                temperature=temperature,
                neighboring_relation=relation,
                **setting,
            )
    fixed = sgld_claims.li_theorem_4(num_steps, **setting)
    decreasing = sgld_claims.li_theorem_3(num_steps, **setting)
    row["fixed_theorem"] = fixed.step_size
    row["fixed_broken"] = len(fixed.broken_conditions)
    row["decreasing_theorem"] = decreasing.step_size
    row["decreasing_broken"] = len(decreasing.broken_conditions)
    setting.pop("sampling_prob")
    row["wang"] = sgld_claims.wang(num_steps, **setting).step_size
    return row | dict(figure=figure)


def cells(settings: dict, quick: bool) -> list[dict]:
    """What the rows are of."""
    found = []
    for figure, table in settings.items():
        if figure == "temperature":
            continue
        for num_records in table["num_records"]:
            for l2_clip_norm in table["l2_clip_norm"]:
                for epsilon in table["epsilons"]:
                    found.append(
                        dict(
                            figure=figure,
                            num_records=num_records,
                            num_steps=table.get("num_steps", num_records),
                            l2_clip_norm=l2_clip_norm,
                            delta=table.get("delta", 1 / num_records),
                            sampling_prob=table.get(
                                "sampling_prob", 1 / math.sqrt(num_records)
                            ),
                            epsilon=epsilon,
                        )
                    )
    return found[::8] if quick else found


def run(settings: dict, folder, quick: bool) -> None:
    """Rows of ``step_sizes.csv`` that are missing, and the figures."""
    path = folder / "step_sizes.csv"
    keys = ("figure", "num_records", "l2_clip_norm", "epsilon")

    def name(row):
        return row[keys[0]], *(float(row[key]) for key in keys[1:])

    done = {name(row) for row in report.read(path)}
    missing = [c for c in cells(settings, quick) if name(c) not in done]
    for setting in tqdm(missing, unit="cell"):
        report.append(path, [cell(setting, settings["temperature"])])
    rows = report.read(path)
    for figure in sorted({row["figure"] for row in rows}):
        _plot([r for r in rows if r["figure"] == figure], folder / f"{figure}.png")


def _plot(rows, path) -> None:
    matplotlib.use("Agg")
    from matplotlib import pyplot

    curves = sorted({(float(r["num_records"]), float(r["l2_clip_norm"])) for r in rows})
    figure, grid = pyplot.subplots(
        2, len(curves), figsize=(3.2 * len(curves) + 1, 6), sharey=True, squeeze=False
    )
    for place, (size, norm) in enumerate(curves):
        chosen = [
            r
            for r in rows
            if (float(r["num_records"]), float(r["l2_clip_norm"])) == (size, norm)
        ]
        epsilons = [float(r["epsilon"]) for r in chosen]
        for key, label in CURVES.items():
            axes = grid[int(key.startswith("decreasing")), place]
            values = [float(r[key]) for r in chosen]
            axes.loglog(epsilons, values, STYLES[key.split("_")[-1]], label=label)
        for axes, text in zip(
            grid[:, place], ("fixed", "first of t^(-1/3)"), strict=True
        ):
            axes.set_title(f"N = {size:g}, L = {norm:g}: {text}", fontsize=8)
            axes.set_xlabel("epsilon")
    grid[0, 0].legend(fontsize=7)
    for axes in grid[:, 0]:
        axes.set_ylabel("step size")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
