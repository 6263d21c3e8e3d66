"""Empirical audit: attack the releases of a kernel, and bound its cost from below.

*The attack.* The adversary knows two neighbouring data sets. It chooses a position and,
through the kernel's proposal, the proposed positions. A trial consists of T steps of
the kernel. Every step starts from that position, which adaptive composition allows. The
adversary counts how many of the T accept bits are 1. Or it adds a score of the releases
of all steps, and counts how many thresholds the sum passes.

*The bound.* Each event E = "the count is at least k", and its complement, is a test of
which data set was used. Let P and Q be the laws of the count under the two data sets.
(epsilon, delta)-privacy bounds every test in both directions, P(E) <= e^epsilon Q(E) +
delta. Clopper-Pearson bounds on all P(E) and Q(E) hold at once, by Bonferroni's
inequality, and so they bound epsilon or delta from below.

A bound above the accountant's claim refutes the claim. A bound below it proves nothing.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from scipy import stats

from dpjax.privacy.validate import MAX_EPSILON, check_count, check_real

__all__ = ["accept_counts", "delta_lower_bound", "epsilon_lower_bound", "scores"]

TRIALS_AT_ONCE = 1024
"""Number of trials that run at once, which bounds the memory."""


def scores(
    rng_key: jax.Array,
    algorithm_fn: Callable,
    posterior,
    position,
    score_fn: Callable,
    *,
    num_trials: int,
    num_steps: int = 1,
) -> np.ndarray:
    """Sums of a score over the `num_steps` steps of each trial, ``(num_trials,)``.

    The bounds of this module take counts. Sums of scores become counts by
    ``np.digitize(scores, thresholds)``, with thresholds that were chosen without
    looking at the scores.

    Parameters
    ----------
    rng_key
        A JAX key. Use another one for the other data set.
    algorithm_fn
        ``posterior -> Algorithm``, as for `dpjax.run`. The attack on an accept bit is
        sharpest with a proposal that always goes to the same place.
    posterior
        Posterior with one of the two data sets. The result is not private, so the
        records should be made up.
    position
        Position from which every step starts, a pytree.
    score_fn
        ``(state, info) -> scalar``: the score of a step, from the state after it and
        its info. A larger score must speak for one of the data sets. The attack is
        sharpest if the score is the log-likelihood ratio of the data sets, given what
        the score reads.
    num_trials, num_steps
        Number of trials, and T, the number of steps in each: positive integers.

    Raises
    ------
    ValueError
        If a count is not a positive integer.
    """
    num_trials = check_count("num_trials", num_trials)
    num_steps = check_count("num_steps", num_steps)
    sizes = num_trials, num_steps
    return np.asarray(
        _scores(algorithm_fn, score_fn, *sizes, rng_key, posterior, position)
    )


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _scores(
    algorithm_fn, score_fn, num_trials, num_steps, rng_key, posterior, position
):
    algorithm = algorithm_fn(posterior)
    state = algorithm.init(position)

    def score(key):
        return jnp.sum(score_fn(*algorithm.step(key, state)))

    def trial(rng_key):
        def add(step, total):
            return total + score(jax.random.fold_in(rng_key, step))

        nothing = jnp.zeros((), jax.eval_shape(score, rng_key).dtype)
        return lax.fori_loop(0, num_steps, add, nothing)

    # The number of trials is rounded up to whole batches, so that one program serves
    # all of them.
    shape = -(-num_trials // TRIALS_AT_ONCE), TRIALS_AT_ONCE
    found = lax.map(jax.vmap(trial), jax.random.split(rng_key, shape))
    return found.reshape(-1)[:num_trials]


def accept_counts(
    rng_key: jax.Array, algorithm_fn: Callable, posterior, position, **sizes: int
) -> np.ndarray:
    """Number of accepted steps in each trial, integers ``(num_trials,)``.

    The parameters are those of `scores`, without `score_fn`.
    """
    return scores(rng_key, algorithm_fn, posterior, position, _is_accepted, **sizes)


def _is_accepted(state, info):
    return info.is_accepted


def epsilon_lower_bound(
    counts, other_counts, delta: float = 0.0, *, significance: float = 0.05
) -> float:
    """Lower bound on the epsilon at which a kernel with these counts is private.

    Parameters
    ----------
    counts, other_counts
        Counts from the trials on one data set and on the other, integers ``(n,)`` and
        ``(m,)``: see `accept_counts` and `scores`.
    delta
        delta of the claim, in [0, 1].
    significance
        Largest probability that the bound exceeds the kernel's epsilon.

    Returns
    -------
    The bound in nats. It is 0 if nothing was found.

    Raises
    ------
    ValueError
        If an argument is invalid.
    """
    delta = check_real("delta", delta, low=0.0, high=1.0)
    least, most = _tests(counts, other_counts, significance)
    excess = least - delta
    found = excess > 0
    return float(np.max(np.log(excess[found] / most[found]), initial=0.0))


def delta_lower_bound(
    counts, other_counts, epsilon: float, *, significance: float = 0.05
) -> float:
    """Lower bound on the delta at which a kernel with these counts is private.

    Parameters
    ----------
    counts, other_counts, significance
        As in `epsilon_lower_bound`.
    epsilon
        epsilon of the claim, nats, in [0, 500].

    Returns
    -------
    The bound, in [0, 1]. It is 0 if nothing was found.

    Raises
    ------
    ValueError
        If an argument is invalid.
    """
    epsilon = check_real("epsilon", epsilon, low=0.0, high=MAX_EPSILON)
    least, most = _tests(counts, other_counts, significance)
    return float(np.max(least - np.exp(epsilon) * most, initial=0.0))


def _tests(counts, other_counts, significance):
    """Lower bounds of P(E) and upper bounds of Q(E), for all tests in both directions.

    All of them hold at once with a probability of at least 1 - `significance`.

    Returns
    -------
    least, most
        ``(num_tests,)`` each. In the second direction P and Q are exchanged.
    """
    significance = check_real("significance", significance, low=1e-15, high=0.5)
    counts, other_counts = _check(counts), _check(other_counts)
    thresholds = np.arange(1, max(counts.max(), other_counts.max()) + 1)
    # Each threshold has two bounds on each of two probabilities. How many thresholds
    # there are depends on the counts, so the share of threshold k is that of k in the
    # sum of 1 / (k (k + 1)) over all k, which is one.
    shares = significance / (4 * thresholds * (thresholds + 1))
    p, q = (_interval(found, thresholds, shares) for found in (counts, other_counts))
    least = [p[0], 1 - p[1], q[0], 1 - q[1]]
    most = [q[1], 1 - q[0], p[1], 1 - p[0]]
    return np.concatenate(least), np.concatenate(most)


def _check(counts) -> np.ndarray:
    counts = np.asarray(counts)
    if counts.ndim != 1 or counts.size == 0 or counts.dtype.kind not in "iu":
        raise ValueError(
            f"counts must be a vector of integers, one for every trial, got {counts!r}"
        )
    return counts


def _interval(counts, thresholds, shares):
    """Bound the probability that a count is at least each threshold, from both sides.

    The bounds are those of Clopper and Pearson. Each is wrong with the probability in
    `shares` for its threshold.
    """
    size = counts.size
    hits = size - np.searchsorted(np.sort(counts), thresholds)
    low = stats.beta.ppf(shares, hits, size - hits + 1)
    high = stats.beta.isf(shares, hits + 1, size - hits)
    return np.where(hits == 0, 0.0, low), np.where(hits == size, 1.0, high)
