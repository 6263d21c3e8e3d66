"""Records that stay on disk: arrays of `numpy.memmap`.

A program that needs them calls the host for their rows. Chains that need the same rows
share one reading, and the rows after those are fetched from the disk while the program
computes. The file is mapped into memory: what was read stays in the page cache of the
operating system, which drops it when memory is short.
"""

import mmap
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

__all__ = [
    "OnDisk",
    "Reader",
    "array",
    "block",
    "block_size",
    "canonical",
    "in_memory",
    "is_any",
    "joined",
    "owned",
    "rows",
]

BLOCK_BYTES = 2**22
"""Bytes of the records that a program reads at a time; they fit into a cache."""

NUM_AHEAD = 4
"""Number of blocks that are fetched while the program computes with one."""

NUM_THREADS = 16
"""Number of threads that wait for scattered rows from the disk."""

_threads = ThreadPoolExecutor(NUM_THREADS, "dpjax-reader")


class OnDisk:
    """An array on disk, as a program sees it.

    Parameters
    ----------
    array
        The file, mapped into memory, ``(n, ...)``.

    Attributes
    ----------
    shape, dtype
        Of the `jax.Array` that it would be in memory, of 64 or 32 bits as JAX is set
        now.
    """

    def __init__(self, array: np.memmap):
        self.array = array
        self.shape = array.shape
        self.dtype = jax.dtypes.canonicalize_dtype(array.dtype)

    def __len__(self) -> int:
        return self.shape[0]


class Reader:
    """Reads rows for a program. What it returns is secret (`dpjax.release.taint`).

    Parameters
    ----------
    leaf
        The array on disk.
    length
        If it is given, a call with the number i of a row returns the rows i to
        i + length - 1, and the next ones are fetched. If it is None, a call with row
        numbers ``(...)`` returns these rows.
    """

    def __init__(self, leaf: OnDisk, length: int | None = None):
        self._array, self._dtype = np.asarray(leaf.array), leaf.dtype
        self._length = length or 0
        self._fetched: dict[int, Future] = {}
        # The system reads far ahead of a row, or one page for it alone.
        advice = mmap.MADV_RANDOM if length is None else mmap.MADV_SEQUENTIAL
        _mapping(leaf.array).madvise(advice)

    def __call__(self, where) -> np.ndarray:
        where = np.asarray(where)
        read = self._block if self._length else self._scattered
        return canonical(read(where), self._dtype)

    def _block(self, start):
        length, last = self._length, len(self._array) - self._length
        following = start = int(start)
        for _ in range(1 + NUM_AHEAD):
            if following not in self._fetched:
                self._fetched[following] = _threads.submit(self._fetch, following)
            # After the last rows, the next sum begins with the first.
            following = min(following + length, last) if following < last else 0
        # A second execution of the program may have awaited it.
        if fetched := self._fetched.pop(start, None):
            fetched.result()
        return self._array[start : start + length]

    def _fetch(self, start: int) -> None:
        """Bring rows into memory: one number of every page is enough."""
        step = max(mmap.PAGESIZE // max(abs(self._array.strides[0]), 1), 1)
        self._array[start : start + self._length : step].copy()

    def _scattered(self, indices):
        def read(part):
            return np.take(self._array, part, axis=0, mode="clip")

        parts = np.array_split(indices.ravel(), NUM_THREADS)
        found = np.concatenate(list(_threads.map(read, parts)))
        return found.reshape(*indices.shape, *self._array.shape[1:])


def array(values) -> Any:
    """`values` as an array for a `Posterior`: an array on disk, or a JAX array.

    An array on disk stays there, unless JAX does not have its type, such as float64
    without x64: then it is read into memory. Numbers that are not finite raise no
    error, also if JAX is set to debug them, because an error would tell of a record.
    """
    if _is_on_disk(values) and OnDisk(values).dtype == values.dtype:
        return values
    with jax.debug_nans(False), jax.debug_infs(False):
        return jnp.asarray(canonical(values))


def canonical(values, dtype=None) -> Any:
    """A NumPy array, converted to its type in JAX; any other array as it is.

    JAX would convert it as well, and NumPy could warn of what a record holds.
    """
    if not isinstance(values, np.ndarray):
        return values
    with np.errstate(all="ignore"):
        dtype = dtype or jax.dtypes.canonicalize_dtype(values.dtype)
        return values.astype(dtype, copy=False)


def owned(values) -> Any:
    """A copy of an array in memory that stays as it is while a run goes on.

    NumPy's arrays change in place, and on a CPU those of JAX may share their memory.
    Anything else is returned as it is, such as an array on a GPU or on disk.
    """
    if isinstance(values, np.ndarray):
        return values.copy()
    if not isinstance(values, jax.Array) or isinstance(values, Tracer):
        return values
    if any(device.platform != "cpu" for device in values.sharding.device_set):
        return values
    with jax.ensure_compile_time_eval(), jax.debug_nans(False), jax.debug_infs(False):
        return jnp.copy(values)


def is_any(data) -> bool:
    """Whether a pytree has an array on disk."""
    return any(map(_is_on_disk, jax.tree.leaves(data)))


def in_memory(data) -> list:
    """The arrays of a pytree that are not on disk."""
    return [leaf for leaf in jax.tree.leaves(data) if not _is_on_disk(leaf)]


def joined(data, arrays: list) -> Any:
    """`data` with other arrays in the place of those `in_memory`."""
    rest = iter(arrays)
    return jax.tree.map(
        lambda leaf: OnDisk(leaf) if _is_on_disk(leaf) else next(rest), data
    )


def block_size(data) -> int:
    """Records that are read at a time, if some of their arrays are on disk."""
    leaves = [leaf for leaf in jax.tree.leaves(data) if _is_on_disk(leaf)]
    num_bytes = sum(
        leaf.dtype.itemsize * int(np.prod(leaf.shape[1:], dtype=int)) for leaf in leaves
    )
    return max(BLOCK_BYTES // max(num_bytes, 1), 1)


def block(leaf, start, length: int) -> jax.Array:
    """`length` rows of an array, on disk or not, from `start` on."""
    if not _is_on_disk(leaf):
        return lax.dynamic_slice_in_dim(leaf, start, length)
    return _read(leaf, length, (length,), start)


def rows(data, indices: jax.Array) -> Any:
    """Rows of every array of a pytree, on disk or not, ``(*indices.shape, ...)``."""

    def of(leaf):
        if not _is_on_disk(leaf):
            return leaf[indices]
        return _read(leaf, None, indices.shape, indices)

    return jax.tree.map(of, data)


def _read(leaf, length: int | None, shape: tuple[int, ...], where) -> jax.Array:
    leaf = leaf if isinstance(leaf, OnDisk) else OnDisk(leaf)
    result = jax.ShapeDtypeStruct((*shape, *leaf.shape[1:]), leaf.dtype)
    # Blocks are the same for all chains, so only the rows of samples have a batch.
    return jax.pure_callback(
        Reader(leaf, length), result, where, vmap_method="expand_dims"
    )


def _is_on_disk(leaf) -> bool:
    if isinstance(leaf, OnDisk):
        return True
    return isinstance(leaf, np.memmap) and _mapping(leaf) is not None


def _mapping(array) -> Any:
    """The file in memory that an array views; None if it views none."""
    while isinstance(array, np.ndarray):
        array = array.base
    return array if isinstance(array, mmap.mmap) else None
