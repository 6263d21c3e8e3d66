"""The density that is sampled, and the private data that it depends on."""

from collections.abc import Callable
from dataclasses import dataclass, field
from os import PathLike
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["Posterior", "check_numbers"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, repr=False)
class Posterior:
    """A posterior density and the records it conditions on.

    It stands where BlackJAX takes a ``logdensity_fn``. Pass it to a `jax.jit` function
    as an argument: then the data are traced and the functions are static, so posteriors
    with equal shapes and functions share one compilation.

    Parameters
    ----------
    logprior_fn
        ``position -> scalar``, the log prior density. It must not read the data.
    loglikelihood_fn
        ``(position, record) -> scalar``, the log-likelihood of **one** record, the
        unit of privacy.
    data
        Pytree of arrays with the records along the leading axis, ``(n, ...)``. Values
        are not looked at before they are clipped. A record whose log-likelihood or
        gradient is not finite, such as one with a NaN, counts as one that says nothing:
        encode missing values by a public rule. A `numpy.memmap`, such as
        ``np.load(path, mmap_mode="r")``, stays on disk in `dpjax.run` and in a step: it
        is read block by block (`dpjax.release.on_disk`). As an argument of `jax.jit` it
        is read whole.
    tempering
        The power T in (0, 1] to which the likelihood is raised.
    constrain_fn
        ``position -> parameters``, which runs return instead of positions. It must not
        read the data.
    public
        Pytree of arrays that these functions hold and that are not private. Only those
        that could be mistaken for records need to be named, as they have ``n`` entries
        or numbers that the data have too: see `dpjax.release.captured`.

    Raises
    ------
    ValueError
        If there is no record, the leading axes differ, an array is not of numbers or is
        a data frame, or `tempering` is out of range.
    """

    logprior_fn: Callable[[Any], jax.Array] = field(metadata=dict(static=True))
    loglikelihood_fn: Callable[[Any, Any], jax.Array] = field(
        metadata=dict(static=True)
    )
    data: Any
    tempering: float = field(default=1.0, metadata=dict(static=True))
    constrain_fn: Callable[[Any], Any] | None = field(
        default=None, metadata=dict(static=True)
    )
    public: Any = ()

    def __post_init__(self):
        leaves = jax.tree_util.tree_leaves_with_path(self.data)
        # JAX rebuilds dataclasses with booleans and placeholders, too.
        wrong = int, float, complex, str, bytes
        if any(type(leaf) in wrong or isinstance(leaf, PathLike) for _, leaf in leaves):
            raise ValueError(
                "data must be a pytree of arrays, not of Python's numbers or texts: "
                "read files and make arrays of lists first"
            )
        if tables := [type(leaf) for _, leaf in leaves if hasattr(leaf, "to_numpy")]:
            raise ValueError(
                f"data must be a pytree of arrays, and a {tables[0].__name__} is none: "
                "pass {name: table[name].to_numpy() for name in table.columns}; a "
                "record is then a dict of one row's values"
            )
        if not all(hasattr(leaf, "shape") for _, leaf in leaves):
            return
        if not 0 < self.tempering <= 1:
            raise ValueError(f"tempering must be in (0, 1], got {self.tempering}")
        for path, leaf in leaves:
            check_numbers(f"data{jax.tree_util.keystr(path)}", leaf)
        sizes = {
            jax.tree_util.keystr(path) or "data": leaf.shape[0] if leaf.shape else None
            for path, leaf in leaves
        }
        if not sizes or None in sizes.values() or 0 in sizes.values():
            raise ValueError(
                "data must hold at least one record, with the records along the "
                f"leading axis of every array, got leading axes {sizes}"
            )
        if len(set(sizes.values())) > 1:
            raise ValueError(
                f"every array of data must have one entry per record, got {sizes}"
            )

    def __repr__(self) -> str:
        """The names, shapes and types of one record's arrays, and nothing else.

        The records are secret, and a function may hold arrays that a print of it would
        show.
        """
        arrays = []
        for path, leaf in jax.tree_util.tree_leaves_with_path(self.data):
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            # JAX rebuilds dataclasses with placeholders that have no shape.
            kind = type(leaf).__name__
            if hasattr(leaf, "shape"):
                kind = f"{leaf.dtype}{list(leaf.shape[1:])}"
            arrays.append(f"{name}: {kind}" if name else kind)
        return f"{type(self).__name__}(one record: {', '.join(arrays)})"

    @property
    def num_records(self) -> int:
        """Length of the leading axis of the data: the number of records, public."""
        return jax.tree.leaves(self.data)[0].shape[0]

    def constrain(self, draws):
        """Parameters for positions ``(chains, draws, ...)``, as NumPy arrays.

        These are the positions themselves if there is no `constrain_fn`.
        """
        if self.constrain_fn is not None:
            draws = jax.jit(jax.vmap(jax.vmap(self.constrain_fn)))(draws)
        return jax.tree.map(np.asarray, draws)

    def prior_draws(self) -> Any:
        """Draws from the prior as `constrain` returns them, in one chain.

        They are None if nothing is known to draw from it.
        """
        return None

    def __call__(self, position) -> jax.Array:
        """The exact log density, up to a constant. Not private: for baselines only."""
        loglikelihoods = jax.vmap(self.loglikelihood_fn, (None, 0))(position, self.data)
        return self.logprior_fn(position) + self.tempering * jnp.sum(loglikelihoods)


def check_numbers(name: str, array) -> None:
    """Refuse an array of strings, objects, dates or structures, without quoting it.

    Raises
    ------
    ValueError
        If it is one; it is called `name`.
    """
    dtype = array.dtype
    if isinstance(dtype, np.dtype) and (dtype.kind in "OSUMm" or dtype.names):
        raise ValueError(
            f"{name} must be an array of numbers: encode strings and dates as numbers "
            "by a public rule"
        )
