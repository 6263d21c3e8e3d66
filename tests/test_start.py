"""A new user follows docs/start.md word for word."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/start.md").read_text()
CELLS = re.findall(r"^```\{code-cell\}\n(?!:tags)(.*?)^```", PAGE, re.M | re.S)
"""Those with tags show pictures; a reader does not see them."""


@pytest.mark.thorough
def test_from_a_csv_to_a_report(tmp_path):
    """Without a warning. Cells are commands, files, or Python, which is one session.

    ArviZ warns once a day and user, so this user is new.
    """
    environment = {k: v for k, v in os.environ.items() if k != "JAX_ENABLE_X64"}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment |= {"PYTHONPATH": str(ROOT), "PATH": path}
    environment["XDG_CACHE_HOME"] = str(tmp_path / "cache")
    printed, session = "", ""

    def call(*arguments, **options):
        nonlocal printed
        done = subprocess.run(
            *arguments,
            **options,
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        printed += done.stdout
        assert done.returncode == 0, printed

    def python():
        nonlocal session
        call([sys.executable, "-c", session])

    for cell in CELLS:
        first, _, rest = cell.partition("\n")
        if first.startswith("%%writefile "):
            (tmp_path / first.split()[1]).write_text(rest)
        elif first.startswith("!"):
            if session:
                python()
            session = ""
            call(first[1:], shell=True)
        else:
            session += cell
    assert (tmp_path / "results/report.html").stat().st_size > 10_000
    assert "arning" not in printed, printed
    (low, high) = re.search(r"visits by ([\d.]+) to ([\d.]+)", printed).groups()
    # A miss by twelve posterior standard deviations of such a fit.
    assert 1.17 < float(low) < float(high) < 1.27
