"""Convolution of privacy loss distributions in one product of Fourier transforms.

The sum of the losses l_i is computed on a window of losses, modulo the window's length.
Sums below the window reappear in it as larger losses, which makes delta larger. Sums
above the window reappear in it as smaller losses, so their probability is also counted
as that of an infinite loss. Chernoff's bound on it is

    P(sum l >= u) <= exp(sum_i n_i log E e^(theta l_i) - theta u),  theta > 0.

So delta is an upper bound but for rounding, wherever the window lies.
"""

import math
from typing import NamedTuple

import numpy as np
from scipy import fft, signal

__all__ = ["Losses", "connect_dots", "convolve"]

MAX_TAIL = 1e-16
"""Probability beyond either end of the window, at most, for each loss in the sum."""

MIN_HALVINGS = 12
"""How many times the order theta of the moments is halved, at least. The largest order
is right for a normal sum; a few steps with a heavy tail need a smaller one."""


class Losses(NamedTuple):
    """A distribution of privacy losses on a grid, and at infinity.

    interval
        Spacing of the grid, nats.
    lower
        The first loss, in spacings.
    probabilities
        Probabilities of that loss and those that follow, ``(m,)``.
    infinity_mass
        Probability of an infinite loss.
    """

    interval: float
    lower: int
    probabilities: np.ndarray
    infinity_mass: float

    def profile(self) -> np.ndarray:
        """delta at the losses of the grid, without the infinite loss, ``(m,)``.

        At the loss l_i it is a sum of positive terms,

            delta_i = e^-h delta_(i+1) + (1 - e^-h) sum_(j > i) p_j,

        with h the spacing and p_j the probability of l_j.
        """
        sums = np.cumsum(self.probabilities[::-1])
        tail = np.concatenate([[0.0, 0.0], sums])[:-1]
        h = self.interval
        values = signal.lfilter([-np.expm1(-h)], [1.0, -np.exp(-h)], tail)
        return np.asarray(values)[::-1]


def connect_dots(
    deltas: np.ndarray, interval: float, lower: int, at_zero: float = 0.0
) -> Losses:
    """Losses on a grid that dominate a profile.

    Parameters
    ----------
    deltas
        The profile, delta at epsilon = ``interval * (lower + i)``, ``(m,)``; less the
        profile ``at_zero * max(0, 1 - e^epsilon)``.
    interval, lower
        As in `Losses`.
    at_zero
        Mass of a loss of 0 that `deltas` leave out, 0 or 1. A profile of small losses
        is close to that of no loss, and has lost their digits.

    Returns
    -------
    Losses whose profile consists of the chords of the given one, as a function of
    e^epsilon [Doroshenko et al. 2022, Algorithm 1].
    """
    # Without overflow where the spacing is large, 1 / (e^h - 1) = e^-h / (1 - e^-h).
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
        (losses, n_i), on grids whose spacings are multiples of `interval`.
    interval
        Spacing of the sum's grid, nats.

    Returns
    -------
    Losses that dominate the sum, up to rounding of about 1e-16 for each of its terms.
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
    """A kind of losses and how many of them the sum has.

    stride
        Spacing of the losses' grid, in cells of the sum's grid; so are all below.
    centred
        Distances of the losses from their mean.
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
    """Two cells: the sum is below the first, or above the second, with small chances.

    Each of the two chances is `tail` at most.
    """
    mean = sum(term.count * term.mean for term in terms)
    variance = sum(term.count * term.variance for term in terms)
    excess = math.log(1 / tail)
    largest = math.sqrt(2 * excess / max(variance, 1.0))
    # At the smallest order, the largest loss of a step weighs little in its moment.
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
    """Inner product on one core; the threads of `np.dot` would mostly wait here."""
    return np.einsum("i,i->", left, right)


def _power(values: np.ndarray, exponent: int) -> np.ndarray:
    """values ** exponent by repeated squaring, much faster than NumPy's power."""
    result = values if exponent % 2 else np.ones_like(values)
    while exponent := exponent // 2:
        values = values * values
        if exponent % 2:
            result = result * values
    return result
