"""Exact composition of accept bits that an adversary chooses adaptively, certified.

*The recursion.* Let P and Q be the laws of the bits under neighbouring data, and let
w = e^eps Q/P, so that delta(eps) = E_P max(0, 1 - w). A step multiplies w by the
likelihood ratio of one pair (p, q) of bits. The adversary may choose any pair that the
event allows, in view of all earlier bits. So delta after T steps is exactly W_T(e^eps),
where

    W_0(w) = max(0, 1 - w),
    W_(t+1)(w) = sup over (p, q) of p W_t(w q/p) + (1 - p) W_t(w (1 - q)/(1 - p)).

One pass over t gives every epsilon and every number of steps up to T.

*The upper bound.* `exact_cells` replaces the supremum by the maximum over a few pairs
that dominate all others. W_t is convex in w, decreasing, and equal to 1 at w = 0. So
between the nodes of a grid that is uniform in log w, W_t is at most its chord in w.
Left of the first node it is at most the chord to (0, 1), and right of the last node at
most its value there. On that grid a pair shifts w by the same number of nodes and uses
the same chord at every node, so W_(t+1) is the maximum of a few sums of shifted W_t.
Every such bound is convex again, because the pairs are genuine pairs of bits.

*Other releases.* Releases that are not chosen in view of the bits may come in any
order. To bound them, let the adversary see them first: the mean of a supremum is no
less than the supremum of means. The chords of W_T make W_T(w) = W_T(inf) + sum_i c_i
max(0, 1 - w/w_i) with c_i >= 0. So if d is the profile of the other releases alone, at
any real epsilon, then

    delta(eps) = W_T(inf) + sum_i c_i d(eps - log w_i).

Source: this project.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dpjax.privacy.bits.exact_cells import Pairs, dominating_pairs
from dpjax.privacy.events import AcceptBit
from dpjax.privacy.gaussian import conversions

__all__ = ["Curve", "Profile", "estimate_max_bits", "no_release", "profile"]

MAX_BITS = 200_000

MAX_SPACING = 0.1
"""Largest spacing of the grid of log w, in standard deviations of one bit's loss."""

MIN_NODES = 1024

NODES_MULTIPLE = 1024
ROWS_MULTIPLE = 64
"""Sizes of arrays are multiples of these, so that few programs are compiled."""

ROUNDING = 1e-12
"""Relative rounding error of one step, with much room."""

Curve = Callable[[np.ndarray], np.ndarray]
"""delta at increasing real epsilons, ``(n,)`` to ``(n,)``: the larger of both
directions. `pld.Composed.delta` is such a function."""


def no_release(epsilons: np.ndarray) -> np.ndarray:
    """delta(epsilon) of no release at all."""
    return -np.expm1(np.minimum(epsilons, 0.0))


@dataclass(frozen=True, eq=False)
class Profile:
    """Upper bound on W_T of the module docstring, by its values on a grid.

    Parameters
    ----------
    num_bits
        T.
    spacing, first
        Node i is at log w = (first + i) spacing.
    values
        W_T at the nodes, ``(n,)`` float64.
    """

    num_bits: int
    spacing: float
    first: int
    values: np.ndarray

    def delta(self, epsilon: float, others: Curve = no_release) -> float:
        """delta(epsilon) of the bits and the other releases together, at most 1.

        Parameters
        ----------
        epsilon
            Nats, at least 0.
        others
            delta(epsilon) of the other releases alone.
        """
        nodes = (self.first + np.arange(self.values.size)) * self.spacing
        # Slopes times w, of the chords on either side of each node.
        slopes = np.diff(self.values) / np.expm1(self.spacing)
        right = np.append(slopes, 0.0)
        left = np.append(self.values[0] - 1, slopes * math.exp(self.spacing))
        shares = others(epsilon - nodes[::-1])[::-1]
        value = float(self.values[-1] + np.dot(right - left, shares))
        if not value >= 0:
            raise ArithmeticError(f"the accountant computed {value}, not a delta")
        return min(1.0, value * math.exp(ROUNDING * (self.num_bits + 1000)))


@lru_cache(maxsize=64)
def profile(bit: AcceptBit, num_bits: int, *, epsilon: float) -> Profile:
    """Certified profile of `num_bits` bits, each chosen in view of the earlier ones.

    Parameters
    ----------
    bit
        The bit, the same every time.
    num_bits
        At most 200 000.
    epsilon
        Nats; the profile is accurate up to about this epsilon, and an upper bound
        beyond.

    Raises
    ------
    ValueError
        If there are too many bits, for the Metropolis family, or for bits that give
        away too much.
    """
    _check_bits(num_bits)
    composition = _Composition(bit, num_bits, epsilon)
    return composition.advance(composition.start, num_bits)


def estimate_max_bits(
    bit: AcceptBit,
    *,
    epsilon: float,
    delta: float,
    others_fn: Callable[[int], Curve] = lambda num_bits: no_release,
) -> int:
    """Estimate the largest number of bits with delta(epsilon) < delta, in one pass.

    The pass uses one grid for all numbers of bits, so `profile`, which has a grid for
    each, can disagree by a few bits in either direction.

    Parameters
    ----------
    bit
        The accept bit.
    epsilon, delta
        The budget.
    others_fn
        Maps a number of bits to the profile of all other releases beside them.

    Returns
    -------
    A number of bits; 0 if one bit is already too many.

    Raises
    ------
    ValueError
        As in `profile`, also if more than 200 000 bits may fit.
    """
    # As many bits as Gaussian releases of the same variance fit, and one more.
    variance = dominating_pairs(bit, 1000).deviation() ** 2
    upper = int(conversions.gdp_mu(epsilon, delta) ** 2 / variance) + 1
    _check_bits(upper)
    composition = _Composition(bit, upper, epsilon)
    state, is_bracketed = composition.start, False
    # Advance by chunks; once a chunk is too long, try chunks half as long.
    chunk = 2 ** int(math.log2(max(1, upper // 8)))
    while chunk:
        _check_bits(state.num_bits + chunk)
        ahead = composition.advance(state, chunk)
        if ahead.delta(epsilon, others_fn(ahead.num_bits)) < delta:
            state = ahead
        else:
            is_bracketed = True
        if is_bracketed:
            chunk //= 2
    return state.num_bits


def _check_bits(num_bits: int) -> None:
    if num_bits > MAX_BITS:
        raise ValueError(
            f"exact composition takes at most {MAX_BITS} accept bits, and {num_bits} "
            "may be needed; use method 'rdp'"
        )


class _Composition:
    """A grid for about `num_bits` bits, W_0 on it, and the step from W_t to W_(t+1)."""

    def __init__(self, bit: AcceptBit, num_bits: int, epsilon: float):
        pairs = dominating_pairs(bit, num_bits)
        deviation = pairs.deviation()
        ratios = np.concatenate(pairs.log_ratios())
        jump = float(ratios[np.isfinite(ratios)].max())
        # The grid ends at log w = -low, left of which W_T is 1 - w or close to it, and
        # at log w = high, right of which W_T is negligible.
        mu = deviation * math.sqrt(num_bits)
        low = min(4 * mu + mu**2 / 2 + 2 * jump, num_bits * jump)
        high = min(12 * (mu + jump) + mu**2 / 2, num_bits * jump, epsilon + 2 * mu)
        spacing = min(MAX_SPACING * deviation, (low + high) / MIN_NODES)
        nodes = _round_up((low + high) / spacing + 4, NODES_MULTIPLE)
        spacing = (low + high) / (nodes - 4)
        first = -math.ceil(low / spacing) - 1
        margin = _round_up(jump / spacing + 2, NODES_MULTIPLE)
        values = no_release((first + np.arange(nodes)) * spacing)
        self.start = Profile(0, spacing, first, values)
        self._decay = np.exp(-np.arange(margin, 0, -1) * spacing)
        # a(-l) = 1 - a(l) makes one order of Barker's pairs the other, with accept and
        # reject swapped.
        both_orders = bit.acceptance.family != "barker" or bit.acceptance.laziness < 1
        self._rows = _rows(pairs, spacing, margin, both_orders)

    def advance(self, state: Profile, num_bits: int) -> Profile:
        with jax.enable_x64(True):
            values = _backups(state.values, self._decay, *self._rows, num_bits)
        return Profile(
            state.num_bits + num_bits, state.spacing, state.first, np.asarray(values)
        )


def _round_up(size: float, multiple: int) -> int:
    return multiple * math.ceil(size / multiple)


def _rows(pairs: Pairs, spacing: float, margin: int, both_orders: bool):
    """Describe the step from W_t to W_(t+1) as a maximum over rows, one for each pair.

    A row is a weighted sum of five terms: for each of the two outcomes, W_t shifted by
    the log-likelihood ratio rounded down to a whole number of nodes, and the same one
    node further right; and the constant 1.

    Returns
    -------
    starts ``(m, 2)``, where the slices of both outcomes begin; weights ``(m, 5)`` of
    the two slices, the two one node further right and the 1; and how many rows are
    used.
    """
    rise, fall = pairs.log_ratios()
    low, reject = pairs.low, pairs.one_minus_low
    chances, ratios = [[low, reject]], [[rise, -fall]]
    if both_orders:
        chances.append([low + pairs.gap, reject - pairs.gap])
        ratios.append([-rise, fall])
    chances, ratios = (np.concatenate(parts, axis=1).T for parts in (chances, ratios))
    # An outcome that is impossible under Q sends w to 0, where W is 1. An outcome that
    # is impossible under P has no weight.
    sends_to_zero = np.isneginf(ratios)
    ratios = np.where(np.isfinite(ratios), ratios, 0.0) / spacing
    shift = np.floor(ratios)
    share = np.expm1((ratios - shift) * spacing) / np.expm1(spacing)
    slices = np.where(sends_to_zero, 0.0, chances)
    lost = np.where(sends_to_zero, chances, 0.0).sum(axis=1, keepdims=True)
    weights = np.hstack([slices * (1 - share), slices * share, lost])
    count = len(weights)
    spare = _round_up(count, ROWS_MULTIPLE) - count
    starts = np.pad(shift.astype(np.int32) + margin, ((0, spare), (0, 0)))
    return starts, np.pad(weights, ((0, spare), (0, 0))), count


@jax.jit
def _backups(values, decay, starts, weights, count, num_bits):
    """W_(t + num_bits) from W_t, both at the nodes, ``(n,)``."""
    nodes, margin = values.size, decay.size

    def backup(_, values):
        left = 1 - decay * (1 - values[0])
        padded = jnp.concatenate([left, values, jnp.full(margin, values[-1])])

        def shifted(start):
            return lax.dynamic_slice(padded, (start,), (nodes,))

        def larger(row, best):
            (accept, reject), weight = starts[row], weights[row]
            value = weight[0] * shifted(accept) + weight[2] * shifted(accept + 1)
            value += weight[1] * shifted(reject) + weight[3] * shifted(reject + 1)
            return jnp.maximum(best, value + weight[4])

        return lax.fori_loop(0, count, larger, values)

    return lax.fori_loop(0, num_bits, backup, values)
