"""README.md: its code runs, prints what it shows, and its numbers are those kept."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.thesis import headline

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = dict(re.findall(r"^```(\w+)\n(.*?)^```", README, re.M | re.S))


def skeleton(text):
    """Words and numbers by line; numbers are not the same in any two runs."""
    return [re.sub(r"-?\d+\.\d+", "#", line).split() for line in text.splitlines()]


@pytest.mark.thorough
def test_the_example_prints_what_it_shows(tmp_path):
    """In 32 bits, as users have them, and without a warning.

    JAX warns if another process is writing the compiled program that it reads, so this
    one has a cache of its own.
    """
    script = tmp_path / "readme.py"
    script.write_text(BLOCKS["python"])
    environment = {k: v for k, v in os.environ.items() if k != "JAX_ENABLE_X64"}
    environment["JAX_COMPILATION_CACHE_DIR"] = str(tmp_path / "cache")
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", str(script)],
        env=environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert skeleton(done.stdout) == skeleton(BLOCKS["text"])
    assert len(skeleton(BLOCKS["text"])) == 4


def test_the_figure_and_its_sentence_are_of_the_numbers_kept(tmp_path):
    """Otherwise: python -m benchmarks.thesis --headline."""
    numbers = json.loads(json.dumps(headline.numbers()))
    kept = re.search(r"<dc:description>(.*?)<", headline.FIGURE.read_text(), re.S)
    assert kept and json.loads(kept[1].replace("&quot;", '"')) == numbers
    low, high, median = re.findall(r"0(\.\d+)", headline.sentence())
    words = " ".join(README.split())
    assert f"in {sum(map(len, numbers.values()))} comparisons" in words
    assert f"is {low} to {high} of the best published one" in words
    assert f"in the median {median}" in words


def test_it_is_short_and_its_links_lead_somewhere():
    assert len(README.splitlines()) <= 120
    links = re.findall(r"\]\(([^)]+)\)", README)
    assert len(links) > 10
    assert all((ROOT / link).exists() for link in links)
