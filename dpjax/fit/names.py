"""Names of the components of a position, as in ``"slopes[0, 1]"``."""

import jax
import numpy as np

__all__ = ["names_of"]


def names_of(position) -> list[str]:
    """Names of the components of a position, in the order of the flattened position."""
    return [
        f"{jax.tree_util.keystr(path, simple=True, separator='.') or 'position'}"
        f"{list(index) or ''}"
        for path, leaf in jax.tree_util.tree_leaves_with_path(position)
        for index in np.ndindex(leaf.shape)
    ]
