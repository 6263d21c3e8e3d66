"""Numbers as messages show them."""

__all__ = ["shown"]


def shown(number: float) -> str:
    """A number of two digits, such as 64,000 or 0.32; those from 1e15 on as powers."""
    rounded = float(f"{number:.2g}")
    return f"{rounded:,.0f}" if 10 <= abs(rounded) < 1e15 else f"{rounded:.2g}"
