"""Arithmetic on which no guarantee holds is refused before a private run."""

import functools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

import dpjax
from dpjax.numpyro import MCMCKernel
from dpjax.release import accept_bit, gaussian, log_ratios, self_test, vector_sums
from tests.release.test_taint import POSITIONS, POSTERIOR, kernel

BUDGET = dpjax.Budget(1.0, 1e-6)


@pytest.fixture
def fresh():
    """No test of this process is remembered, before and after."""
    self_test._failures.cache_clear()
    jax.clear_caches()
    yield
    self_test._failures.cache_clear()
    jax.clear_caches()


def run(**options):
    return dpjax.run(
        kernel("sgld"),
        POSTERIOR,
        2,
        initial_position=POSITIONS,
        num_chains=3,
        verbose=False,
        **options,
        unsafe_key=jax.random.key(0),
    )


def longer(function, *arguments):
    return jax.tree.map(lambda cells: 1.25 * cells, function(*arguments))


def uneven(function, *arguments, **options):
    """A sum that rounds."""
    return jax.lax.reduce_precision(function(*arguments, **options), 8, 7)


def nothing_is_finite(function, vectors, kept, *rest):
    """As if the comparison with infinity were optimised away."""
    cells = function(vectors, kept, *rest)
    return [
        jnp.where(jnp.isnan(piece), piece, cell)
        for cell, piece in zip(cells, vectors, strict=True)
    ]


def coarse(function, words, integers, *rest):
    """Noise of 16 bits a word."""
    return function(words >> 16 << 16, integers, *rest)


def undefined(function, words, log_ratio, chance):
    with jax.enable_x64(True):
        return function(words, log_ratio, jnp.where(jnp.isnan(chance), 1.0, chance))


@pytest.mark.parametrize(
    ("module", "name", "broken", "part"),
    [
        (vector_sums, "clip_to_grid", longer, "clipping"),
        (vector_sums, "clip_to_grid", nothing_is_finite, "clipping"),
        (log_ratios, "_cells", longer, "clipping"),
        (self_test, "exact_sum", uneven, "sums"),
        (gaussian, "add_noise", coarse, "noise"),
        (accept_bit, "bit", undefined, "bits"),
    ],
)
def test_broken_arithmetic_is_seen(fresh, monkeypatch, module, name, broken, part):
    function = getattr(module, name)
    monkeypatch.setattr(module, name, functools.partial(broken, function))
    with pytest.raises(RuntimeError, match=rf"IEEE 754 \(.*{part}"):
        self_test.check_arithmetic()


@pytest.mark.parametrize("flag", ["xla_cpu_enable_fast_math", "xla_enable_fast_math"])
def test_a_flag_is_named(monkeypatch, tmp_path, flag):
    for value in ("", "=true", "=1", "=True"):
        monkeypatch.setenv("XLA_FLAGS", f"--xla_cpu_ftz=false --{flag}{value}")
        with pytest.raises(RuntimeError, match=f"^--{flag}{value} lets"):
            self_test.check_arithmetic()
    monkeypatch.setenv("XLA_FLAGS", str(tmp_path / "flags"))
    with pytest.raises(RuntimeError, match="names a file of flags"):
        self_test.check_arithmetic()
    monkeypatch.setenv("XLA_FLAGS", f"--{flag}=false")
    self_test.check_arithmetic()


@pytest.mark.thorough
def test_a_flag_is_named_before_anything_is_charged(monkeypatch, tmp_path):
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    ledger = tmp_path / "ledger.jsonl"
    with pytest.raises(RuntimeError, match="=true lets"):
        run(budget=BUDGET, ledger=ledger)
    assert not ledger.exists()
    with pytest.raises(RuntimeError, match="=true lets"):
        mcmc_kernel = MCMCKernel(kernel("barker"), POSTERIOR, budget=BUDGET)
        mcmc_kernel.init(jax.random.key(0), 0, jnp.zeros(2), (), {})
    run(budget=None)


def test_one_test_serves_a_process(fresh, monkeypatch):
    self_test.check_arithmetic()
    monkeypatch.setattr(self_test, "_evaluate", None)
    self_test.check_arithmetic()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("", None),
        ("--xla_allow_excess_precision=false", None),
        ("--xla_cpu_enable_fast_math=true", "--xla_cpu_enable_fast_math=true lets"),
        (
            # The program cannot read the flags that XLA has read.
            "--xla_cpu_enable_fast_math=true --xla_cpu_fast_math_honor_nans=false "
            "--xla_cpu_fast_math_honor_infs=false; unset",
            "not that of IEEE 754 (clipping",
        ),
    ],
)
def test_processes_with_flags(flags, message, tmp_path):
    flags, _, is_unset = flags.partition(";")
    program = (
        "import os, jax; jax.devices(); "
        + ("del os.environ['XLA_FLAGS']; " if is_unset else "")
        + "from dpjax.release.self_test import check_arithmetic; check_arithmetic()"
    )
    environment = os.environ | {"XLA_FLAGS": flags}
    environment["JAX_COMPILATION_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment
    )
    assert (done.returncode == 0) == (message is None), done.stderr
    if message:
        assert message in done.stderr
