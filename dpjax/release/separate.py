"""Operations in which one record could change what the other records add to a sum.

The sensitivity of a sum rests on one record changing one term. A kernel evaluates a
function of one record on many by `jax.vmap`, which computes with every record by
itself. There are three exceptions:

- A function with a rule of its own for batches (`jax.custom_batching.custom_vmap`) sees
  all records of a batch.
- Given many keys of a random generator other than threefry, JAX draws the numbers of
  all from the first key.
- The incomplete beta function, of which distribution functions like Student's are made,
  is iterated for all records until the slowest has converged, which changes the last
  digits of the others.

`check_batching` refuses the first, and `why_not` the other two. `why_not` also refuses
two operations that could publish records in another way: writing to a mutable array
takes values out of sight of `dpjax.release.taint`, and LAPACK prints a line where the
fast method for singular values meets an infinite number.
"""

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr

from dpjax.release.traced import equations

__all__ = ["check_batching", "why_not"]

RANDOM_BITS = "rng_bit_generator"
"""The primitive of which random generators other than threefry are made."""

INCOMPLETE_BETA = "regularized_incomplete_beta"


def check_batching(program: ClosedJaxpr | Jaxpr, kind: str) -> None:
    """Refuse a program of one record that brings its own rule for batches.

    Parameters
    ----------
    program
        A traced function of one record.
    kind
        What the message calls it.

    Raises
    ------
    ValueError
        If the program, or one inside it, has a `jax.custom_batching.custom_vmap`.
    """
    for eqn in equations(program):
        if eqn.primitive.name == "custom_vmap_call":
            raise ValueError(
                f"{kind} has a rule of its own for batches, of custom_vmap or "
                "sequential_vmap in jax.custom_batching, in which one record could "
                "change what others add: take it out of the model"
            )


def why_not(eqn, inputs: list[bool]) -> str:
    """Why a program must not do an operation on records; empty if it may.

    Parameters
    ----------
    eqn
        The operation, an equation of a traced program.
    inputs
        Which inputs of the operation depend on records, one boolean for each.
    """
    if not any(inputs):
        return ""
    name = eqn.primitive.name
    if any(
        type(atom.aval).__name__ == "AbstractRef"
        for atom in (*eqn.invars, *eqn.outvars)
    ):
        return (
            "the program writes what depends on records into a mutable array, where "
            "nobody can follow it: compute with values"
        )
    if name == INCOMPLETE_BETA:
        return (
            "the program takes the incomplete beta function of a record, which XLA "
            "iterates for all records until the slowest has converged, so that one "
            "record changes what others add to a sum: distribution functions of beta, "
            "binomial and Student's t laws cannot be part of a likelihood"
        )
    if name == "svd":
        return (
            "the program takes singular values of a matrix that depends on records, "
            "and LAPACK prints a line if it holds an infinite number: take an "
            "eigendecomposition"
        )
    if name == RANDOM_BITS or any(
        depends and _is_key(atom.aval) and not _is_threefry(atom.aval)
        for atom, depends in zip(eqn.invars, inputs, strict=True)
    ):
        return (
            "random numbers are drawn from keys that depend on a record, of a "
            "generator with which JAX draws those of all records from the key of "
            "one: make such keys by jax.random.key(.., impl='threefry2x32')"
        )
    return ""


def _is_key(value) -> bool:
    dtype = getattr(value, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)


def _is_threefry(value) -> bool:
    threefry = jax.eval_shape(lambda: jax.random.key(0, impl="threefry2x32"))
    return value.dtype == threefry.dtype
