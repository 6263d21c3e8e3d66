"""Seals on the records, which the functions that a user passes cannot open.

A kernel reads records through the functions of `dpjax.release`, which bound what each
record contributes. If a function of the user read them too, such as to subtract their
mean, one record could change the contributions of all others, and nothing would bound
that. If it made releases of its own, such as steps of another kernel, nobody would
charge them. So the function that makes the algorithm is given sealed records. `opened`
takes the seals off, which the functions of `dpjax.release` call: while the algorithm
makes steps, for the posterior of the run alone, and not within a function of one
record.
"""

import contextlib
import dataclasses
import functools
import math
import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import jax
import numpy as np

from dpjax.posterior import Posterior

__all__ = ["SealedRecords", "alone", "opened", "sealed", "sealing"]

REFUSAL = (
    "the function that makes the algorithm may not read the records, which only the "
    "sampler does: transform them before the posterior is made, each record by itself "
    "and with public constants, or in the log-likelihood"
)

_run = threading.local()
"""What `sealing` was given: ``phase`` and ``posterior``. A thread that a user's
function starts has neither."""

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


def opened(posterior: Posterior) -> Any:
    """The data of a posterior without their seals, if they have any.

    Raises
    ------
    ValueError
        If an algorithm is being made, or a function of one record is evaluated; if
        records with a seal are opened elsewhere than in steps of an algorithm; or if
        these sample another posterior than that which their algorithm was made for.
    """
    leaves, phase = jax.tree.leaves(posterior.data), getattr(_run, "phase", None)
    if phase == "making":
        raise ValueError(
            "the function that makes the algorithm makes releases, such as steps of "
            "another one, which would not be charged: make these in a run of their "
            "own, with the same ledger"
        )
    if phase == "evaluating":
        raise ValueError(
            "a function of one record, such as the log-likelihood, adds up all records "
            "or makes steps of a kernel: it may read its own record only"
        )
    if phase == "stepping":
        own = {id(leaf) for leaf in jax.tree.leaves(_run.posterior.data)}
        if not all(_is_sealed(leaf) and id(_arrays[leaf]) in own for leaf in leaves):
            raise ValueError(
                "the algorithm samples other records than those of the posterior that "
                "its function is given, and the ones it samples are not followed: let "
                "the function pass its argument on to the sampler"
            )
        if _functions(posterior) != _functions(_run.posterior):
            raise ValueError(
                "the algorithm samples a posterior with other functions than those "
                "that its function is given, and which were searched for records: "
                "change the posterior before the run"
            )
    elif any(map(_is_sealed, leaves)):
        raise ValueError(REFUSAL)
    return jax.tree.map(
        lambda leaf: _arrays[leaf] if _is_sealed(leaf) else leaf, posterior.data
    )


def _functions(posterior: Posterior) -> list[int]:
    """Which class and functions a posterior has. Equal functions are not the same."""
    held = type(posterior), posterior.logprior_fn, posterior.loglikelihood_fn
    return [id(each) for each in held]


def alone(function: Callable) -> Callable:
    """`function` of one record, within which `opened` refuses all others."""

    @functools.wraps(function)
    def evaluate(*arguments):
        with sealing("evaluating"):
            return function(*arguments)

    return evaluate


@contextlib.contextmanager
def sealing(phase: str, posterior: Posterior | None = None):
    """Within this context, a run is in a phase in which records may not be read freely.

    Parameters
    ----------
    phase
        ``"making"`` and ``"evaluating"``, in which no records are opened: an algorithm
        is being made, or a function of one record is evaluated. Or ``"stepping"``, in
        which the algorithm makes steps, and sealed records are opened.
    posterior
        In ``"stepping"``, the posterior that the algorithm was made for.

    Raises
    ------
    TypeError
        If a function of JAX, whose message would say less, is given a sealed array.
    """
    before = vars(_run).copy()
    _run.phase, _run.posterior = phase, posterior
    try:
        yield
    except TypeError as error:
        if SealedRecords.__name__ in str(error):
            raise TypeError(REFUSAL) from error
        raise
    finally:
        vars(_run).clear()
        vars(_run).update(before)


def _is_sealed(leaf) -> bool:
    return isinstance(leaf, SealedRecords)
