"""What a verbose run says goes through the logger ``dpjax``."""

import ast
import functools
import logging
import re
from pathlib import Path

import jax.numpy as jnp
import pytest

import dpjax


@pytest.fixture
def logger():
    found = logging.getLogger("dpjax")
    before = found.level
    yield found
    found.setLevel(before)


BARKER = functools.partial(dpjax.barker, step_size=0.5, clip_bound=0.5)


def go(kernel=BARKER, num_steps=2, **options):
    target = dpjax.Posterior(
        lambda mean: -(mean**2) / 2,
        lambda mean, x: -((x - mean) ** 2) / 2,
        jnp.zeros(20),
    )
    dpjax.run(
        kernel,
        target,
        num_steps,
        initial_position=jnp.zeros(1),
        num_chains=1,
        budget=dpjax.Budget(5.0, 1e-6),
        warmup_fraction=0.0,
        **options,
    )


def test_a_run_is_printed_unless_the_logger_is_quiet(logger, capsys):
    go()
    said = capsys.readouterr()
    assert "epsilon = 1.9" in said.out and "sampling" in said.err
    logger.setLevel(logging.WARNING)
    go()
    assert capsys.readouterr().out == ""
    logger.setLevel(logging.INFO)
    go(verbose=False)
    assert capsys.readouterr().out == ""


def test_the_bar_of_a_lazy_kernel_shows_no_step(capsys):
    """How many steps were active is secret."""
    go(functools.partial(BARKER, clip_bound=0.1, laziness=0.5), 20)
    assert set(re.findall(r"(\d+)/20", capsys.readouterr().err)) == {"0", "20"}


def test_no_file_of_the_library_prints():
    """The exceptions are the command line, and pages that are printed by a module."""
    allowed = {"cli.py", "reference.py", "messages.py"}
    root = Path(dpjax.__file__).parent
    for path in root.rglob("*.py"):
        names = [
            node.func.id
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        ]
        assert "print" not in names or path.name in allowed, path
