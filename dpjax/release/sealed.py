"""Records as the function that makes an algorithm sees them: it cannot read them.

A kernel reads records through the functions of `dpjax.release`, which bound what each
record contributes. If the user's function that makes the algorithm read them, such as
to subtract their mean, one record could change the contributions of all others, and
nothing would bound that. So `dpjax.run` seals the records before it calls this
function, and only `opened` takes the seals off.
"""

import contextlib
import threading
from typing import Any

import jax
import numpy as np

__all__ = ["SealedRecords", "opened", "sealed", "sealing"]

REFUSAL = (
    "the function that makes the algorithm may not read the records, which only the "
    "sampler does: transform them before the posterior is made, each record by itself "
    "and with public constants, or in the log-likelihood"
)

_run = threading.local()


class SealedRecords(np.lib.mixins.NDArrayOperatorsMixin):
    """An array with a shape and a dtype, whose numbers only `opened` reads."""

    def __init__(self, array):
        self.shape, self.dtype, self._array = array.shape, array.dtype, array

    def __len__(self) -> int:
        return self.shape[0]

    def __getattr__(self, name):
        raise AttributeError(f"an array of records has no {name!r} here: {REFUSAL}")

    def _refuse(self, *args, **kwargs):
        raise TypeError(REFUSAL)

    __array__ = __array_ufunc__ = __array_function__ = _refuse
    __getitem__ = __iter__ = __bool__ = __float__ = __int__ = __index__ = _refuse


def sealed(data) -> Any:
    """`data` with every array sealed."""
    return jax.tree.map(SealedRecords, data)


def opened(data) -> Any:
    """`data` with every seal taken off.

    Raises
    ------
    ValueError
        If an array has no seal, within `sealing`.
    """
    leaves = jax.tree.leaves(data)
    if getattr(_run, "is_sealing", False) and not all(map(_is_sealed, leaves)):
        raise ValueError(
            "the algorithm samples other records than those of the posterior that its "
            "function is given, and the ones it samples are not followed: let the "
            "function pass its argument on to the sampler"
        )
    return jax.tree.map(lambda leaf: leaf._array if _is_sealed(leaf) else leaf, data)


@contextlib.contextmanager
def sealing():
    """Within this context, `opened` takes sealed arrays only.

    Raises
    ------
    TypeError
        If a function of JAX, whose message would say less, is given a sealed array.
    """
    before, _run.is_sealing = getattr(_run, "is_sealing", False), True
    try:
        yield
    except TypeError as error:
        if SealedRecords.__name__ in str(error):
            raise TypeError(REFUSAL) from error
        raise
    finally:
        _run.is_sealing = before


def _is_sealed(leaf) -> bool:
    return isinstance(leaf, SealedRecords)
