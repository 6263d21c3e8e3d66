"""Formats of numbers in messages."""

import decimal
import math

__all__ = ["epsilon_up", "rounded_up", "shown"]


def shown(number: float) -> str:
    """A number rounded to two digits: 64,000, 0.32 or, from 1e15 on, 6.4e+15."""
    rounded = float(f"{number:.2g}")
    return f"{rounded:,.0f}" if 10 <= abs(rounded) < 1e15 else f"{rounded:.2g}"


def epsilon_up(epsilon: float) -> str:
    """An epsilon rounded up. The accountant finds none above 500, and says infinity."""
    return "more than 500" if epsilon == math.inf else rounded_up(epsilon)


def rounded_up(number: float, num_digits: int = 4) -> str:
    """A number rounded up to `num_digits` digits, for bounds such as an epsilon."""
    context = decimal.Context(prec=num_digits, rounding=decimal.ROUND_CEILING)
    return f"{float(context.create_decimal(repr(float(number)))):.{num_digits}g}"
