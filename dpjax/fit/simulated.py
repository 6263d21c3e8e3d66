"""A posterior from a few noisy sums of clipped scores, where records can be simulated.

*Release.* The data are read only through sums of clipped scores at public positions
theta,

    S = sum_i clip(g_i) + noise,    g_i = W^T grad log p(x_i | theta),

where clip(g) is g shortened to the norm C, and the matrix W whitens the score.

*Likelihood.* The law of S given the parameter t is computed without data. Its mean is
n m(t), with m(t) = E clip(g) for records x from the model at t. This is a mean over
simulated records. So the likelihood N(S; n m(t), Sigma) is as curved as the model is,
and clipping does not bias it. With A the regression of clip(g) on g and R the
covariance of its residual,

    Sigma = n (A E[g g^T] A^T / T + R) + noise covariance.

Here T is the power of a tempered likelihood. A g is the part of clip(g) that is linear
in the exact score, and only its information is divided by the tempering: the errors
from clipping and noise are as large without tempering.

*Plan.* Four releases, each with a hundredth of the budget, find the mode. A fifth one
is made at the mode, with what is left of the budget. Its noise may be K-norm noise,
which is taken to be normal with the same covariance. Before each release, W and C are
chosen with simulated records. C minimises the covariance of the error with which S
determines t, but is at least the 95 % quantile of |g| of records that are simulated at
positions where the parameters may be. A last hundredth of the budget pays for a fit
check: the sum of the |clip(g_i)|^2 less its expectation for simulated records.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import NeighboringRelation
from jax.flatten_util import ravel_pytree

from dpjax.algorithm import Algorithm, Transition
from dpjax.fit.far_modes import Law, Prior
from dpjax.fit.precision import is_wide
from dpjax.fit.record_model import BLOCK, MAX_PARTS, RecordModel, Window
from dpjax.fit.score_fit import FitState
from dpjax.posterior import Posterior
from dpjax.privacy.validate import check_positive_number
from dpjax.release.exact_sums import wide
from dpjax.release.gaussian_sum import GaussianSum
from dpjax.release.gradient_parts import gradient_parts, whole
from dpjax.release.noisy_sum import NoisySum
from dpjax.release.nominal import nominal_size

__all__ = [
    "MIN_RESOLUTION",
    "SHARES",
    "FitState",
    "Released",
    "expected_resolution",
    "num_parameters",
    "simulated_fit",
]

SHARES = (0.01, 0.01, 0.01, 0.01, 0.95)
"""Shares of the budget of the releases of scores, if the last one is Gaussian. A share
is proportional to the inverse square of the noise multiplier."""

CHECK_SHARE = 0.01
"""Share of the budget of the fit check, if neighbours substitute one record."""

MIN_RESOLUTION = 5.0
"""The least `expected_resolution` with which draws can be believed."""


class Released(NamedTuple):
    """The last release of a fit, and its law under the model. Public.

    position
        The flattened position theta where scores were taken, ``(d,)``.
    whitening, l2_clip_norm
        W ``(d, d)`` and C: see `dpjax.fit.record_model.Window`.
    total
        S, the noisy sum of clipped scores, ``(d,)``.
    mean, slope
        m at theta ``(d,)``, and its derivative ``(d, d)``.
    information
        A E[g g^T] A^T for one record, ``(d, d)``.
    error
        The rest of Sigma, ``(d, d)``: the covariances of the error from clipping, of
        the noise, and of the error of `mean` from simulation.
    square
        E |clip(g)|^2 / C^2 for records from the model at theta.
    excess
        Sum over the records of |clip(g)|^2 / C^2 less `square`, as released.
    excess_noise_sd
        Sd of the errors of `excess` from the noise and from the simulation of `square`.
    """

    position: jax.Array
    whitening: jax.Array
    l2_clip_norm: jax.Array
    total: jax.Array
    mean: jax.Array
    slope: jax.Array
    information: jax.Array
    error: jax.Array
    square: jax.Array
    excess: jax.Array
    excess_noise_sd: jax.Array

    @property
    def window(self) -> Window:
        """The position, whitening and clip norm of the release."""
        return Window(self.position, self.whitening, self.l2_clip_norm)

    def covariance(self, num_records: int, tempering: float) -> jax.Array:
        """The covariance Sigma of S, ``(d, d)``."""
        return num_records / tempering * self.information + self.error


def num_parameters(prior_sample_fn: Callable[[jax.Array], Any]) -> int:
    """Number of components of a draw of the prior, without making a draw."""
    position = jax.eval_shape(prior_sample_fn, jax.random.key(0))
    return sum(leaf.size for leaf in jax.tree.leaves(position))


def expected_resolution(dim: int, num_records: float, noise_multiplier: float) -> float:
    """How close to the parameters the last release is made, from public numbers.

    The position of the last release is off by the noise on the release before it. The
    resolution is one over the expected distance, in standard deviations that the
    posterior would have if there were only one record. Draws are computed from records
    that are simulated at that position, weighted with likelihood ratios, and that works
    at short distances only. The clip norm is taken to be the root mean square length of
    a record's score.

    Parameters
    ----------
    dim
        Number of parameters.
    num_records
        Number of records.
    noise_multiplier
        As in `simulated_fit`.
    """
    return num_records * math.sqrt(SHARES[-2]) / (dim * noise_multiplier)


def simulated_fit(
    posterior: Posterior,
    simulate_fn: Callable[[jax.Array, Any], Any],
    prior_sample_fn: Callable[[jax.Array], Any],
    *,
    noise_multiplier: float,
    last: NoisySum | None = None,
    nominal_num_records: int | None = None,
) -> Algorithm:
    """A fit of a model whose records can be simulated, as an algorithm of one step.

    The step starts at the position of the state.

    Parameters
    ----------
    posterior, simulate_fn, prior_sample_fn, nominal_num_records
        As in `dpjax.sample`.
    noise_multiplier
        Noise multiplier of one Gaussian release that costs as much as the fit.
        `privacy.calibrate` finds the one that spends a budget.
    last
        As in `dpjax.fit.score_fit.score_fit`.

    Raises
    ------
    ValueError
        If `noise_multiplier` is not positive; from ``privacy``, if the neighbouring
        relation does not keep the number of records.

    Notes
    -----
    *Formal guarantees.* A step makes one release for each of the `SHARES`: a sum over
    all records of vectors whose norms are at most one. One more release is a sum of
    numbers between -m and 1 - m, with a public m in [0, 1]. The noise of all releases
    is fixed before the data are read. State and info are functions of what they
    released, and so are public.
    """
    noise_multiplier = check_positive_number("noise_multiplier", noise_multiplier)
    num_records = nominal_size(posterior, nominal_num_records)
    # The simulated mean has the same error in all fits of a model. Up to 2.5 million
    # records, that adds at most a quarter to the covariance of the clipping error.
    num_blocks = -(-min(max(4 * num_records, 1_000_000), 10_000_000) // BLOCK)
    *firsts, rest = [noise_multiplier / share**0.5 for share in SHARES]
    first = GaussianSum(1.0, None)
    if last is None:
        last = GaussianSum(1.0, rest)
    last_noise = last.noise_multiplier
    assert last_noise is not None
    check_noise = noise_multiplier / (2 * CHECK_SHARE**0.5)
    check = GaussianSum(1.0, check_noise, diameter=1.0)

    def move(words, state, memory):
        start, unravel = ravel_pytree(state.position)
        like, wide = state.position, is_wide()
        model = RecordModel.of(posterior.loglikelihood_fn, simulate_fn, like, wide)
        prior = Prior.of(posterior.logprior_fn, prior_sample_fn, like, wide)

        def whitened(window):
            """A function ``record -> g / C``."""
            position = window.center.astype(start.dtype)
            scale = window.whitening / window.l2_clip_norm

            def loglikelihood_fn(position, record):
                return posterior.loglikelihood_fn(unravel(position), record)

            def score_fn(record):
                with jax.enable_x64(wide):
                    parts = gradient_parts(
                        loglikelihood_fn, position, record, MAX_PARTS
                    )
                    score = jnp.concatenate([whole(part) for part in parts])
                return jnp.matmul(score, scale.astype(score.dtype), precision="highest")

            return score_fn

        def excess(words, window, square):
            """Release the sum over the records of |clip(g)|^2 / C^2 - square."""
            score_fn = whitened(window)

            def contribution_fn(record):
                return _excess(jnp.sum(score_fn(record) ** 2), square)

            return check(words, posterior, contribution_fn)

        def released(release, words, multiplier, num_blocks, center, predicted):
            """Release the scores at a center, with noise of sd C times the multiplier.

            In the result, the fields of the fit check are zero.
            """
            window = model.window(center, multiplier**2 / num_records, predicted)
            total = window.l2_clip_norm * release(
                words, posterior, whitened(window), noise_multiplier=multiplier
            )
            moments = model.moments(window, num_blocks)
            # The factor allows for the error of the simulated mean.
            loss = moments.loss * (1 + num_records / (num_blocks * BLOCK))
            noise_variance = (multiplier * window.l2_clip_norm) ** 2
            error = num_records * loss + noise_variance * jnp.eye(start.size)
            nothing = jnp.zeros(())
            return Released(
                *window,
                total,
                moments.mean,
                moments.slope,
                moments.information,
                error,
                moments.square / window.l2_clip_norm**2,
                nothing,
                nothing,
            )

        def turn(carry, row):
            words, noise = row
            found = released(first, words, noise, 1, *carry)
            covariance = found.covariance(num_records, posterior.tempering)
            root = jnp.linalg.cholesky(covariance)
            law = Law(model, prior, found.window, found.total, root, num_records)
            mode = law.mode().astype(start.dtype).astype(float)
            return (mode, model.simulate(law.predicted(mode))), None

        with jax.enable_x64(True):
            before, after = np.cumsum(words_of_releases(start.size))[:2]
            of_firsts, of_last, of_check = jnp.split(words, [before, after])
            begin = start.astype(float), model.simulate(prior.draws)
            rows = of_firsts.reshape(len(firsts), -1), jnp.asarray(firsts)
            there, _ = jax.lax.scan(turn, begin, rows)
            found = released(last, of_last, last_noise, num_blocks, *there)
            spread = found.square * (1 - found.square) / (num_blocks * BLOCK)
            found = found._replace(
                excess=excess(of_check, found.window, found.square),
                excess_noise_sd=jnp.sqrt(check_noise**2 + num_records**2 * spread),
            )
            found = jax.tree.map(lambda leaf: leaf.astype(start.dtype), found)
        return FitState(unravel(found.position)), found, memory

    def stay(state):
        flat, _ = ravel_pytree(state.position)
        vector = jnp.zeros_like(flat)
        square = jnp.zeros((flat.size, flat.size), flat.dtype)
        zero = jnp.zeros((), flat.dtype)
        return Released(flat, square, zero, vector, vector, *3 * [square], *3 * [zero])

    def words_of_releases(dim):
        """Number of words of the first releases, of the last one and of the check."""
        size = posterior.num_records
        of_firsts = len(firsts) * first.num_words(dim, size)
        return of_firsts, last.num_words(dim, size), check.num_words(1, size)

    def num_words(state):
        return sum(words_of_releases(ravel_pytree(state.position)[0].size))

    def privacy(num_steps, neighboring_relation=NeighboringRelation.REPLACE_ONE):
        dim = num_parameters(prior_sample_fn)
        events = [
            *(first.event(dim, neighboring_relation, noise) for noise in firsts),
            check.event(1, neighboring_relation),
            last.event(dim, neighboring_relation),
        ]
        return [(event, num_steps) for event in events]

    def init(position, rng_key=None):
        return FitState(position)

    return Algorithm.of(init, Transition(num_words, move, stay), privacy)


def _excess(found: jax.Array, square) -> jax.Array:
    """The number that a record with |g|^2 / C^2 = `found` adds to the fit check.

    The ends of its range are one apart, which is the diameter that is charged. In half
    precision, rounding would move them by 2^-9.
    """
    found = wide(found)
    return jnp.minimum(1, found) - square.astype(found.dtype)
