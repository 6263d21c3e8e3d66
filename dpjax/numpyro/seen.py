"""What a model's records tell of its latents, before the data are read.

A fit takes the scores of the records to be linear in what it asks them of. In latents
they never are, however many records there are, where many values of the latents give
the same law of the observations, along a curve (`dpjax.fit.effects`). Such a model is
fitted in other coordinates (`dpjax.fit.pinned`), and refused if there are none. All
numbers here are public: the records are those of the example. Observations that it
leaves out are drawn from the model, so that all of their levels occur.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from dpjax import caller
from dpjax.fit.compiled import evaluated
from dpjax.fit.effects import are_products, effects
from dpjax.fit.pinned import Pinned, pinned
from dpjax.numpyro.model import Model, center_and_unit
from dpjax.numpyro.nodes import check_drawable, generated
from dpjax.numpyro.refusals import listed

__all__ = ["check_latents", "pinned_model"]

NUM_POSITIONS, NUM_ROWS, SPREAD = 4, 256, 0.5
"""Positions at which the effects of a model are compared, records of which they are the
effects, besides one for each latent, and how far the positions are apart, in units of
the prior. Near its centre little saturates that tells of the latents elsewhere."""

MAX_NUMBERS = 2**26
"""Derivatives that are compared, at all positions. Long records are fewer."""

MAX_NAMED = 6
"""Components that a warning names."""


def pinned_model(model: Model) -> Pinned | None:
    """The pinned model of one whose observations read products of its latents.

    It is None if there are no products, and the model itself is fitted.

    Raises
    ------
    ValueError
        If there are products, and no pinned model has their effects.
    """
    flat, unravel = ravel_pytree(jax.tree.map(jnp.zeros_like, model.outline))
    positions, units = _positions(model)
    is_product = are_products(_slopes(model, unravel, positions) * units)
    if not np.any(is_product):
        return None
    covariates, observations = _parted(model, np.arange(_num_records(model)))
    sizes = jax.tree.map(lambda leaf: jnp.full(leaf.shape, leaf.size), model.outline)
    found = pinned(
        _loglikelihood(model, unravel),
        np.asarray(jax.vmap(_flat)(model.prior_draws)),
        units,
        is_product,
        np.asarray(_flat(sizes)),
        covariates,
        observations,
    )
    if found is not None:
        return found
    products = unravel(jnp.asarray(is_product, flat.dtype))
    names = [name for name, leaf in products.items() if np.any(leaf)]
    raise ValueError(
        f"observations read products of the latents {listed(names)}, such as scale "
        "* z, and many values of these give the same product. A fit takes scores to be "
        "linear in the effects of the latents, which they are not here whichever of the"
        " latents have fixed values, so its draws would be far off. Make the product a "
        "latent of its own, such as numpyro.sample('effect', Normal(mean, scale)) in "
        "place of mean + scale * z, without LocScaleReparam. If there are no products, "
        f"the records of example= are too few to tell the {model.dim} latents apart"
    )


def check_latents(model: Model) -> None:
    """Warn of latents of which no record of the example tells, while some do of others.

    Warns
    -----
    UserWarning
        If no record of the example tells of a component of a latent, while some tell of
        others, as where a group has no records.
    """
    flat, unravel = ravel_pytree(jax.tree.map(jnp.zeros_like, model.outline))
    positions, _ = _positions(model)
    is_seen = unravel(jnp.asarray(_are_seen(model, unravel, positions[0]), flat.dtype))
    names = [
        f"{name}{list(map(int, index))}"
        for name, leaf in is_seen.items()
        if np.any(leaf)
        for index in np.argwhere(np.asarray(leaf) == 0)
    ]
    if names:
        more = f" and {len(names) - MAX_NAMED} more" * (len(names) > MAX_NAMED)
        caller.warn(
            f"no record of example= tells of {', '.join(names[:MAX_NAMED])}{more}. The "
            "fit does not ask the data of them, and takes what records that tell of "
            "them say for what others say, so that draws may be off. Give example= a "
            "record of every group and level that the data may have"
        )


def _positions(
    model: Model, count: int = NUM_POSITIONS
) -> tuple[np.ndarray, np.ndarray]:
    """Positions ``(k, d)`` about the centre of the prior, and its units ``(d,)``."""
    draws = jax.vmap(_flat)(model.prior_draws)
    centre, units = center_and_unit(draws)
    normal = np.random.default_rng(3).standard_normal((count, model.dim))
    return (centre + SPREAD * units * normal).astype(draws.dtype), units


def _slopes(model: Model, unravel, positions) -> np.ndarray:
    """Derivatives of the effects of records at positions, ``(k, effects, d)``."""

    effects_fn = functools.partial(effects, _loglikelihood(model, unravel))
    first = jax.tree.map(lambda leaf: leaf[0], _parted(model, np.arange(1)))
    per_record = jax.eval_shape(effects_fn, positions[0], *first).size
    most = max(2, MAX_NUMBERS // max(positions.size * per_record, 1))
    count = min(_num_records(model), NUM_ROWS + model.dim, most)
    chosen = np.linspace(0, _num_records(model) - 1, count).astype(int)
    given = _parted(model, chosen)

    def slopes(positions, given):
        of_records = jax.vmap(jax.jacrev(effects_fn), (None, 0, 0))
        return jax.lax.map(lambda position: of_records(position, *given), positions)

    found = evaluated(slopes, positions, given)
    return np.asarray(found).reshape(len(positions), -1, model.dim)


def _loglikelihood(model: Model, unravel) -> Callable:
    """``(position, covariates, observations) -> scalar``, of a flattened position."""

    def loglikelihood(flat, covariates, observations):
        return model.loglikelihood(unravel(flat), covariates | observations)

    return loglikelihood


def _parted(model: Model, chosen) -> tuple[dict, dict]:
    """Covariates and observations of some records of the example."""
    records = {name: np.asarray(leaf)[chosen] for name, leaf in _records(model).items()}
    observed = generated(model)
    covariates = {name: records[name] for name in records if name not in observed}
    return covariates, {name: records[name] for name in observed}


def _flat(position) -> jax.Array:
    return ravel_pytree(position)[0]


def _are_seen(model: Model, unravel, position) -> np.ndarray:
    """Of which components some record of the example tells, ``(d,)``."""

    def seen(position, records):
        def one(record):
            score = jax.grad(lambda z: model.loglikelihood(unravel(z), record))
            return score(position) != 0

        return jnp.any(jax.lax.map(one, records, batch_size=NUM_ROWS), axis=0)

    return np.asarray(evaluated(seen, position, _records(model)))


@functools.lru_cache(maxsize=8)
def _records(model: Model) -> dict:
    """The example, in which observations that it leaves out are drawn from the model.

    Each record has latents of its own, spread as those of `_positions`.
    """
    lacking = generated(model) & model.unspecified
    if not lacking:
        return model.example
    check_drawable(model)
    _, unravel = ravel_pytree(jax.tree.map(jnp.zeros_like, model.outline))
    positions, _ = _positions(model, _num_records(model))

    def drawn(positions, example, seed):
        keys = jax.random.split(jax.random.key(seed), len(positions))

        def one(rng_key, flat, record):
            return model.observe_anew(rng_key, unravel(flat), record)

        return jax.vmap(one)(keys, positions, example)

    found = evaluated(drawn, positions, model.example, np.uint32(0))
    usable = {name: np.isfinite(found[name]) for name in lacking}
    return model.example | {
        name: np.where(usable[name], found[name], model.example[name])
        for name in lacking
    }


def _num_records(model: Model) -> int:
    return len(jax.tree.leaves(model.example)[0])
