"""The effects of a record: the numbers through which it depends on the parameters.

Effects are the numbers that a record's log-likelihood computes from the parameters and
the covariates before they enter an operation together with an observation. The mean and
the scale of a normal observation are examples. An effect may be a product of
parameters, such as mean + scale z[group]. Then many values of the parameters give the
same effects. Records inform about the effects only. So the scores are not linear in
such parameters, however many records there are, although `dpjax.fit.score_fit` assumes
that they are.
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
"""Tolerances for the derivatives of the effects by the parameters, in prior sds, with
rows scaled to length one. A singular value counts as zero if it is at most the first
times the largest. A component of a direction, or the change of an effect along it,
counts as zero if it is at most the second."""


def are_products(slopes: np.ndarray) -> np.ndarray:
    """Which parameters enter the effects in products, such as in mean + scale z.

    At a position, the effects do not change, to first order, along some directions. For
    parameters in products, these directions differ between positions: a direction that
    changes no effect at one position changes some at another. The components of such
    directions are found. Parameters that no effect depends on are not among them. An
    example is the mean and the scale of effects that are parameters themselves.

    Parameters
    ----------
    slopes
        Derivatives of m effects at k positions by the parameters in units of prior sds,
        ``(k, m, d)``.

    Returns
    -------
    Booleans, one for each parameter, ``(d,)``.
    """
    lengths = np.linalg.norm(np.asarray(slopes, np.float64), axis=2)
    # Effects whose derivative is zero at a position, such as a sigmoid that saturates,
    # are left out at all positions.
    is_seen = np.all(np.isfinite(lengths) & (lengths > 0), axis=0)
    slopes = slopes[:, is_seen] / lengths[:, is_seen, None]
    found = np.zeros(slopes.shape[2], bool)
    for slope in slopes:
        squares, vectors = np.linalg.eigh(slope.T @ slope)
        least = RANK_TOLERANCE**2 * squares.max(initial=0.0)
        unseen = vectors[:, squares <= least]
        elsewhere = slopes.reshape(-1, slopes.shape[2]) @ unseen
        # The basis of the directions is turned so that those which change an effect at
        # another position are separate from those which do not.
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
        A flat position ``(d,)``, and the covariates and the observations of one record.
        The values of the observations are not used.

    Returns
    -------
    The effects as one vector, ``(m,)``.
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
    """The effects in a program whose inputs have these `values`.

    `depends` has a pair for each input: whether it depends on the position, and whether
    it depends on an observation. A number that depends on the position only is an
    effect if it enters an operation together with a number that depends on an
    observation. If the operation consists of others (`WITHIN`), such as a loop, the
    effects are those of the operations in it.
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
    """The pair of `depends` in `_effects`, for each variable of a program."""
    known = dict(zip(jaxpr.invars, depends, strict=True))
    known.update(dict.fromkeys(jaxpr.constvars, (False, False)))
    for eqn in jaxpr.eqns:
        both = _joined([_of(known, atom) for atom in eqn.invars])
        known.update(dict.fromkeys(eqn.outvars, both))
    return known


def _of_loop(program: ClosedJaxpr, depends: list[tuple], first: int) -> list[tuple]:
    """The pairs `depends` of the inputs of a loop's body that hold in every iteration.

    The state of the loop begins at input `first`. The outputs of `program` are the
    state of the next iteration.
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
    """The effects in all iterations of a scan."""
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
    """The effects in the first iteration of a while loop.

    Later iterations are left out, as their number may depend on an observation.
    """
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
"""Operations that consist of others, and functions that find the effects in them."""
