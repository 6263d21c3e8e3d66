"""The code of README.md runs from top to bottom in a process of its own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BLOCKS = re.findall(
    r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S
)


@pytest.mark.thorough
def test_the_blocks_of_the_readme_run_in_order(tmp_path):
    """In 32 bits, as users have them, and without a warning."""
    script = tmp_path / "readme.py"
    script.write_text("\n".join(BLOCKS))
    environment = {k: v for k, v in os.environ.items() if k != "JAX_ENABLE_X64"}
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", str(script)],
        env=environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    tables = [line for line in done.stdout.splitlines() if "hdi_3%" in line]
    assert len(tables) == "\n".join(BLOCKS).count("\nprint(") > 6
    assert all(line.split()[-1] == "r_hat" for line in tables)
