"""Observations that draws of a NumPyro model predict, and synthetic records."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["predict"]


def predict(
    positions: Any,
    model: Any,
    inputs: Mapping[str, Any],
    num_records: int | None,
    num_draws: int | None,
    rng_key: jax.Array,
) -> dict[str, np.ndarray]:
    """See `dpjax.runner.Run.predict`."""
    from numpyro import handlers
    from numpyro.infer import Predictive

    if not isinstance(positions, Mapping):
        raise ValueError(
            "predictions need draws of a NumPyro model, which are named by its sites; "
            "these have no names"
        )
    latents = _chosen(positions, num_draws)
    arguments = {name: jnp.asarray(value) for name, value in inputs.items()}
    adapted = getattr(model, "model", None)
    if adapted is not None:
        arguments = _filled(adapted, arguments, num_records)
        if adapted.simulate_fn is not None:
            return _simulated(adapted.simulate_fn, latents, arguments, rng_key)
        # Sites whose law reads no latent keep what they observe.
        model = handlers.block(
            adapted.function,
            lambda site: (
                site.get("is_observed") and site["name"] not in adapted.observed
            ),
        )
        arguments |= adapted.public
    elif num_records is not None:
        raise ValueError(
            "num_records is for a posterior of dpjax.numpyro.posterior: a function "
            "predicts as many records as its inputs have"
        )
    # What is passed for an observed site gives its shape; the site is drawn anew.
    sampler = Predictive(handlers.uncondition(model), latents)
    found = sampler(rng_key, **arguments)
    # A `numpyro.factor` draws nothing.
    found = {name: np.asarray(value) for name, value in found.items() if value.size}
    if not found:
        raise ValueError(
            "the model draws no observation, as where its likelihood is a "
            "numpyro.factor: predict with dpjax.numpyro.posterior(..., simulate_fn=...)"
        )
    return found


def _chosen(positions: Mapping, num_draws: int | None) -> dict[str, jax.Array]:
    """Draws of all chains, ``(num_draws, ...)``, evenly spread over them."""
    flat = {k: np.reshape(v, (-1, *v.shape[2:])) for k, v in positions.items()}
    (total,) = {len(leaf) for leaf in flat.values()}
    if num_draws is None:
        num_draws = total
    if not 1 <= num_draws <= total:
        raise ValueError(f"num_draws must be 1 to {total}, got {num_draws}")
    rows = (np.arange(num_draws) + 0.5) * total / num_draws
    return {k: jnp.asarray(leaf[rows.astype(int)]) for k, leaf in flat.items()}


def _filled(adapted, inputs: dict, num_records: int | None) -> dict[str, jax.Array]:
    """The arrays of a model that `dpjax.numpyro.posterior` knows, for new records.

    Those that it observes have the values of a made-up record, which are not used, as
    are masks of `dpjax.numpyro.complete_cases`.
    """
    counts = {len(value) for value in inputs.values()}
    if num_records is not None:
        counts.add(num_records)
    if len(counts) != 1:
        raise ValueError(
            "how many records to predict follows from inputs or num_records: got "
            f"{sorted(counts)}"
        )
    (count,) = counts
    needed = set(adapted.example) - set(adapted.observed.values()) - set(inputs)
    if lacking := needed - getattr(adapted.function, "not_needed", set()):
        raise ValueError(
            f"inputs lack {sorted(lacking)}, which the model does not generate: pass "
            "public or made-up values. Those of the records would not be private"
        )
    return inputs | {
        name: jnp.repeat(jnp.asarray(leaf[:1]), count, axis=0)
        for name, leaf in adapted.example.items()
        if name not in inputs
    }


def _simulated(simulate_fn, latents, records, rng_key) -> dict[str, np.ndarray]:
    """The records with observations that a function of the user makes up."""
    num_draws, num_records = (
        len(jax.tree.leaves(tree)[0]) for tree in (latents, records)
    )
    keys = jax.random.split(rng_key, (num_draws, num_records))
    of_one = jax.vmap(simulate_fn, (0, None, 0))
    found = jax.lax.map(lambda given: of_one(*given, records), (keys, latents))
    return {name: np.asarray(value) for name, value in found.items()}
