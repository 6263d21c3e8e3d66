"""Programs of equal text are compiled once, and functions are traced in every call."""

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.fit import compiled as module
from dpjax.fit.compiled import compiled


def test_functions_of_one_text_share_a_program_until_they_change():
    scale = 2.0

    def call(x):
        return compiled(lambda x: {"scaled": scale * x}, x)

    x = jnp.arange(3.0)
    first = call(x)
    assert call(x + 1) is first
    np.testing.assert_array_equal(first(x)["scaled"], 2 * x)
    scale = 3.0
    np.testing.assert_array_equal(call(x)(x)["scaled"], 3 * x)


def test_results_of_other_trees_are_not_mixed_up():
    x = jnp.arange(3.0)
    for name in ("a", "b"):
        found = compiled(lambda x, name=name: {name: x}, x)(x)
        assert found.keys() == {name}


def test_old_programs_are_dropped(monkeypatch):
    monkeypatch.setattr(module, "MAX_PROGRAMS", 2)
    monkeypatch.setattr(module, "_programs", type(module._programs)())
    for size in (1, 2, 3, 2):
        compiled(jnp.sum, jax.ShapeDtypeStruct((size,), jnp.float32))
    assert len(module._programs) == 2
