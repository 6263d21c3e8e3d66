"""Convolution of privacy loss distributions in one product of Fourier transforms.

Sums of losses are computed on a window, modulo its length. What wraps around from
below reappears as large losses, which makes delta larger. What wraps around from above
is counted a second time, as an infinite loss, with Chernoff's bound

    P(sum l >= u) <= exp(sum_i n_i log E e^(theta l_i) - theta u),  theta > 0.

So delta is an upper bound but for rounding, wherever the window lies.
"""

import math
from typing import NamedTuple

import numpy as np
from scipy import fft

__all__ = ["Losses", "connect_dots", "convolve"]

TAIL = 1e-16
"""Mass, at most, for each loss of the sum that is taken for an infinite one."""

HALVINGS = 12
"""Orders of the moments, each half of the one before. The largest is right for a normal
sum; a few steps with a heavy tail need a smaller one."""


class Losses(NamedTuple):
    """A distribution of privacy losses on a grid, and at infinity.

    interval
        Spacing of the grid, nats.
    lower
        The first loss, in spacings.
    probabilities
        Of that loss and those that follow, ``(m,)``.
    infinity_mass
        Chance of an infinite loss.
    """

    interval: float
    lower: int
    probabilities: np.ndarray
    infinity_mass: float


def connect_dots(deltas: np.ndarray, interval: float, lower: int) -> Losses:
    """Losses on a grid that dominate a profile given there.

    Parameters
    ----------
    deltas
        delta at ``interval * (lower + i)``, ``(m,)``.
    interval, lower
        As in `Losses`.

    Returns
    -------
    Losses
        Whose profile consists of chords of the given one, in e^epsilon [Doroshenko et
        al. 2022, Algorithm 1].
    """
    deltas = np.minimum.accumulate(deltas)
    fallen = -np.diff(deltas)
    probabilities = np.append(1 - deltas[0], fallen / -np.expm1(-interval))
    probabilities[:-1] -= fallen / np.expm1(interval)
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
    Losses
        That dominate the sum, up to rounding of about 1e-16 for each of its terms.
    """
    tail = TAIL * sum(count for _, count in powers)
    terms = [_term(losses, count, interval) for losses, count in powers]
    sd = math.sqrt(sum(term.count * term.variance for term in terms))
    is_narrow = [np.ptp(term.centred) <= 16 * sd for term in terms]
    if 1 < sum(is_narrow) < len(terms):
        # All on one window would make many long transforms for the sake of a few.
        narrow = [t for t, small in zip(terms, is_narrow, strict=True) if small]
        together = _convolve(narrow, interval, tail)
        terms = [t for t, small in zip(terms, is_narrow, strict=True) if not small]
        terms.append(_term(together, 1, interval))
    return _convolve(terms, interval, tail)


class _Term(NamedTuple):
    """Losses, how many, and their distances from the mean, in cells of the sum."""

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
    transform = np.ones(size // 2 + 1, complex)
    for losses, count, stride, *_ in terms:
        place = np.arange(losses.probabilities.size) * stride % size
        window = np.bincount(place, losses.probabilities, size)
        transform *= _power(fft.rfft(window), count)
    total = np.roll(fft.irfft(transform, size), bottom - lower)
    infinity_mass = -math.expm1(log_finite) + (tail if upper < top else 0.0)
    return Losses(interval, lower, np.maximum(total, 0.0), infinity_mass)


def _tails(terms, tail) -> tuple[int, int]:
    """Cells below and above which the sum is with probability `tail` at most, each."""
    mean = sum(term.count * term.mean for term in terms)
    variance = sum(term.count * term.variance for term in terms)
    excess = math.log(1 / tail)
    largest = math.sqrt(2 * excess / max(variance, 1.0))
    orders = largest / 2.0 ** np.arange(HALVINGS, -1, -1)
    reach = []
    for sign in (-1, 1):
        log_moments = np.zeros(orders.size)
        for term in terms:
            # Too large an order for a heavy tail overflows, and is left out.
            with np.errstate(over="ignore", invalid="ignore"):
                growth = np.exp(sign * orders[0] * term.centred)
                for k in range(orders.size):
                    moment = _dot(term.losses.probabilities, growth)
                    log_moments[k] += term.count * np.log(moment)
                    growth *= growth
        reach.append(np.nanmin((log_moments + excess) / orders))
    return math.floor(mean - reach[0]), math.ceil(mean + reach[1])


def _dot(left: np.ndarray, right: np.ndarray) -> float:
    """Inner product on one core: np.dot has threads, which mostly wait here."""
    return np.einsum("i,i->", left, right)


def _power(values: np.ndarray, exponent: int) -> np.ndarray:
    """values ** exponent, by squaring: NumPy's own is much slower."""
    result = values if exponent % 2 else 1.0
    while exponent := exponent // 2:
        values = values * values
        if exponent % 2:
            result = result * values
    return result
