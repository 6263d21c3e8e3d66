"""Quadrature rules for the law of a scalar observation: nodes y and their weights.

- If the support is small and finite, `support` lists it.
- A law on counts has the nodes floor(y(s)) for an increasing function y, where s is a
  start plus 0 + U, ..., K - 1 + U. The weights are proportional to p(y) y'(s). If the
  law is narrow, y' is one, so that the nodes are successive counts.
- A law on the reals has the nodes y(t), with weights proportional to p(y) y'(t), where
  t = -5 + 10 (k + U) / K for k = 0, ..., K - 1, and y(t) is about the quantile at
  Phi(t). For laws that are not in `QUANTILES`, y(t) is NumPyro's quantile icdf(Phi(t)),
  and the weights are proportional to phi(t).
- Mixtures and zero-inflated laws have the nodes of all of their parts.

U is uniform on [0, 1). Then a weighted sum of a function's values is an unbiased
estimate of its expectation, except for the normalisation of the weights and for the
tails beyond the nodes.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.special import gammaln, log_ndtr, ndtr
from numpyro.distributions.discrete import HurdleProbs, ZeroInflatedProbs
from numpyro.distributions.mixtures import MixtureGeneral, MixtureSameFamily

__all__ = ["core", "innermost", "spread", "support"]

NUM_NODES, HALF_WIDTH = 16, 5.0
"""K, the number of nodes of a law on the reals, and the bound on |t|."""

NUM_COUNTS, COUNTS_WIDTH, GROWTH = 32, 4.5, 0.4
"""Of a law on counts: K, the number of nodes; the range of the nodes, in standard
deviations of the cube root of the count from its centre; and g, the largest step from a
node to the next one, over the count at the node."""

MIN_ROOT_STEP = 1e-6
"""Step a of the cube root of a count if all counts in the range are nodes."""

MIN_MEAN = 1e-6
"""Least mean of a law on counts with which its nodes are computed."""

MIN_SHAPE = 4.0
"""Least shape of a gamma law whose cube root is taken to be normal."""


def core(law) -> Any:
    """The law inside wrappers that mask it, expand it, or reinterpret its axes."""
    while isinstance(
        law, dist.MaskedDistribution | dist.ExpandedDistribution | dist.Independent
    ):
        law = law.base_dist
    return law


def innermost(law) -> Any:
    """The law that a law is built on, also inside transforms and truncations."""
    while hasattr(law, "base_dist"):
        law = law.base_dist
    return law


def support(law) -> np.ndarray | None:
    """The values that one entry of a law can have, sorted; None if not enumerable."""
    law = core(law)
    if isinstance(law, ZeroInflatedProbs | HurdleProbs):
        inner = support(law.base_dist)
        return None if inner is None else np.union1d(inner, np.zeros(1, inner.dtype))
    if isinstance(law, MixtureSameFamily):
        return support(law.component_distribution)
    if isinstance(law, MixtureGeneral):
        values = []
        for part in law.component_distributions:
            found = support(part)
            if found is None:
                return None
            values.append(found)
        return np.unique(np.concatenate(values))
    if not law.has_enumerate_support or law.event_shape:
        return None
    try:
        return np.unique(law.enumerate_support(expand=False))
    except NotImplementedError:
        return None


def spread(law: Any, shift) -> tuple[jax.Array, jax.Array]:
    """Nodes of a scalar law and their weights, each ``(K, *batch_shape)``.

    `shift` is U, in [0, 1).
    """
    if isinstance(law, dist.ExpandedDistribution):
        values, weights = spread(law.base_dist, shift)
        return _expanded(values, law.batch_shape), _expanded(weights, law.batch_shape)
    if isinstance(law, dist.MaskedDistribution | dist.Independent):
        return spread(law.base_dist, shift)
    if isinstance(law, MixtureSameFamily):
        parts = spread(law.component_distribution, shift)
        values, weights = (jnp.moveaxis(part, -1, 0) for part in parts)
        weights *= _probs(law)[:, None]
        shape = -1, *law.batch_shape
        return values.reshape(shape), weights.reshape(shape)
    if isinstance(law, MixtureGeneral):
        parts = [spread(part, shift) for part in law.component_distributions]
        weights = [w * p for (_, w), p in zip(parts, _probs(law), strict=True)]
        return jnp.concatenate([v for v, _ in parts]), jnp.concatenate(weights)
    if isinstance(law, ZeroInflatedProbs | HurdleProbs):
        values, weights = spread(law.base_dist, shift)
        if isinstance(law, HurdleProbs):
            weights = _normalised(jnp.where(values == 0, 0.0, weights))
        gate = jnp.broadcast_to(jnp.asarray(law.gate), law.batch_shape)[None]
        values = jnp.concatenate([jnp.zeros_like(values[:1]), values])
        return values, jnp.concatenate([gate, (1 - gate) * weights])
    if isinstance(law, dist.TransformedDistribution):
        values, weights = spread(law.base_dist, shift)
        transform: Any = dist.transforms.ComposeTransform(law.transforms)
        return transform(values), weights
    if law.support.is_discrete:
        return _spread_counts(law, shift)
    return _spread_reals(law, shift)


def _probs(mixture):
    """Probabilities of the parts of a mixture, ``(parts, *batch_shape)``."""
    probs = jnp.asarray(mixture.mixing_distribution.probs)
    shape = *mixture.batch_shape, probs.shape[-1]
    return jnp.moveaxis(jnp.broadcast_to(probs, shape), -1, 0)


def _expanded(x, batch_shape):
    """An array ``(K, ...)``, broadcast to ``(K, *batch_shape)``."""
    shape = len(x), *(1,) * (len(batch_shape) + 1 - x.ndim), *x.shape[1:]
    return jnp.broadcast_to(x.reshape(shape), (len(x), *batch_shape))


def _normalised(weights):
    return weights / jnp.sum(weights, axis=0)


def _spread_reals(law, shift):
    t = 2 * HALF_WIDTH * ((jnp.arange(NUM_NODES) + shift) / NUM_NODES - 0.5)
    t = t.reshape(-1, *(1,) * len(law.batch_shape))
    t = jnp.broadcast_to(t, (NUM_NODES, *law.batch_shape))
    for kind, quantile in QUANTILES.items():
        if isinstance(law, kind):
            at_law = functools.partial(quantile, law)
            values, slopes = jax.jvp(at_law, (t,), (jnp.ones_like(t),))
            weights = jnp.exp(law.log_prob(values)) * slopes
            return values, _normalised(jnp.where(jnp.isfinite(weights), weights, 0.0))
    return law.icdf(ndtr(t)), _normalised(jnp.exp(-(t**2) / 2))


def _log_gamma_quantile(shape, t):
    """About the logarithm of the quantile at Phi(t) of a gamma law with rate one.

    For shapes from `MIN_SHAPE` on it is the approximation of Wilson and Hilferty
    (1931). For smaller shapes it is the quantile of the law with the distribution
    function (1 - exp(-r y))^shape (Gupta and Kundu 1999). With
    r = Gamma(shape + 1)^(-1 / shape) its lower tail is that of the gamma law.
    """
    large = jnp.maximum(shape, MIN_SHAPE)
    root = 1 - 1 / (9 * large) + t / (3 * jnp.sqrt(large))
    small = jnp.minimum(shape, MIN_SHAPE)
    grown = jnp.log(-jax.nn.log1mexp(-log_ndtr(t) / small))
    return jnp.where(
        shape < MIN_SHAPE,
        grown + gammaln(small + 1) / small,
        jnp.log(large) + 3 * jnp.log(root),
    )


def _normal(law, t):
    return law.loc + law.scale * t


def _gamma(law, t):
    return jnp.exp(_log_gamma_quantile(law.concentration, t)) / law.rate


def _beta(law, t):
    """x / (x + z), with gamma quantiles x at Phi(t) and z at Phi(-t).

    Its values spread wider than the quantiles of the law.
    """
    one = _log_gamma_quantile(law.concentration1, t)
    zero = _log_gamma_quantile(law.concentration0, -t)
    return jax.nn.sigmoid(one - zero)


def _student(law, t):
    """The approximation of Wallace (1959), equation 1.2.

    Its error is bounded, in standard deviations.
    """
    t = t * (8 * law.df + 3) / (8 * law.df + 1)
    square = jnp.maximum(t**2, 1e-12) / law.df
    return law.loc + law.scale * t * jnp.sqrt(jnp.expm1(square) / square)


def _weibull(law, t):
    return law.scale * (-log_ndtr(-t)) ** (1 / law.concentration)


QUANTILES = {
    dist.Normal: _normal,
    dist.Gamma: _gamma,
    dist.Beta: _beta,
    dist.StudentT: _student,
    dist.Weibull: _weibull,
}
"""``{class of a law: y}``, where ``y(law, t)`` is about the quantile at Phi(t). It is
smooth and increases with t."""


def _spread_counts(law, shift):
    """Nodes floor(y(s)) with weights p(y) y'(s), y' = max(1, min(g y, 3 a y^(2/3))).

    The cube root of a count is about normal (Wilson and Hilferty 1931), so equal steps
    a of the cube root suit the law. Near zero these steps may be too long for an
    overdispersed law, so no step is longer than g y.
    """
    # The mean is zero where all counts are, as in a part of a mixture.
    mean, sd = jnp.maximum(law.mean, MIN_MEAN), jnp.sqrt(law.variance)
    spread = sd / mean

    def quantile(t):
        return mean * jnp.maximum(1 - spread**2 / 9 + spread * t / 3, 0.0) ** 3

    lower, upper = quantile(-COUNTS_WIDTH), quantile(COUNTS_WIDTH)
    spare = NUM_COUNTS - 1 - (upper - lower)
    lower = jnp.floor(jnp.maximum(lower - jnp.maximum(spare, 0.0) / 2, 0.0))
    root_step = 2 * COUNTS_WIDTH / NUM_COUNTS * jnp.cbrt(mean) * spread / 3
    root_step = jnp.where(spare > 0, MIN_ROOT_STEP, root_step)
    # y' is one up to `first`, g y up to `second`, and 3 a y^(2/3) beyond.
    first = jnp.maximum(1 / GROWTH, (3 * root_step) ** -1.5)
    second = jnp.maximum(first, (3 * root_step / GROWTH) ** 3)
    end = first + jnp.log(second / first) / GROWTH

    def inverse(y):
        middle = jnp.log(jnp.clip(y, first, second) / first) / GROWTH
        roots = jnp.cbrt(jnp.maximum(y, second)) - jnp.cbrt(second)
        return jnp.minimum(y, first) + middle + roots / root_step

    steps = jnp.arange(NUM_COUNTS).reshape(-1, *(1,) * len(law.batch_shape)) + shift
    s = inverse(lower) + steps
    middle = first * jnp.exp(GROWTH * (jnp.minimum(s, end) - first))
    root = jnp.cbrt(second) + root_step * (s - end)
    regimes = [s < first, s < end]
    values = jnp.floor(jnp.select(regimes, [s, middle], root**3))
    slopes = jnp.select(regimes, [1.0, GROWTH * middle], 3 * root_step * root**2)
    largest = getattr(law.support, "upper_bound", jnp.inf)
    slopes = jnp.where(values <= largest, slopes, 0.0)
    values = jnp.minimum(values, largest)
    return values, _normalised(jnp.exp(law.log_prob(values)) * slopes)
