"""A report of a run: one HTML file, with its pictures, that can be sent to somebody."""

import base64
import html
import io
import json
import math
from pathlib import Path
from typing import Any

from dpjax.report.pictures import pictures
from dpjax.runner.results import Run

__all__ = ["write"]

MAX_ROWS = 100
"""Largest number of components in the table of the page. If there are more, the first
ones are shown."""

CAPTIONS = {
    "densities": "Draws of each parameter, with mean and central 94% interval. Lines, "
    "if any, are single chains.",
    "ranks": "Ranks of each chain's draws among those of all chains. Chains that have "
    "mixed are pale everywhere.",
    "pairs": "Draws of pairs of parameters.",
    "prior": "Central 94% intervals before and after the data.",
    "width": "What the variance of the draws is due to.",
    "budget": "Privacy budget that runs on these records have spent up to each.",
}

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1c2430; max-width: 54rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.7rem; margin-bottom: 0; }
h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; border-bottom: 1px solid #d7dce2; }
.statement { background: #eef4fa; border-left: 4px solid #2a6099; padding: .6rem 1rem; }
.alarm { background: #fdeeee; border-left-color: #b3261e; }
.small, figcaption, footer { color: #5b6470; font-size: .85rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; }
th, td { padding: .15rem .7rem; text-align: right; border-bottom: 1px solid #e6e9ed; }
th:first-child, td.text { text-align: left; }
td.bad { color: #b3261e; font-weight: 600; } td.good { color: #2f7d4a; }
figure { margin: 1rem 0 1.5rem; break-inside: avoid; } img { max-width: 100%; }
pre { background: #f5f6f8; padding: .7rem; font-size: .8rem; overflow-x: auto; }
@media print { body { font-size: 10pt; margin: 0; max-width: none; }
  pre { white-space: pre-wrap; } }
"""


def write(
    run: Run, folder, *, title: str = "Posterior draws", prior: Any = None, ledger=None
) -> Path:
    """Write ``report.html`` and its pictures to a folder.

    The page needs no other file, no network and no scripts. The pictures are also
    written as PNG files.

    Parameters
    ----------
    run
        The run to report.
    folder
        The folder to write to. It is created if it does not exist.
    title
        Heading of the page.
    prior, ledger
        As in `dpjax.report.pictures`.

    Returns
    -------
    Path of the page.

    Raises
    ------
    OSError
        If the folder cannot be written.
    LedgerError
        As in `dpjax.report.pictures`.

    Notes
    -----
    *Formal guarantees.* The page is a function of the run, which holds released and
    public values alone, and of the other arguments. No records are read.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    images = {}
    for name, figure in pictures(run, prior=prior, ledger=ledger).items():
        file = io.BytesIO()
        figure.savefig(file, format="png", dpi=160)
        (folder / f"{name}.png").write_bytes(file.getvalue())
        images[name] = base64.b64encode(file.getvalue()).decode()
    path = folder / "report.html"
    path.write_text(_page(run, title, images), "utf-8")
    return path


def _page(run: Run, title: str, images: dict[str, str]) -> str:
    statement = run.statement
    is_private = statement.epsilon < math.inf
    is_seeded = "unsafe" in statement.randomness
    alarm = "" if is_private and not is_seeded else " alarm"
    sections = [
        f"<h1>{_text(title)}</h1>",
        f'<p class="statement{alarm}">{_text(statement.in_words())}</p>',
        f'<p class="small">{_lines(str(statement))}</p>',
        "<h2>Checks</h2>",
        _checks(run),
        "<h2>Parameters</h2>",
        _summary(run),
        "<h2>Pictures</h2>",
        *(
            f'<figure><img alt="{_text(CAPTIONS[name])}" '
            f'src="data:image/png;base64,{image}">'
            f"<figcaption>{_text(CAPTIONS[name])}</figcaption></figure>"
            for name, image in images.items()
        ),
    ]
    if run.configuration is not None:
        configuration = json.dumps(run.configuration, indent=2, default=str)
        sections += ["<h2>Configuration</h2>", f"<pre>{_text(configuration)}</pre>"]
    versions = ", ".join(f"{name} {number}" for name, number in run.versions.items())
    sections.append(f"<footer><p>Made with {_text(versions)}.</p></footer>")
    body = "\n".join(sections)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width">\n'
        f"<title>{_text(title)}</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def _checks(run: Run) -> str:
    rows = []
    for check in run.checks():
        kind, verdict = ("good", "fine") if check.is_fine else ("bad", check.advice)
        cells = f'<td class="text">{_text(check.value)}</td>'
        cells += f'<td class="text {kind}">{_text(verdict)}</td>'
        rows.append(f"<tr><td class='text'>{_text(check.name)}</td>{cells}</tr>")
    return f"<table>{''.join(rows)}</table>"


def _summary(run: Run) -> str:
    table, num_components = run.short_summary(MAX_ROWS)
    found = table.to_html(border=0)
    if num_components > len(table):
        found += (
            f'<p class="small">{len(table)} of {num_components} parameters; the others '
            "are in summary.csv.</p>"
        )
    return f'<div class="wide">{found}</div>'


def _text(text: str) -> str:
    return html.escape(text, quote=True)


def _lines(text: str) -> str:
    return _text(text).replace("\n", "<br>")
