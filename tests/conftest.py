"""Settings of every test: 64 bits unless DPJAX_TEST_X64=0, and JAX at its strictest.

Reuse of keys, which does not depend on the precision, is looked for in 64 bits.
"""

import os

import jax
import pytest

X64 = os.environ.get("DPJAX_TEST_X64", "1") != "0"

jax.config.update("jax_enable_x64", X64)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_debug_key_reuse", X64)


@pytest.fixture(autouse=True, scope="module")
def programs():
    """Compiled programs are kept for a file: those of a session fill gigabytes."""
    yield
    jax.clear_caches()


@pytest.fixture(autouse=True)
def x64():
    """Whether JAX computes in 64 bits; some folders run both."""
    return jax.config.jax_enable_x64


@pytest.fixture(scope="module")
def quickly_compiled():
    """For programs that take longer to optimise than to run."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
