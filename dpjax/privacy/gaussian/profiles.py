"""Profiles of Gaussian releases about a sample of the records.

The profile of a pair (P, Q) of distributions is delta(epsilon) = sup_A P(A) - e^epsilon
Q(A). Let q be the probability that a record is in the sample. All lengths are in units
of how far one record in the sample can move the sum. Let s be the standard deviation of
the noise, and let N(c) stand for N(c, s^2). The pairs, P against Q, are

    remove:   (1 - q) N(0) + q N(1)  against  N(0),
    add:      N(0)  against  (1 - q) N(0) + q N(1),
    replace:  (1 - q) N(0) + q N(1)  against  (1 - q) N(0) + q N(-1).

The loss log dP/dQ is monotone in the outcome. So the set A that attains the supremum is
a half line, which ends at the outcome whose loss is epsilon. dp-accounting has the same
formulas, for one epsilon at a time.
"""

import math

import numpy as np
from scipy.special import log_ndtr, ndtr

__all__ = ["delta", "largest_loss", "loss"]

MAX_DEVIATIONS = 9.5
"""Number of standard deviations beyond which outcomes have no part in `largest_loss`.
Their probability is 1e-21."""


def largest_loss(pair: str, noise: float, sampling_prob: float) -> float:
    """Largest loss in nats, apart from outcomes with a total probability of 1e-21.

    The parameters are those of `delta`.
    """
    reach = MAX_DEVIATIONS * noise
    x = -reach if pair == "add" else 1 + reach
    return float(loss(pair, noise, sampling_prob, x))


def loss(pair: str, noise: float, sampling_prob: float, x) -> np.ndarray:
    """The loss log dP/dQ in nats at outcomes `x`, ``(m,)``.

    The other parameters are those of `delta`.
    """
    log_ratio = _log_mixture_ratio(x, noise, sampling_prob)
    if pair == "replace":
        return log_ratio - _log_mixture_ratio(-x, noise, sampling_prob)
    return log_ratio if pair == "remove" else -log_ratio


def delta(pair: str, noise: float, sampling_prob: float, epsilon) -> np.ndarray:
    """Profile of one release.

    Parameters
    ----------
    pair
        Name of a pair of the module docstring: ``"remove"``, ``"add"`` or
        ``"replace"``.
    noise
        s, the standard deviation of the noise.
    sampling_prob
        q, in (0, 1).
    epsilon
        Real numbers in nats, ``(m,)``; they may be negative.

    Returns
    -------
    delta at each epsilon, ``(m,)``, with an absolute error of about 1e-16.
    """
    epsilon = np.asarray(epsilon, np.float64)
    q, log_rest = sampling_prob, math.log1p(-sampling_prob)

    if pair == "replace":
        x = _replacement_end(epsilon, noise, q)
        above = (1 - q) * ndtr(-x / noise) + q * ndtr((1 - x) / noise)
        log_below = np.logaddexp(
            log_rest + log_ndtr(-x / noise), math.log(q) + log_ndtr((-1 - x) / noise)
        )
        return np.clip(above - np.exp(epsilon + log_below), 0.0, 1.0)
    if pair == "remove":
        inside = epsilon > log_rest
        x = _mixture_end(np.where(inside, epsilon, 0.0), noise, q)
        found = (1 - q) * ndtr(-x / noise) + q * ndtr((1 - x) / noise)
        found -= np.exp(np.where(inside, epsilon, 0.0) + log_ndtr(-x / noise))
        found = np.where(inside, found, -np.expm1(np.minimum(epsilon, 0.0)))
        return np.clip(found, 0.0, 1.0)
    inside = epsilon < -log_rest
    x = _mixture_end(np.where(inside, -epsilon, 0.0), noise, q)
    log_below = np.logaddexp(
        log_rest + log_ndtr(x / noise), math.log(q) + log_ndtr((x - 1) / noise)
    )
    found = ndtr(x / noise) - np.exp(np.where(inside, epsilon, 0.0) + log_below)
    return np.clip(np.where(inside, found, 0.0), 0.0, 1.0)


def _log_mixture_ratio(x, noise, q):
    """Logarithm of the density of (1 - q) N(0) + q N(1) over that of N(0)."""
    return np.logaddexp(math.log1p(-q), math.log(q) + (x - 0.5) / noise**2)


def _mixture_end(loss, noise, q):
    """The outcome at which `_log_mixture_ratio` is `loss`, which exceeds log(1 - q)."""
    high = np.maximum(loss, 0.0) - math.log(q) + np.log1p((q - 1) * np.exp(-abs(loss)))
    low = np.log1p(np.expm1(np.minimum(loss, 0.0)) / q)
    return 0.5 + noise**2 * np.where(loss > 0, high, low)


def _replacement_end(loss, noise, q):
    """The outcome at which the loss of the pair "replace" is `loss`.

    It is s^2 (loss/2 + asinh((1 - q) e^(1 / 2 s^2) sinh(loss/2) / q)).
    """
    size = np.abs(loss)
    with np.errstate(divide="ignore"):
        log_sinh = size / 2 + np.log(-np.expm1(-size) / 2)
    log_scaled = log_sinh + 0.5 / noise**2 + math.log1p(-q) - math.log(q)
    # asinh(e^a) = log(e^a + sqrt(1 + e^2a)), without overflow.
    asinh = np.where(
        log_scaled < 0,
        np.arcsinh(np.exp(np.minimum(log_scaled, 0.0))),
        np.logaddexp(log_scaled, np.logaddexp(0.0, 2 * log_scaled) / 2),
    )
    return noise**2 * np.sign(loss) * (size / 2 + asinh)
