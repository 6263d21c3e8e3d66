"""A NumPyro model, evaluated one record at a time and in unconstrained space.

The model is called with as many records as there are rows, and the plate of the records
gets the indices 0, ..., rows - 1. With one row the model therefore sees one record and
no other, whatever it does with its arguments. Let z be the unconstrained latents,
theta = t(z) the latents in the units of the model, and x one record. Then

    log prior(z) = sum over sites outside the plate of log p(theta) + log |dt / dz|,
    log likelihood(z, x) = sum over sites inside the plate of log p(x | theta).

The log prior plus the sum of the log-likelihoods of all records is minus NumPyro's
potential energy. NumPyro scales the sites of a plate by its size over its subsample
size; that factor is divided out, while the user's `numpyro.handlers.scale` and `mask`
remain.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers
from numpyro.distributions import biject_to
from numpyro.primitives import Messenger

from dpjax.compiled import evaluated

__all__ = ["Model", "Rows", "center_and_unit", "in_plate", "is_latent"]

NUM_PRIOR_DRAWS = 1000
"""Draws from the prior that estimate its centre and its standard deviations."""

UNIT_QUANTILES = 0.16, 0.5, 0.84
"""Quantiles of the prior. The middle one is the centre; half of the distance between
the others is the unit (`center_and_unit`)."""


class Rows(Messenger):
    """A handler that undoes subsampling and makes the plate of the records `rows` long.

    Parameters
    ----------
    fn
        The model.
    plate
        Name of the plate of the records.
    rows
        Number of records that the model is called with.

    Attributes
    ----------
    plates
        Names of the plates that the model entered when it last ran.
    types
        ``{type of site: name of the last site of this type}``, of the last run.
    subsamples
        Whether the plate of the records asks for a subsample.
    scale
        Factor by which NumPyro scales the sites in the plate of the records: the size
        that the model states for the plate, over `rows`.
    """

    def __init__(self, fn, plate: str, rows: int):
        super().__init__(fn)
        self.plate, self.rows = plate, rows
        self.plates, self.types = [], {}
        self.subsamples, self.scale = False, 1.0

    def process_message(self, msg):
        self.types[msg["type"]] = msg.get("name", "")
        if msg["type"] == "plate":
            size, subsample_size = msg["args"]
            self.plates.append(msg["name"])
            rows = size
            if msg["name"] == self.plate:
                rows, self.scale = self.rows, size / self.rows
                self.subsamples = subsample_size not in (None, size)
            msg["value"], msg["args"] = jnp.arange(rows), (size, rows)
        elif msg["type"] == "subsample":
            # Plates subsample the value only if it has an event_dim.
            msg["kwargs"]["event_dim"] = None


def in_plate(site, plate: str) -> bool:
    return any(frame.name == plate for frame in site.get("cond_indep_stack", ()))


def is_latent(site) -> bool:
    return site["type"] == "sample" and not site["is_observed"]


@dataclass(frozen=True, eq=False)
class Model:
    """A NumPyro model; see the module docstring and `dpjax.numpyro.posterior`.

    Positions are dicts of the latents' unconstrained values. Records are dicts of
    arrays by the names of the data.

    function, plate, public, simulate_fn, score_nodes
        The arguments of `dpjax.numpyro.posterior`; `function` is its `model`.
    example
        Made-up records, along the leading axis, in the form of the data.
    unspecified
        Names of the arrays of the data for which the user gave no example.
    observed
        ``{site: array}`` for the sites inside the plate whose law reads a latent: the
        name of the array of the data that the site observes, or None if it observes a
        function of the data.
    deterministics
        Names of the deterministic sites that read no data.
    """

    function: Callable
    plate: str
    public: dict[str, Any] = field(repr=False)
    example: dict[str, Any] = field(repr=False)
    unspecified: frozenset[str] = field(repr=False)
    observed: dict[str, str | None] = field(default_factory=dict, repr=False)
    deterministics: tuple[str, ...] = field(default=(), repr=False)
    simulate_fn: Callable | None = field(default=None, repr=False)
    score_nodes: Callable | None = field(default=None, repr=False)

    @property
    def one_example(self) -> dict[str, jax.Array]:
        """The first made-up record, with a leading axis of length one."""
        return jax.tree.map(lambda leaf: leaf[:1], self.example)

    @property
    def outline(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes and dtypes of an unconstrained position."""
        return jax.eval_shape(self.draw, jax.random.key(0))

    @functools.cached_property
    def dim(self) -> int:
        """Number of components of the flattened unconstrained position."""
        return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(self.outline))

    def trace(self, records, position=None, rng_key=None):
        """Run the model on `records`, which lie along the leading axis.

        Latents take their values from the unconstrained `position` or, without one, are
        drawn from the prior with `rng_key`.

        Returns
        -------
        The sites of NumPyro's trace, by name; the log-determinants of the Jacobians of
        the latents' transforms, by site; and the `Rows` handler after the run.
        """
        rows = Rows(self.function, self.plate, _num_rows(records))
        model, log_dets = rows, {}
        if position is not None:

            def constrained(site):
                name = site["name"]
                if site["type"] != "sample" or name not in position:
                    return None
                transform = biject_to(site["fn"].support)
                value = transform(position[name])
                log_dets[name] = transform.log_abs_det_jacobian(position[name], value)
                return value

            model = handlers.substitute(model, substitute_fn=constrained)
        if rng_key is not None:
            model = handlers.seed(model, rng_key)
        sites = handlers.trace(model).get_trace(**records, **self.public)
        return sites, log_dets, rows

    def log_probs(self, position, records, inside: bool):
        """Log densities of the sites inside the plate, or of those outside of it.

        Returns
        -------
        ``{site: log p}``, arrays of the sites' batch shapes; and the log-determinants
        that `trace` returns.
        """
        sites, log_dets, rows = self.trace(records, position)
        scale = rows.scale if inside else 1.0
        chosen = {
            name: _log_prob(site, scale)
            for name, site in sites.items()
            if site["type"] == "sample" and in_plate(site, self.plate) == inside
        }
        return chosen, log_dets

    def logprior(self, position) -> jax.Array:
        """Log prior density of the unconstrained `position`."""
        return self.logprior_among(position, self.one_example)

    def logprior_among(self, position, records) -> jax.Array:
        """Log prior density of `position` if the model is called with `records`."""
        outside, log_dets = self.log_probs(position, records, inside=False)
        return _total(outside) + _total(log_dets)

    def loglikelihood(self, position, record) -> jax.Array:
        """Log-likelihood of one record, a dict without the leading axis."""
        return self.loglikelihood_of_all(position, jax.tree.map(_as_row, record))

    def loglikelihood_of_all(self, position, records) -> jax.Array:
        """Log-likelihood of all `records`, which lie along the leading axis."""
        return _total(self.log_probs(position, records, inside=True)[0])

    def constrain(self, position) -> dict[str, jax.Array]:
        """Latents in the units of the model, and deterministic sites without data."""
        sites, _, _ = self.trace(self.one_example, position)
        return {
            name: sites[name]["value"] for name in (*position, *self.deterministics)
        }

    def draw(self, rng_key) -> dict[str, jax.Array]:
        """An unconstrained draw from the prior."""
        sites, _, _ = self.trace(self.one_example, rng_key=rng_key)
        return {
            name: biject_to(site["fn"].support).inv(site["value"])
            for name, site in sites.items()
            if is_latent(site)
        }

    @functools.cached_property
    def has_forward_mode(self) -> bool:
        """Whether forward-mode derivatives exist; JAX's `odeint` has none."""
        record = jax.tree.map(lambda leaf: leaf[0], self.example)
        try:
            jax.eval_shape(jax.jacfwd(self.loglikelihood), self.outline, record)
        except TypeError:
            return False
        return True

    @functools.cached_property
    def prior_draws(self) -> dict[str, jax.Array]:
        """Unconstrained draws from the prior, leaves ``(NUM_PRIOR_DRAWS, ...)``."""

        def draws(seed):
            keys = jax.random.split(jax.random.key(seed), NUM_PRIOR_DRAWS)
            return jax.vmap(self.draw)(keys)

        return evaluated(draws, np.uint32(0))

    def simulate(self, rng_key, position) -> dict[str, Any]:
        """One made-up record at the unconstrained `position`.

        The covariates are those of a random record of `example`. The observations are
        drawn from the model.
        """
        choice, noise = jax.random.split(rng_key)
        row = jax.random.randint(choice, (), 0, _num_rows(self.example))
        record = jax.tree.map(lambda leaf: jnp.asarray(leaf)[row], self.example)
        return self.observe_anew(noise, position, record)

    def observe_anew(self, rng_key, position, record) -> dict[str, Any]:
        """The record with its observations drawn from the model at `position`."""
        if self.simulate_fn is not None:
            drawn = self.simulate_fn(rng_key, self.constrain(position), record)
            return _in_form(drawn, record, (), "simulate_fn")
        if self.score_nodes is not None:
            nodes, weights = self.given_nodes(position, record)
            chosen = jax.random.choice(rng_key, len(weights), p=weights)
            return jax.tree.map(lambda leaf: leaf[chosen], nodes)
        drawn = dict(record)
        keys = jax.random.split(rng_key, len(self.observed))
        for key, (site, name) in zip(keys, self.observed.items(), strict=True):
            # The law of a later site may read this observation, so the model runs once
            # for each site.
            rows = jax.tree.map(_as_row, drawn)
            value = self.trace(rows, position)[0][site]["fn"].sample(key)
            value = jnp.reshape(value, jnp.shape(record[name]))
            drawn[name] = value.astype(record[name].dtype)
        return drawn

    def given_nodes(self, position, record) -> tuple[dict[str, Any], jax.Array]:
        """What the user's `score_nodes` returns for one record.

        Returns
        -------
        The records that could have been observed, ``(K, ...)``, and their
        probabilities, ``(K,)``.
        """
        assert self.score_nodes is not None
        nodes, weights = self.score_nodes(self.constrain(position), record)
        return _in_form(nodes, record, weights.shape, "score_nodes"), weights


def center_and_unit(draws) -> tuple[np.ndarray, np.ndarray]:
    """Centre and unit of a prior, each ``(...)``, from draws ``(count, ...)``.

    The centre is the median. The unit is half of the distance between the quantiles
    .16 and .84, which is about the standard deviation if the prior is normal. Both
    exist for priors without moments, too.
    """
    low, center, high = np.quantile(draws, UNIT_QUANTILES, axis=0)
    return center, (high - low) / 2


def _in_form(found, record, leading: tuple[int, ...], source: str):
    """The arrays `found` that a function of the user returned, as dtypes of `record`.

    Parameters
    ----------
    found
        A dict of arrays.
    record
        The record that the function was given.
    leading
        Shape of the axes that each array must have before those of the record.
    source
        Name of the function, for the error.

    Raises
    ------
    ValueError
        If the names or shapes are others.
    """
    wanted = {name: (*leading, *jnp.shape(leaf)) for name, leaf in record.items()}
    shapes = {name: jnp.shape(leaf) for name, leaf in found.items()}
    if shapes != wanted:
        raise ValueError(
            f"{source} must return the record that it is given with other observations"
            f", by name in the shapes {wanted}, got {shapes}"
        )
    return {k: jnp.asarray(found[k]).astype(leaf.dtype) for k, leaf in record.items()}


def _as_row(leaf):
    return leaf[None]


def _num_rows(records):
    return jax.tree.leaves(records)[0].shape[0]


def _log_prob(site, plate_scale):
    log_prob = site["fn"].log_prob(site["value"])
    scale = site["scale"]
    return log_prob if scale is None else log_prob * (scale / plate_scale)


def _total(terms):
    """The sum of the entries of all terms; a float scalar even if there are none."""
    return sum((jnp.sum(term) for term in terms.values()), start=jnp.zeros(()))
