"""Records apart from each other, in functions of one record that JAX runs on many.

`jax.vmap` computes with every record by itself, so that one record moves one term of a
sum. There are two exceptions. A function with a rule of its own for batches
(`jax.custom_batching.custom_vmap`) sees all records of a batch. And of many keys of a
generator other than threefry, JAX takes the first one for the numbers of all.
"""

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr

from dpjax.release.traced import is_program

__all__ = ["check_batching", "is_mixed"]

RANDOM_BITS = "rng_bit_generator"
"""What generators other than threefry are made of."""


def check_batching(program: ClosedJaxpr | Jaxpr, kind: str) -> None:
    """Refuse a program of one record, called `kind`, that has a rule for batches.

    Raises
    ------
    ValueError
        If it has one.
    """
    for eqn in getattr(program, "jaxpr", program).eqns:
        if eqn.primitive.name == "custom_vmap_call":
            raise ValueError(
                f"{kind} has a rule of its own for batches, of custom_vmap or "
                "sequential_vmap in jax.custom_batching, in which one record could "
                "change what others add: take it out of the model"
            )
        for part in jax.tree.leaves(eqn.params, is_leaf=is_program):
            if is_program(part):
                check_batching(part, kind)


def is_mixed(eqn, inputs: list[bool]) -> bool:
    """Whether an operation on many records mixes them by their random numbers.

    Parameters
    ----------
    eqn
        The operation.
    inputs
        Which of its inputs depend on records.
    """
    if eqn.primitive.name == RANDOM_BITS:
        return any(inputs)
    return any(
        depends and _is_key(atom.aval) and not _is_threefry(atom.aval)
        for atom, depends in zip(eqn.invars, inputs, strict=True)
    )


def _is_key(value) -> bool:
    dtype = getattr(value, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)


def _is_threefry(value) -> bool:
    threefry = jax.eval_shape(lambda: jax.random.key(0, impl="threefry2x32"))
    return value.dtype == threefry.dtype
