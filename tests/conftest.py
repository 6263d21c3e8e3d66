"""Settings of every test: 64 bits unless DPJAX_TEST_X64=0, and JAX at its strictest."""

import os

import jax
import pytest

X64 = os.environ.get("DPJAX_TEST_X64", "1") != "0"

jax.config.update("jax_enable_x64", X64)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_debug_key_reuse", True)


@pytest.fixture(autouse=True)
def x64():
    """Whether JAX computes in 64 bits; some folders run both."""
    return jax.config.jax_enable_x64
