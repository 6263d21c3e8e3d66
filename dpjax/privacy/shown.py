"""Numbers as messages show them."""

import decimal

__all__ = ["rounded_up", "shown"]


def shown(number: float) -> str:
    """A number of two digits, such as 64,000 or 0.32; those from 1e15 on as powers."""
    rounded = float(f"{number:.2g}")
    return f"{rounded:,.0f}" if 10 <= abs(rounded) < 1e15 else f"{rounded:.2g}"


def rounded_up(number: float, num_digits: int = 4) -> str:
    """A number of so many digits that is no smaller, such as a promised epsilon."""
    context = decimal.Context(prec=num_digits, rounding=decimal.ROUND_CEILING)
    return f"{float(context.create_decimal(repr(float(number)))):.{num_digits}g}"
