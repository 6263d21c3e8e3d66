"""Every block of code of the documentation is executed, by its build or by a test."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [page for page in PAGES if "_build" not in page.parts]
BLOCKS = [
    (page, kind, text)
    for page in PAGES
    for kind, text in re.findall(
        r"^```([^\n`]*)\n(.*?)^```", page.read_text(), re.M | re.S
    )
]


def test_python_is_in_cells_of_executed_pages():
    assert not [page for page, kind, _ in BLOCKS if kind in ("python", "toml", "py")]
    pages = {page for page, kind, _ in BLOCKS if kind == "{code-cell}"}
    assert len(pages) > 8
    assert all(
        page.read_text().startswith("---\nfile_format: mystnb") for page in pages
    )


def test_commands_are_those_of_modules_that_exist():
    commands = [
        match
        for _, kind, text in BLOCKS
        if kind == "sh"
        for match in re.findall(r"^python -m (\S+)", text, re.M)
    ]
    assert len(commands) > 20
    assert all(importlib.util.find_spec(name) for name in set(commands))


FOLDERS = [f"{name}index.md" for name in ("", "tutorials/", "api/", "results/")]


@pytest.mark.parametrize("page", FOLDERS)
def test_every_page_of_a_folder_is_in_its_table_of_contents(page):
    text, folder = (ROOT / "docs" / page).read_text(), (ROOT / "docs" / page).parent
    listed = {path.stem for path in folder.glob("*.md")} - {"index"}
    assert listed <= set(re.findall(r"^\S+$", text, re.M))
