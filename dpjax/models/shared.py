"""Parts that several models share: `Family`, a normal prior, and a check of shapes."""

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
        ``(rng_key, num_records, **settings) -> data``. The settings, if there are any,
        are ``dim`` or constants of the model.
    exact_sample
        ``(rng_key, data, num_samples, **constants) -> draws``; not private.
    fisher_information
        ``(num_records, **constants) -> function``, where the function maps a position
        to a metric ``(d, d)``, as `dpjax.fisher.fisher_information` does. None if the
        model has no such function.
    """

    build: Callable[..., Posterior]
    simulate: Callable[..., jax.Array]
    exact_sample: Callable[..., jax.Array]
    fisher_information: Callable[..., Callable[[Any], jax.Array]] | None = None

    def generate(self, rng_key, num_records: int, **settings) -> jax.Array:
        """Data from `simulate`, which gets those of the settings that it takes."""
        taken = inspect.signature(self.simulate).parameters
        settings = {key: settings[key] for key in settings if key in taken}
        return self.simulate(rng_key, num_records, **settings)


@dataclass(frozen=True)
class NormalPrior:
    """Log density of N(0, sd^2 I), without its normalising constant."""

    sd: float

    def __call__(self, position):
        return -0.5 * jnp.sum((position / self.sd) ** 2)


def check_pairs(features, targets) -> None:
    """Refuse features and targets that are not ``(n, d)`` and ``(n,)``.

    Raises
    ------
    ValueError
        If the shapes are others.
    """
    if features.ndim != 2 or targets.shape != features.shape[:1]:
        raise ValueError(
            "features must have shape (n, d) and labels or targets (n,), got "
            f"{features.shape} and {targets.shape}"
        )
