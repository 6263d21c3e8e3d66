"""A chain of the No-U-Turn sampler, for densities that hold no record."""

from collections.abc import Callable
from typing import Any

import blackjax
import jax

__all__ = ["nuts_chain"]


def nuts_chain(
    keys: jax.Array,
    log_density: Callable[[Any], jax.Array],
    start,
    num_warmup: int,
    num_steps: int,
):
    """Positions of a chain after Stan's window adaptation, leaves ``(num_steps, ...)``.

    Parameters
    ----------
    keys
        Two JAX keys: of the adaptation, and of the steps after it.
    log_density
        ``position -> scalar``.
    start
        The position where the adaptation starts, a pytree.
    num_warmup, num_steps
        Number of steps of the adaptation, and of steps after it.
    """
    warmup_key, rng_key = keys
    # Traced once, and not wherever the sampler evaluates it.
    log_density = jax.jit(log_density)
    # BlackJAX annotates neither the number of steps of `run` nor the fields of states.
    adaptation: Any = blackjax.window_adaptation(blackjax.nuts, log_density)
    (state, parameters), _ = adaptation.run(warmup_key, start, num_warmup)
    step: Any = blackjax.nuts(log_density, **parameters).step

    def one(state, key):
        state, _ = step(key, state)
        return state, state.position

    return jax.lax.scan(one, state, jax.random.split(rng_key, num_steps))[1]
