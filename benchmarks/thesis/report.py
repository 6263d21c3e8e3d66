"""What the experiments write: rows of CSV files, box plots, tables in text."""

import csv
from pathlib import Path

import numpy as np

__all__ = ["append", "boxes", "finish", "markdown", "marks", "read"]


def append(path: Path, rows: list[dict]) -> None:
    """Add rows to a CSV file, with their keys as the header of a fresh one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        if fresh:
            writer.writeheader()
        writer.writerows({key: _text(row[key], 6) for key in row} for row in rows)


def read(path: Path) -> list[dict[str, str]]:
    """Rows of a CSV file, none if it is missing."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def markdown(rows: list[dict]) -> str:
    """The rows as a table; numbers with three digits, NaN left out."""
    if not rows:
        return "nothing is finished"
    lines = ["| " + " | ".join(rows[0]) + " |", "|---" * len(rows[0]) + "|"]
    for row in rows:
        lines.append(
            "| " + " | ".join(_text(value, 3) for value in row.values()) + " |"
        )
    return "\n".join(lines)


def _text(value, digits):
    if not isinstance(value, float):
        return str(value)
    if np.isnan(value):
        return "nan" if digits > 3 else ""
    whole = value.is_integer() and abs(value) < 1e12
    return f"{value:.0f}" if whole else f"{value:.{digits}g}"


def boxes(axes, places, samples, width, colour, label, alpha=0.7) -> None:
    """Box plots of `samples` over the chains, those that are empty left out."""
    samples = [np.asarray(sample, float) for sample in samples]
    samples = [sample[np.isfinite(sample)] for sample in samples]
    full = [i for i, sample in enumerate(samples) if sample.size]
    axes.bar(0, 0, color=colour, alpha=alpha, label=label)
    if not full:
        return
    axes.boxplot(
        [samples[i] for i in full],
        positions=[places[i] for i in full],
        widths=width,
        manage_ticks=False,
        patch_artist=True,
        boxprops=dict(facecolor=colour, alpha=alpha, linewidth=0.5),
        medianprops=dict(color="black"),
        flierprops=dict(marker=".", markersize=2),
        whiskerprops=dict(linewidth=0.7),
        capprops=dict(linewidth=0.7),
    )


def marks(axes, places, values) -> None:
    """Published medians."""
    axes.plot(places, values, "D", color="black", markerfacecolor="white", markersize=4)


def finish(figure, folder: Path, name: str, rows: list[dict]) -> None:
    """Write figure and table, and print the table."""
    folder.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(folder / f"figure_{name}.png", dpi=150)
    table = folder / f"figure_{name}.csv"
    table.unlink(missing_ok=True)
    append(table, rows)
    print(f"figure {name}\n{markdown(rows)}")
    print(f"written: {folder / f'figure_{name}.png'}, {table}")
