"""What of the parameters reaches the observations of a record: its effects.

Effects are what a record's log-likelihood makes of the parameters and the covariates
before it meets an observation, such as the mean and the scale of a normal observation.
They may be made of products of parameters, such as mean + scale z[group], and many
values of the parameters then give the same effects. A fit takes scores to be linear in
the parameters, and these are far from it however many records there are, as records
tell the effects alone.
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
Numbers that enter another operation together with an observation are effects."""

RANK_TOLERANCE, MIN_CHANGE = 1e-5, 0.01
"""Of the slope of the effects per prior sd, with rows of length one: the least singular
value over the largest; and the least part of a direction, and change of an effect, that
counts."""


def are_products(slopes: np.ndarray) -> np.ndarray:
    """Which parameters change the effects only together with others, nonlinearly.

    The directions in which the effects do not change, to first order, are then others
    at another position, as for mean + scale z. Parameters that no effect is made of,
    such as the mean and the scale of effects that are parameters themselves, are not
    among them.

    Parameters
    ----------
    slopes
        Derivatives of m effects at k positions, ``(k, m, d)``, in units of the prior.

    Returns
    -------
    Booleans, ``(d,)``.
    """
    lengths = np.linalg.norm(np.asarray(slopes, np.float64), axis=2)
    # A sigmoid that saturates at one position changes nothing there.
    is_seen = np.all(np.isfinite(lengths) & (lengths > 0), axis=0)
    slopes = slopes[:, is_seen] / lengths[:, is_seen, None]
    found = np.zeros(slopes.shape[2], bool)
    for slope in slopes:
        squares, vectors = np.linalg.eigh(slope.T @ slope)
        least = RANK_TOLERANCE**2 * squares.max(initial=0.0)
        unseen = vectors[:, squares <= least]
        elsewhere = slopes.reshape(-1, slopes.shape[2]) @ unseen
        # Turned so that directions which are seen elsewhere are apart from the others.
        _, turn = np.linalg.eigh(elsewhere.T @ elsewhere)
        unseen = unseen @ turn
        changed = np.max(np.abs(elsewhere @ turn), axis=0, initial=0.0)
        moves = unseen[:, changed > MIN_CHANGE]
        found |= np.any(np.abs(moves) > MIN_CHANGE, axis=1)
    return found


def effects(
    loglikelihood_fn: Callable, position: jax.Array, covariates, observations
) -> jax.Array:
    """The effects of one record at a position.

    Parameters
    ----------
    loglikelihood_fn
        ``(position, covariates, observations) -> scalar``, of a flattened position.
    position, covariates, observations
        One of each, ``(d,)`` and pytrees. The values of the observations are not used.

    Returns
    -------
    Array of shape ``(m,)``.
    """
    given = position, covariates, observations
    program = jax.make_jaxpr(loglikelihood_fn)(*given)
    depends = [(True, False)]
    depends += [(False, False)] * len(jax.tree.leaves(covariates))
    depends += [(False, True)] * len(jax.tree.leaves(observations))
    found = _effects(program, depends, jax.tree.leaves(given))
    real = [each.ravel() for each in found if jnp.issubdtype(each.dtype, jnp.inexact)]
    return jnp.concatenate([jnp.zeros(0, position.dtype), *real])


def _effects(program: ClosedJaxpr, depends: list[tuple], values: list) -> list[Any]:
    """The effects in a program, for its inputs' `values`.

    `depends` says of each input whether it depends on the position, and whether on an
    observation.
    """
    jaxpr = program.jaxpr
    known = dict(zip(jaxpr.invars, depends, strict=True))
    known.update(dict.fromkeys(jaxpr.constvars, (False, False)))
    reached, calls = {}, []
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
            calls.append((eqn.params[inner], inputs, eqn.invars))
        else:
            pairs = zip(eqn.invars, inputs, strict=True)
            reached.update(
                (atom, None) for atom, each in pairs if each == (True, False)
            )
    atoms = [*reached, *(atom for *_, entering in calls for atom in entering)]
    evaluated = jaxpr_as_fun(ClosedJaxpr(jaxpr.replace(outvars=atoms), program.consts))
    numbers = iter(evaluated(*values))
    found = [next(numbers) for _ in reached]
    for called, inputs, entering in calls:
        found += _effects(called, inputs, [next(numbers) for _ in entering])
    return found
