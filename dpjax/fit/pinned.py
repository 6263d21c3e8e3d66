"""Coordinates of a model in which effects that are products are linear.

Effects such as mean + scale z[group] are linear in z where mean and scale have fixed
values. So let c be the centre of the prior, and keep those of its components that the
effects are linear in, such as z, while the others are pinned at c. Every parameter
theta then has a position zeta(theta), which gives the effects of theta to the pinned
model:

    zeta = kept + A^+ (phi(theta) - phi(c)),

with phi the effects and A their slope at c. A record's log-likelihood is a function of
zeta alone, whose scores are linear where data are many. What a fit says of zeta is
therefore a likelihood of theta, through zeta(theta).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, jaxpr_as_fun

from dpjax.fit.compiled import evaluated

__all__ = ["Pinned", "pinned"]

RANK_TOLERANCE = 1e-3
"""Least part of a column of A that others do not explain, of one that is kept."""

AFFINE_TOLERANCE, ROUNDING = 1e-3, 1e-5
"""Largest difference of an affine function's changes by one step at two places, over
the change and its size."""

NEAR_ZERO = 0.2
"""A center in units of the prior, by which that of its draws may be off zero."""

NUM_ROWS, NUM_DRAWS = 64, 32
"""Records of which variables are compared, and of a batch; and draws of the prior at
which the log-likelihoods of all records are."""

MAX_NUMBERS = 2**26
"""Derivatives that are compared. If there are more records, some are left out."""

MAX_DIFFERENCE = 0.01
"""Between log-likelihoods that are taken to be equal, over one plus their size."""

INLINED = {
    "jit": "jaxpr",
    "closed_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "remat2": "jaxpr",
}
"""Calls of a program that are replaced by what they call, and its name."""


class Pinned(NamedTuple):
    """The pinned model.

    center
        c, ``(d,)``.
    kept
        Which components are free, ``(r,)``: their values are a position of the pinned
        model.
    zeta
        ``theta -> zeta``, from ``(d,)`` to ``(r,)``.
    """

    center: np.ndarray
    kept: np.ndarray
    zeta: Callable[[jax.Array], jax.Array]

    @property
    def theta(self) -> Callable[[jax.Array], jax.Array]:
        """``zeta -> theta``, whose pinned components are those of c.

        It holds nothing else, as it is part of a log-likelihood of records.
        """
        center, kept = self.center, self.kept
        return lambda zeta: jnp.asarray(center, zeta.dtype).at[kept].set(zeta)


def pinned(
    loglikelihood_fn: Callable,
    draws: np.ndarray,
    units: np.ndarray,
    is_product: np.ndarray,
    sizes: np.ndarray,
    covariates: Any,
    observations: Any,
) -> Pinned | None:
    """The pinned model of a model whose effects are products; None if there is none.

    Parameters
    ----------
    loglikelihood_fn
        ``(theta, covariates, observations) -> scalar``, of a flattened position.
    draws
        From the prior, ``(count, d)``.
    units
        Of the components a priori, ``(d,)``.
    is_product
        Which components products are made of, ``(d,)``.
    sizes
        Number of components of the latent that a component belongs to, ``(d,)``. Those
        of large latents are kept before others.
    covariates, observations
        Of made-up records, which lie along the leading axis. Values of the
        observations only serve to compare log-likelihoods.
    """
    center = np.median(draws, axis=0)
    # A latent whose prior is symmetric about zero has a factor that nothing tells of.
    center = np.where(np.abs(center) < NEAR_ZERO * units, 0, center)
    center = center.astype(draws.dtype)
    first = jax.tree.map(lambda leaf: leaf[0], (covariates, observations))
    program = _Program.of(loglikelihood_fn, center, *first)
    given = covariates, observations
    # Columns of all public numbers that the position changes, to choose what is kept.
    values_fn = program.values_fn(program.frontier(lambda atom: True))
    columns = _slope(values_fn, center, _few(values_fn, center, given)) * units[None]
    order = np.argsort(-sizes, kind="stable")
    products = [i for i in order if is_product[i]]
    products = np.asarray(_independent(columns, products), int)
    if not len(products):
        return None
    is_affine = program.affine(
        draws[:4],
        np.where(is_product, center, draws[:4]),
        units,
        products,
        given,
    )
    values_fn = program.values_fn(program.frontier(is_affine))
    given = _few(values_fn, center, given)
    slope, count = _slope(values_fn, center, given)[:, products], _num(given)
    # Covariates may be in units that differ by orders of magnitude.
    lengths = np.linalg.norm(slope, axis=0)
    slope = slope / lengths[None]
    chosen = _spanning(slope, len(slope) // count)
    given = jax.tree.map(lambda leaf: leaf[chosen], given)
    slope = slope.reshape(count, -1, len(products))[chosen].reshape(-1, len(products))
    inverse = np.linalg.pinv(slope, rcond=RANK_TOLERANCE) / lengths[:, None]
    kept = np.flatnonzero(~is_product | np.isin(np.arange(len(center)), products))
    place = np.searchsorted(kept, products)

    def effects(theta):
        return jax.vmap(values_fn, (None, 0, 0))(theta, *given).ravel()

    def zeta(theta):
        at = jnp.where(is_product, jnp.asarray(center, theta.dtype), theta)
        moved = jnp.asarray(inverse, theta.dtype) @ (effects(theta) - effects(at))
        return at[kept].at[place].add(moved)

    found = Pinned(center, kept, zeta)
    records = covariates, observations
    return found if _is_same(loglikelihood_fn, found, draws, records) else None


def _is_same(loglikelihood_fn, found: Pinned, draws, records) -> bool:
    """Whether log-likelihoods are functions of zeta."""

    def both(draws, records):
        def one(theta):
            there = found.theta(found.zeta(theta))

            def of_record(record):
                return tuple(loglikelihood_fn(at, *record) for at in (theta, there))

            return jax.lax.map(of_record, records, batch_size=NUM_ROWS)

        return jax.lax.map(one, draws)

    exact, other = map(np.asarray, evaluated(both, draws[:NUM_DRAWS], records))
    exact, other = (each[np.isfinite(exact)] for each in (exact, other))
    return bool(np.all(np.abs(exact - other) < MAX_DIFFERENCE * (1 + np.abs(exact))))


class _Program(NamedTuple):
    """A log-likelihood as operations on numbers, without calls.

    is_public
        The variables that depend on the position, and not on an observation.
    made
        ``{variable: the operation that it comes from}``.
    joined
        Public variables that enter an operation together with an observation.
    """

    jaxpr: Jaxpr
    consts: list
    is_public: set
    made: dict
    joined: list

    @classmethod
    def of(cls, loglikelihood_fn, position, covariates, observations) -> "_Program":
        given = position, covariates, observations
        called = jax.make_jaxpr(loglikelihood_fn)(*given)
        program = jax.make_jaxpr(lambda *args: _called(called, args))(
            *jax.tree.leaves(given)
        )
        jaxpr = program.jaxpr
        counts = [len(jax.tree.leaves(each)) for each in given]
        kinds = np.repeat([1, 0, 2], counts)
        known = dict(zip(jaxpr.invars, kinds, strict=True))
        known.update(dict.fromkeys(jaxpr.constvars, 0))
        made, joined = {}, {}
        for eqn in jaxpr.eqns:
            inputs = [atom for atom in eqn.invars if not isinstance(atom, Literal)]
            kind = int(np.bitwise_or.reduce([0, *(known[atom] for atom in inputs)]))
            known.update(dict.fromkeys(eqn.outvars, kind))
            made.update(dict.fromkeys(eqn.outvars, eqn))
            if kind == 3:
                joined.update((atom, None) for atom in inputs if known[atom] == 1)
        is_public = {
            atom
            for atom, kind in known.items()
            if kind == 1 and jnp.issubdtype(atom.aval.dtype, jnp.inexact)
        }
        return cls(
            jaxpr,
            program.consts,
            is_public,
            made,
            [atom for atom in joined if atom in is_public],
        )

    def frontier(self, is_wanted: Callable) -> list:
        """Wanted variables from which all effects follow, as near to them as can be."""
        found, seen, waiting = {}, set(), list(self.joined)
        while waiting:
            atom = waiting.pop()
            if isinstance(atom, Literal) or atom in seen or atom not in self.is_public:
                continue
            seen.add(atom)
            if atom not in self.made or is_wanted(atom):
                found[atom] = None
            else:
                waiting.extend(self.made[atom].invars)
        return list(found)

    def values_fn(self, atoms: list) -> Callable:
        """``(position, covariates, observations) -> vector``, of the atoms."""
        program = ClosedJaxpr(self.jaxpr.replace(outvars=atoms), self.consts)
        evaluate = jaxpr_as_fun(program)

        def values(*given):
            found = evaluate(*jax.tree.leaves(given))
            return jnp.concatenate([jnp.ravel(each) for each in found])

        return values

    def affine(self, positions, pinned, units, moved, given) -> Callable:
        """Which variables are affine in the components `moved`, as a function.

        Their slopes must be the same at all positions `pinned`. That of shape * mean is
        not where the shape is free, and the mean is the effect then.
        """
        atoms = list(self.is_public)
        evaluate = jaxpr_as_fun(
            ClosedJaxpr(self.jaxpr.replace(outvars=atoms), self.consts)
        )
        steps = np.zeros_like(positions)
        normal = np.random.default_rng(5).standard_normal((len(positions), len(moved)))
        steps[:, moved] = units[moved] * normal
        given = _some(given, NUM_ROWS)

        def differences(positions, pinned, steps, given):
            def at(position):
                def one(*record):
                    return evaluate(position, *jax.tree.leaves(record))

                return jax.vmap(one)(*given)

            def largest(leaf):
                return jnp.max(jnp.abs(leaf), initial=0.0)

            def compared(first, first_moved, second, second_moved):
                change = second_moved - second
                return (
                    largest(first_moved - first - change),
                    largest(change),
                    largest(first) + largest(second),
                )

            def one(arguments):
                position, there, step = arguments
                moves = (
                    (position - step, position, step),
                    (pinned[0], there, steps[0]),
                )
                return [
                    [
                        compared(*values)
                        for values in zip(
                            at(first),
                            at(first + move),
                            at(second),
                            at(second + move),
                            strict=True,
                        )
                    ]
                    for first, second, move in moves
                ]

            return jax.lax.map(one, (positions, pinned, steps))

        def are_equal(difference, change, size):
            return np.all(difference <= AFFINE_TOLERANCE * change + ROUNDING * size)

        found = evaluated(differences, positions, pinned, steps, given)
        is_affine = {
            atom
            for atom, *both in zip(atoms, *found, strict=True)
            if all(are_equal(*map(np.asarray, sizes)) for sizes in both)
        }
        return lambda atom: atom in is_affine


def _called(program: ClosedJaxpr, values) -> list:
    """What a program returns, with its calls replaced by what they call."""
    jaxpr = program.jaxpr
    known = dict(zip(jaxpr.constvars, program.consts, strict=True))
    known.update(zip(jaxpr.invars, jax.tree.leaves(values), strict=True))
    for eqn in jaxpr.eqns:
        inputs = [
            atom.val if isinstance(atom, Literal) else known[atom]
            for atom in eqn.invars
        ]
        inner = INLINED.get(eqn.primitive.name)
        if inner is None:
            outputs = eqn.primitive.bind(*inputs, **eqn.params)
            outputs = outputs if eqn.primitive.multiple_results else [outputs]
        else:
            called = eqn.params[inner]
            if isinstance(called, Jaxpr):
                called = ClosedJaxpr(called, [])
            outputs = _called(called, inputs)
        known.update(zip(eqn.outvars, outputs, strict=True))
    return [
        atom.val if isinstance(atom, Literal) else known[atom] for atom in jaxpr.outvars
    ]


def _slope(values_fn, position, given) -> np.ndarray:
    """Derivatives of the values of all records, ``(records * values, d)``."""

    def slope(position, given):
        of_records = jax.vmap(jax.jacrev(values_fn), (None, 0, 0))
        return of_records(position, *given)

    found = np.asarray(evaluated(slope, position, given), np.float64)
    return np.nan_to_num(found.reshape(-1, found.shape[-1]), posinf=0.0, neginf=0.0)


def _independent(columns: np.ndarray, order) -> list:
    """Columns that earlier ones do not explain, by index, in this order."""
    basis, found = np.zeros((len(columns), 0)), []
    largest = np.linalg.norm(columns, axis=0).max(initial=0.0)
    for i in order:
        rest = columns[:, i]
        for _ in range(2):
            rest = rest - basis @ (basis.T @ rest)
        length = np.linalg.norm(rest)
        least = RANK_TOLERANCE * max(np.linalg.norm(columns[:, i]), 1e-3 * largest)
        if length > least:
            basis, found = np.column_stack([basis, rest / length]), [*found, i]
    return found


def _spanning(rows: np.ndarray, per_record: int) -> np.ndarray:
    """Few records whose rows span as much as all of them, well."""
    rest, found = rows.copy(), []
    for _ in range(rows.shape[1]):
        lengths = np.sum(rest**2, axis=1)
        best = int(np.argmax(lengths))
        if lengths[best] <= 0:
            break
        found.append(best // per_record)
        unit = rest[best] / np.sqrt(lengths[best])
        rest = rest - np.outer(rest @ unit, unit)
    return np.unique(found)


def _few(values_fn, position, records):
    """As many of the records as `MAX_NUMBERS` allows."""
    first = jax.tree.map(lambda leaf: leaf[0], records)
    size = jax.eval_shape(values_fn, position, *first).size * len(position)
    return _some(records, MAX_NUMBERS // max(size, 1))


def _some(records, count: int):
    """At most so many of the records, from first to last."""
    chosen = np.linspace(0, _num(records) - 1, min(max(count, 2), _num(records)))
    return jax.tree.map(lambda leaf: leaf[chosen.astype(int)], records)


def _num(records) -> int:
    return len(jax.tree.leaves(records)[0])
