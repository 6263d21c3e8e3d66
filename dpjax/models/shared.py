"""What several models share: how one is described, a prior, and checks of arguments."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpjax.posterior import Posterior
from dpjax.privacy.validate import check_positive

__all__ = ["Family", "NormalPrior", "check_pairs", "check_positive"]


class Family(NamedTuple):
    """The functions of a model whose records can be generated.

    The keyword arguments of `build`, the model's constants, are also those of
    `exact_sample` and `fisher_information`.

    build
        ``(data, **constants) -> Posterior``.
    simulate
        ``(rng_key, num_records, **settings) -> data``; the settings are ``dim`` or
        constants of the model, or there are none.
    exact_sample
        ``(rng_key, data, num_samples, **constants) -> draws``; not private.
    fisher_information
        Class whose instances ``FisherInformation(num_records, **constants)`` are
        functions ``position -> (d, d)``; None if the model has none.
    """

    build: Callable[..., Posterior]
    simulate: Callable[..., jax.Array]
    exact_sample: Callable[..., jax.Array]
    fisher_information: Callable[..., Callable[[Any], jax.Array]] | None = None

    def generate(self, rng_key, num_records: int, **settings) -> jax.Array:
        """What `simulate` returns with those of the settings that it takes."""
        taken = inspect.signature(self.simulate).parameters
        settings = {key: settings[key] for key in settings if key in taken}
        return self.simulate(rng_key, num_records, **settings)


@dataclass(frozen=True)
class NormalPrior:
    """Log density of N(0, sd^2 I), without its constant."""

    sd: float

    def __call__(self, position):
        return -0.5 * jnp.sum((position / self.sd) ** 2)


def check_pairs(features, targets) -> None:
    """Refuse data that are not pairs of a vector and a number."""
    if features.ndim != 2 or targets.shape != features.shape[:1]:
        raise ValueError(
            "features must have shape (n, d) and labels or targets (n,), got "
            f"{features.shape} and {targets.shape}"
        )
