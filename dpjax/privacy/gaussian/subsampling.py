"""Renyi divergences of releases about a secret sample of the records.

Every bound here has at integer orders alpha >= 2 the form

    D_alpha <= log(1 + sum_j C(alpha, j) q^j t_j) / (alpha - 1), j = 2..alpha,

with q the chance that the sample holds the record that differs. All terms are positive,
so the sum keeps its digits however small it is. Between integer orders (alpha - 1)
D_alpha is convex in alpha, so its chord is an upper bound.

*Poisson samples, ADD_OR_REMOVE_ONE and REPLACE_SPECIAL.* In units of the clip norm, the
pair that dominates is (1 - q) N(0, s^2) + q N(1, s^2) and N(0, s^2). Its worse
direction has [Mironov, Talwar and Zhang 2019, section 3.3]

    t_j = (1 - q)^(alpha - j) (e^(j (j - 1) / (2 s^2)) - 1).

*Poisson samples, REPLACE_ONE.* The pair that dominates is P = (1 - q) N(0, s^2) +
q N(1, s^2) and Q = (1 - q) N(0, s^2) + q N(-1, s^2). It is bounded by way of R =
N(0, s^2), by the weak triangle inequality [Mironov 2017, Proposition 11, p = 2],

    D_alpha(P|Q) <= (alpha - 1/2) / (alpha - 1) D_2alpha(P|R) + D_(2 alpha - 1)(R|Q).

For large noise the bound is nearly tight: it is 2 (alpha - 1/2)^2 / (alpha - 1) times
q^2 / s^2, where the divergence is 2 alpha times that. By quasi-convexity, the
divergence is never more than that of the release on all records.

*Samples of fixed size, REPLACE_ONE,* of any release with divergences e(j). They have
[Wang, Balle and Kasiviswanathan 2019, Theorem 9; the sum ends at alpha, not alpha - 1]

    t_2 = min(4 (e^e(2) - 1), 2 e^e(2)),    t_j = 2 e^((j - 1) e(j)) for j >= 3.
"""

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from dp_accounting import NeighboringRelation
from scipy.special import gammaln

from dpjax.privacy.events import PoissonGaussianRelease

__all__ = ["barker_test_rdp", "fixed_batch_rdp", "poisson_rdp"]

BATCH_ORDERS = np.unique(np.round(2.0 ** np.arange(1, 16.01, 1 / 8)))
"""Integer orders at which the curve of the event on a batch is evaluated."""


def poisson_rdp(event: PoissonGaussianRelease, orders) -> np.ndarray:
    """Upper bound on the Renyi divergence of a Poisson sampled Gaussian release.

    Parameters
    ----------
    event
        The release.
    orders
        Renyi orders above 1, ``(m,)``.

    Returns
    -------
    Nats, ``(m,)``.
    """
    orders = np.asarray(orders, np.float64)
    half_precision = 1 / (2 * event.noise_multiplier**2)
    q = event.sampling_prob
    if q == 1:
        return _ceiling(event) * orders
    log_left_out = np.log1p(-q)

    def log_terms(order, j):
        return _log_expm1(j * (j - 1) * half_precision) + (order - j) * log_left_out

    def one_record(orders):
        return _amplified(orders, q, log_terms)

    if event.neighboring_relation is NeighboringRelation.REPLACE_ONE:
        bound = (orders - 0.5) / (orders - 1) * one_record(2 * orders)
        bound += one_record(2 * orders - 1)
    else:
        bound = one_record(orders)
    return np.minimum(bound, _ceiling(event) * orders)


def fixed_batch_rdp(
    curve: Callable[[np.ndarray], np.ndarray], sampling_prob: float, orders
) -> np.ndarray:
    """Upper bound on the Renyi divergence of an event on a batch of fixed size.

    Parameters
    ----------
    curve
        Maps orders above 1 to the divergences, in nats, of the event given the batch.
    sampling_prob
        Records in the batch over all records.
    orders
        Renyi orders above 1, ``(m,)``.

    Returns
    -------
    Nats, ``(m,)``; never more than those of the event on all records.
    """
    orders = np.asarray(orders, np.float64)
    most = np.floor(orders.max()) + 1
    sparse = np.append(BATCH_ORDERS[BATCH_ORDERS < most], most)
    # An infinite divergence is replaced, because chords to infinity are not numbers.
    log_moment = np.minimum((sparse - 1) * curve(sparse), 1e300)
    second = log_moment[0]
    first_term = min(np.log(4) + _log_expm1(second), np.log(2) + second)

    def log_terms(order, j):
        terms = np.log(2) + np.interp(j, sparse, log_moment)
        terms[j == 2] = first_term
        return terms

    return np.minimum(_amplified(orders, sampling_prob, log_terms), curve(orders))


def barker_test_rdp(batch_size: int, orders) -> np.ndarray:
    """Upper bound on the Renyi divergence of `BarkerTest`.

    Parameters
    ----------
    batch_size
        B.
    orders
        Renyi orders above 1, ``(m,)``.

    Returns
    -------
    Nats, ``(m,)``; infinite at orders of 1 + B/4 and above.

    Notes
    -----
    Two normals with variances v and w and means that are m apart have, with r = v/w and
    a the order [Gil, Alajaji and Linder 2013],

        D_a = a m^2 / (2 (a w - (a - 1) v)) + f(r),
        f(r) = -(log r + log(a - (a - 1) r) / (a - 1)) / 2.

    Here v and w lie in [1, 2], m^2 <= 4/B and |v - w| <= d = 4/B. So r lies between
    1/(1 + d) and 1 + d, and the denominator is at least 2 (1 - (a - 1) d). The function
    f falls up to r = 1 and grows from there, and f(1/r) <= f(r) for r > 1, as its slope
    in log r shows. So f is at most f(1 + d), which is about a d^2 / 4. The bound of
    Heikkila et al. 2019 has log(2) / (2 (a - 1)) in its place.
    """
    order = np.asarray(orders, np.float64)
    moved = 4 / batch_size
    room = 1 - (order - 1) * moved
    valid = room > 0
    order, room = order[valid], room[valid]
    spread = np.log1p(moved) + np.log(room) / (order - 1)
    bound = np.full(valid.shape, np.inf)
    bound[valid] = order * moved / (2 * room) - spread / 2
    return bound * (1 + 1e-12)


def _amplified(orders, q: float, log_terms) -> np.ndarray:
    """The bound of the module docstring from log t_j = ``log_terms(alpha, j)``."""
    below = np.floor(orders)
    integers = np.unique(np.concatenate([below, below + 1]))
    log_factorial = _log_factorials(int(integers[-1]).bit_length())
    log_moment = np.zeros(integers.shape)
    for i, order in enumerate(integers):
        if order >= 2:
            j, n = np.arange(2, order + 1), int(order)
            log_choose = log_factorial[n] - log_factorial[2 : n + 1]
            log_choose -= log_factorial[n - 2 :: -1]
            terms = log_choose + j * np.log(q) + log_terms(order, j)
            # Several times faster than SciPy's `logsumexp`.
            log_sum = np.max(terms)
            if np.isfinite(log_sum):
                log_sum += np.log(np.sum(np.exp(terms - log_sum)))
            log_moment[i] = np.logaddexp(0.0, log_sum)
    # The factor covers the rounding of the largest binomial coefficients.
    return np.interp(orders, integers, log_moment) / (orders - 1) * (1 + 1e-9)


@lru_cache
def _log_factorials(bits: int) -> np.ndarray:
    """Logarithms of the factorials of 0, 1, ..., 2^bits - 1."""
    return gammaln(np.arange(1, 2**bits + 1))


def _ceiling(event: PoissonGaussianRelease) -> float:
    """Renyi divergence over the order of the release on all records."""
    replace = event.neighboring_relation is NeighboringRelation.REPLACE_ONE
    return (4 if replace else 1) / (2 * event.noise_multiplier**2)


def _log_expm1(x):
    """log(e^x - 1) for x >= 0."""
    with np.errstate(divide="ignore"):
        return x + np.log(-np.expm1(-x))
