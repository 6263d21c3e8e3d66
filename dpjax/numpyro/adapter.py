"""`posterior` makes a `dpjax.Posterior` of a NumPyro model and its data."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import caller
from dpjax.compiled import evaluated
from dpjax.numpyro import refusals
from dpjax.numpyro.model import Model
from dpjax.numpyro.nodes import conditional_scores, informative
from dpjax.posterior import Posterior, check_numbers
from dpjax.release import on_disk
from dpjax.release.captured import check_functions

__all__ = ["ModelPosterior", "model_of", "posterior"]

NUM_MADE_UP = 16
"""Number of made-up records in an example, if the user gives none."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True, repr=False)
class ModelPosterior(Posterior):
    """A posterior together with its NumPyro model; see `posterior`."""

    model: Model = field(kw_only=True, metadata=dict(static=True))

    @property
    def example(self) -> dict[str, Any]:
        return self.model.example

    def prior_draws(self) -> dict[str, np.ndarray]:
        """A thousand draws from the prior, in the form that `constrain` returns.

        Leaves are ``(1, 1000, ...)``: one chain.
        """
        # The model keeps these draws, and may have made them while x64 was on.
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
        `dpjax.Posterior`. Without x64, JAX has no float64, so a memmap of float64 is
        read into memory.
    plate
        Name of the plate whose sites are the likelihood. All other sites are the prior.
    public
        The model's other arguments. They are not private.
    example
        Made-up records in the form of `data`, or of some of its arrays; two or more.
        They are not private. `dpjax.numpyro.sample` refuses records that were copied
        from the data where they are unmistakable, which rounded numbers such as ages
        are not. Their density must be finite. The arrays that the model does not
        generate, such as regressors, are the public design of
        `dpjax.numpyro.fisher_information`, so every group and level of the data should
        occur in them. Arrays that are not given are made up: floats are uniform in
        [0, 1), integers and booleans are zeros and ones. If the density is not finite
        then, the floats are zeros and ones too. The default is 16 records.
    tempering
        The power T in (0, 1] to which the likelihood is raised.
    simulate_fn
        ``(rng_key, latents, record) -> record``, for a model whose observations cannot
        be drawn site by site, such as one with a `numpyro.factor`. It returns a record
        with the covariates of the given one and with observations drawn from the model.
        `latents` is a dict of one draw of the latents, in the units of the model. A
        record is a dict of the arrays of `data` without their leading axis.
    score_nodes
        ``(latents, record) -> (records, weights)``, in place of `simulate_fn`. It
        returns a record for each of the K observations that are possible with the
        covariates of the given one, along a leading axis, and the probabilities of
        these observations, ``(K,)``.

    Returns
    -------
    ModelPosterior
        Positions are dicts of the latent sites' unconstrained values. Draws of
        `dpjax.run` are dicts of the latents in the units of the model, with those
        deterministic sites that read no data. `dataclasses.replace` changes the data
        without tracing the model again.

    Raises
    ------
    ValueError
        If an argument is not of this form; if the model's log density is not a prior
        plus a sum over records, or if this cannot be decided (see
        `dpjax.numpyro.refusals`); if the model holds records that are not its arguments
        (see `dpjax.release.captured`); or if the observations that `simulate_fn` or
        `score_nodes` returns do not follow the likelihood.
    TypeError
        If `data` is neither a mapping nor a data frame.

    Notes
    -----
    *Formal guarantees.* Only shapes and dtypes of `data` are read here, except that
    values which the model captured are compared with the data. The log-likelihood of a
    record is a function of that record, the position and public values alone. Values
    that the model captured from outside are treated as public: a warning names them.
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
    # The model may index a public array by data. JAX traces the data, and a NumPy array
    # cannot be indexed by a traced value.
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
    adapted = dataclasses.replace(adapted, observed=informative(adapted))
    if not adapted.observed:
        raise ValueError(
            f"no site inside plate {plate!r} has a law that reads a latent, so the "
            "records say nothing about the latents"
        )
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
    # A fit computes in the dtype of the array, so no record may decide this dtype.
    dtype = getattr(value, "dtype", None)
    if not (isinstance(value, jax.Array) or isinstance(dtype, np.dtype)):
        kind = type(value).__name__ if dtype is None else dtype
        raise ValueError(
            f"data[{name!r}] is of type {kind}, and one record could change the type "
            "of the array that is made of it: make an array of numbers of a type that "
            "you choose, such as np.asarray(values, float). Levels of a category are "
            "numbered by a public list of them, as dpjax.records.Schema does"
        )
    is_array = isinstance(value, jax.Array | np.ndarray)
    array = value if is_array else np.asarray(value)
    check_numbers(f"data[{name!r}]", array)
    return on_disk.array(array)


def model_of(posterior: Posterior) -> Model:
    """The model of a posterior.

    Raises
    ------
    ValueError
        If the posterior was not made by `posterior`.
    """
    if not isinstance(posterior, ModelPosterior):
        raise ValueError("the posterior must come from dpjax.numpyro.posterior")
    return posterior.model


def _made_up(data, given, only_integers=False):
    """An example: the arrays of `given`, and made-up numbers for all other arrays.

    Parameters
    ----------
    data
        Arrays by name, of which only shapes and dtypes are read.
    given
        Some of the arrays of the example, by name.
    only_integers
        Whether made-up numbers are zeros and ones even where the data are floats.

    Raises
    ------
    ValueError
        If `given` does not have the form of the data, or holds fewer than two records.
    """
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
        # Numbers are drawn for given arrays too, so that those of the other arrays do
        # not depend on which arrays are given.
        shape = (rows, *leaf.shape[1:])
        if jnp.issubdtype(leaf.dtype, jnp.floating) and not only_integers:
            drawn = rng.random(shape)
        else:
            drawn = rng.integers(0, 2, shape)
        return jnp.asarray(given.get(name, drawn)).astype(leaf.dtype)

    return {name: values(name, leaf) for name, leaf in data.items()}


def _look(model: Model):
    """Check the sites of the model, and return a public position near zero.

    The components of the unconstrained position are normal with sd 0.3.

    Raises
    ------
    ValueError
        As `dpjax.numpyro.refusals.traced` and `check_sites` do.
    """
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
    """``{site inside the plate: name of the array of the data that it observes}``.

    A site observes an array if its value is the value of that array in a made-up
    record, and it reads no other array. The name is None if there is no such array. The
    sites are in the order in which the model runs them. `reads` is what
    `dpjax.numpyro.refusals.dependencies` returns.
    """

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
