"""What of the parameters reaches a record: its effects.

A record's log-likelihood may read what is made of several parameters rather than these
themselves, such as the effects mean + scale z of groups. Many values of the parameters
then give the same effects. A fit takes scores to be linear in the parameters, and these
are far from it however many records there are, as records tell the effects alone.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun

__all__ = ["are_products", "effects"]

CALLS = {"jit": "jaxpr", "custom_jvp_call": "call_jaxpr"}
"""Operations that call a program, and the name of the program among their parameters.
Numbers that enter another operation together with a record are effects."""

RANK_TOLERANCE, MIN_CHANGE = 1e-4, 0.01
"""Of the slope of the effects per prior sd, with rows of length one: the least singular
value over the largest; and the least part of a direction, and change of an effect, that
counts."""


def are_products(effects_fn: Callable, positions: np.ndarray) -> np.ndarray:
    """Which parameters change the effects only together with others, nonlinearly.

    The directions in which the effects do not change, to first order, are then others
    at another position, as for mean + scale z. Parameters that no effect is made of,
    such as the mean and the scale of effects that are parameters themselves, are none.

    Parameters
    ----------
    effects_fn
        ``(d,) -> (m,)``.
    positions
        Public positions, ``(k, d)``.

    Returns
    -------
    Booleans, ``(d,)``.
    """
    slopes = np.asarray(jax.jit(jax.vmap(jax.jacfwd(effects_fn)))(positions), float)
    slopes = np.where(np.isfinite(slopes), slopes, 0.0) * np.std(positions, axis=0)
    slopes /= np.maximum(np.linalg.norm(slopes, axis=2, keepdims=True), 1e-30)
    found = np.zeros(positions.shape[1], bool)
    for slope in slopes:
        _, values, vectors = np.linalg.svd(slope)
        rank = np.sum(values > RANK_TOLERANCE * values.max(initial=0.0))
        unseen = vectors[rank:].T
        changed = np.max(np.abs(slopes @ unseen), axis=(0, 1), initial=0.0)
        moves = unseen[:, changed > MIN_CHANGE]
        found |= np.any(np.abs(moves) > MIN_CHANGE, axis=1)
    return found


def effects(loglikelihood_fn: Callable, position: jax.Array, record) -> jax.Array:
    """Every real number that is made of the position alone and used with a record.

    Parameters
    ----------
    loglikelihood_fn
        ``(position, record) -> scalar``, of a flattened position.
    position, record
        One of each. The values of the record are not used.

    Returns
    -------
    Array of shape ``(m,)``.
    """
    program = jax.make_jaxpr(loglikelihood_fn)(position, record)
    rest = jax.tree.leaves(record)
    depends = [(True, False)] + [(False, True)] * len(rest)
    found = _effects(program, depends, [position, *rest])
    real = [each.ravel() for each in found if jnp.issubdtype(each.dtype, jnp.inexact)]
    return jnp.concatenate([jnp.zeros(0, position.dtype), *real])


def _effects(program: ClosedJaxpr, depends: list[tuple], values: list) -> list[Any]:
    """The effects in a program, for its inputs' `values`.

    `depends` says of each input whether it depends on the position and on the record.
    """
    jaxpr = program.jaxpr
    known = dict(zip(jaxpr.invars, depends, strict=True))
    known.update(dict.fromkeys(jaxpr.constvars, (False, False)))

    def evaluated(atoms):
        wanted = ClosedJaxpr(jaxpr.replace(outvars=list(atoms)), program.consts)
        return list(jaxpr_as_fun(wanted)(*values))

    found = []
    for eqn in jaxpr.eqns:
        inputs = [
            (False, False) if isinstance(atom, Literal) else known[atom]
            for atom in eqn.invars
        ]
        both = any(position for position, _ in inputs), any(own for _, own in inputs)
        known.update(dict.fromkeys(eqn.outvars, both))
        if both != (True, True):
            continue
        if inner := CALLS.get(eqn.primitive.name):
            found += _effects(eqn.params[inner], inputs, evaluated(eqn.invars))
        else:
            pairs = zip(eqn.invars, inputs, strict=True)
            found += evaluated(atom for atom, each in pairs if each == (True, False))
    return found
