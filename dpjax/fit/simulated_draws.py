"""Draws from the posterior that the last release of a `simulated_fit` implies.

No data are read. With S the released sum, the posterior of the parameter t is
proportional to prior(t) N(S; n m(t), Sigma). A draw is a solution t of the equation

    n m(t) = S + N(0, Sigma).

So draws are independent. They are resampled with weights that are proportional to
prior(t) |det m'(t)|^-1. If the records leave a direction undetermined, or if too few
solutions are usable, chains of NUTS draw from the posterior.

Let theta be the position of the release. For t near theta, m(t) is a mean over records
from the model at theta, weighted with their likelihood ratios
w = p(x | t) / p(x | theta):

    m(t) = m(theta) + E[(w - 1) (clip(g) - m(theta))].

No records are simulated at t, and records may be discrete. The part of w that is linear
in the score s is b^T s, with b fitted to log w by least squares. The part of the mean
that is due to it, E[clip(g) s^T] b, is known from many more records.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular

from dpjax.compiled import compiled, evaluated
from dpjax.fit.fit_check import FitCheck
from dpjax.fit.precision import is_wide, own_precision, unraveled
from dpjax.fit.record_model import RANK_TOLERANCE, RecordModel
from dpjax.fit.simulated import Released
from dpjax.nuts import nuts_chain
from dpjax.posterior import Posterior
from dpjax.release.nominal import nominal_size

__all__ = ["draws"]

NUM_NEAR = 2048
"""Number of simulated records with which m(t) is computed."""

EXCESS = 1.25
"""Number of equations that are solved, over the number of draws that are wanted."""

MAX_STEPS = 8
"""The most steps of Broyden's method. Newton's method may take twice as many."""

TOLERANCE, MAX_RESIDUAL = 0.002, 0.02
"""The largest residual, in sds of S, with which the steps towards a solution end; and
the largest one of a solution that is used."""

NUM_DETERMINANTS, MAX_SPREAD = 128, 0.03
"""Number of solutions in a block, whose determinants |det m'(t)| are computed together;
and the sd of the logarithms in the first block below which all determinants are taken
to be the same."""

NUM_FITTED = 4
"""Number of blocks whose determinants are computed before a quadratic function is
tried. It is fitted to the logarithms in all of these blocks but the last. If its errors
in the last one have an sd of at most `MAX_SPREAD`, it is used for all further
blocks."""

MIN_USABLE = 0.5
"""Chains draw if the share of usable solutions is below this, or if the effective
number of weighted solutions is less than this times the number of equations."""

NUM_CHAINS = 16
NUM_WARMUP = 300
STEPS_PER_DRAW = 2
"""The number of chains of NUTS, the steps of their warm-up and the steps per draw. On a
ring, successive states have a correlation of about .5."""

NUM_NEAR_CHAINS = 512
"""Number of simulated records with which the chains compute m(t)."""

NUM_CHECKED = 64
"""Number of draws at which the excess that the model expects is computed."""


class Known(NamedTuple):
    """How the draws were made, and how well they are determined.

    position_error
        Root mean square distance, in posterior standard deviations, by which noise and
        clipping move the centre of the draws.
    num_directions
        Number of directions that records inform about.
    are_independent
        Whether each draw is a solution of its own, and not a state of a chain.
    fit_check
        How much the scores of the records vary, over how much the model says they do.
    clipped
        Share of simulated records whose score is clipped.
    """

    position_error: float
    num_directions: int
    are_independent: bool
    fit_check: FitCheck
    clipped: float

    def __str__(self):
        kind = "independent draws" if self.are_independent else "states of NUTS"
        return (
            f"records inform about {self.num_directions} directions; noise and "
            f"clipping move the centre by {self.position_error:.2g} posterior sds; "
            f"{kind}; {self.fit_check}"
        )


def draws(
    posterior: Posterior,
    released: Released,
    rng_key: jax.Array,
    num_draws: int,
    like: Any,
    *,
    simulate_fn: Callable[[jax.Array, Any], Any],
    nominal_num_records: int | None = None,
) -> tuple[Any, Known]:
    """Draws of the posterior that a release implies.

    Parameters
    ----------
    posterior, simulate_fn, nominal_num_records
        Those that `dpjax.fit.simulated.simulated_fit` was given. No data are read.
    released
        The info of the step of that fit.
    rng_key
        A JAX key. It need not be secret.
    num_draws
        Number of draws.
    like
        A position, for its structure and dtypes.

    Returns
    -------
    positions
        Leaves ``(num_draws, ...)``.
    known
        How they were made, and how well they are determined.
    """
    wide = is_wide()
    functions = _Functions(
        own_precision(posterior.logprior_fn, like, wide),
        RecordModel.of(posterior.loglikelihood_fn, simulate_fn, like, wide),
        nominal_size(posterior, nominal_num_records),
        posterior.tempering,
    )
    is_measured = np.any(np.asarray(released.whitening) != 0, axis=0)
    with jax.enable_x64(True):
        released = jax.tree.map(lambda leaf: jnp.asarray(leaf, float), released)
        solve_key, chain_key = jax.random.split(rng_key)
        found = None
        if is_measured.all():
            found = _solutions(functions, num_draws, solve_key, released)
        are_independent = found is not None
        if not are_independent:
            chains = functools.partial(_chains, functions, num_draws)
            found = evaluated(chains, chain_key, released)
        fit_check, clipped = _checks(functions, released, np.asarray(found))
        known = Known(
            _position_error(released, functions.num_records / posterior.tempering),
            int(is_measured.sum()),
            are_independent,
            fit_check,
            clipped,
        )
        positions = jax.vmap(unraveled(like, True))(jnp.asarray(found))
    return jax.tree.map(
        lambda leaf, one: np.asarray(leaf, jnp.result_type(one)), positions, like
    ), known


def _position_error(released: Released, effective: float) -> float:
    """The sd that clipping and noise add, in sds of the posterior without these errors.

    It is the root mean square over the directions that records inform about, for
    `effective` = n / T.
    """
    information = np.asarray(released.information)
    inverse = np.linalg.pinv(information, rtol=RANK_TOLERANCE, hermitian=True)
    variance = np.trace(inverse @ np.asarray(released.error)) / effective
    return math.sqrt(variance / np.linalg.matrix_rank(inverse, hermitian=True))


def _checks(functions, released, found) -> tuple[FitCheck, float]:
    """The fit check, and the share of records whose score is clipped.

    The excess that the model expects differs between the draws `found`,
    ``(num_draws, d)``. Its variance over the draws is added to the variances of noise
    and of chance.
    """
    chosen = np.linspace(0, len(found) - 1, NUM_CHECKED).astype(int)
    excesses_at = functools.partial(_excesses, functions)
    excesses, variance, clipped = map(
        np.asarray, evaluated(excesses_at, released, found[chosen])
    )
    count = functions.num_records
    fit_check = FitCheck.of(
        float(released.excess) - count * np.mean(excesses),
        float(released.excess_noise_sd),
        count * variance + count**2 * np.var(excesses),
        count * float(released.square),
    )
    return fit_check, float(clipped)


class _Functions(NamedTuple):
    """The functions and constants that the compiled programs are specialised to."""

    logprior_fn: Callable[[jax.Array], jax.Array]
    model: RecordModel
    num_records: int
    tempering: float


class _Near(NamedTuple):
    """The law of S given a parameter t near theta, as functions of t.

    residual
        (S - n m(t)) in sds of S, ``(d,)``.
    slope
        Minus the derivative of the residual, ``(d, d)``.
    logprior
        The log prior, a scalar.
    """

    residual: Callable[[jax.Array], jax.Array]
    slope: Callable[[jax.Array], jax.Array]
    logprior: Callable[[jax.Array], jax.Array]

    @classmethod
    def of(cls, functions: _Functions, released: Released, count) -> "_Near":
        """The law for a release, from `count` records that are simulated at theta."""
        center, model = released.position, functions.model
        records = model.simulate(center, count)
        scores = model.scores(center, records)
        centered = released.window(scores) - released.mean[None]
        # b = fit @ log w. The ridge makes the solution unique if all scores are zero in
        # some direction.
        scale = jnp.sqrt(jnp.diag(scores.T @ scores)) + 1e-300
        scaled = scores / scale[None]
        ridge = RANK_TOLERANCE * jnp.eye(len(center))
        fit = jnp.linalg.solve(scaled.T @ scaled + ridge, scaled.T) / scale[:, None]
        excess = (released.slope - centered.T @ scores / count) @ fit
        base = model.loglikelihoods(center, records)
        covariance = released.covariance(functions.num_records, functions.tempering)
        root = jnp.linalg.cholesky(covariance)

        def log_ratios(t):
            return model.loglikelihoods(t, records) - base

        def residual(t):
            found = log_ratios(t)
            mean = (jnp.exp(found) - 1) @ centered / count + excess @ found
            mean = functions.num_records * (released.mean + mean)
            return solve_triangular(root, released.total - mean, lower=True)

        def slope(t):
            ratios = jnp.exp(log_ratios(t))
            weights = ratios[:, None] * centered / count + excess.T
            found = functions.num_records * model.score_sums(weights, t, records)
            return solve_triangular(root, found, lower=True)

        return cls(residual, slope, functions.logprior_fn)


def _solutions(functions, num_draws, rng_key, released):
    """Resampled solutions, ``(num_draws, d)``; None if too few of them are usable."""
    solve_key, offset_key = jax.random.split(rng_key)
    count = int(EXCESS * num_draws)
    solve = functools.partial(_solve, functions, count)
    solutions, residuals, logpriors = map(
        np.asarray, evaluated(solve, solve_key, released)
    )
    usable = (residuals < MAX_RESIDUAL) & np.isfinite(logpriors)
    if np.mean(usable) < MIN_USABLE:
        return None
    solutions = solutions[usable]
    log_weights = logpriors[usable] - _log_determinants(functions, released, solutions)
    is_known = np.isfinite(log_weights)
    if not np.any(is_known):
        return None
    log_weights = np.where(is_known, log_weights, -np.inf)
    weights = np.exp(log_weights - log_weights.max())
    weights /= weights.sum()
    if 1 / np.sum(weights**2) < MIN_USABLE * count:
        return None
    # Systematic resampling: a solution comes as often as its weight says, or once more.
    places = (np.arange(num_draws) + float(jax.random.uniform(offset_key))) / num_draws
    chosen = np.searchsorted(np.cumsum(weights), places).clip(max=len(weights) - 1)
    return solutions[chosen]


def _solve(functions, count, rng_key, released):
    """Solutions ``(count, d)``, their largest residuals, and the log prior there."""
    near = _Near.of(functions, released, NUM_NEAR)
    center = released.position
    root = jnp.linalg.cholesky(
        released.covariance(functions.num_records, functions.tempering)
    )
    inverse = jnp.linalg.inv(functions.num_records * released.slope) @ root
    miss = near.residual(center)

    def solve(normal):
        start = center, miss + normal, inverse

        def is_open(residual):
            return ~(jnp.max(jnp.abs(residual)) <= TOLERANCE)

        def broyden(carry):
            t, residual, inverse, count = carry
            step = inverse @ residual
            now = near.residual(t + step) + normal
            # Broyden's (1965) first update of the inverse of the slope.
            moved = inverse @ (residual - now)
            inverse += jnp.outer(step - moved, step @ inverse) / (step @ moved)
            return t + step, now, inverse, count + 1

        def newton(carry):
            t, residual, count = carry
            # The first steps aim at residuals between that of the center and zero.
            aim = jnp.maximum(1 - (count + 1) / MAX_STEPS, 0) * start[1]
            t += jnp.linalg.solve(near.slope(t), residual - aim)
            return t, near.residual(t) + normal, count + 1

        t, residual, *_ = jax.lax.while_loop(
            lambda carry: is_open(carry[1]) & (carry[-1] < MAX_STEPS),
            broyden,
            (*start, 0),
        )
        # If Broyden's cheap steps have not led to a solution, Newton's start afresh.
        begin = jax.tree.map(
            lambda a, b: jnp.where(is_open(residual), a, b), start[:2], (t, residual)
        )
        t, residual, _ = jax.lax.while_loop(
            lambda carry: is_open(carry[1]) & (carry[-1] < 2 * MAX_STEPS),
            newton,
            (*begin, 0),
        )
        return t, jnp.max(jnp.abs(residual)), near.logprior(t)

    normals = jax.random.normal(rng_key, (count, center.size))
    return jax.lax.map(solve, normals, batch_size=64)


def _log_determinants(functions, released, solutions) -> np.ndarray:
    """log |det m'(t)| at each of the solutions, up to a constant.

    A determinant takes the scores of `NUM_NEAR` records, so computing all of them would
    take most of the time. If a posterior is nearly normal, they are nearly the same.
    Otherwise their logarithms are often close to a quadratic function of t.
    """

    def at(solutions, released):
        near = _Near.of(functions, released, NUM_NEAR)
        return jax.lax.map(
            lambda t: jnp.linalg.slogdet(near.slope(t))[1], solutions, batch_size=64
        )

    shape = (NUM_DETERMINANTS, *solutions.shape[1:])
    blocks = [
        np.resize(solutions[start : start + NUM_DETERMINANTS], shape)
        for start in range(0, len(solutions), NUM_DETERMINANTS)
    ]
    program = compiled(at, blocks[0], released)
    found = [np.asarray(program(blocks[0], released))]
    if np.std(found[0]) < MAX_SPREAD:
        return np.zeros(len(solutions))
    for block in blocks[1:]:
        rest = _continued(found, solutions) if len(found) == NUM_FITTED else None
        if rest is not None:
            return np.concatenate([*found, rest])
        found.append(np.asarray(program(block, released)))
    return np.concatenate(found)[: len(solutions)]


def _continued(blocks, points) -> np.ndarray | None:
    """Values at the later points, as predicted from the known values at the first ones.

    A quadratic function of the points is fitted to all blocks of known values but the
    last one. The result is None if its errors in the last block are too large, or if it
    has more coefficients than a block has values.
    """
    known = np.concatenate(blocks)
    units = (points - points.mean(0)) / points.std(0)
    units = np.concatenate([np.ones((len(points), 1)), units], axis=1)
    first, second = np.triu_indices(units.shape[1])
    terms = units[:, first] * units[:, second]
    if terms.shape[1] > NUM_DETERMINANTS or not np.all(np.isfinite(known)):
        return None
    count = len(known) - len(blocks[-1])
    weights = np.linalg.lstsq(terms[:count], known[:count])[0]
    if np.std(terms[count : len(known)] @ weights - known[count:]) > MAX_SPREAD:
        return None
    return terms[len(known) :] @ weights


def _excesses(functions, released, positions):
    """Moments of |clip(g)|^2 / C^2 under the model.

    Returns
    -------
    Its mean at each of the positions, less that at theta, ``(positions,)``; its
    variance at theta; and the share of records with |g| > C at theta.
    """
    model = functions.model
    window = released.window
    records = model.simulate(window.center, NUM_NEAR)
    clipped = window(model.scores(window.center, records)) / window.l2_clip_norm
    squares = jnp.sum(clipped**2, axis=1) - released.square
    base = model.loglikelihoods(window.center, records)

    def excess(position):
        ratios = jnp.exp(model.loglikelihoods(position, records) - base)
        return jnp.mean((ratios - 1) * squares)

    is_clipped = jnp.sum(clipped**2, axis=1) > 1 - RANK_TOLERANCE
    return jax.lax.map(excess, positions), jnp.var(squares), jnp.mean(is_clipped)


def _chains(functions, num_draws, rng_key, released):
    """States of NUTS, ``(num_draws, d)``, of one chain after another in turn."""
    near = _Near.of(functions, released, NUM_NEAR_CHAINS)
    center = released.position

    def log_density(t):
        return near.logprior(t) - jnp.sum(near.residual(t) ** 2) / 2

    def chain(rng_key):
        keys, num_steps = jax.random.split(rng_key), -(-num_draws // NUM_CHAINS)
        num_steps *= STEPS_PER_DRAW
        steps = nuts_chain(keys, log_density, center, NUM_WARMUP, num_steps)
        return steps[::STEPS_PER_DRAW]

    found = jax.vmap(chain)(jax.random.split(rng_key, NUM_CHAINS))
    return jnp.swapaxes(found, 0, 1).reshape(-1, center.size)[:num_draws]
