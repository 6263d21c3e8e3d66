"""Coordinates of a model in which effects are linear, though they contain products.

Effects (`dpjax.fit.effects`) such as mean + scale z[group] are linear in z as long as
the mean and the scale are constant. In the *pinned model*, components of the
parameters such as the scale are pinned at their values in c, the centre of the prior.
The components that are kept free, such as z, are a position of the pinned model. For
parameters theta, zeta(theta) is the position at which the pinned model has the effects
that the model has at theta:

    zeta = kept + A^+ (phi(theta) - phi(c)),

with phi the effects, A their slope at c in the kept components, and A^+ its
pseudoinverse. A record's log-likelihood is a function of zeta alone, and its scores are
about linear in zeta if there are many records. So a fit of the pinned model is a
likelihood of theta, through zeta(theta).

Components of theta that are not in products are not pinned. Zeta holds their values in
theta, and phi(c) is evaluated with these values in place of those of c.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, jaxpr_as_fun

from dpjax.compiled import evaluated

__all__ = ["Pinned", "pinned"]

RANK_TOLERANCE = 1e-3
"""A column of A is kept if the share of it that the columns before it do not explain is
larger than this. Smaller singular values of A count as zero."""

AFFINE_TOLERANCE, ROUNDING = 1e-3, 1e-5
"""Tolerances of the test whether a function is affine: it changes by the same amount if
the same step is made at two places. The difference of the two changes may be the first
times the change, plus the second times the size of the function."""

NEAR_ZERO = 0.2
"""Median of draws of the prior, in prior sds, below which it is replaced by zero."""

NUM_ROWS, NUM_DRAWS = 64, 32
"""Number of records for which variables are tested to be affine, which is also the size
of a batch of records; and number of draws of the prior at which the log-likelihoods of
all records are compared."""

MAX_NUMBERS = 2**26
"""The most derivatives that are computed. If all records have more, some records are
left out."""

MAX_DIFFERENCE = 0.01
"""Two log-likelihoods are taken to be equal if they differ by less than this, over one
plus their size."""

INLINED = {
    "jit": "jaxpr",
    "closed_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "remat2": "jaxpr",
}
"""Primitives that call another program, and the parameter of each that holds it. Such
calls are replaced by the operations of the program that they call."""


class Pinned(NamedTuple):
    """The pinned model.

    center
        c, ``(d,)``.
    kept
        Indices of the free components, ``(r,)``. Their values are a position of the
        pinned model.
    zeta
        ``theta -> zeta``, from ``(d,)`` to ``(r,)``.
    """

    center: np.ndarray
    kept: np.ndarray
    zeta: Callable[[jax.Array], jax.Array]

    @property
    def theta(self) -> Callable[[jax.Array], jax.Array]:
        """``zeta -> theta``: zeta in the free components, and c in the pinned ones.

        The function holds c and the indices only, because it becomes part of a
        log-likelihood of records, which must not hold records.
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
    """The pinned model of a model whose effects contain products of parameters.

    It is None if no such model has the same log-likelihoods as the model itself.

    Parameters
    ----------
    loglikelihood_fn
        ``(theta, covariates, observations) -> scalar``, of a flattened position.
    draws
        Draws from the prior, ``(count, d)``.
    units
        Prior standard deviations of the components, ``(d,)``.
    is_product
        Which components enter the effects in products, ``(d,)``. The others are free.
    sizes
        For each component, the number of components of its latent, ``(d,)``. Components
        of large latents are tried before others when free ones are chosen.
    covariates, observations
        The parts of made-up records, which lie along the leading axis. The values of
        the observations only serve to compare log-likelihoods.
    """
    center = np.median(draws, axis=0)
    # A center near zero is set to zero. Take scale * z, with a prior of z that is
    # symmetric about zero: then scale has no effect at the center, and is pinned.
    center = np.where(np.abs(center) < NEAR_ZERO * units, 0, center)
    center = center.astype(draws.dtype)
    first = jax.tree.map(lambda leaf: leaf[0], (covariates, observations))
    program = _Program.of(loglikelihood_fn, center, *first)
    given = covariates, observations
    # The slopes of the effects at the center decide which components are kept.
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
    """Whether the log-likelihoods at draws are those of the pinned model at zeta."""

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
    """The traced program of a log-likelihood, with calls replaced by what they call.

    jaxpr, consts
        The program and its constants.
    is_public
        The floating-point variables that depend on the position and on no observation.
    made
        ``{variable: the equation that computes it}``.
    joined
        The public variables that enter an equation together with an observation, or
        with a number that depends on one.
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
        """Variables from which all effects follow, as near to the effects as possible.

        Each of them satisfies `is_wanted`, or is an input of the program.
        """
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
        """``(position, covariates, observations) -> vector`` of the atoms' values."""
        program = ClosedJaxpr(self.jaxpr.replace(outvars=atoms), self.consts)
        evaluate = jaxpr_as_fun(program)

        def values(*given):
            found = evaluate(*jax.tree.leaves(given))
            return jnp.concatenate([jnp.ravel(each) for each in found])

        return values

    def affine(self, positions, pinned, units, moved, given) -> Callable:
        """A function that says whether a variable is affine in the components `moved`.

        It must be affine at each of `positions`, and have the same slope at all of the
        positions `pinned`. The product shape * mean, for instance, has not if the shape
        is not pinned. The mean is then the effect, and not the product.
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
    """The outputs of a program, evaluated with its calls inlined (`INLINED`)."""
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
    """Indices of columns that earlier ones do not explain, tried in this order."""
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
    """Indices of a few records whose rows span the same space as all rows.

    Record i has the rows from ``i * per_record`` on. The rows are chosen one by one,
    each as the one that the rows before it explain least.
    """
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
    """As many of the records as `MAX_NUMBERS` allows, for derivatives of the values."""
    first = jax.tree.map(lambda leaf: leaf[0], records)
    size = jax.eval_shape(values_fn, position, *first).size * len(position)
    return _some(records, MAX_NUMBERS // max(size, 1))


def _some(records, count: int):
    """At most `count` of the records, evenly spaced from the first to the last."""
    chosen = np.linspace(0, _num(records) - 1, min(max(count, 2), _num(records)))
    return jax.tree.map(lambda leaf: leaf[chosen.astype(int)], records)


def _num(records) -> int:
    return len(jax.tree.leaves(records)[0])
