"""Operations in which one record could change what the other records add to a sum.

The sensitivity of a sum rests on one record changing one term. A kernel evaluates a
function of one record on many by `jax.vmap`, which computes with every record by
itself. There are five exceptions:

- A function with a rule of its own for batches sees all records of a batch. It has one
  by `jax.custom_batching.custom_vmap`, or by a primitive that is not of JAX, such as
  those in which Equinox asks whether any loop of a batch goes on.
- Given many keys of a random generator other than threefry, JAX draws the numbers of
  all from the first key.
- The numbers of `jax.lax.rng_uniform` come from a state that a program hides. How many
  one record takes, in a loop, decides which the others get.
- A convolution of two arrays that depend on a record, such as in the gradient of a
  convolutional network, is one operation for all records. In 64 bits XLA makes the
  results of all others undefined if a number of one record is not finite. If the
  convolution is in batch groups, as the gradient of a grouped one is, it may do so in
  float32, too.
- The incomplete beta function, of which distribution functions like Student's are made,
  is iterated for all records until the slowest has converged, which changes the last
  digits of the others.

`program_of` refuses the first and batch groups, and `why_not` the others. `why_not`
also refuses two operations that could publish records in another way: writing to a
mutable array takes values out of sight of `dpjax.release.taint`, and LAPACK prints a
line where the fast method for singular values meets an infinite number.
"""

import functools
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.extend.source_info_util import summarize
from jax.interpreters import batching

from dpjax.release.sealed import alone
from dpjax.release.traced import equations, function_of

__all__ = ["program_of", "why_not"]

OWN_RULES = {"custom_vmap_call", "call_hi_primitive", "call_hi_primitive_linearized"}
"""Primitives of JAX that call a rule for batches which the user may have written."""

RANDOM_BITS = "rng_bit_generator"
"""The primitive of which random generators other than threefry are made."""

HIDDEN_STATE = "rng_uniform"
"""The primitive of `jax.lax.rng_uniform`."""

INCOMPLETE_BETA, CONVOLUTION = "regularized_incomplete_beta", "conv_general_dilated"


def program_of(function: Callable, kind: str, *arguments) -> tuple[Callable, Any]:
    """A function of one record, to be evaluated on many records by `jax.vmap`.

    The function is traced here, and its program is searched. It is this program that is
    evaluated: `function` is not called again.

    Parameters
    ----------
    function
        A function of one record. It may not open the records of a posterior.
    kind
        What the message calls it.
    arguments
        Arguments, or their shapes and dtypes.

    Returns
    -------
    The function, and the shapes and dtypes of what it returns.

    Raises
    ------
    ValueError
        If the program has a rule of its own for batches, or a convolution in batch
        groups.
    """
    program, shapes = jax.make_jaxpr(alone(function), return_shape=True)(*arguments)
    for eqn in equations(program):
        name = eqn.primitive.name
        own_rule = name in OWN_RULES and not _is_numpy_operation(eqn)
        if own_rule or not _is_of_jax(eqn.primitive):
            raise ValueError(
                f"{kind} has a rule of its own for batches, of custom_vmap or "
                "sequential_vmap in jax.custom_batching, or of the primitive "
                f"{name!r} of a library, in which one record could change what "
                f"others add, at {summarize(eqn.source_info)}: take it out of the model"
            )
        if eqn.params.get("batch_group_count", 1) > 1:
            raise ValueError(
                f"{kind} has a convolution in batch groups, such as the gradient of "
                "one with feature_group_count, in which one record could change what "
                f"others add, at {summarize(eqn.source_info)}: convolve each group by "
                "itself"
            )
    return function_of(program, shapes), shapes


@functools.cache
def _is_of_jax(primitive: Primitive) -> bool:
    """Whether JAX wrote the rule by which a primitive is evaluated on a batch."""
    waiting: list[Any] = [batching.fancy_primitive_batchers.get(primitive)]
    while waiting:
        rule = waiting.pop()
        if isinstance(rule, functools.partial):
            waiting += [rule.func, *rule.args, *rule.keywords.values()]
        elif callable(rule):
            if not isinstance(rule, types.FunctionType):
                return False
            if rule.__globals__["__name__"].partition(".")[0] != "jax":
                return False
            # JAX keeps most rules within functions of its own.
            waiting += [cell.cell_contents for cell in rule.__closure__ or ()]
    return True


def _is_numpy_operation(eqn) -> bool:
    """Whether an equation is one of the few functions of `jax.numpy` with such a rule.

    From JAX 0.12 on these are `searchsorted`, `nonzero`, `ldexp` and `frexp`. Each is a
    class of JAX whose parameters are numbers and names, not functions of a user.
    """
    kind = type(eqn.params.get("_prim"))
    return kind.__module__.startswith("jax._src.numpy.")


def why_not(eqn, inputs: list[bool]) -> str:
    """Why a program that reads records must not do an operation; empty if it may.

    Parameters
    ----------
    eqn
        The operation, an equation of a traced program.
    inputs
        Which inputs of the operation depend on records, one boolean for each.
    """
    name = eqn.primitive.name
    if name == HIDDEN_STATE:
        return (
            f"the program draws random numbers by jax.lax.{name}, and one record could "
            "decide which of them the others get: draw them from a key, by jax.random"
        )
    if not any(inputs):
        return ""
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
    if name == CONVOLUTION and all(inputs) and eqn.invars[0].aval.dtype != "float32":
        return (
            "the program convolves two arrays that depend on a record, not in float32 "
            "but in a precision in which one that is not finite changes what other "
            "records add to a sum: make them float32, or leave JAX_ENABLE_X64 off"
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
