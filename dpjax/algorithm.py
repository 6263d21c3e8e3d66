"""The BlackJAX contract, plus what a step costs and how it comes apart for `run`."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

__all__ = ["Algorithm", "Sampler", "Transition", "bernoulli", "take_step"]


class Transition(NamedTuple):
    """A step taken apart: drawing its randomness, remembering, moving.

    num_words
        ``state -> int``: uniform uint32 words that `move` uses.
    recall
        ``state -> memory``: reads the data; what `move` may use instead of evaluating
        the current position again. Secret, hence outside the state.
    move
        ``(words, state, memory) -> (state, info, memory)``: reads the data. If the info
        has the field ``is_accepted``, a run keeps the rate, else it keeps the infos.
    stay
        ``state -> info`` of a lazy step that does nothing.
    laziness
        Chance in (0, 1] that a step moves at all, tossed before the data are read.
    num_warmup
        First steps that tune the kernel, which must be left out of the draws.
    """

    num_words: Callable[[Any], int]
    recall: Callable[[Any], Any]
    move: Callable[[jax.Array, Any, Any], tuple[Any, Any, Any]]
    stay: Callable[[Any], Any]
    laziness: float = 1.0
    num_warmup: int = 0


class Algorithm(NamedTuple):
    """Stands where BlackJAX takes a ``SamplingAlgorithm``.

    init
        ``(position, rng_key=None) -> state``.
    step
        ``(rng_key, state) -> (state, info)``; both hold public values only.
    privacy
        ``(num_steps, neighboring_relation) -> [(event, count), ...]``: what that many
        steps release. It never reads the data.
    transition
        The same step for `dpjax.run`.
    sample
        ``(rng_key, parameters, num_samples) -> positions`` of an algorithm that fits a
        distribution and whose infos hold its `parameters`; a run draws from their mean.
    """

    init: Callable[..., Any]
    step: Callable[[jax.Array, Any], tuple[Any, Any]]
    privacy: Callable[..., list]
    transition: Transition
    sample: Callable[[jax.Array, Any, int], Any] | None = None


class Sampler(NamedTuple):
    """A sampling algorithm in BlackJAX's three layers; call it for the top level."""

    as_top_level_api: Callable[..., Algorithm]
    init: Callable[..., Any]
    build_kernel: Callable[[], Callable]

    def __call__(self, *args, **kwargs) -> Algorithm:
        return self.as_top_level_api(*args, **kwargs)


def bernoulli(words: jax.Array, chance: float) -> jax.Array:
    """True with probability `chance`, a Python float, up to 2^-63; words ``(..., 2)``.

    Exact in the sense of `dpjax.release.accept_bit.draw`, for public chances.
    """
    with jax.enable_x64(True):
        high, low = words[..., 0], words[..., 1]
        uniform = (high.astype(jnp.uint64) << 31) | (low.astype(jnp.uint64) >> 1)
        return uniform < jnp.asarray(int(chance * 2**63), jnp.uint64)


def take_step(rng_key: jax.Array, state, transition: Transition):
    """One step from a JAX key; a lazy step that stays still pays for the move."""
    count = transition.num_words(state)
    words = jax.random.bits(rng_key, (count + 2,), jnp.uint32)
    moved, info, _ = transition.move(words[2:], state, transition.recall(state))
    if transition.laziness == 1:
        return moved, info
    active = bernoulli(words[:2], transition.laziness)
    return jax.tree.map(
        lambda new, old: jnp.where(active, new, old),
        (moved, info),
        (state, transition.stay(state)),
    )
