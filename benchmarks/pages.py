"""The tables of docs/results, which hold the numbers that are kept."""

from pathlib import Path

__all__ = ["RESULTS", "number", "table"]

RESULTS = Path(__file__).parents[1] / "docs/results"


def table(page: str, heading: str = "") -> list[dict[str, str]]:
    """Rows of the first table below a heading of a page, by column.

    Raises
    ------
    ValueError
        If there is none.
    """
    lines = (RESULTS / f"{page}.md").read_text().splitlines()
    starts = [
        i for i, line in enumerate(lines) if line.lstrip("# ").startswith(heading)
    ]
    found = []
    for line in lines[starts[0] if starts else len(lines) :]:
        if line.startswith("|"):
            found.append([cell.strip() for cell in line.strip("|").split("|")])
        elif found:
            break
    if not found:
        raise ValueError(f"{page}.md has no table below {heading!r}")
    header, _, *rows = found
    return [dict(zip(header, row, strict=True)) for row in rows]


def number(cell: str) -> float:
    """What a cell begins with; NaN if that is no number."""
    try:
        return float(cell.replace("*", " ").split(" ")[0])
    except ValueError:
        return float("nan")
