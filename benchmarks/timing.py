"""Times of calls that take turns, so that a busy machine slows all of them alike."""

import time
from collections.abc import Callable

import jax
import numpy as np

__all__ = ["in_turns"]


def in_turns(calls: dict[str, Callable], num_repetitions: int) -> dict[str, np.ndarray]:
    """Seconds of every call, ``(num_repetitions,)``; after one call that compiles."""
    for call in calls.values():
        jax.block_until_ready(call())
    times = {name: np.empty(num_repetitions) for name in calls}
    for i in range(num_repetitions):
        for name, call in calls.items():
            start = time.perf_counter()
            jax.block_until_ready(call())
            times[name][i] = time.perf_counter() - start
    return times
