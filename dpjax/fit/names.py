"""Names of the sites of a position, and of their components, as ``"slopes[0, 1]"``."""

from collections import Counter

import jax
import numpy as np

__all__ = ["names_of", "short_sites_first", "site_of"]


def site_of(path) -> str:
    """The name of the leaf of a position at a path, such as ``"effects.ward"``.

    It is ``"position"`` if the position is one array, and ``"position[0]"`` for the
    first of a list or tuple.
    """
    if not path or isinstance(path[0], jax.tree_util.SequenceKey):
        return f"position{jax.tree_util.keystr(path)}"
    return jax.tree_util.keystr(path, simple=True, separator=".")


def names_of(position) -> list[str]:
    """Names of the components of a position, in the order of the flattened position."""
    return [
        f"{site_of(path)}{list(index) or ''}"
        for path, leaf in jax.tree_util.tree_leaves_with_path(position)
        for index in np.ndindex(leaf.shape)
    ]


def short_sites_first(names: list[str], room: int) -> list[int]:
    """The order in which components are shown where there is room for `room` of them.

    If there is no room for all, those of sites with few components come first, so that
    many groups do not hide the coefficients. Otherwise they keep their order.
    """
    sites = [name.partition("[")[0] for name in names]
    sizes = Counter(sites)
    order = list(range(len(names)))
    if len(names) > room:
        order.sort(key=lambda i: sizes[sites[i]])
    return order
