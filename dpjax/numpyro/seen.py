"""What a model's records tell of its latents, before the data are read.

A fit takes the scores of the records to be linear in the latents. It is refused where
they never are, however many records there are: where many values of the latents give
the same law of the observations, along a curve (`dpjax.fit.effects`). All numbers here
are public: the records are those of the example.
"""

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from dpjax.fit.compiled import evaluated
from dpjax.fit.effects import are_products, effects
from dpjax.numpyro.model import Model
from dpjax.numpyro.nodes import generated
from dpjax.numpyro.refusals import listed

__all__ = ["check_latents"]

NUM_POSITIONS, NUM_ROWS, SPREAD = 4, 256, 0.5
"""Positions at which the effects of a model are compared, records of which they are the
effects, besides one for each latent, and how far the positions are apart, in units of
the prior. Near its centre little saturates that tells of the latents elsewhere."""

MAX_NUMBERS = 2**26
"""Derivatives that are compared, at all positions. Long records are fewer."""

UNIT_QUANTILES = 0.84, 0.5, 0.16
"""Quantiles of a latent a priori: a unit above the centre, the centre, and below."""

MAX_NAMED = 6
"""Components that a warning names."""


def check_latents(model: Model) -> None:
    """Refuse a fit of a model that is not linear in its latents where data are many.

    Raises
    ------
    ValueError
        If observations read products of latents, as in a model that is not centred.

    Warns
    -----
    UserWarning
        If no record of the example tells of a component of a latent, while some tell of
        others, as where a group has no records.
    """
    flat, unravel = ravel_pytree(jax.tree.map(jnp.zeros_like, model.outline))
    positions, units = _positions(model)
    slopes = _slopes(model, unravel, positions) * units
    found = unravel(jnp.asarray(are_products(slopes), flat.dtype))
    if names := [name for name, leaf in found.items() if np.any(leaf)]:
        raise ValueError(
            f"observations read products of the latents {listed(names)}, such as scale "
            "* z, and many values of these give the same product: a fit takes scores to"
            " be linear in the latents, and its draws would be far off. Make the "
            "product a latent of its own, such as numpyro.sample('effect', Normal(mean,"
            " scale)) in place of mean + scale * z, without LocScaleReparam. If there "
            f"are no products, the records of example= are too few to tell the "
            f"{model.dim} latents apart"
        )
    is_seen = unravel(jnp.asarray(_are_seen(model, unravel, positions[0]), flat.dtype))
    names = [
        f"{name}{list(map(int, index))}"
        for name, leaf in is_seen.items()
        if np.any(leaf)
        for index in np.argwhere(np.asarray(leaf) == 0)
    ]
    if names:
        more = f" and {len(names) - MAX_NAMED} more" * (len(names) > MAX_NAMED)
        warnings.warn(
            f"no record of example= tells of {', '.join(names[:MAX_NAMED])}{more}. The "
            "fit does not ask the data of them, and takes what records that tell of "
            "them say for what others say, so that draws may be off. Give example= a "
            "record of every group and level that the data may have",
            stacklevel=3,
        )


def _positions(model: Model) -> tuple[np.ndarray, np.ndarray]:
    """Positions ``(k, d)`` about the centre of the prior, and its units ``(d,)``."""
    draws = jax.vmap(lambda position: ravel_pytree(position)[0])(model.prior_draws)
    high, centre, low = np.quantile(draws, UNIT_QUANTILES, axis=0)
    units = (high - low) / 2
    normal = np.random.default_rng(3).standard_normal((NUM_POSITIONS, model.dim))
    return (centre + SPREAD * units * normal).astype(draws.dtype), units


def _slopes(model: Model, unravel, positions) -> np.ndarray:
    """Derivatives of the effects of records at positions, ``(k, effects, d)``."""

    def loglikelihood(flat, covariates, observations):
        return model.loglikelihood(unravel(flat), covariates | observations)

    effects_fn = functools.partial(effects, loglikelihood)
    covariates = jax.tree.map(np.asarray, model.example)
    observations = {name: covariates.pop(name) for name in generated(model)}
    first = jax.tree.map(lambda leaf: leaf[0], (covariates, observations))
    per_record = jax.eval_shape(effects_fn, positions[0], *first).size
    most = max(2, MAX_NUMBERS // max(positions.size * per_record, 1))
    count = min(_num_records(model), NUM_ROWS + model.dim, most)
    chosen = np.linspace(0, _num_records(model) - 1, count).astype(int)
    given = jax.tree.map(lambda leaf: leaf[chosen], (covariates, observations))

    def slopes(positions, given):
        of_records = jax.vmap(jax.jacrev(effects_fn), (None, 0, 0))
        return jax.lax.map(lambda position: of_records(position, *given), positions)

    found = evaluated(slopes, positions, given)
    return np.asarray(found).reshape(len(positions), -1, model.dim)


def _are_seen(model: Model, unravel, position) -> np.ndarray:
    """Of which components some record of the example tells, ``(d,)``."""

    def seen(position, records):
        def one(record):
            score = jax.grad(lambda z: model.loglikelihood(unravel(z), record))
            return score(position) != 0

        return jnp.any(jax.lax.map(one, records, batch_size=NUM_ROWS), axis=0)

    return np.asarray(evaluated(seen, position, model.example))


def _num_records(model: Model) -> int:
    return len(jax.tree.leaves(model.example)[0])
