"""Scores of a record with other observations, for any NumPyro observation site.

The parameters of a site's law are a predictor phi(z, covariates) of few numbers. Their
Jacobian is taken once per record; it multiplies the scores d log p(y | phi) / d phi at
all nodes y. The nodes and their weights depend on the kind of the law:

- a finite support is enumerated, and weighted by its probabilities;
- counts have nodes on a lattice, whose steps grow where the law is wide;
- a scalar with a quantile function has the nodes y_k = icdf(Phi(t_k)), with weights
  proportional to phi(t_k), on the grid t_k = -5 + (k + U) 10 / K with U uniform. Where
  the quantile function has no closed form, y(t) is an approximation to it, with weights
  proportional to p(y) dy / dt;
- mixtures and zero-inflated laws have the nodes of their parts;
- otherwise observations are drawn anew, and the record's own is one more node.

The uniform shift U makes weighted sums unbiased for any function of the observation.
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
from jax.scipy.special import gammaln, log_ndtr, ndtr
from numpyro.distributions.discrete import HurdleProbs, ZeroInflatedProbs
from numpyro.distributions.mixtures import MixtureGeneral, MixtureSameFamily
from numpyro.ops.provenance import eval_provenance

from dpjax.fit.scores import Scores
from dpjax.numpyro.model import Model

__all__ = ["conditional_scores"]

NUM_NODES = 16
"""Nodes of a continuous law, and number of observations drawn anew."""

NUM_COUNTS = 32
"""Nodes of a law on counts."""

MAX_SUPPORT = 64
"""Largest number of joint observations that is enumerated."""

HALF_WIDTH = 5.0
"""Bound on |t|, in standard deviations of the normal law."""

COUNTS_WIDTH = 5.5
"""Bound on the normal deviates that the nodes of a law on counts cover."""

MIN_SHAPE = 4.0
"""Least shape for which the cube root of a gamma variable is about normal."""


@functools.lru_cache(maxsize=8)
def conditional_scores(model: Model) -> Callable[[Any, Any, jax.Array], Scores]:
    """``(position, record, rng_key) -> Scores`` of one record of a NumPyro model.

    Parameters
    ----------
    model
        Of a posterior that `dpjax.numpyro.posterior` returned.

    Returns
    -------
    Callable
        `record` is a dict without the leading axis, `rng_key` the record's own. The
        kind of the nodes depends on the sites of the model, never on a value.

    Raises
    ------
    ValueError
        If a site observes a function of the data, or is a factor.

    Notes
    -----
    *Formal guarantees.* The scores are a function of the record, the position, the key
    and public values alone.
    """
    laws = _laws(model, _origin(model), model.one_example)
    is_varied = _is_varied(model)
    joint = _joint_support(laws)
    spread = joint is None and _can_spread(laws)

    def scores_fn(position, record, rng_key):
        flat, unravel = ravel_pytree(position)
        rows = jax.tree.map(lambda leaf: leaf[None], record)

        def predictor(x):
            found = _laws(model, unravel(x), rows)
            leaves = jax.tree.leaves(found)
            chosen = [leaf for leaf, varied in zip(leaves, is_varied) if varied]
            return ravel_pytree(chosen)[0], found

        size = jax.eval_shape(predictor, flat)[0].size
        jacobian_of = jax.jacrev if size <= flat.size else jax.jacfwd
        jacobian, found = jacobian_of(predictor, has_aux=True)(flat)
        leaves, treedef = jax.tree.flatten(found)
        varied = [leaf for leaf, varied in zip(leaves, is_varied) if varied]
        phi, unravel_phi = ravel_pytree(varied)

        def score(values):
            def log_prob(phi):
                moved = iter(unravel_phi(phi))
                replaced = [
                    next(moved) if varied else leaf
                    for leaf, varied in zip(leaves, is_varied)
                ]
                return _log_prob(jax.tree.unflatten(treedef, replaced), values)

            return jax.grad(log_prob)(phi)

        observed = {name: law.value for name, law in found.items()}
        if joint is not None:
            values = joint
            log_weights = jax.vmap(lambda v: _log_prob(found, v, scaled=False))(joint)
            weights = jax.nn.softmax(log_weights)
        elif spread:
            (name, law) = next(iter(found.items()))
            nodes, weights = _spread(law.law, jax.random.uniform(rng_key))
            values = {name: nodes.reshape(-1, *law.law.shape())}
            weights = weights.reshape(-1)
        else:
            keys = jax.random.split(rng_key, len(found))
            values = {
                name: law.law.sample(key, (NUM_NODES,))
                for key, (name, law) in zip(keys, found.items())
            }
            values = _with(observed, values)
            weights = jnp.ones(NUM_NODES + 1, phi.dtype)
        scores = jax.vmap(score)(_with(observed, values))
        # Without this, a node of chance zero and score infinity would spoil the rest.
        usable = jnp.all(jnp.isfinite(scores), axis=1)
        scores = jnp.where(usable[:, None], scores, 0.0)
        weights = jnp.where(usable[1:], weights, 0.0).astype(scores.dtype)
        gradients = jnp.matmul(scores, jacobian, precision="highest")
        return Scores(gradients[0], gradients[1:], weights / jnp.sum(weights))

    return scores_fn


class _Law(NamedTuple):
    """The law of one site, what it observes, and the factor of its log density."""

    law: dist.Distribution
    value: jax.Array
    scale: Any


def _laws(model: Model, position, rows) -> dict[str, _Law]:
    sites, _, handler = model.trace(rows, position)
    return {
        name: _Law(
            sites[name]["fn"],
            sites[name]["value"],
            1.0
            if sites[name]["scale"] is None
            else sites[name]["scale"] / handler.scale,
        )
        for name in model.observed
    }


def _log_prob(found, values, scaled=True):
    """Log density of one joint observation."""
    return sum(
        jnp.sum(law.law.log_prob(values[name])) * (law.scale if scaled else 1.0)
        for name, law in found.items()
    )


def _with(observed, values):
    """The joint observations `values`, after the observed one."""
    return {
        name: jnp.concatenate(
            [
                jnp.broadcast_to(observed[name], more.shape[1:])[None].astype(
                    more.dtype
                ),
                more,
            ]
        )
        for name, more in values.items()
    }


def _origin(model: Model):
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), model.outline)


def _is_varied(model: Model) -> list[bool]:
    """Which leaves of the laws are parameters that depend on a latent."""

    def leaves(**inputs):
        position = inputs.pop("")
        return [
            jnp.asarray(leaf)
            for leaf in jax.tree.leaves(_laws(model, position, inputs))
        ]

    inputs = {"": _origin(model), **model.one_example}
    names = eval_provenance(leaves, **inputs)
    shapes = jax.eval_shape(lambda inputs: leaves(**inputs), inputs)
    return [
        "" in read and jnp.issubdtype(shape.dtype, jnp.inexact)
        for read, shape in zip(names, shapes)
    ]


def _core(law):
    """The law without masks, repetitions and regrouped dimensions."""
    while isinstance(
        law, dist.MaskedDistribution | dist.ExpandedDistribution | dist.Independent
    ):
        law = law.base_dist
    return law


def _support(law) -> np.ndarray | None:
    """Values of one entry of a law with a small finite support."""
    law = _core(law)
    if isinstance(law, ZeroInflatedProbs | HurdleProbs):
        inner = _support(law.base_dist)
        return None if inner is None else np.union1d(inner, [0])
    if isinstance(law, MixtureSameFamily):
        return _support(law.component_distribution)
    if not law.has_enumerate_support or law.event_shape:
        return None
    try:
        return np.unique(law.enumerate_support(expand=False))
    except NotImplementedError:
        return None


def _joint_support(laws):
    """All joint observations, ``{site: (K, ...)}``, if there are few of them."""
    supports = []
    for law in laws.values():
        values = _support(law.law)
        supports += [values] * math.prod(law.law.shape())
    if any(values is None for values in supports):
        return None
    if math.prod(len(values) for values in supports) > MAX_SUPPORT:
        return None
    table = np.stack([x.ravel() for x in np.meshgrid(*supports)], axis=1)
    ends = np.cumsum([math.prod(law.law.shape()) for law in laws.values()])
    columns = np.split(table, ends[:-1], axis=1)
    return {
        name: jnp.asarray(column.reshape(-1, *law.law.shape()))
        for (name, law), column in zip(laws.items(), columns)
    }


def _can_spread(laws) -> bool:
    """Whether there is one scalar observation whose law has nodes."""
    only = [law.law for law in laws.values()]
    if len(only) > 1 or math.prod(only[0].shape()) > 1 or _core(only[0]).event_shape:
        return False
    try:
        _spread(only[0], jnp.array(0.5))
    except NotImplementedError:
        return False
    return True


def _spread(law, shift):
    """Values ``(K, *batch_shape)`` of a scalar law and their weights."""
    if isinstance(law, dist.ExpandedDistribution):
        shape = law.batch_shape

        def expand(x):
            inner = x.reshape(len(x), *(1,) * (len(shape) + 1 - x.ndim), *x.shape[1:])
            return jnp.broadcast_to(inner, (len(x), *shape))

        return tuple(map(expand, _spread(law.base_dist, shift)))
    if isinstance(law, dist.MaskedDistribution | dist.Independent):
        return _spread(law.base_dist, shift)
    if isinstance(law, MixtureSameFamily):
        values, weights = _spread(law.component_distribution, shift)
        weights = weights * law.mixing_distribution.probs

        def merge(x):
            x = jnp.moveaxis(x, -1, 0)
            return x.reshape(-1, *x.shape[2:])

        return merge(values), merge(weights)
    if isinstance(law, MixtureGeneral):
        parts = [_spread(part, shift) for part in law.component_distributions]
        probs = jnp.moveaxis(law.mixing_distribution.probs, -1, 0)
        values = jnp.concatenate([values for values, _ in parts])
        weights = [chance * weights for chance, (_, weights) in zip(probs, parts)]
        return values, jnp.concatenate(weights)
    if isinstance(law, ZeroInflatedProbs | HurdleProbs):
        values, weights = _spread(law.base_dist, shift)
        if isinstance(law, HurdleProbs):
            weights = _normalised(jnp.where(values == 0, 0.0, weights))
        gate = jnp.broadcast_to(law.gate, law.batch_shape)[None]
        values = jnp.concatenate([jnp.zeros_like(values[:1]), values])
        return values, jnp.concatenate([gate, (1 - gate) * weights])
    if isinstance(law, dist.TransformedDistribution):
        values, weights = _spread(law.base_dist, shift)
        for transform in law.transforms:
            values = transform(values)
        return values, weights
    if law.support.is_discrete:
        return _spread_counts(law, shift)
    return _spread_reals(law, shift)


def _normalised(weights):
    return weights / jnp.sum(weights, axis=0)


def _spread_reals(law, shift):
    t = 2 * HALF_WIDTH * ((jnp.arange(NUM_NODES) + shift) / NUM_NODES - 0.5)
    t = t.reshape(-1, *(1,) * len(law.batch_shape))
    t = jnp.broadcast_to(t, (NUM_NODES, *law.batch_shape))
    for kind, quantile in QUANTILES.items():
        if isinstance(law, kind):
            values, slopes = jax.jvp(
                lambda t: quantile(law, t), (t,), (jnp.ones_like(t),)
            )
            weights = jnp.exp(law.log_prob(values)) * slopes
            return values, _normalised(jnp.where(jnp.isfinite(weights), weights, 0.0))
    return law.icdf(ndtr(t)), _normalised(jnp.exp(-(t**2) / 2))


def _log_gamma_quantile(shape, t):
    """About the logarithm of the gamma law's quantile at Phi(t).

    Wilson and Hilferty (1931) for large shapes, else the quantile of the law with the
    distribution function (1 - exp(-r y))^shape, whose lower tail is the gamma law's if
    r = Gamma(shape + 1)^(-1 / shape) (Gupta and Kundu 1999).
    """
    large = jnp.maximum(shape, MIN_SHAPE)
    root = 1 - 1 / (9 * large) + t / (3 * jnp.sqrt(large))
    small = jnp.minimum(shape, MIN_SHAPE)
    log_chance = log_ndtr(t) / small
    grown = jnp.log(-jnp.log(-jnp.expm1(log_chance)))
    return jnp.where(
        shape < MIN_SHAPE,
        grown + gammaln(small + 1) / small,
        jnp.log(large) + 3 * jnp.log(root),
    )


def _gamma(law, t):
    return jnp.exp(_log_gamma_quantile(law.concentration, t)) / law.rate


def _beta(law, t):
    """A quotient of gamma quantiles; it spreads wider than the law."""
    one = _log_gamma_quantile(law.concentration1, t)
    zero = _log_gamma_quantile(law.concentration0, -t)
    return jax.nn.sigmoid(one - zero)


def _student(law, t):
    """Wallace (1959), equation 1.2: a bounded number of sds from the quantile."""
    t = t * (8 * law.df + 3) / (8 * law.df + 1)
    return law.loc + law.scale * t * jnp.sqrt(jnp.expm1(t**2 / law.df) * law.df / t**2)


def _weibull(law, t):
    return law.scale * (-log_ndtr(-t)) ** (1 / law.concentration)


QUANTILES = {
    dist.Gamma: _gamma,
    dist.Beta: _beta,
    dist.StudentT: _student,
    dist.Weibull: _weibull,
}
"""``{law: (law, t) -> y}``: about the quantile at Phi(t), smooth and increasing in t."""


def _spread_counts(law, shift):
    """Nodes floor(y(s)), s = 0, ..., K - 1 plus the shift, with weights p(y) y'(s).

    The steps are 1 up to y_0 and then (a s + b)^3, as the cube roots of counts are
    about normal.
    """
    mean, sd = law.mean, jnp.sqrt(law.variance)

    def quantile(t):
        spread = sd / mean
        return mean * jnp.maximum(1 - spread**2 / 9 + spread * t / 3, 0.0) ** 3

    lower, upper = jnp.floor(quantile(-COUNTS_WIDTH)), quantile(COUNTS_WIDTH)
    rate = 2 * COUNTS_WIDTH / NUM_COUNTS * sd / (3 * mean ** (2 / 3))
    turn = jnp.maximum((3 * rate) ** -1.5, lower)
    turn = jnp.where(upper - lower < NUM_COUNTS, lower + NUM_COUNTS, turn)
    s = jnp.arange(NUM_COUNTS).reshape(-1, *(1,) * len(law.batch_shape)) + shift
    beyond = jnp.cbrt(turn) + rate * jnp.maximum(s - (turn - lower), 0.0)
    is_unit = s < turn - lower
    values = jnp.floor(jnp.where(is_unit, lower + s, beyond**3))
    steps = jnp.where(is_unit, 1.0, 3 * rate * beyond**2)
    weights = jnp.where(law.support(values), jnp.exp(law.log_prob(values)) * steps, 0.0)
    return values, _normalised(weights)
