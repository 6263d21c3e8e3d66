"""The parts of a kernel: BlackJAX's three layers, the cost of steps, and one step.

`Sampler` holds the three layers, `Algorithm` is a kernel with its parameters, and
`Transition` takes one of its steps apart.
"""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

__all__ = [
    "Algorithm",
    "Sampler",
    "Transition",
    "bernoulli",
    "in_full_precision",
    "take_step",
]


def _nothing(state) -> None:
    """The memory of a kernel that keeps nothing from one step to the next."""


class Transition(NamedTuple):
    """One step of a kernel, taken apart.

    `dpjax.run` draws the random words, tosses the coins of lazy steps, and hands the
    memory from step to step.

    num_words
        ``state -> int``: how many uniform uint32 words `move` uses.
    move
        ``(words, state, memory) -> (state, info, memory)``: the step itself, which
        reads the data. `words` are uniform uint32, ``(num_words(state),)``. If the info
        has the field ``is_accepted``, a run keeps the mean of that field; otherwise it
        keeps the infos.
    stay
        ``state -> info``: the info of a lazy step that does nothing.
    recall
        ``state -> memory``: reads the data. The memory holds values at the current
        position, such as the records' log-likelihoods, so that `move` need not evaluate
        them again. It is secret, so it is not part of the state.
    laziness
        Probability in (0, 1] that a step moves at all. The coin is tossed before the
        data are read. The coin is secret: if the probability is below one, a rejected
        move must leave the state as it was, and its info must be that of `stay`.
    num_warmup
        Number of first steps that tune the kernel. They must be left out of the draws.
    num_disjoint
        How many times a step makes the releases that it is charged for, each time of
        other records, so that one record enters only one of them.
    """

    num_words: Callable[[Any], int]
    move: Callable[[jax.Array, Any, Any], tuple[Any, Any, Any]]
    stay: Callable[[Any], Any]
    recall: Callable[[Any], Any] = _nothing
    laziness: float = 1.0
    num_warmup: int = 0
    num_disjoint: int = 1


class Algorithm(NamedTuple):
    """A kernel with its parameters, which can stand for a BlackJAX `SamplingAlgorithm`.

    init
        ``(position, rng_key=None) -> state``.
    step
        ``(rng_key, state) -> (state, info)``; both hold public values only.
    privacy
        ``(num_steps, neighboring_relation) -> [(event, count), ...]``: the privacy
        events of that many steps. It never reads the data.
    transition
        The same step in parts, for `dpjax.run`.
    sample
        ``(rng_key, parameters, num_samples) -> positions``, for an algorithm that fits
        a distribution; otherwise None. The infos of such an algorithm have the field
        ``parameters``. A run averages the parameters of the infos that it kept, and
        draws from the distribution with these parameters.
    """

    init: Callable[..., Any]
    step: Callable[[jax.Array, Any], tuple[Any, Any]]
    privacy: Callable[..., list]
    transition: Transition
    sample: Callable[[jax.Array, Any, int], Any] | None = None

    @classmethod
    def of(
        cls,
        init: Callable[..., Any],
        transition: Transition,
        privacy: Callable[..., list],
        sample: Callable[[jax.Array, Any, int], Any] | None = None,
    ) -> "Algorithm":
        """The algorithm whose step is `transition`.

        Its matrix products are made in full precision (`in_full_precision`).
        """
        transition = transition._replace(
            move=in_full_precision(transition.move),
            recall=in_full_precision(transition.recall),
        )

        def step(rng_key, state):
            return take_step(rng_key, state, transition)

        return cls(init, step, privacy, transition, sample)


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class Sampler:
    """A sampling algorithm in BlackJAX's three layers.

    A call of a sampler is a call of `as_top_level_api`. The docstring and the signature
    of the sampler are those of that function. If a layer gets arguments that it does
    not take, the error names the public function, ``dpjax.`` and the name of the
    module.
    """

    as_top_level_api: Callable[..., Algorithm]
    init: Callable[..., Any]
    build_kernel: Callable[[], Callable]

    def __post_init__(self):
        vars(self)["__doc__"] = self.as_top_level_api.__doc__
        vars(self)["__signature__"] = inspect.signature(self.as_top_level_api)

    def __repr__(self):
        return f"<sampler {self.as_top_level_api.__qualname__}>"

    def __call__(self, *args, **kwargs) -> Algorithm:
        return self.as_top_level_api(*args, **kwargs)

    @classmethod
    def of(
        cls,
        as_top_level_api: Callable[..., Algorithm],
        init: Callable[..., Any] | None = None,
    ) -> "Sampler":
        """The sampler with the top layer `as_top_level_api`.

        Parameters
        ----------
        as_top_level_api
            ``(posterior, *arguments, **parameters) -> Algorithm``.
        init
            ``(position, ...) -> state``. If it is None, the sampler's `init` takes the
            position and all arguments of `as_top_level_api`:
            ``(position, posterior, *arguments, **parameters) -> state``.

        Returns
        -------
        Sampler
            Its ``build_kernel()`` returns a function
            ``(rng_key, state, posterior, *arguments, **parameters) -> (state, info)``.
        """

        name = as_top_level_api.__module__.split(".")[-1]
        # Python names the function in its refusals of arguments.
        as_top_level_api.__qualname__ = f"dpjax.{name}"

        def init_from_parameters(position, *args, rng_key=None, **parameters):
            return as_top_level_api(*args, **parameters).init(position)

        def build_kernel():
            def kernel(rng_key, state, *args, **parameters):
                return as_top_level_api(*args, **parameters).step(rng_key, state)

            return kernel

        return cls(as_top_level_api, init or init_from_parameters, build_kernel)


def in_full_precision(function: Callable) -> Callable:
    """The function with all matrix products of float32 numbers made in float32.

    On a GPU, JAX would round the factors of a product to TF32, which has ten bits of
    mantissa. A log-likelihood would then have an error of about .01, while the two
    log-likelihoods of a log ratio may differ by less than that. A product with a
    `precision` of its own keeps it.
    """
    return jax.default_matmul_precision("highest")(function)


def bernoulli(words: jax.Array, chance: float) -> jax.Array:
    """True with probability `chance`, to within 2^-63.

    `dpjax.release.accept_bit.bit` is the draw for a probability that is secret.

    Parameters
    ----------
    words
        Uniform uint32, ``(..., 2)``.
    chance
        A public Python float in [0, 1].

    Returns
    -------
    Booleans ``(...)``.
    """
    with jax.enable_x64(True):
        high, low = words[..., 0], words[..., 1]
        uniform = (high.astype(jnp.uint64) << 31) | (low.astype(jnp.uint64) >> 1)
        return uniform < jnp.asarray(int(chance * 2**63), jnp.uint64)


def take_step(rng_key: jax.Array, state, transition: Transition):
    """Make one step from a JAX key; returns the new state and the info.

    The move of a lazy step is computed even if its coin says that it stays. So all
    steps take the same time.
    """
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
