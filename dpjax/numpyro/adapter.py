"""From a NumPyro model to a `dpjax.Posterior`."""

import dataclasses
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.numpyro import refusals
from dpjax.numpyro.model import Model
from dpjax.posterior import Posterior

__all__ = ["model_of", "posterior"]

ROWS = 16
"""Records made up to look at a model."""


def posterior(
    model: Callable,
    data: Mapping[str, Any],
    *,
    plate: str,
    public: Mapping[str, Any] | None = None,
    example: Mapping[str, Any] | None = None,
    tempering: float = 1.0,
) -> Posterior:
    """The posterior of a NumPyro model whose records lie in one plate.

    Parameters
    ----------
    model
        Called as ``model(**data, **public)``, with one record at a time: arrays of
        `data` then have one entry along their leading axis. ``subsample_size`` of its
        plates is ignored, with a warning.
    data
        Arrays by the names of the model's arguments, ``(n, ...)``, records first. One
        record is the unit of privacy.
    plate
        Name of the plate whose sites are the likelihood. All other sites are the prior.
    public
        The model's other arguments, not private.
    example
        Made-up records in the form of `data`, or of some of its names, not private,
        whose density is finite. Their values of what the model does not generate, such
        as regressors, are the design of `dpjax.numpyro.fisher_metric`. Default: 16
        records of uniform numbers in [0, 1), or of zeros and ones for integers and
        where the model demands it.
    tempering
        The power T in (0, 1] to which the likelihood is raised.

    Returns
    -------
    Posterior
        Positions are dicts of the latent sites' unconstrained values; draws of
        `dpjax.run` are dicts of the latents in the units of the model, with those
        deterministic sites that read no data. `dataclasses.replace` swaps the data
        without another look at the model.

    Raises
    ------
    ValueError
        If the model's log density is not a prior plus a sum over records, or cannot be
        told from one that is not: see `dpjax.numpyro.refusals`.

    Notes
    -----
    *Formal guarantees.* Only shapes and types of `data` are read here. The
    log-likelihood of a record is computed from that record, the position and what is
    public alone. What the model captured from outside is public: a warning names it.
    """
    data, public = dict(data), dict(public or {})
    if both := set(data) & set(public):
        raise ValueError(f"{sorted(both)} are in data and in public; choose one")
    if not all(isinstance(name, str) and name for name in (*data, *public)):
        raise ValueError("data and public are named by the arguments of the model")
    data = {name: jnp.asarray(value) for name, value in data.items()}
    Posterior(abs, abs, data)
    unspecified = frozenset(data) - frozenset(example or {})
    given = dict(example or {})
    example = _made_up(data, given, _uniform)
    # A NumPy array could not be indexed by rows that are traced.
    public = jax.tree.map(
        lambda leaf: jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf, public
    )
    adapted = Model(model, plate, public, example, unspecified)
    refusals.warn_of_captured(model)
    position = _look(adapted)
    if not refusals.is_finite(adapted, position):
        example = _made_up(data, given, _zeros_and_ones)
        adapted = dataclasses.replace(adapted, example=example)
    reads = refusals.dependencies(adapted, position)
    refusals.check_dependencies(adapted, reads)
    refusals.check_numbers(adapted, position)
    adapted = dataclasses.replace(
        adapted,
        observed=_observed(adapted, position, reads),
        deterministics=tuple(k for k, v in reads["deterministics"].items() if not v),
    )
    return Posterior(
        adapted.logprior,
        adapted.loglikelihood,
        data,
        tempering,
        adapted.constrain,
    )


def model_of(posterior: Posterior) -> Model:
    """The model behind what `posterior` returned."""
    model = getattr(posterior.loglikelihood_fn, "__self__", None)
    if not isinstance(model, Model):
        raise ValueError("the posterior must come from dpjax.numpyro.posterior")
    return model


def _uniform(rng, leaf, shape):
    if jnp.issubdtype(leaf.dtype, jnp.floating):
        return rng.random(shape)
    return _zeros_and_ones(rng, leaf, shape)


def _zeros_and_ones(rng, leaf, shape):
    return rng.integers(0, 2, shape)


def _made_up(data, example, draw):
    """`example` in the types of the data, with the other names drawn."""
    shapes = {name: leaf.shape[1:] for name, leaf in data.items()}
    given = {name: np.shape(value)[1:] for name, value in example.items()}
    counts = {(*np.shape(value), 0)[0] for value in example.values()} or {ROWS}
    if len(counts) > 1 or min(counts) < 2 or not given.items() <= shapes.items():
        raise ValueError(
            "example must hold two or more records in the form of data, "
            f"{shapes} by name, got {given}"
        )
    rng, (rows,) = np.random.default_rng(0), counts
    made_up = {
        name: example.get(name, draw(rng, leaf, (rows, *leaf.shape[1:])))
        for name, leaf in data.items()
    }
    return {k: jnp.asarray(v).astype(data[k].dtype) for k, v in made_up.items()}


def _look(model: Model):
    """Check the sites of the model; return a position somewhere in its prior."""
    seen = {}

    def look(records, rng_key):
        seen["sites"], _, seen["rows"] = model.trace(records, rng_key=rng_key)

    refusals.traced(look, _first(model.example), jax.random.key(0))
    refusals.check_sites(model, **seen)
    if seen["rows"].subsamples:
        warnings.warn(
            f"subsample_size of plate {model.plate!r} is ignored: samplers of dpjax "
            "draw their own batches",
            stacklevel=3,
        )
    rng = np.random.default_rng(1)
    return jax.tree.map(
        lambda leaf: jnp.asarray(0.3 * rng.standard_normal(leaf.shape), leaf.dtype),
        jax.eval_shape(model.draw, jax.random.key(0)),
    )


def _first(example):
    return jax.tree.map(lambda leaf: leaf[:1], example)


def _observed(model: Model, position, reads):
    """Which data each site inside the plate observes."""

    @jax.jit
    def values(records):
        sites, _, _ = model.trace(records, position)
        return {name: sites[name]["value"] for name in reads["inside"]}

    found = {}
    for name, value in values(_first(model.example)).items():
        names = reads["values"][name]
        key = next(iter(names)) if len(names) == 1 else None
        same = key is not None and np.array_equal(
            np.ravel(value), np.ravel(model.example[key][:1])
        )
        found[name] = key if same else None
    return found
