"""Convolution of privacy loss distributions by a product of Fourier transforms.

The law of the sum of n_i losses l_i of each kind i is computed on a window of losses,
modulo the window's length. Sums below the window reappear in it as larger losses, which
makes delta larger. Sums above the window reappear in it as smaller losses. So their
probability is also counted as that of an infinite loss. Chernoff's bound on that
probability is, with u the upper end of the window,

    P(sum l >= u) <= exp(sum_i n_i log E e^(theta l_i) - theta u),  theta > 0.

So delta is an upper bound, apart from rounding, wherever the window lies.
"""

import math
from typing import NamedTuple

import numpy as np
from scipy import fft, signal

__all__ = ["Losses", "connect_dots", "convolve"]

MAX_TAIL = 1e-16
"""Bound on the probability beyond either end of the window, for each loss in the sum.
"""

MIN_HALVINGS = 12
"""The least number of times that the largest order theta is halved to give the others.
The largest order is right for a normal sum. A sum of a few losses with a heavy tail
needs a smaller one."""


class Losses(NamedTuple):
    """A distribution of privacy losses on a grid, and at infinity.

    interval
        Spacing of the grid, nats.
    lower
        The first loss of the grid, an integer in units of `interval`.
    probabilities
        Probabilities of that loss and of the losses after it, ``(m,)``.
    infinity_mass
        Probability of an infinite loss.
    """

    interval: float
    lower: int
    probabilities: np.ndarray
    infinity_mass: float

    def profile(self) -> np.ndarray:
        """delta at each loss of the grid, ``(m,)``, without the infinite loss.

        With h the spacing and p_j the probability of the loss l_j, delta at the loss
        l_i is a sum of positive terms,

            delta_i = e^-h delta_(i+1) + (1 - e^-h) sum_(j > i) p_j.
        """
        sums = np.cumsum(self.probabilities[::-1])
        tail = np.concatenate([[0.0, 0.0], sums])[:-1]
        h = self.interval
        values = signal.lfilter([-np.expm1(-h)], [1.0, -np.exp(-h)], tail)
        return np.asarray(values)[::-1]


def connect_dots(
    deltas: np.ndarray, interval: float, lower: int, at_zero: float = 0.0
) -> Losses:
    """Losses on a grid whose profile is an upper bound on a given profile.

    Parameters
    ----------
    deltas
        delta at epsilon = ``interval * (lower + i)``, ``(m,)``, less
        ``at_zero * max(0, 1 - e^epsilon)``.
    interval, lower
        As in `Losses`.
    at_zero
        0 or 1: probability of a loss of 0 whose profile was subtracted from `deltas`. A
        profile of small losses is close to that of a loss of 0. Without the subtraction
        it would lose the digits in which they differ.

    Returns
    -------
    Losses whose profile, as a function of e^epsilon, consists of chords of the given
    profile [Doroshenko et al. 2022, Algorithm 1].
    """
    # 1 / (e^h - 1) is computed as e^-h / (1 - e^-h), so that a large h does not
    # overflow.
    fallen = np.diff(deltas) / np.expm1(-interval)
    probabilities = np.append(1 - at_zero - deltas[0], fallen)
    probabilities[:-1] -= math.exp(-interval) * fallen
    if at_zero:
        probabilities[-lower] += at_zero
    probabilities = np.maximum(probabilities, 0.0)
    return Losses(interval, lower, probabilities, float(deltas[-1]))


def convolve(powers: list[tuple[Losses, int]], interval: float) -> Losses:
    """Distribution of the sum of n_i independent losses of each kind i.

    Parameters
    ----------
    powers
        (losses, n_i) for each kind. The spacings of their grids are multiples of
        `interval`.
    interval
        Spacing of the sum's grid, nats.

    Returns
    -------
    Losses that dominate the sum, up to a rounding error of about 1e-16 for each of its
    terms.
    """
    tail = MAX_TAIL * sum(count for _, count in powers)
    terms = [_term(losses, count, interval) for losses, count in powers]
    sd = math.sqrt(sum(term.count * term.variance for term in terms))
    is_narrow = [np.ptp(term.centred) <= 16 * sd for term in terms]
    if 1 < sum(is_narrow) < len(terms):
        # A few wide terms make the window wide. The narrow terms are convolved on a
        # window of their own first, so that there are few long transforms.
        narrow = [t for t, small in zip(terms, is_narrow, strict=True) if small]
        together = _convolve(narrow, interval, tail)
        terms = [t for t, small in zip(terms, is_narrow, strict=True) if not small]
        terms.append(_term(together, 1, interval))
    return _convolve(terms, interval, tail)


class _Term(NamedTuple):
    """A kind of losses with its moments, for a sum.

    Lengths are in units of the spacing of the sum's grid.

    losses, count
        The distribution of one loss, and the number of such losses in the sum.
    stride
        Spacing of the losses' grid.
    centred
        The losses of the grid less their mean, ``(m,)``.
    mean, variance
        Moments of one loss, without the infinite loss.
    """

    losses: Losses
    count: int
    stride: int
    centred: np.ndarray
    mean: float
    variance: float


def _term(losses, count, interval) -> _Term:
    stride = round(losses.interval / interval)
    cells = stride * (losses.lower + np.arange(losses.probabilities.size, dtype=float))
    mean = _dot(losses.probabilities, cells)
    variance = _dot(losses.probabilities, (cells - mean) ** 2)
    return _Term(losses, count, stride, cells - mean, mean, variance)


def _convolve(terms, interval, tail) -> Losses:
    bottom, top, log_finite = 0, 0, 0.0
    for losses, count, stride, *_ in terms:
        bottom += count * stride * losses.lower
        top += count * stride * (losses.lower + losses.probabilities.size - 1)
        log_finite += count * math.log1p(-losses.infinity_mass)
    below, above = _tails(terms, tail)
    lower, upper = max(bottom, below), min(top, above)
    size = fft.next_fast_len(upper - lower + 1, real=True)
    assert isinstance(size, int)
    transform = np.ones(size // 2 + 1, complex)
    for losses, count, stride, *_ in terms:
        place = np.arange(losses.probabilities.size) * stride % size
        window = np.bincount(place, losses.probabilities, size)
        transform *= _power(np.asarray(fft.rfft(window)), count)
    total = np.roll(np.asarray(fft.irfft(transform, size)), bottom - lower)
    infinity_mass = -math.expm1(log_finite) + (tail if upper < top else 0.0)
    return Losses(interval, lower, np.maximum(total, 0.0), infinity_mass)


def _tails(terms, tail) -> tuple[int, int]:
    """Two losses of the sum's grid, in units of its spacing, that bound the window.

    The sum is below the first with a probability of at most `tail`, and above the
    second with a probability of at most `tail`.
    """
    mean = sum(term.count * term.mean for term in terms)
    variance = sum(term.count * term.variance for term in terms)
    excess = math.log(1 / tail)
    largest = math.sqrt(2 * excess / max(variance, 1.0))
    # The smallest order is so small that the largest loss weighs little in the moment.
    widest = max(np.abs(term.centred).max() for term in terms)
    halvings = max(
        MIN_HALVINGS, math.ceil(math.log2(1 + largest * widest / excess)) + 2
    )
    orders = largest / 2.0 ** np.arange(halvings, -1, -1)
    reach = []
    for sign in (-1, 1):
        log_moments = np.zeros(orders.size)
        for term in terms:
            # An order that is too large for a heavy tail overflows and is ignored.
            with np.errstate(over="ignore", invalid="ignore"):
                growth = np.exp(sign * orders[0] * term.centred)
                for k in range(orders.size):
                    moment = _dot(term.losses.probabilities, growth)
                    log_moments[k] += term.count * np.log(moment)
                    growth *= growth
        reach.append(np.nanmin((log_moments + excess) / orders))
    return math.floor(mean - reach[0]), math.ceil(mean + reach[1])


def _dot(left: np.ndarray, right: np.ndarray) -> float:
    """Inner product on one core. `np.dot` would start threads, which mostly wait."""
    return np.einsum("i,i->", left, right)


def _power(values: np.ndarray, exponent: int) -> np.ndarray:
    """``values ** exponent`` by repeated squaring, much faster than NumPy's power."""
    result = values if exponent % 2 else np.ones_like(values)
    while exponent := exponent // 2:
        values = values * values
        if exponent % 2:
            result = result * values
    return result
