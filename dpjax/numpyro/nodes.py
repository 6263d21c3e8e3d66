"""Scores of a record as observed and with other observations, for NumPyro models.

A score is the gradient of a record's log-likelihood. A *node* is an observation y that
the record could have had, given its covariates. `conditional_scores` computes the
scores of a record at all of its nodes.

The parameters of the observation sites' laws are a predictor phi(z, covariates) of few
numbers. The Jacobian of phi is computed once per record. It multiplies the scores
d log p(y | phi) / d phi at all nodes y. The nodes depend on the sites of the model:

- If few joint observations are possible, all of them are nodes, weighted by their
  probabilities.
- If there is one scalar observation, the nodes are those of a quadrature rule
  (`dpjax.numpyro.quadrature`).
- Otherwise the nodes are K observations that are drawn anew, and the record's own
  observation. Under the model these are exchangeable.

If the law of one observation depends on another observation, or the user gives a
``simulate_fn``, the nodes are whole records that are drawn anew, and the record itself.
If the user gives ``score_nodes``, it returns the nodes.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.flatten_util import ravel_pytree
from numpyro.ops.provenance import eval_provenance

from dpjax.compiled import evaluated
from dpjax.fit.scores import (
    MAX_MEAN,
    MOVING_END,
    NUM_CHECKS,
    NUM_REDRAWS,
    Scores,
    redrawn_scores,
    scores_of,
)
from dpjax.numpyro.model import Model, center_and_unit
from dpjax.numpyro.quadrature import core, spread, support
from dpjax.numpyro.refusals import OVERFLOW

__all__ = [
    "are_redrawn",
    "check_drawable",
    "conditional_scores",
    "generated",
    "kept_information",
]

MAX_SUPPORT = 64
"""Largest number of possible joint observations for which all of them are nodes."""

MAX_DEVIATION = 6.0
"""If the nodes are drawn anew, a model is refused only if the mean of the scores under
the model exceeds this multiple of about its standard error, besides `MAX_MEAN`."""

MAX_WEIGHT_ERROR = 1e-3
"""The largest deviation of a record's sum of weights from one."""


@functools.lru_cache(maxsize=8)
def conditional_scores(
    model: Model, num_redraws: int = NUM_REDRAWS
) -> Callable[[Any, Any, jax.Array], Scores]:
    """``(position, record, rng_key) -> Scores`` of one record of a NumPyro model.

    Parameters
    ----------
    model
        The model of a posterior that `dpjax.numpyro.posterior` returned.
    num_redraws
        K, the number of observations that are drawn anew, if the nodes are of this
        kind.

    Returns
    -------
    Callable
        `record` is a dict of arrays without the leading axis, and `rng_key` is a key
        for this record alone. The kind of the nodes depends on the sites of the model,
        never on a value.

    Raises
    ------
    ValueError
        If observations cannot be drawn from the model (`check_drawable`); if
        `simulate_fn` returns other covariates; or if, at made-up positions and
        covariates, the weights of the nodes do not sum to one or the scores do not have
        mean zero.

    Notes
    -----
    *Formal guarantees.* The scores are a function of the record, the position, the key
    and public values alone.
    """
    scores_fn, is_exchangeable = _checked_scores(model)
    if is_exchangeable:
        scores_fn = functools.partial(scores_fn, num_redraws=num_redraws)
    # A fit calls this function in many places, and JAX traces it once in a call of
    # `dpjax.numpyro.sample` (`dpjax.compiled.one_call`).
    return jax.jit(scores_fn)


def are_redrawn(model: Model) -> bool:
    """Whether the nodes of `conditional_scores` are observations drawn anew.

    Then the first node is the record's own observation.
    """
    return _checked_scores(model)[1]


def kept_information(model: Model) -> float:
    """Share of a record's information that its `conditional_scores` keep.

    If K observations are drawn anew, the score is centred at the mean of itself and of
    the K scores of these. The variance and the slope of the centred score are
    K / (K + 1) of those of the score. Otherwise the share is 1.
    """
    return NUM_REDRAWS / (NUM_REDRAWS + 1) if are_redrawn(model) else 1.0


@functools.lru_cache(maxsize=8)
def _checked_scores(model: Model) -> tuple[Callable, bool]:
    """The checked function of `conditional_scores`, and the answer of `are_redrawn`."""
    scores_fn, is_exchangeable = _scores_fn(model)
    if model.simulate_fn is not None:
        _check_covariates(model)
    _check_centred(model, scores_fn, is_exchangeable)
    return scores_fn, is_exchangeable


def _scores_fn(model: Model) -> tuple[Callable, bool]:
    if model.score_nodes is not None:
        return functools.partial(_given, model), False
    if model.simulate_fn is not None:
        return redrawn_scores(model.loglikelihood, model.observe_anew), True
    check_drawable(model)
    reads = _reads(model)
    if any(_names(law) & {*model.observed.values()} for law in reads.values()):
        # The law of one observation depends on another one.
        return redrawn_scores(model.loglikelihood, model.observe_anew), True
    with jax.ensure_compile_time_eval():
        laws = _laws(model, _origin(model), model.one_example)
        everything = _everything(laws, reads)
    names, leaves = _leaf_names(laws), jax.tree.leaves(laws)
    varied = [
        i
        for i, read in enumerate(jax.tree.leaves(reads))
        if "" in read and jnp.issubdtype(jnp.result_type(leaves[i]), jnp.inexact)
    ]
    varied.sort(key=names.__getitem__)
    if everything is not None:
        nodes_fn = functools.partial(_enumerated, everything)
    elif _has_nodes(laws):
        nodes_fn = _one_scalar
    else:
        nodes_fn = _drawn
    by_chain_rule = functools.partial(_by_chain_rule, model, varied, nodes_fn)
    return by_chain_rule, nodes_fn is _drawn


def _given(model, position, record, rng_key) -> Scores:
    others, weights = model.given_nodes(position, record)
    return scores_of(model.loglikelihood, position, record, others, weights)


def _by_chain_rule(
    model,
    varied,
    nodes_fn: Callable[..., tuple[dict, jax.Array]],
    position,
    record,
    rng_key,
    num_redraws=NUM_REDRAWS,
) -> Scores:
    """The scores of a record, by the chain rule through the parameters of its laws.

    varied
        Indices of the leaves of the laws that depend on a latent, in the order in which
        they are concatenated to phi.
    nodes_fn
        ``(laws, rng_key, num_redraws) -> (values, weights)``. `values` are the K nodes,
        arrays ``(K, ...)`` by site, and `weights` are ``(K,)``. If observations are
        drawn anew, there is one more weight, for the record's own observation.
    """
    flat, unravel = ravel_pytree(position)
    rows = jax.tree.map(lambda leaf: leaf[None], record)

    def parameters(laws):
        leaves = jax.tree.leaves(laws)
        return [leaves[i] for i in varied]

    def predictor(x):
        laws = _laws(model, unravel(x), rows)
        return ravel_pytree(parameters(laws))[0], laws

    size = jax.eval_shape(lambda x: predictor(x)[0], flat).size
    is_reverse = size <= flat.size or not model.has_forward_mode
    jacobian_of = jax.jacrev if is_reverse else jax.jacfwd
    jacobian, laws = jacobian_of(predictor, has_aux=True)(flat)
    leaves, treedef = jax.tree.flatten(laws)
    phi, unravel_phi = ravel_pytree(parameters(laws))

    def log_prob(phi, values):
        replaced = list(leaves)
        for i, leaf in zip(varied, unravel_phi(phi), strict=True):
            replaced[i] = leaf
        return _log_prob(jax.tree.unflatten(treedef, replaced), values)

    values, weights = nodes_fn(laws, rng_key, num_redraws)
    all_values = _after_observed(laws, values)
    scores: jax.Array = jax.vmap(jax.grad(log_prob), (None, 0))(phi, all_values)
    # The score at a node of probability zero may not be finite.
    usable = jnp.all(jnp.isfinite(scores), axis=1)
    scores = jnp.where(usable[:, None], scores, 0.0)
    if size > flat.size:
        scores = jnp.matmul(scores, jacobian, precision="highest")
        jacobian = jnp.eye(flat.size, dtype=flat.dtype)
    weights = jnp.where(usable[-len(weights) :], weights, 0.0).astype(scores.dtype)
    weights = weights / jnp.sum(weights)
    return Scores(scores[0], scores[-len(weights) :], weights, jacobian)


def _enumerated(everything, laws, rng_key, num_redraws):
    log_weights = jax.vmap(lambda values: _log_prob(laws, values, False))(everything)
    return everything, jax.nn.softmax(log_weights)


def _one_scalar(laws, rng_key, num_redraws):
    ((name, (law, _, _)),) = laws.items()
    values, weights = spread(law, jax.random.uniform(rng_key))
    return {name: values.reshape(-1, *law.shape())}, weights.reshape(-1)


def _drawn(laws, rng_key, num_redraws):
    """Observations drawn anew, and equal weights for these and the observed one."""
    keys = jax.random.split(rng_key, len(laws))
    draws = {
        name: law.sample(key, (num_redraws,))
        for key, (name, (law, _, _)) in zip(keys, laws.items(), strict=True)
    }
    return draws, jnp.ones(num_redraws + 1)


class _Law(NamedTuple):
    """The law of one site, the value it observes, and the factor of its log density.

    The factor is that of the user's `numpyro.handlers.scale`.
    """

    law: dist.Distribution
    value: jax.Array
    scale: Any


def _laws(model: Model, position, rows) -> dict[str, _Law]:
    sites, _, handler = model.trace(rows, position)
    chosen = {name: sites[name] for name in model.observed}
    return {
        name: _Law(
            site["fn"],
            site["value"],
            1.0 if site["scale"] is None else site["scale"] / handler.scale,
        )
        for name, site in chosen.items()
    }


def _leaf_names(tree, name: str = "") -> list[str]:
    """A name for each of `jax.tree.leaves`, which do not depend on the process.

    NumPyro orders the parameters of a distribution differently in different processes.
    Parameters that are sorted by these names have the same order in all processes, so
    that the program of a fit is the same and a run can go on in another process.
    """
    if isinstance(tree, dist.Distribution):
        children, _ = jax.tree_util.default_registry.flatten_one_level(tree)
        fields = map(str, range(len(children)))
        if type(tree).tree_flatten is dist.Distribution.tree_flatten:
            fields = type(tree).gather_pytree_data_fields()
        named = zip(fields, children, strict=True)
        parts = [(f"{name}.{field}", child) for field, child in named]
    else:
        pairs = jax.tree_util.tree_leaves_with_path(
            tree, is_leaf=lambda node: isinstance(node, dist.Distribution)
        )
        parts = [(name + jax.tree_util.keystr(path), node) for path, node in pairs]
        if [path for path, _ in pairs] == [()]:
            return [name]
    return [leaf for part, node in parts for leaf in _leaf_names(node, part)]


def _log_prob(laws, values, is_scaled=True):
    """Log density of one joint observation, `values` by site."""
    terms = [
        jnp.sum(law.log_prob(values[name]) * (scale if is_scaled else 1.0))
        for name, (law, _, scale) in laws.items()
    ]
    return jnp.sum(jnp.stack(terms))


def _after_observed(laws, values):
    """The observed value of each site, and then the `values`, ``(1 + K, ...)``."""
    return {
        name: jnp.concatenate(
            [laws[name].value.reshape(x[:1].shape).astype(x.dtype), x]
        )
        for name, x in values.items()
    }


def _origin(model: Model):
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), model.outline)


def _reads(model: Model) -> dict[str, Any]:
    """`_laws`, where each leaf is replaced by the names of the data that it reads.

    The name of the latents is "".
    """

    def laws(**inputs):
        position = inputs.pop("")
        return _laws(model, position, inputs)

    return eval_provenance(laws, **{"": _origin(model), **model.one_example})


def _names(law: _Law) -> frozenset[str]:
    """Names of the data that the parameters and the factor of a law read.

    `law` is one of `_reads`.
    """
    return frozenset().union(*jax.tree.leaves((law.law, law.scale)))


@functools.lru_cache(maxsize=8)
def check_drawable(model: Model) -> None:
    """Refuse a model whose observations cannot be drawn site by site.

    A model with a ``simulate_fn`` or ``score_nodes`` is not refused.

    Raises
    ------
    ValueError
        If a site observes a function of the data or is a factor; if its law reads its
        own observation or that of a later site; or if two sites observe the same array.
    """
    if model.simulate_fn is not None or model.score_nodes is not None:
        return
    advice = (
        "its observations cannot be drawn: pass simulate_fn= or score_nodes= to "
        "dpjax.numpyro.posterior"
    )
    reads, missing = _reads(model), [*model.observed.values()]
    for site, name in model.observed.items():
        if name is None:
            raise ValueError(
                f"site {site!r} observes a function of the data, or is a factor: "
                + advice
            )
        if _names(reads[site]) & {*missing} or missing.count(name) > 1:
            raise ValueError(
                f"site {site!r} reads what it or a later site observes: {advice}. If "
                "it reads which observations are missing, let that be an array of its "
                "own in data, and fill them before the model is called"
            )
        missing.remove(name)


def informative(model: Model) -> dict[str, str | None]:
    """`Model.observed`, without the sites whose law reads no latent.

    They say nothing about the latents, whatever law the data have. So what they observe
    counts as covariates, and is not drawn anew.
    """
    reads = _reads(model)
    return {k: v for k, v in model.observed.items() if "" in _names(reads[k])}


def generated(model: Model) -> frozenset[str]:
    """Names of the data that the model generates; the others are covariates."""
    if model.simulate_fn is None and model.score_nodes is None:
        return frozenset(name for name in model.observed.values() if name is not None)
    return frozenset(
        k for k, names in _reads_of_function(model).items() if names != {k}
    )


def _reads_of_function(model: Model) -> dict[str, frozenset[str]]:
    """Names of the data that each array of a `simulate_fn` or `score_nodes` reads.

    The name of the latents is "".
    """

    def draw(**inputs):
        position = inputs.pop("")
        if model.score_nodes is not None:
            # A node that is drawn depends on the latents through the weights, with all
            # of its arrays.
            return model.given_nodes(position, inputs)[0]
        return model.observe_anew(jax.random.key(0), position, inputs)

    record = jax.tree.map(lambda leaf: leaf[0], model.example)
    return eval_provenance(draw, **{"": _origin(model), **record})


def _check_covariates(model: Model) -> None:
    """Refuse a `simulate_fn` that returns other covariates than those of the record.

    Fits would take the law of these covariates for their law in the data.
    """
    rows = len(jax.tree.leaves(model.example)[0])

    def draw(position, records):
        keys = jax.random.split(jax.random.key(3), rows)
        return jax.vmap(model.observe_anew, (0, None, 0))(keys, position, records)

    found = evaluated(draw, _origin(model), model.example)
    for name, names in _reads_of_function(model).items():
        is_same = np.array_equal(found[name], model.example[name], equal_nan=True)
        if "" not in names and not is_same:
            raise ValueError(
                f"simulate_fn changes {name!r}, which no latent explains: return the "
                "values of the record, which are then its covariates"
            )


def _check_centred(model: Model, scores_fn, is_exchangeable: bool) -> None:
    """Refuse scores that do not have mean zero at made-up positions and covariates.

    Under the model, the weighted mean of the scores at the nodes is zero. Of nodes that
    are drawn anew, only those count that are not the record's own observation. Also
    refused are weights that do not sum to one.
    """
    rows = len(jax.tree.leaves(model.example)[0])
    rng = np.random.default_rng(2)

    def near_zero(draws):
        """`NUM_CHECKS` normal positions about zero, with .3 of the prior's unit as sd.

        Units above one count as one. A small unit is that of a coefficient of a
        covariate in large numbers, such as years.
        """
        unit = np.nan_to_num(np.minimum(center_and_unit(draws)[1], 1.0), nan=1.0)
        normal = rng.standard_normal((NUM_CHECKS, *unit.shape))
        return np.asarray(0.3 * unit * normal, draws.dtype)

    positions = jax.tree.map(near_zero, model.prior_draws)

    def moments(position, record, rng_key):
        scores = scores_fn(position, record, rng_key)
        (observed, nodes), weights = scores.gradients(), scores.weights
        mean, square = weights @ nodes, weights @ nodes**2
        if is_exchangeable:
            count = len(weights)
            mean = (count * mean - observed) / (count - 1)
            square = (count * square - observed**2) / (count - 1)
        return mean, jnp.maximum(square, observed**2), jnp.sum(weights)

    def everywhere(positions, example, seed):
        over_rows = jax.vmap(moments, (None, 0, 0))
        keys = jax.random.split(jax.random.key(seed), (NUM_CHECKS, rows))
        return jax.vmap(over_rows, (0, None, 0))(positions, example, keys)

    found = evaluated(everywhere, positions, model.example, np.uint32(0))
    means, squares, totals = (np.asarray(part, np.float64) for part in found)
    if not np.all(np.abs(totals - 1) <= MAX_WEIGHT_ERROR):
        if model.score_nodes is not None:
            raise ValueError("the weights of score_nodes do not sum to one")
        raise ValueError(
            "the probabilities of the observations that made-up records could have are "
            f"not finite: {OVERFLOW}"
        )
    size = np.sqrt(np.mean(squares, axis=(0, 1)))
    noise = MAX_DEVIATION / math.sqrt(NUM_CHECKS * rows * NUM_REDRAWS)
    bound = max(MAX_MEAN, noise if is_exchangeable else 0.0) * size
    if not np.all(np.abs(np.mean(means, axis=(0, 1))) <= bound + 1e-30):
        source = "the sites of the model"
        if model.simulate_fn is not None or model.score_nodes is not None:
            source = "simulate_fn" if model.simulate_fn is not None else "score_nodes"
        raise ValueError(
            f"observations drawn by {source} do not follow the likelihood: the "
            "gradients of the log-likelihoods of made-up records do not have mean "
            "zero. Draw a record's observations given its covariates from the law "
            "whose density the model computes; a censoring time is a covariate, and "
            "whether it came first is drawn, by the simulate_fn= of "
            f"dpjax.numpyro.posterior. {MOVING_END}. If none of this is the cause, "
            f"{OVERFLOW}"
        )


def _everything(laws, reads):
    """All possible joint observations, ``{site: (K, ...)}``.

    They are None if there are more than `MAX_SUPPORT`, or if the support of a site is
    not finite. They are also None if a parameter of a law reads data and no latent,
    such as a number of trials, because the support may then differ between records.
    """
    supports = []
    for name, (law, _, _) in laws.items():
        parameters = jax.tree.leaves(core(reads[name].law))
        if any(names and "" not in names for names in parameters):
            return None
        supports += [support(law)] * math.prod(law.shape())
    if any(values is None for values in supports):
        return None
    if math.prod(len(values) for values in supports) > MAX_SUPPORT:
        return None
    table = np.stack([axis.ravel() for axis in np.meshgrid(*supports)], axis=1)
    found, start = {}, 0
    for name, (law, _, _) in laws.items():
        stop = start + math.prod(law.shape())
        found[name] = table[:, start:stop].reshape(-1, *law.shape())
        start = stop
    return found


def _has_nodes(laws) -> bool:
    """Whether there is one scalar observation whose law has nodes."""
    (law, _, _), *others = laws.values()
    if others or math.prod(law.shape()) > 1 or core(law).event_shape:
        return False
    try:
        jax.eval_shape(functools.partial(spread, law), 0.5)
    # Some quantile functions of NumPyro need a library that may not be installed.
    except (NotImplementedError, ImportError):
        return False
    return True
