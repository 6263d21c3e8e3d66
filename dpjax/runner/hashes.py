"""Names of arrays: hashes that differ where shapes, types or contents differ."""

import hashlib
import hmac

import jax
import numpy as np

from dpjax.runner import processes

__all__ = ["digest", "keyed"]


def digest(arrays) -> bytes:
    """SHA-256 of the leaves of a pytree. Of records it is as secret as they are.

    If a leaf is spread over processes, all of them make the call.
    """
    found = hashlib.sha256()
    for leaf in jax.tree.leaves(arrays):
        if not processes.is_spread(leaf):
            leaf = np.asarray(leaf)
        found.update(repr((leaf.shape, np.dtype(leaf.dtype).str)).encode())
        for block in processes.blocks(leaf):
            found.update(block.data)
    return found.digest()


def keyed(key: bytes, *messages: bytes) -> bytes:
    """HMAC-SHA256 of messages; without the key it tells nothing about them."""
    found = hmac.new(key, digestmod="sha256")
    for message in messages:
        found.update(len(message).to_bytes(8, "little") + message)
    return found.digest()
