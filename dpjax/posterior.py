"""The density that is sampled, and the private data that it depends on."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
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

    A `Posterior` can be passed where BlackJAX takes a ``logdensity_fn``. Pass it to a
    `jax.jit` function as an argument: then the data are traced and the functions are
    static, so posteriors with equal shapes and functions share one compilation.

    Parameters
    ----------
    logprior_fn
        ``position -> scalar``, the log prior density. It must not read the data.
    loglikelihood_fn
        ``(position, record) -> scalar``, the log-likelihood of **one** record, the
        unit of privacy.
    data
        Arrays with the records along the leading axis, ``(n, ...)``, in a pytree of
        dicts, lists, tuples and NamedTuples. Their values are not validated. If the
        log-likelihood or the gradient of a record is not finite, for example because
        the record holds a NaN, the record adds zero to the sums that are released. So
        encode missing values by a public rule. A `numpy.memmap`, such as
        ``np.load(path, mmap_mode="r")``, stays on disk in `dpjax.run` and in a step,
        which read it block by block (`dpjax.release.on_disk`). As an argument of
        `jax.jit` it is read whole.
    tempering
        The power T in (0, 1] to which the likelihood is raised.
    constrain_fn
        ``position -> parameters``. Runs return these parameters in place of positions.
        The function must not read the data.
    public
        Pytree of arrays that these functions hold and that are not private. Name the
        arrays here that could be mistaken for records, because they have ``n`` entries
        or share numbers with the data: see `dpjax.release.captured`. Other arrays need
        not be named.

    Raises
    ------
    ValueError
        If there is no record, the leading axes differ, a leaf of the data is not an
        array of numbers (a data frame, a string and a Python number are not), a
        container of the data is of another class than dict, list, tuple or NamedTuple,
        or `tempering` is out of range.
    TypeError
        From a class that is derived from this one.
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

    def __init_subclass__(cls):
        if cls.__module__.partition(".")[0] != __name__.partition(".")[0]:
            raise TypeError(
                "no class may be derived from dpjax.Posterior: what it overrides would "
                "not be what a run is charged for. Give this class other functions"
            )

    def __post_init__(self):
        _check_containers(jax.tree.structure(self.data))
        leaves = jax.tree_util.tree_leaves_with_path(self.data)
        # JAX rebuilds dataclasses with booleans or placeholders in the place of arrays,
        # so these are not refused.
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
        # A product with a NumPy scalar of half precision would be rounded to that.
        object.__setattr__(self, "tempering", float(self.tempering))
        for path, leaf in leaves:
            name = f"data{jax.tree_util.keystr(path)}"
            check_numbers(name, leaf)
            if not leaf.dtype.isnative:
                raise ValueError(
                    f"{name} has the byte order of another machine, {leaf.dtype}: "
                    "convert it by values.astype(values.dtype.newbyteorder('='))"
                )
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
        """The names, shapes and dtypes of one record's arrays, and nothing else.

        The records are secret. The functions are left out because they may hold arrays,
        which their `repr` would show.
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
        """The number of records, which is the length of the data's leading axis.

        It is public, because neighbouring data sets have as many records.
        """
        return jax.tree.leaves(self.data)[0].shape[0]

    @property
    def example(self) -> Mapping[str, Any]:
        """Made-up records by name, which functions may hold: of this class, none."""
        return {}

    def constrain(self, draws):
        """The parameters of positions ``(chains, draws, ...)``, as NumPy arrays.

        Without a `constrain_fn`, the parameters are the positions themselves.
        """
        if self.constrain_fn is not None:
            draws = jax.jit(jax.vmap(jax.vmap(self.constrain_fn)))(draws)
        return jax.tree.map(np.asarray, draws)

    def prior_draws(self) -> Any:
        """Draws from the prior in the form that `constrain` returns, or None.

        This class has only the prior's log density, so it returns None. A subclass that
        can draw from the prior returns leaves ``(1, draws, ...)``, that is one chain.
        """
        return None

    def __call__(self, position) -> jax.Array:
        """The exact log density, up to a constant. Not private: for baselines only."""
        loglikelihoods = jax.vmap(self.loglikelihood_fn, (None, 0))(position, self.data)
        return self.logprior_fn(position) + self.tempering * jnp.sum(loglikelihoods)


def _check_containers(structure) -> None:
    """Refuse containers whose class computes with the arrays that it is made of.

    JAX makes containers anew whenever it changes their arrays. A class that subtracted
    a mean then would mix the records.
    """
    kind, *_ = structure.node_data() or (tuple,)  # A leaf has no data of a node.
    make = getattr(kind.__new__, "__globals__", {}).get("__name__", "")
    is_named_tuple = kind.__bases__ == (tuple,) and make.startswith("namedtuple_")
    if not is_named_tuple and kind not in (dict, OrderedDict, list, tuple, type(None)):
        raise ValueError(
            "data must be arrays in dicts, lists, tuples or NamedTuples, not in a "
            f"{kind.__name__}, whose class could compute one record from others"
        )
    for child in structure.children():
        _check_containers(child)


def check_numbers(name: str, array) -> None:
    """Refuse an array of strings, objects, dates, structures or JAX keys.

    Raises
    ------
    ValueError
        If the array has such a dtype, or is of a class derived from NumPy's arrays,
        which could compute one record from others when it is converted. The message
        calls the array `name` and quotes none of its values.
    """
    kind = type(array)
    if isinstance(array, np.ndarray) and kind not in (np.ndarray, np.memmap):
        raise ValueError(
            f"{name} is a {kind.__name__}, whose class could compute one record from "
            "others: make a plain array of it, by numpy.asarray, which forgets a mask"
        )
    dtype = array.dtype
    is_plain = isinstance(dtype, np.dtype) and not dtype.names
    if not is_plain or dtype.kind in "OSUMm":
        raise ValueError(
            f"{name} must be an array of numbers: encode strings and dates as numbers "
            "by a public rule"
        )
