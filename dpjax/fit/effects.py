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
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, jaxpr_as_fun

from dpjax.release.traced import scan_sizes

__all__ = ["are_products", "effects"]

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


def _effects(
    program: ClosedJaxpr | Jaxpr, depends: list[tuple], values: list
) -> list[Any]:
    """The effects in a program, for its inputs' `values`.

    `depends` says of each input whether it depends on the position, and whether on an
    observation. Numbers that enter an operation together with an observation are
    effects, unless the operation is made of others, which are then looked into.
    """
    jaxpr, consts = _parts(program)
    known = _dependence(jaxpr, depends)
    reached, within = {}, []
    for eqn in jaxpr.eqns:
        inputs = [_of(known, atom) for atom in eqn.invars]
        if _joined(inputs) != (True, True):
            continue
        if inner := WITHIN.get(eqn.primitive.name):
            within.append((inner, eqn, inputs))
        else:
            pairs = zip(eqn.invars, inputs, strict=True)
            reached.update(
                (atom, None) for atom, each in pairs if each == (True, False)
            )
    atoms = [*reached, *(atom for _, eqn, _ in within for atom in eqn.invars)]
    evaluated = jaxpr_as_fun(ClosedJaxpr(jaxpr.replace(outvars=atoms), consts))
    numbers = iter(evaluated(*values))
    found = [next(numbers) for _ in reached]
    for inner, eqn, inputs in within:
        found += inner(eqn.params, inputs, [next(numbers) for _ in inputs])
    return found


def _parts(program: ClosedJaxpr | Jaxpr) -> tuple[Jaxpr, list]:
    if isinstance(program, ClosedJaxpr):
        return program.jaxpr, program.consts
    return program, []


def _joined(depends) -> tuple[bool, bool]:
    return any(position for position, _ in depends), any(own for _, own in depends)


def _of(known: dict, atom) -> tuple[bool, bool]:
    return (False, False) if isinstance(atom, Literal) else known[atom]


def _dependence(jaxpr: Jaxpr, depends: list[tuple]) -> dict:
    """Of each variable whether it depends on the position, and on an observation."""
    known = dict(zip(jaxpr.invars, depends, strict=True))
    known.update(dict.fromkeys(jaxpr.constvars, (False, False)))
    for eqn in jaxpr.eqns:
        both = _joined([_of(known, atom) for atom in eqn.invars])
        known.update(dict.fromkeys(eqn.outvars, both))
    return known


def _of_loop(program: ClosedJaxpr, depends: list[tuple], first: int) -> list[tuple]:
    """`depends` of a loop's inputs in any pass; its state comes from input `first` on.

    The first outputs of a pass are the next one's state.
    """
    while True:
        known = _dependence(program.jaxpr, depends)
        outputs = [_of(known, atom) for atom in program.jaxpr.outvars]
        state = slice(first, first + len(outputs))
        pairs = zip(depends[state], outputs, strict=True)
        following = [_joined(pair) for pair in pairs]
        if following == depends[state]:
            return depends
        depends = [*depends[:first], *following, *depends[state.stop :]]


def _in_call(params, depends, values):
    program = params["jaxpr"] if "jaxpr" in params else params["call_jaxpr"]
    return _effects(program, depends, values)


def _in_branches(params, depends, values):
    chosen = [values[0]] if depends[0] == (True, False) else []
    for branch in params["branches"]:
        chosen += _effects(branch, depends[1:], values[1:])
    return chosen


def _in_scan(params, depends, values):
    """Of all passes."""
    num_consts, num_states = scan_sizes(params)
    program = params["jaxpr"]
    state = slice(num_consts, num_consts + num_states)
    state_outputs = ClosedJaxpr(
        program.jaxpr.replace(outvars=program.jaxpr.outvars[:num_states]),
        program.consts,
    )
    depends = _of_loop(state_outputs, depends, num_consts)

    def one(state_values, inputs):
        given = [*values[:num_consts], *state_values, *inputs]
        following = jaxpr_as_fun(state_outputs)(*given)
        return following, _effects(program, depends, given)

    _, found = jax.lax.scan(
        one,
        values[state],
        values[state.stop :],
        length=params["length"],
        reverse=params["reverse"],
    )
    return found


def _in_while(params, depends, values):
    """Of the first pass: how many there are may depend on an observation."""
    num_tested, num_body = params["cond_nconsts"], params["body_nconsts"]
    body = _of_loop(params["body_jaxpr"], depends[num_tested:], num_body)
    first = num_tested + num_body
    tested = [*depends[:num_tested], *body[num_body:]]
    found = _effects(params["body_jaxpr"], body, values[num_tested:])
    given = [*values[:num_tested], *values[first:]]
    return found + _effects(params["cond_jaxpr"], tested, given)


WITHIN = {
    "jit": _in_call,
    "custom_jvp_call": _in_call,
    "remat2": _in_call,
    "cond": _in_branches,
    "scan": _in_scan,
    "while": _in_while,
}
"""Operations that are made of others."""
