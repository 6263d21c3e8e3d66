"""Random counts by inversion of their distribution function, in 96 bits.

For laws whose chances fall on both sides of a mode by ratios that fall too, as those of
binomial and Poisson counts do. Reads no data.
"""

from collections.abc import Iterable
from decimal import Decimal, localcontext
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["WORDS", "Table", "draw", "tabulate"]

WORDS = 3
"""Uniform uint32 words that `draw` uses."""


class Table(NamedTuple):
    """A law on the integers without its tails.

    smallest, largest
        The counts in the table.
    thresholds
        P(count <= k) for each of them but the largest, in three uint32 words, the most
        significant first, ``(3, largest - smallest)``.
    """

    smallest: int
    largest: int
    thresholds: np.ndarray


def tabulate(
    mode: int, above: Iterable[Decimal], below: Iterable[Decimal], tails: float
) -> Table:
    """Tabulate a law but for tails whose chance is `tails` at most.

    Parameters
    ----------
    above, below
        From the mode upwards and downwards, the chance of each count over that of the
        one before: generators, so that they compute in the precision that is set here.

    Notes
    -----
    As ratios fall, beyond a count of chance p whose neighbour has chance r p lies at
    most r p / (1 - r).
    """
    with localcontext(prec=50):
        negligible = Decimal(tails) / 2

        def side(ratios):
            """Chances over that of the mode, until the rest is negligible."""
            chances, chance = [], Decimal(1)
            for ratio in ratios:
                if chance * ratio <= negligible * (1 - ratio):
                    break
                chance *= ratio
                chances.append(chance)
            return chances

        higher, lower = side(above), side(below)
        chances = [*reversed(lower), Decimal(1), *higher]
        total = sum(chances)
        reached, words = Decimal(0), []
        for chance in chances[:-1]:
            reached += chance
            threshold = int(reached / total * 2**96)
            words.append([threshold >> 64, threshold >> 32, threshold])
    low_bits = np.array([[w % 2**32 for w in row] for row in words], np.uint32)
    return Table(mode - len(lower), mode + len(higher), low_bits.reshape(-1, 3).T)


def draw(words: jax.Array, table: Table) -> jax.Array:
    """Draw a count from three uniform uint32 words."""
    high, middle, low = (words[i] for i in range(WORDS))
    first, second, third = table.thresholds
    reached = (middle == second) & (low >= third)
    reached = (high == first) & ((middle > second) | reached)
    return table.smallest + jnp.sum((high > first) | reached)
