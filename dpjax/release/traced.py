"""What JAX's traced programs hold, in all versions of JAX that dpjax takes."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from jax.extend.core import ClosedJaxpr, Jaxpr

__all__ = ["ScanSizes", "is_program", "scan_sizes"]


def is_program(value) -> bool:
    """Whether a value is a traced program."""
    return isinstance(value, ClosedJaxpr | Jaxpr)


class ScanSizes(NamedTuple):
    """How many of a scan's inputs are constants, and how many are its carry.

    The inputs are the constants, then the carry, then what is scanned over.
    """

    num_consts: int
    num_carry: int


def scan_sizes(params: Mapping[str, Any]) -> ScanSizes:
    """Of a scan with these parameters."""
    if "num_carry" in params:
        return ScanSizes(params["num_consts"], params["num_carry"])
    # From JAX 0.11 on, trees of the three kinds of inputs.
    consts, carry, _ = params["ft_in"].unpack()
    return ScanSizes(len(consts), len(carry))
