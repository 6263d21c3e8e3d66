"""Records as the function that makes an algorithm sees them: it cannot read them.

A kernel reads records through the functions of `dpjax.release`, which bound what each
record contributes. If the user's function that makes the algorithm read them, such as
to subtract their mean, one record could change the contributions of all others, and
nothing would bound that. If it made releases of its own, such as steps of another
kernel, nobody would charge them. So this function is given sealed records. `opened`
takes the seals off, which the functions of `dpjax.release` call, and not before the
algorithm is made.
"""

import contextlib
import dataclasses
import math
import threading
from typing import Any
from weakref import WeakKeyDictionary

import jax
import numpy as np

from dpjax.posterior import Posterior

__all__ = ["SealedRecords", "opened", "sealed", "sealing"]

REFUSAL = (
    "the function that makes the algorithm may not read the records, which only the "
    "sampler does: transform them before the posterior is made, each record by itself "
    "and with public constants, or in the log-likelihood"
)

_run = threading.local()
_arrays: WeakKeyDictionary = WeakKeyDictionary()


class SealedRecords(np.lib.mixins.NDArrayOperatorsMixin):
    """An array with a shape and a dtype, whose numbers only `opened` reads."""

    __slots__ = ("__weakref__", "dtype", "ndim", "shape", "size")

    def __init__(self, array):
        self.shape, self.dtype = array.shape, array.dtype
        self.ndim, self.size = len(array.shape), math.prod(array.shape)
        _arrays[self] = array

    def __len__(self) -> int:
        return self.shape[0]

    def __eq__(self, other) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __getattr__(self, name):
        raise AttributeError(f"an array of records has no {name!r} here: {REFUSAL}")

    def _refuse(self, *args, **kwargs):
        raise TypeError(REFUSAL)

    __array__ = __array_ufunc__ = _refuse
    __getitem__ = __iter__ = __bool__ = __float__ = __int__ = __index__ = _refuse


def sealed(posterior: Posterior) -> Posterior:
    """The posterior with all of its records sealed."""
    data = jax.tree.map(SealedRecords, posterior.data)
    return dataclasses.replace(posterior, data=data)


def opened(data) -> Any:
    """Records without their seals, if they have any.

    Raises
    ------
    ValueError
        Within `sealing`, if an array has no seal; or if an algorithm is being made.
    """
    leaves, phase = jax.tree.leaves(data), getattr(_run, "phase", None)
    if phase == "making":
        raise ValueError(
            "the function that makes the algorithm makes releases, such as steps of "
            "another one, which would not be charged: make these in a run of their "
            "own, with the same ledger"
        )
    if phase == "stepping" and not all(map(_is_sealed, leaves)):
        raise ValueError(
            "the algorithm samples other records than those of the posterior that its "
            "function is given, and the ones it samples are not followed: let the "
            "function pass its argument on to the sampler"
        )
    return jax.tree.map(lambda leaf: _arrays[leaf] if _is_sealed(leaf) else leaf, data)


@contextlib.contextmanager
def sealing(phase: str):
    """Within this context, an algorithm is being made, or makes steps.

    Parameters
    ----------
    phase
        ``"making"``, in which no records are opened, or ``"stepping"``, in which sealed
        ones are.

    Raises
    ------
    TypeError
        If a function of JAX, whose message would say less, is given a sealed array.
    """
    before, _run.phase = getattr(_run, "phase", None), phase
    try:
        yield
    except TypeError as error:
        if SealedRecords.__name__ in str(error):
            raise TypeError(REFUSAL) from error
        raise
    finally:
        _run.phase = before


def _is_sealed(leaf) -> bool:
    return isinstance(leaf, SealedRecords)
