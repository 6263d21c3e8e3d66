"""A posterior from a few noisy sums of clipped scores, where records can be simulated.

The only access to the data is, at public positions theta,

    S = sum_i clip(g_i) + noise,    g_i = W^T grad log p(x_i | theta),

clip(g) being g shortened to the norm C. What S says about the parameter t is computed
without data. Its mean n m(t), with m(t) = E clip(g) for x from the model at t, is that
of simulated records. So the likelihood N(S; n m(t), Sigma) is as curved as the model
is, and clipping biases nothing. With A the regression of clip(g) on g and R the
covariance of its residual,

    Sigma = n (A E[g g^T] A^T / T + R) + noise covariance.

A g is what S knows of the exact score. Tempering with the power T divides only that
information: clipping loss and noise are real.

Four releases find the mode, each with a hundredth of the budget, and one with the rest
is made there. Before each, simulated records give W, which whitens the score, and C,
which minimises the covariance of what S leaves unknown.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from dp_accounting import NeighboringRelation
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import solve_triangular

from dpjax.algorithm import Algorithm, Transition
from dpjax.fit.record_model import BLOCK, RecordModel, Window
from dpjax.posterior import Posterior
from dpjax.privacy.validate import check_positive
from dpjax.release.gaussian_sum import GaussianSum
from dpjax.release.nominal import check_nominal, nominal_size

__all__ = ["SHARES", "FitState", "Released", "record_model", "simulated_fit"]

SHARES = (0.01, 0.01, 0.01, 0.01, 0.96)
"""Of the budget, in squared inverse noise multipliers, for each release."""

NUM_BELIEFS = 2000
"""Draws from the prior, and from the normal about each mode."""

NUM_FAR = 4096
"""Records that are simulated at a position on the way to a mode."""

MODE_STEPS = 30
"""Steps of Levenberg and Marquardt's method towards a mode."""


class FitState(NamedTuple):
    """Where the next fit begins. Public."""

    position: Any


class Released(NamedTuple):
    """The last release of a fit, and what it means. Public.

    center
        theta, the position where scores were taken; d numbers in all.
    whitening
        W ``(d, d)``. The column of a direction that records say nothing about is zero.
    l2_clip_norm
        C.
    total
        S ``(d,)``.
    mean, slope
        m ``(d,)`` at theta and its derivative ``(d, d)``.
    covariance
        Sigma ``(d, d)``.
    """

    center: Any
    whitening: jax.Array
    l2_clip_norm: jax.Array
    total: jax.Array
    mean: jax.Array
    slope: jax.Array
    covariance: jax.Array


def simulated_fit(
    posterior: Posterior,
    simulate_fn: Callable[[jax.Array, Any], Any],
    prior_sample_fn: Callable[[jax.Array], Any],
    *,
    noise_multiplier: float,
    nominal_num_records: int | None = None,
) -> Algorithm:
    """A whole fit in one step, which starts at the position of the state.

    Parameters
    ----------
    posterior
        The model and the data. The likelihood must be a density of the record, with all
        factors that depend on the position.
    simulate_fn
        ``(rng_key, position) -> record``, a draw of that density. It must not read the
        data.
    prior_sample_fn
        ``rng_key -> position``, a draw of the prior. If the prior is flat, it is a draw
        from where the parameters may be.
    noise_multiplier
        Of all releases together: one Gaussian release with this ratio of noise sd to
        clip norm costs what the fit costs. `privacy.calibrate` finds the one that
        spends a budget.
    nominal_num_records
        n, a public number. None is the number of records, which is public if records
        are substituted; if they are added or removed, `privacy` asks for a guess.

    Raises
    ------
    ValueError
        If `noise_multiplier` is not positive; from ``privacy``, if an n that is not
        public is to be accounted for.

    Notes
    -----
    *Formal guarantees.* A step makes one Gaussian release for each of the `SHARES`, of
    sums over all records of vectors with a norm of at most one. State and info follow
    from what they released, and are public.
    """
    check_positive(noise_multiplier=noise_multiplier)
    num_records = nominal_size(posterior, nominal_num_records)
    # Errors of the simulated mean then are a quarter of the clipping loss of the data.
    num_blocks = -(-min(max(4 * num_records, 100_000), 1_000_000) // BLOCK)
    multipliers = [noise_multiplier / share**0.5 for share in SHARES]
    release = GaussianSum(1.0, None)

    def move(words, state, memory):
        dtype = jnp.result_type(float)
        start, unravel = ravel_pytree(state.position)
        model = record_model(posterior, simulate_fn, state.position)

        def released(words, window, multiplier):
            """S, with noise of sd C times the multiplier."""
            position = unravel(window.center.astype(start.dtype))
            scale = (window.whitening / window.l2_clip_norm).astype(dtype)

            def contribution_fn(record):
                score = jax.grad(posterior.loglikelihood_fn)(position, record)
                score = ravel_pytree(score)[0].astype(dtype)
                return jnp.matmul(score, scale, precision="highest")

            total = release(
                words, posterior, contribution_fn, noise_multiplier=multiplier
            )
            return window.l2_clip_norm * total

        def covariance_of(window, moments, multiplier, num_simulated):
            share = num_records / num_simulated
            noise_variance = (multiplier * window.l2_clip_norm) ** 2
            return (
                num_records * moments.information / posterior.tempering
                + num_records * (1 + share) * moments.loss
                + noise_variance * jnp.eye(start.size)
            )

        def search(carry, row):
            center, beliefs = carry
            words, multiplier = row
            predicted = model.simulate(beliefs, NUM_BELIEFS)
            window = model.window(center, predicted, (multiplier / num_records) ** 2)
            total = released(words, window, multiplier)
            moments = model.moments(window, 1)
            covariance = covariance_of(window, moments, multiplier, BLOCK)
            mode, precision = find_mode(window, total, covariance)
            root = jnp.linalg.cholesky(precision)
            spread = solve_triangular(root, normals.T, lower=True, trans="T").T
            mode = mode.astype(start.dtype).astype(float)
            return (mode, mode[None] + spread), None

        def find_mode(window, total, covariance):
            root = jnp.linalg.cholesky(covariance)

            def logprior(t):
                return posterior.logprior_fn(unravel_wide(t))

            def fit(t):
                mean, slope = model.far(window, t, NUM_FAR)
                residual = total - num_records * mean
                residual = solve_triangular(root, residual, lower=True)
                slope = solve_triangular(root, num_records * slope, lower=True)
                objective = residual @ residual / 2 - logprior(t)
                gradient = slope.T @ residual + jax.grad(logprior)(t)
                precision = slope.T @ slope + prior_precision
                return objective, gradient, precision

            def turn(_, carry):
                t, (objective, gradient, precision), damping = carry
                ridge = damping * jnp.diag(jnp.diag(precision))
                moved = t + jnp.linalg.solve(precision + ridge, gradient)
                found = fit(moved)
                better = found[0] < objective
                t, now = jax.tree.map(
                    lambda new, old: jnp.where(better, new, old),
                    (moved, found),
                    (t, (objective, gradient, precision)),
                )
                return t, now, damping * jnp.where(better, 0.1, 10.0)

            begin = window.center, fit(window.center), jnp.asarray(1e-3)
            mode, (_, _, precision), _ = jax.lax.fori_loop(0, MODE_STEPS, turn, begin)
            return mode, precision

        keys = jax.random.split(jax.random.key(1), NUM_BELIEFS)
        prior = jax.vmap(lambda key: ravel_pytree(prior_sample_fn(key))[0])(keys)
        normals = jax.random.normal(jax.random.key(2), prior.shape)
        with jax.enable_x64(True):
            wide, unravel_wide = ravel_pytree(
                jax.tree.map(lambda leaf: leaf.astype(float), state.position)
            )
            prior = prior.astype(float)
            covariance = jnp.cov(prior, rowvar=False).reshape(wide.size, wide.size)
            prior_precision = jnp.linalg.inv(covariance)
            words = words.reshape(len(SHARES), -1)
            noise = jnp.asarray(multipliers)
            (center, _), _ = jax.lax.scan(
                search, (wide, prior), (words[:-1], noise[:-1])
            )
            window = model.window(center, None, (multipliers[-1] / num_records) ** 2)
            total = released(words[-1], window, noise[-1])
            moments = model.moments(window, num_blocks)
            covariance = covariance_of(
                window, moments, multipliers[-1], num_blocks * BLOCK
            )
            position = unravel(center.astype(start.dtype))
            info = Released(
                position,
                *window[1:],
                total,
                moments.mean,
                moments.slope,
                covariance,
            )
            info = jax.tree.map(lambda leaf: leaf.astype(dtype), info)
        return FitState(position), info, memory

    def stay(state):
        flat, _ = ravel_pytree(state.position)
        vector = jnp.zeros(flat.size)
        square = jnp.zeros((flat.size, flat.size))
        return Released(
            state.position, square, jnp.zeros(()), vector, vector, square, square
        )

    def size(state):
        return sum(leaf.size for leaf in jax.tree.leaves(state.position))

    def num_words(state):
        return len(SHARES) * release.num_words(size(state), posterior.num_records)

    def privacy(num_steps, neighboring_relation=NeighboringRelation.REPLACE_ONE):
        check_nominal(nominal_num_records, neighboring_relation)
        dim = sum(
            leaf.size
            for leaf in jax.tree.leaves(jax.eval_shape(prior_sample_fn, jax.random.key(0)))
        )
        return [
            (release.event(dim, neighboring_relation, multiplier), num_steps)
            for multiplier in multipliers
        ]

    def init(position, rng_key=None):
        return FitState(position)

    return Algorithm.of(init, Transition(num_words, move, stay), privacy)


def record_model(posterior: Posterior, simulate_fn: Callable, like) -> RecordModel:
    """The model on flat positions, which `ravel_pytree` makes of those like `like`.

    It holds functions of the posterior, but no data.
    """
    wide = jax.tree.map(lambda leaf: jnp.zeros(jnp.shape(leaf)), like)
    _, unravel = ravel_pytree(wide)
    loglikelihood_fn = posterior.loglikelihood_fn
    return RecordModel(
        lambda t, record: loglikelihood_fn(unravel(t), record),
        lambda rng_key, t: simulate_fn(rng_key, unravel(t)),
        jax.config.jax_enable_x64,
    )
