"""NumPy's random numbers, for what runs once and would be compiled for longer."""

import jax
import numpy as np

__all__ = ["generator"]


def generator(rng_key: jax.Array) -> np.random.Generator:
    """NumPy's generator, seeded with the words of a JAX key."""
    return np.random.default_rng(np.asarray(jax.random.key_data(rng_key)))
