"""Draws of the posterior that the last release of a fit implies. Reads no data.

With S its total, the posterior is prior(t) N(S; n m(t), Sigma). A draw solves

    n m(t) = S + N(0, Sigma)

for t, so draws are independent, and they are resampled with the weights
prior(t) / |det m'(t)|. If records leave a direction undetermined, there is no such
solution, and chains of NUTS draw.

Near theta, m(t) is a mean over records from the model at theta, weighted with their
likelihood ratios w = p(x | t) / p(x | theta):

    m(t) = m(theta) + E[(w - 1) (clip(g) - m(theta))].

That takes no simulation at t, and holds for discrete records as well. The part of w that
is linear in the score s is b^T s, with b fitted to log w by least squares. That part of
the mean, E[clip(g) s^T] b, is known from many more records.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import solve_triangular

from dpjax.fit.record_model import RANK_TOLERANCE, RecordModel, Window
from dpjax.fit.simulated import Released
from dpjax.posterior import Posterior
from dpjax.release.nominal import nominal_size

__all__ = ["draws"]

NUM_NEAR = 2048
"""Records whose likelihood ratios make up m(t)."""

EXCESS = 1.25
"""Equations that are solved, over draws that are wanted."""

MAX_STEPS = 20
"""Steps of Broyden's method towards a solution."""

TOLERANCE, MAX_RESIDUAL = 0.002, 0.02
"""Residual of a solution, in sds of S: at which steps end, and of those that are kept."""

MIN_USABLE = 0.5
"""Effective share of the solutions below which chains draw instead."""

NUM_CHAINS = 16
NUM_WARMUP = 300
NUM_NEAR_CHAINS = 512


def draws(
    rng_key: jax.Array,
    posterior: Posterior,
    simulate_fn: Callable[[jax.Array, Any], Any],
    released: Released,
    num_draws: int,
    *,
    nominal_num_records: int | None = None,
):
    """Draws of the posterior that a release implies.

    Parameters
    ----------
    rng_key
        A JAX key; draws are post-processing, so it need not be secret.
    posterior, simulate_fn, nominal_num_records
        As of the `simulated_fit`. No data are read.
    released
        Info of its step.
    num_draws
        How many.

    Returns
    -------
    Positions, leaves ``(num_draws, ...)``. They are independent if the records inform
    about every direction.
    """
    num_records = nominal_size(posterior, nominal_num_records)
    functions = _Functions(
        posterior.logprior_fn,
        posterior.loglikelihood_fn,
        simulate_fn,
        num_records,
    )
    dtypes = jax.tree.map(lambda leaf: leaf.dtype, released.position)
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda leaf: jnp.asarray(leaf, float), released)
        found = None
        if np.all(np.any(np.asarray(wide.whitening) != 0, axis=0)):
            found = _solutions(rng_key, functions, wide, num_draws)
        if found is None:
            found = _chains(rng_key, functions, wide, num_draws)
        _, unravel = ravel_pytree(wide.position)
        positions = jax.vmap(unravel)(jnp.asarray(found))
    return jax.tree.map(lambda leaf, dtype: np.asarray(leaf, dtype), positions, dtypes)


class _Functions(NamedTuple):
    """What the compiled functions are specialised to."""

    logprior_fn: Callable
    loglikelihood_fn: Callable
    simulate_fn: Callable
    num_records: int


class _Near(NamedTuple):
    """The law of S given a parameter near theta."""

    residual: Callable[[jax.Array], jax.Array]
    slope: Callable[[jax.Array], jax.Array]
    logprior: Callable[[jax.Array], jax.Array]

    @classmethod
    def of(cls, functions: _Functions, released: Released, count: int) -> "_Near":
        """Residual (S - n m(t)) in sds of S, its negative derivative, and log prior."""
        center, unravel = ravel_pytree(released.position)
        model = RecordModel.of(functions, functions.simulate_fn, released.position)
        window = Window(center, released.whitening, released.l2_clip_norm)
        records = model.simulate(center, count)
        scores = model.scores(center, records)
        centered = window(scores) - released.mean[None]
        # b = fit @ log w; a ridge stands for directions that scores leave out.
        scale = jnp.sqrt(jnp.diag(scores.T @ scores)) + 1e-300
        scaled = scores / scale[None]
        ridge = RANK_TOLERANCE * jnp.eye(len(center))
        fit = jnp.linalg.solve(scaled.T @ scaled + ridge, scaled.T) / scale[:, None]
        excess = (released.slope - centered.T @ scores / count) @ fit
        loglikelihoods = jax.vmap(model.loglikelihood_fn, (None, 0))
        base = loglikelihoods(center, records)
        root = jnp.linalg.cholesky(released.covariance)

        def log_ratios(t):
            return loglikelihoods(t, records) - base

        def residual(t):
            found = log_ratios(t)
            mean = (jnp.exp(found) - 1) @ centered / count + excess @ found
            mean = functions.num_records * (released.mean + mean)
            return solve_triangular(root, released.total - mean, lower=True)

        def slope(t):
            ratios = jnp.exp(log_ratios(t))
            weights = ratios[:, None] * centered / count + excess.T
            found = functions.num_records * weights.T @ model.scores(t, records)
            return solve_triangular(root, found, lower=True)

        return cls(residual, slope, lambda t: functions.logprior_fn(unravel(t)))


def _solutions(rng_key, functions, released, num_draws):
    """Solutions, resampled; None if too few of them are of use."""
    solve_key, offset_key = jax.random.split(rng_key)
    count = int(EXCESS * num_draws)
    solutions, residuals, log_weights = map(
        np.asarray, _solve(solve_key, functions, released, count)
    )
    usable = (residuals < MAX_RESIDUAL) & np.isfinite(log_weights)
    if not np.any(usable):
        return None
    log_weights = np.where(usable, log_weights, -np.inf)
    weights = np.exp(log_weights - log_weights.max())
    weights /= weights.sum()
    if 1 / np.sum(weights**2) < MIN_USABLE * count:
        return None
    # Systematic resampling: a solution comes as often as its weight says, or once more.
    places = (np.arange(num_draws) + float(jax.random.uniform(offset_key))) / num_draws
    chosen = np.searchsorted(np.cumsum(weights), places).clip(max=count - 1)
    return solutions[chosen]


@functools.partial(jax.jit, static_argnums=(1, 3))
def _solve(rng_key, functions, released, count):
    """Solutions ``(count, d)``, their largest residuals, and their log weights."""
    near = _Near.of(functions, released, NUM_NEAR)
    center, _ = ravel_pytree(released.position)
    slope = near.slope(center)

    def solve(normal):
        def more(carry):
            _, residual, _, count = carry
            return (jnp.max(jnp.abs(residual)) > TOLERANCE) & (count < MAX_STEPS)

        def turn(carry):
            t, residual, inverse, count = carry
            step = inverse @ residual
            now = near.residual(t + step) + normal
            # Broyden's (1965) first update of the inverse of the slope.
            moved = inverse @ (residual - now)
            inverse += jnp.outer(step - moved, step @ inverse) / (step @ moved)
            return t + step, now, inverse, count + 1

        carry = center, near.residual(center) + normal, jnp.linalg.inv(slope), 0
        t, residual, _, _ = jax.lax.while_loop(more, turn, carry)
        log_weight = near.logprior(t) - jnp.linalg.slogdet(near.slope(t))[1]
        return t, jnp.max(jnp.abs(residual)), log_weight

    normals = jax.random.normal(rng_key, (count, center.size))
    return jax.lax.map(solve, normals, batch_size=64)


@functools.partial(jax.jit, static_argnums=(1, 3))
def _chains(rng_key, functions, released, num_draws):
    """States of NUTS, ``(num_draws, d)``; the chains take turns."""
    near = _Near.of(functions, released, NUM_NEAR_CHAINS)
    center, _ = ravel_pytree(released.position)

    def log_density(t):
        return near.logprior(t) - jnp.sum(near.residual(t) ** 2) / 2

    def chain(rng_key):
        warmup_key, key = jax.random.split(rng_key)
        # BlackJAX annotates neither the steps of `run` nor the fields of states.
        adaptation: Any = blackjax.window_adaptation(blackjax.nuts, log_density)
        (state, parameters), _ = adaptation.run(warmup_key, center, NUM_WARMUP)
        step: Any = blackjax.nuts(log_density, **parameters).step

        def one(state, key):
            state, _ = step(key, state)
            return state, state.position

        keys = jax.random.split(key, -(-num_draws // NUM_CHAINS))
        return jax.lax.scan(one, state, keys)[1]

    found = jax.vmap(chain)(jax.random.split(rng_key, NUM_CHAINS))
    return jnp.swapaxes(found, 0, 1).reshape(-1, center.size)[:num_draws]
