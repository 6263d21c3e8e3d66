"""Exact composition of accept bits that an adversary chooses adaptively, certified.

P and Q are the laws of the bits under neighbouring data and w = e^eps Q/P, so that
delta(eps) = E_P max(0, 1 - w). A step multiplies w by the likelihood ratio of a pair
(p, q) of bits, any that the event allows, chosen in view of all earlier bits. So delta
after T steps is exactly W_T(e^eps), where

    W_0(w) = max(0, 1 - w),
    W_(t+1)(w) = sup over (p, q) of p W_t(w q/p) + (1 - p) W_t(w (1 - q)/(1 - p)).

One pass gives every epsilon and every number of steps up to T.

The upper bound: `exact_cells` replaces the supremum by the maximum over a few pairs.
W_t is convex in w, falls, and is 1 at w = 0; so on a grid uniform in log w it is below
its chords in w, the chord to (0, 1) on the left and its last value on the right. On
that grid a pair is the same shift and the same chord at every node, so W_(t+1) is the
maximum of a few sums of shifted W_t. Every bound stays convex, as pairs are genuine.

Other releases, not chosen adaptively by what the bits say, are bounded in any order of
release by letting the adversary see them first (the mean of a supremum is no less than
the supremum of means). The last chords make W_T(w) = W_T(inf) + sum_i c_i max(0, 1 -
w/w_i) with c_i >= 0, so if d is the profile of the others alone, at any real epsilon,

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
from dpjax.privacy.validate import check_count, check_delta, check_epsilon, check_real

__all__ = ["Profile", "max_steps", "profile"]

MAX_BITS = 200_000
SPACING = 0.1
MIN_NODES = 1024
BLOCK = 1024
ROWS = 64
ROUNDING = 1e-12
"""Relative rounding error of a step, generously."""

Curve = Callable[[np.ndarray], np.ndarray]


def _nothing(epsilons: np.ndarray) -> np.ndarray:
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
        Node i is log w = (first + i) spacing.
    values
        W_T at the nodes, ``(n,)`` float64.
    """

    num_bits: int
    spacing: float
    first: int
    values: np.ndarray

    def delta(self, epsilon: float, others: Curve = _nothing) -> float:
        """delta(epsilon) of the bits and the other releases together, at most 1.

        Parameters
        ----------
        epsilon
            Nats, in [0, 500].
        others
            delta(epsilon) of the other releases alone, the larger of both directions,
            for increasing real epsilons, ``(n,)`` to ``(n,)``.
            `PrivacyLossDistribution.get_delta_for_epsilon` is such a function.
        """
        epsilon = check_real("epsilon", epsilon, low=0.0, high=500.0)
        nodes = (self.first + np.arange(self.values.size)) * self.spacing
        # Slope times w, on either side of each node.
        slopes = np.diff(self.values) / np.expm1(self.spacing)
        right = np.append(slopes, 0.0)
        left = np.append(self.values[0] - 1, slopes * math.exp(self.spacing))
        shares = others(epsilon - nodes[::-1])[::-1]
        value = float(self.values[-1] + np.dot(right - left, shares))
        if not value >= 0:
            raise ArithmeticError(f"the accountant computed {value}, not a delta")
        return min(1.0, value * math.exp(ROUNDING * (self.num_bits + 1000)))


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
        If an argument is invalid, for the Metropolis family, or for bits that give
        away too much.
    """
    epsilon = check_epsilon(epsilon)
    return _profile(bit, _check_bits(check_count("num_bits", num_bits)), epsilon)


@lru_cache(maxsize=64)
def _profile(bit: AcceptBit, num_bits: int, epsilon: float) -> Profile:
    composition = _Composition(bit, num_bits, epsilon)
    return composition.advance(composition.start, num_bits)


def max_steps(
    bit: AcceptBit,
    *,
    epsilon: float,
    delta: float,
    bits_per_step: int = 1,
    others_fn: Callable[[int], Curve] | None = None,
) -> int:
    """Largest number of steps with delta(epsilon) < delta.

    Parameters
    ----------
    bit
        The accept bit.
    epsilon, delta
        The budget.
    bits_per_step
        How many such bits a step releases.
    others_fn
        `others` of `Profile.delta` for all other releases of a number of steps.

    Returns
    -------
    A number of steps; 0 if one step is already too many.

    Raises
    ------
    ValueError
        As in `profile`, also if more than 200 000 bits may fit.
    """
    epsilon, delta = check_epsilon(epsilon), check_delta(delta)
    bits_per_step = check_count("bits_per_step", bits_per_step)
    others_fn = others_fn or (lambda steps: _nothing)

    def fits(state: Profile) -> bool:
        others = others_fn(state.num_bits // bits_per_step)
        return state.delta(epsilon, others) < delta

    def search(num_bits: int) -> int:
        """Pass once over the bits, on the grid for `num_bits` of them."""
        composition = _Composition(bit, _check_bits(num_bits), epsilon)
        state = composition.start
        chunk = 2 ** int(math.log2(max(1, num_bits // (8 * bits_per_step))))
        shrinking = False
        while chunk:
            bits = chunk * bits_per_step
            _check_bits(state.num_bits + bits)
            ahead = composition.advance(state, bits)
            if fits(ahead):
                state = ahead
            else:
                shrinking = True
            chunk //= 2 if shrinking else 1
        return state.num_bits // bits_per_step

    steps = search(_gaussian_limit(bit, epsilon, delta))
    # `profile`, on a grid of its own, must agree that so many fit.
    while steps and not fits(_profile(bit, steps * bits_per_step, epsilon)):
        steps = min(steps - 1, search(steps * bits_per_step))
    return steps


def _check_bits(num_bits: int) -> int:
    if num_bits > MAX_BITS:
        raise ValueError(
            f"exact composition takes at most {MAX_BITS} accept bits, and {num_bits} "
            "may be needed; use method 'rdp'"
        )
    return num_bits


def _gaussian_limit(bit: AcceptBit, epsilon: float, delta: float) -> int:
    """Guess how many bits fit: as many as of Gaussian releases of the same variance."""
    variance = dominating_pairs(bit, 1000).deviation() ** 2
    low, high = 0, 1
    while conversions.gdp_delta(high * variance, epsilon) < delta and high <= MAX_BITS:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if conversions.gdp_delta(middle * variance, epsilon) < delta:
            low = middle
        else:
            high = middle
    return high


class _Composition:
    """The grid, W_0 on it and the backup, for about `num_bits` bits."""

    def __init__(self, bit: AcceptBit, num_bits: int, epsilon: float):
        pairs = dominating_pairs(bit, num_bits)
        deviation = pairs.deviation()
        ratios = np.concatenate(pairs.log_ratios())
        jump = float(ratios[np.isfinite(ratios)].max())
        # W_T is known left of the one, and negligible right of the other.
        mu = deviation * math.sqrt(num_bits)
        low = min(4 * mu + mu**2 / 2 + 2 * jump, num_bits * jump)
        high = min(12 * (mu + jump) + mu**2 / 2, num_bits * jump, epsilon + 2 * mu)
        spacing = min(SPACING * deviation, (low + high) / MIN_NODES)
        nodes = _whole_blocks((low + high) / spacing + 4)
        spacing = (low + high) / (nodes - 4)
        first = -math.ceil(low / spacing) - 1
        margin = _whole_blocks(jump / spacing + 2)
        values = _nothing((first + np.arange(nodes)) * spacing)
        self.start = Profile(0, spacing, first, values)
        self._decay = np.exp(-np.arange(margin, 0, -1) * spacing)
        both = bit.acceptance.family != "barker" or bit.acceptance.laziness < 1
        self._rows = _rows(pairs, spacing, margin, both)

    def advance(self, state: Profile, num_bits: int) -> Profile:
        with jax.enable_x64(True):
            values = _backups(state.values, self._decay, *self._rows, num_bits)
        return Profile(
            state.num_bits + num_bits, state.spacing, state.first, np.asarray(values)
        )


def _whole_blocks(size: float) -> int:
    """Round up, so that few sizes are compiled."""
    return BLOCK * math.ceil(size / BLOCK)


def _rows(pairs: Pairs, spacing: float, margin: int, both_orders: bool):
    """Terms of a backup: where each shifted slice starts, and the weights.

    Barker's a(-l) = 1 - a(l) makes one order the other with accept and reject swapped.

    Returns
    -------
    starts ``(m, 2)``, weights ``(m, 5)`` of two slices, their right neighbours and 1,
    and the number of rows in use.
    """
    rise, fall = pairs.log_ratios()
    low, reject = pairs.low, pairs.one_minus_low
    chances, ratios = [[low, reject]], [[rise, -fall]]
    if both_orders:
        chances.append([low + pairs.gap, reject - pairs.gap])
        ratios.append([-rise, fall])
    chances, ratios = (np.concatenate(parts, axis=1).T for parts in (chances, ratios))
    # An impossible outcome sends w to 0, where W = 1, or has no weight.
    sure = np.isneginf(ratios)
    ratios = np.where(np.isfinite(ratios), ratios, 0.0) / spacing
    shift = np.floor(ratios)
    share = np.expm1((ratios - shift) * spacing) / np.expm1(spacing)
    slices = np.where(sure, 0.0, chances)
    weights = np.hstack(
        [
            slices * (1 - share),
            slices * share,
            np.where(sure, chances, 0.0).sum(axis=1, keepdims=True),
        ]
    )
    count = len(weights)
    spare = ROWS * math.ceil(count / ROWS) - count
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
