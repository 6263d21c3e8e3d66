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

*The frame.* A pair's shift is seldom a whole number of nodes, and a chord adds variance
where it is not. So at every step the grid moves along with the bit that says most: the
spacing divides the difference of that bit's two log-likelihood ratios, and the grid's
drift makes both shifts whole. A coarse grid is then as tight as a fine one.

*Blocks.* Whatever happened before them, k bits chosen adaptively are dominated by the
losses whose profile is W_k(e^eps). So many bits are composed as independent blocks, by
`convolution`. The adversary gains a little, because it may choose the bits of every
block in view of the event that is decided in the end. The excess falls with k, and is
about .1 % of epsilon in blocks of `BLOCK` bits that are not lazy.

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
from dpjax.privacy.gaussian.convolution import connect_dots, convolve

__all__ = ["Curve", "Profile", "block_size", "no_release", "profile"]

MAX_BITS = 10**7

BLOCK = 512
"""Bits of a block times their laziness, before it is rounded up to a power of 2."""

PARTS = 16
"""Bits that do not fill a block are composed of parts of a block. The shortest part has
1 / PARTS of the bits of a block, and each other part twice those of the one before."""

NODES_A_JUMP = 20
"""Nodes between the two log-likelihood ratios of the bit that says most, at least."""

MIN_NODES = 1024

MIN_SHARE = 1e-3
"""An outcome widens the grid only if it makes up more than this share of the variance
of a loss."""

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
        Node i is at log w = first + i spacing.
    values
        W_T at the nodes, ``(n,)`` float64.
    """

    num_bits: int
    spacing: float
    first: float
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
        nodes = self.first + np.arange(self.values.size) * self.spacing
        # Slopes times w, of the chords on either side of each node.
        slopes = np.diff(self.values) / np.expm1(self.spacing)
        right = np.append(slopes, 0.0)
        left = np.append(self.values[0] - 1, slopes * math.exp(self.spacing))
        shares = others(epsilon - nodes[::-1])[::-1]
        value = float(self.values[-1] + np.dot(right - left, shares))
        if not value >= 0:
            raise ArithmeticError(f"the accountant computed {value}, not a delta")
        return min(1.0, value * self.rounding)

    @property
    def rounding(self) -> float:
        """Factor that covers the rounding of the values."""
        return math.exp(ROUNDING * (self.num_bits + 1000))


def profile(bit: AcceptBit, num_bits: int) -> Profile:
    """Certified profile of `num_bits` bits, each chosen in view of the earlier ones.

    Parameters
    ----------
    bit
        The bit, the same every time.
    num_bits
        At most 10^7.

    Raises
    ------
    ValueError
        If there are too many bits, for the Metropolis family, or for bits that give
        away too much.
    """
    if num_bits > MAX_BITS:
        raise ValueError(
            f"exact composition takes at most {MAX_BITS} accept bits, got {num_bits}; "
            "use method 'rdp'"
        )
    block = block_size(bit)
    # Similar numbers of bits share a grid.
    size = math.ceil(2 ** (math.ceil(4 * math.log2(num_bits)) / 4))
    composition = _composition(bit, min(size, block))
    if num_bits <= block:
        return composition.after(num_bits)
    return _compose(composition, block, num_bits)


def block_size(bit: AcceptBit) -> int:
    """Bits of a block; more bits than that are composed as blocks."""
    return 2 ** math.ceil(math.log2(BLOCK / bit.acceptance.laziness))


def _compose(composition: "_Composition", block: int, num_bits: int) -> Profile:
    """The profile of blocks, and of parts of a block for the bits that are left."""
    shortest = block // PARTS
    counts = {num_bits % shortest: 1}
    part = shortest
    while part < block:
        counts[part] = num_bits // part % 2
        part *= 2
    counts[block] = num_bits // block
    powers, first = [], 0.0
    for size, count in sorted(counts.items()):
        if size * count:
            found = composition.after(size)
            lower = math.floor(found.first / found.spacing)
            first += count * (found.first - lower * found.spacing)
            deltas = np.minimum(1.0, found.values * found.rounding)
            deltas = np.minimum.accumulate(deltas)
            powers.append((connect_dots(deltas, found.spacing, lower), count))
    total = convolve(powers, composition.start.spacing)
    values = total.profile() + total.infinity_mass + ROUNDING * sum(counts.values())
    first += total.lower * total.interval
    return Profile(num_bits, total.interval, first, np.minimum(values, 1.0))


@lru_cache(maxsize=64)
def _composition(bit: AcceptBit, num_bits: int) -> "_Composition":
    return _Composition(bit, num_bits)


class _Composition:
    """A grid for up to `num_bits` bits, W_0 on it, and the step from W_t to W_(t+1)."""

    def __init__(self, bit: AcceptBit, num_bits: int):
        # Rounded up coarsely, as the frame that suits the pairs is a matter of luck.
        pairs = dominating_pairs(bit, 2 ** num_bits.bit_length())
        rise, fall = pairs.log_ratios()
        fall = np.where(np.isfinite(fall), fall, 0.0)
        shares = np.array([pairs.low * rise**2, pairs.one_minus_low * fall**2])
        most = np.argmax(shares.sum(axis=0))
        variance = shares[:, most].sum()
        jump = np.array([rise, fall])[shares > MIN_SHARE * variance].max()
        # The grid ends at log w = -low, left of which W_T is 1 - w or close to it, and
        # at log w = high, right of which W_T is negligible.
        mu = math.sqrt(variance * num_bits)
        low = min(4 * mu + mu**2 / 2 + 2 * jump, num_bits * jump)
        high = min(10 * (mu + jump) + mu**2 / 2, num_bits * jump)
        widest = rise[most] + fall[most]
        spacing = min(widest / NODES_A_JUMP, (low + high) / MIN_NODES)
        spacing = widest / math.ceil(widest / spacing)
        # a(-l) = 1 - a(l) makes one order of Barker's pairs the other, with accept and
        # reject swapped.
        both_orders = bit.acceptance.family != "barker" or bit.acceptance.laziness < 1
        # In the order whose bits rarely say much, by accepting, or in the only order.
        shift = fall[most] - spacing * round(fall[most] / spacing)
        if num_bits * abs(shift) < spacing:
            shift = 0.0
        self._drift = float(-shift if both_orders else shift)
        drifted = num_bits * self._drift
        nodes = math.ceil((low + high + abs(drifted)) / spacing) + 4
        # The kink of W_0 at log w = 0 is a node.
        first = -math.ceil((low + max(drifted, 0.0)) / spacing + 1) * spacing
        nodes = _round_up(nodes, NODES_MULTIPLE)
        widest = max(x[np.isfinite(x)].max() for x in pairs.log_ratios())
        margin = _round_up((widest + spacing) / spacing + 2, NODES_MULTIPLE)
        values = no_release(first + np.arange(nodes) * spacing)
        self.start = Profile(0, spacing, first, values)
        self._found = {0: self.start}
        self._decay = np.exp(-np.arange(margin, 0, -1) * spacing)
        self._rows = _rows(pairs, spacing, margin, both_orders, self._drift)

    def after(self, num_bits: int) -> Profile:
        """W_T after that many bits, from the nearest W_t that is known."""
        nearest = max(known for known in self._found if known <= num_bits)
        state = self._found[nearest]
        if nearest < num_bits:
            ahead = num_bits - nearest
            with jax.enable_x64(True):
                values = _backups(state.values, self._decay, *self._rows, ahead)
            first = self.start.first + num_bits * self._drift
            state = Profile(num_bits, state.spacing, first, np.asarray(values))
            self._found[num_bits] = state
        return state


def _round_up(size: float, multiple: int) -> int:
    return multiple * math.ceil(size / multiple)


def _rows(pairs: Pairs, spacing: float, margin: int, both_orders: bool, drift=0.0):
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
    ratios = np.where(np.isfinite(ratios), ratios + drift, 0.0) / spacing
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

        return lax.fori_loop(0, count, larger, jnp.zeros_like(values))

    return lax.fori_loop(0, num_bits, backup, values)
