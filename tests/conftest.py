"""Settings of every test: 64 bits unless DPJAX_TEST_X64=0, and JAX at its strictest.

In float32 what hardly depends on the precision is left out: accounting, which computes
without JAX, and whole jobs and experiments. Nor does reuse of keys depend on it.
"""

import os
from pathlib import Path

import jax
import pytest

X64 = os.environ.get("DPJAX_TEST_X64", "1") != "0"

jax.config.update("jax_enable_x64", X64)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_debug_key_reuse", X64)

TESTS = Path(__file__).parent
JOBS = ["test_cli.py", "test_benchmarks.py", "test_fast_mh_benchmark.py"]
if not X64:
    collect_ignore = [TESTS / name for name in [*JOBS, "sgmcmc/test_experiments.py"]]
    for path in TESTS.glob("privacy/test_*.py"):
        if path.name not in ("test_exact.py", "test_audit.py"):
            collect_ignore.append(path)


@pytest.fixture(autouse=True, scope="module")
def programs():
    """Compiled programs are kept for a file: those of a session fill gigabytes."""
    yield
    jax.clear_caches()


@pytest.fixture(autouse=True)
def x64():
    """Whether JAX computes in 64 bits; some folders run both."""
    return jax.config.jax_enable_x64
