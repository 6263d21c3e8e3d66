"""Random counts by inversion of their distribution function, in 96 bits.

The laws are those like the binomial and the Poisson: with the distance from the mode
the probabilities of the counts fall, and so do the ratios of neighbouring
probabilities. Nothing here reads data.
"""

import itertools
import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["WORDS", "Table", "draw", "tabulate"]

WORDS = 3
"""Number of uniform uint32 words that `draw` uses."""


class Table(NamedTuple):
    """A law on the integers without its tails.

    smallest, largest
        The range of the counts in the table.
    thresholds
        P(count <= k) in units of 2^-96, for each count k in the table but the largest.
        Each threshold is three uint32 words, the most significant first, in a column of
        an array ``(3, largest - smallest)``. The probability of every count in the
        table is rounded up to a whole unit, except that of the mode.
    """

    smallest: int
    largest: int
    thresholds: np.ndarray


def tabulate(
    mode: int, ratio: Callable[[int], Decimal], tails: float, spare: int
) -> Table:
    """Tabulate a law, leaving out its tails.

    Parameters
    ----------
    mode
        The most likely count.
    ratio
        ``k -> P(count = k) / P(count = k - 1)``, for k >= 1. It is zero above the
        largest count of a bounded law. It is called while Decimal numbers have 50
        digits.
    tails
        Bound on the probability of both tails together, if `spare` were 0.
    spare
        Number of counts by which the table is longer than that on each side. It ends
        earlier at 0, and at the largest count of a bounded law.

    Notes
    -----
    Let p be the probability of a count, and r p that of its neighbour farther from the
    mode. As the ratios fall, all counts beyond the first one have together a
    probability of at most r p / (1 - r).
    """
    with localcontext(prec=50):
        negligible = Decimal(tails) / 2

        def side(ratios):
            """Probabilities of one side's counts over that of the mode."""
            chances, chance, left = [], Decimal(1), spare
            for r in ratios:
                if chance * r <= negligible * (1 - r):
                    if not (r and left):
                        break
                    left -= 1
                chance *= r
                chances.append(chance)
            return chances

        higher = side(ratio(k) for k in itertools.count(mode + 1))
        lower = side(1 / ratio(k) for k in range(mode, 0, -1))
        chances = [*reversed(lower), Decimal(1), *higher]
        total = sum(chances)
        cells = [math.ceil(chance / total * 2**96) for chance in chances]
    cells[len(lower)] += 2**96 - sum(cells)
    thresholds = itertools.accumulate(cells[:-1])
    words = b"".join(threshold.to_bytes(12, "big") for threshold in thresholds)
    table = np.frombuffer(words, ">u4").astype(np.uint32).reshape(-1, WORDS).T
    return Table(mode - len(lower), mode + len(higher), table)


def draw(words: jax.Array, table: Table) -> jax.Array:
    """Draw a count from three uniform uint32 words, ``(3,)``; an int scalar."""
    high, middle, low = (words[i] for i in range(WORDS))
    first, second, third = table.thresholds
    reached = (middle == second) & (low >= third)
    reached = (high == first) & ((middle > second) | reached)
    return table.smallest + jnp.sum((high > first) | reached)
