"""From a NumPyro model to a `dpjax.Posterior`."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import caller
from dpjax.fit.compiled import evaluated
from dpjax.numpyro import refusals
from dpjax.numpyro.model import Model
from dpjax.numpyro.nodes import conditional_scores
from dpjax.posterior import Posterior, check_numbers
from dpjax.release import on_disk
from dpjax.release.captured import check_functions

__all__ = ["ModelPosterior", "model_of", "posterior"]

NUM_MADE_UP = 16
"""Number of records that are made up to trace a model."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True, repr=False)
class ModelPosterior(Posterior):
    """A posterior together with its NumPyro model; see `posterior`."""

    model: Model = field(kw_only=True, metadata=dict(static=True))

    def prior_draws(self) -> dict[str, np.ndarray]:
        """A thousand draws from the prior, as `constrain` returns them."""
        # They may have been drawn in 64 bits.
        draws = jax.tree.map(
            lambda leaf: np.asarray(leaf, jnp.result_type(float))[None],
            self.model.prior_draws,
        )
        return self.constrain(draws)


def posterior(
    model: Callable,
    data: Mapping[str, Any],
    *,
    plate: str,
    public: Mapping[str, Any] | None = None,
    example: Mapping[str, Any] | None = None,
    tempering: float = 1.0,
    simulate_fn: Callable | None = None,
    score_nodes: Callable | None = None,
) -> ModelPosterior:
    """The posterior of a NumPyro model whose records lie in one plate.

    Parameters
    ----------
    model
        Called as ``model(**data, **public)`` with one record at a time: the arrays of
        `data` then have one entry along their leading axis. The ``subsample_size`` of
        its plates is ignored, with a warning.
    data
        Arrays of shape ``(n, ...)`` by the names of the model's arguments, with the
        records along the leading axis, or a pandas data frame. One record is the unit
        of privacy. A `numpy.memmap` of a type that JAX has stays on disk, as in
        `dpjax.Posterior`; float64 is none unless x64 is on, and is read into memory.
    plate
        Name of the plate whose sites are the likelihood. All other sites are the prior.
    public
        The model's other arguments. They are not private.
    example
        Made-up records in the form of `data`, or of some of its arrays. They are not
        private, so `dpjax.numpyro.sample` refuses records of the data, and their
        density must be finite. What the model does not generate, such as regressors,
        has their values as the public design of `dpjax.numpyro.fisher_information`,
        in which every group and level of the data should occur. Default: 16 records of
        uniform numbers in [0, 1). Zeros and ones stand for integers, and for all
        numbers if the model has no finite density otherwise.
    tempering
        The power T in (0, 1] to which the likelihood is raised.
    simulate_fn
        ``(rng_key, latents, record) -> record``, for a model whose observations cannot
        be drawn site by site, such as one with a `numpyro.factor`: a record with the
        covariates of the given one, and with observations drawn from the model.
        `latents` are those of one draw, in the units of the model. A record is a dict
        of the arrays of `data` without their leading axis.
    score_nodes
        ``(latents, record) -> (records, weights)``, in place of `simulate_fn`: all that
        could have been observed, K records along a leading axis, and their
        probabilities, ``(K,)``.

    Returns
    -------
    ModelPosterior
        Positions are dicts of the latent sites' unconstrained values. Draws of
        `dpjax.run` are dicts of the latents in the units of the model, with those
        deterministic sites that read no data. `dataclasses.replace` swaps the data
        without tracing the model again.

    Raises
    ------
    ValueError
        If the model's log density is not a prior plus a sum over records, or if this
        cannot be decided: see `dpjax.numpyro.refusals`; or if the model holds records
        other than as its arguments: see `dpjax.release.captured`; or if what
        `simulate_fn` or `score_nodes` makes up does not follow the likelihood.

    Notes
    -----
    *Formal guarantees.* Only shapes and types of `data` are read here, except that
    values which the model captured are compared with the data. The
    log-likelihood of a record is a function of that record, the position and public
    values alone. Values that the model captured from outside are treated as public: a
    warning names them.
    """
    public, given = ({} if each is None else dict(each) for each in (public, example))
    if not hasattr(data, "items"):
        raise TypeError(
            "data must be a dict of arrays by the names of the model's arguments, or a "
            f"data frame, got {type(data).__name__}"
        )
    if both := set(data) & set(public):
        raise ValueError(f"{sorted(both)} are in data and in public; choose one")
    if not all(isinstance(name, str) and name for name in (*data, *public)):
        raise ValueError("data and public are named by the arguments of the model")
    if simulate_fn is not None and score_nodes is not None:
        raise ValueError("simulate_fn and score_nodes do the same: pass one of them")
    if not len(data):
        raise ValueError("data holds no arrays: name those of the model's arguments")
    arrays = {name: _as_array(name, value) for name, value in data.items()}
    # A NumPy array cannot be indexed by rows that are traced.
    constants = jax.tree.map(
        lambda leaf: jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf, public
    )
    unspecified = frozenset(arrays) - frozenset(given)
    adapted = Model(
        model,
        plate,
        constants,
        _made_up(arrays, given),
        unspecified,
        simulate_fn=simulate_fn,
        score_nodes=score_nodes,
    )
    for function in filter(None, (model, simulate_fn, score_nodes)):
        refusals.warn_of_captured(function)
    position = _look(adapted)
    if not refusals.is_finite(adapted, position):
        example = _made_up(arrays, given, only_integers=True)
        adapted = dataclasses.replace(adapted, example=example)
    reads = refusals.dependencies(adapted, position)
    refusals.check_dependencies(adapted, reads)
    refusals.check_numbers(adapted, position)
    observed = _observed(adapted, position, reads)
    kept = tuple(site for site, names in reads["deterministics"].items() if not names)
    adapted = dataclasses.replace(adapted, observed=observed, deterministics=kept)
    posterior = ModelPosterior(
        adapted.logprior,
        adapted.loglikelihood,
        arrays,
        tempering,
        adapted.constrain,
        public=(constants, adapted.example),
        model=adapted,
    )
    check_functions(posterior, jax.tree.map(lambda leaf: leaf[None], position))
    if simulate_fn is not None or score_nodes is not None:
        conditional_scores(adapted)
    return posterior


def _as_array(name: str, value) -> jax.Array | np.memmap:
    # The type of an array decides what a fit computes, so no record may decide it.
    dtype = getattr(value, "dtype", None)
    if not (isinstance(value, jax.Array) or isinstance(dtype, np.dtype)):
        kind = type(value).__name__ if dtype is None else dtype
        raise ValueError(
            f"data[{name!r}] is of type {kind}, and one record could change the type "
            "of the array that is made of it: make an array of numbers of a type that "
            "you choose, such as np.asarray(values, float)"
        )
    is_array = isinstance(value, jax.Array | np.memmap)
    array = value if is_array else np.asarray(value)
    check_numbers(f"data[{name!r}]", array)
    return on_disk.array(array)


def model_of(posterior: Posterior) -> Model:
    """The model of a posterior that `posterior` returned.

    Raises
    ------
    ValueError
        If the posterior is another one.
    """
    if not isinstance(posterior, ModelPosterior):
        raise ValueError("the posterior must come from dpjax.numpyro.posterior")
    return posterior.model


def _made_up(data, given, only_integers=False):
    """The records `given`, in the types of the data; other arrays are drawn."""
    shapes = {name: leaf.shape[1:] for name, leaf in data.items()}
    given_shapes = {name: np.shape(value)[1:] for name, value in given.items()}
    counts = {(*np.shape(value), 0)[0] for value in given.values()} or {NUM_MADE_UP}
    if len(counts) > 1 or min(counts) < 2 or not given_shapes.items() <= shapes.items():
        raise ValueError(
            "example must hold two or more records in the form of data, "
            f"{shapes} by name, got {given_shapes}"
        )
    rng, (rows,) = np.random.default_rng(0), counts

    def values(name, leaf):
        # Names that are given advance the generator as well.
        shape = (rows, *leaf.shape[1:])
        if jnp.issubdtype(leaf.dtype, jnp.floating) and not only_integers:
            drawn = rng.random(shape)
        else:
            drawn = rng.integers(0, 2, shape)
        return jnp.asarray(given.get(name, drawn)).astype(leaf.dtype)

    return {name: values(name, leaf) for name, leaf in data.items()}


def _look(model: Model):
    """Check the sites of the model; return a position somewhere in its prior."""
    seen = {}

    def look(records, rng_key):
        seen["sites"], _, seen["rows"] = model.trace(records, rng_key=rng_key)

    refusals.traced(look, model.one_example, jax.random.key(0))
    refusals.check_sites(model, **seen)
    if seen["rows"].subsamples:
        caller.warn(
            f"subsample_size of plate {model.plate!r} is ignored: samplers of dpjax "
            "draw their own batches"
        )
    rng = np.random.default_rng(1)
    return jax.tree.map(
        lambda leaf: jnp.asarray(0.3 * rng.standard_normal(leaf.shape), leaf.dtype),
        model.outline,
    )


def _observed(model: Model, position, reads):
    """``{site inside the plate: name of the data that it observes, or None}``."""

    order = []

    def values(records):
        sites, _, _ = model.trace(records, position)
        order.extend(sites)
        return {name: sites[name]["value"] for name in reads["inside"]}

    def name_of(site, value):
        for name in reads["values"][site]:
            if np.array_equal(np.ravel(value), np.ravel(model.one_example[name])):
                return name if len(reads["values"][site]) == 1 else None
        return None

    found = evaluated(values, model.one_example)
    return {name: name_of(name, found[name]) for name in order if name in found}
