"""Checks, before the data are read, of how a model's records depend on its latents.

A fit takes the scores of the records to be linear in the parameters that it estimates.
They are not linear in the latents, however many records there are, if many values of
the latents, along a curve, give the same law of the observations, as those with the
same product scale * z do (`dpjax.fit.effects`). Such a model is fitted in other
coordinates (`dpjax.fit.pinned`), and refused if there are none.

All numbers here are public: the records are those of the example. Observations for
which the user gave no example are drawn from the model, so that all of their levels
occur.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.flatten_util import ravel_pytree

from dpjax import caller
from dpjax.compiled import evaluated
from dpjax.fit.effects import are_products, effects
from dpjax.fit.pinned import Pinned, pinned
from dpjax.numpyro.model import Model, center_and_unit
from dpjax.numpyro.nodes import check_drawable, generated
from dpjax.numpyro.quadrature import innermost
from dpjax.numpyro.refusals import listed

__all__ = ["check_latents", "pinned_model"]

NUM_POSITIONS, NUM_ROWS, SPREAD = 4, 256, 0.5
"""How the effects of a model are compared: at how many positions; for how many records,
besides one for each component of the latents; and the sd of the positions about the
prior's centre, in units of the prior. So near the centre, functions such as a sigmoid
seldom saturate, and effects still change with the latents."""

MAX_NUMBERS = 2**26
"""Bound on the number of derivatives that are compared, at all positions together. If
records have many effects, fewer records are compared."""

HAVE_CORNERS = (dist.Laplace, dist.AsymmetricLaplace, dist.AsymmetricLaplaceQuantile)
"""Laws whose log density is linear in the location on either side of a corner. The
score of a record does not change with the location, but jumps at the record's value."""

MAX_NAMED = 6
"""Largest number of components that a warning names."""


def pinned_model(model: Model) -> Pinned | None:
    """The pinned model of a model whose observations read products of its latents.

    It is None if observations read no products. Then the model itself is fitted.

    Raises
    ------
    ValueError
        If observations read products, and no pinned model has the same effects.
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
    """Warn of latents of which a fit may say something wrong.

    Warns
    -----
    UserWarning
        If no record's log-likelihood depends on a component of a latent, while some
        depend on other components of this latent. This is so if the latent has a
        component for each group, and a group has no record in the example. Or if an
        observation has a law of `HAVE_CORNERS`.
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
            f"no record of example= depends on {', '.join(names[:MAX_NAMED])}{more}. "
            "The fit releases nothing about them, and if records of the data do depend "
            "on them, it takes those for records that do not, so that draws may be "
            "off. Give example= a record of every group and level that the data may "
            "have"
        )
    names = _sites_with_corners(model)
    if names:
        caller.warn(
            f"the densities of {listed(names)} have corners, between which their logs "
            "are linear. A fit knows how fast the scores change with the location from "
            "the model alone. If the data are of another law, as in a regression of "
            "quantiles, draws may be off by many times their width, also with "
            "robust=True. A smooth law with heavy tails is StudentT"
        )


def _sites_with_corners(model: Model) -> list[str]:
    """Names of the sites that observe a law of `HAVE_CORNERS`, or one built on it."""
    names = []

    def trace(position, rows):
        sites, *_ = model.trace(rows, position)
        for name in model.observed:
            if isinstance(innermost(sites[name]["fn"]), HAVE_CORNERS):
                names.append(name)

    jax.eval_shape(trace, model.outline, model.one_example)
    return names


def _positions(
    model: Model, count: int = NUM_POSITIONS
) -> tuple[np.ndarray, np.ndarray]:
    """`count` positions ``(count, d)`` near the prior's centre, and the units ``(d,)``.

    The units are those of `dpjax.numpyro.model.center_and_unit`.
    """
    draws = jax.vmap(_flat)(model.prior_draws)
    centre, units = center_and_unit(draws)
    normal = np.random.default_rng(3).standard_normal((count, model.dim))
    return (centre + SPREAD * units * normal).astype(draws.dtype), units


def _slopes(model: Model, unravel, positions) -> np.ndarray:
    """Derivatives of the effects of all chosen records at k positions, ``(k, m, d)``.

    m is the number of effects of one record times the number of records.
    """

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
    """``(flat, covariates, observations) -> scalar``, for one record.

    `flat` is the flattened position, ``(d,)``.
    """

    def loglikelihood(flat, covariates, observations):
        return model.loglikelihood(unravel(flat), covariates | observations)

    return loglikelihood


def _parted(model: Model, chosen) -> tuple[dict, dict]:
    """Covariates and observations of the records with indices `chosen`."""
    records = {name: np.asarray(leaf)[chosen] for name, leaf in _records(model).items()}
    observed = generated(model)
    covariates = {name: records[name] for name in records if name not in observed}
    return covariates, {name: records[name] for name in observed}


def _flat(position) -> jax.Array:
    return ravel_pytree(position)[0]


def _are_seen(model: Model, unravel, position) -> np.ndarray:
    """Whether a record of the example depends on each component, booleans ``(d,)``.

    A record depends on a component if the derivative of its log-likelihood, at the
    flattened `position`, is not zero.
    """

    def seen(position, records):
        def one(record):
            score = jax.grad(lambda z: model.loglikelihood(unravel(z), record))
            return score(position) != 0

        return jnp.any(jax.lax.map(one, records, batch_size=NUM_ROWS), axis=0)

    return np.asarray(evaluated(seen, position, _records(model)))


@functools.lru_cache(maxsize=8)
def _records(model: Model) -> dict:
    """The example, with observations from the model where the user gave none.

    For each record, the observations are drawn at a position of its own, from
    `_positions`. Numbers that are not finite remain those of the example.
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
