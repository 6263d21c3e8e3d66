"""Normal laws that are close to the posterior which a fit by scores implies.

The releases of `dpjax.fit.score_fit` are a normal likelihood of y, the parameters in
the coordinates of a frame, given the slope. If the prior is normal, so is the
posterior. Otherwise a normal law takes the place of the prior, which approximates it
where the posterior is.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.compiled import compiled
from dpjax.fit.slopes import Evidence
from dpjax.random.generator import generator

__all__ = ["Law", "Laws", "PriorLaw", "closest", "laws_of"]

NUM_POINTS = 64
"""Number of points with which an average over a normal law is computed."""

MAX_TRIALS, MAX_MOVE, MIN_GAIN = 60, 3.0, 1e-3
"""Bounds on the search for the closest law: the number of laws that are tried; how far
a step moves a component of y; and the gain in the bound on the log evidence below which
a step is the last one."""

MIN_PRECISION = 0.25
"""Least precision of a local prior, over the precision 1 - gamma of the normal law that
stands for the prior everywhere. It is needed because the Hessian of a prior that is not
log-concave may be indefinite."""


TAILS = 0.01, 0.99
"""Quantiles of each component at which draws are clipped before a normal law is fitted
to them."""


class PriorLaw(NamedTuple):
    """A normal law that stands for the prior of y, or of a flattened position.

    mean, precision
        Its mean ``(d,)`` and its precision ``(d, d)``.
    """

    mean: np.ndarray
    precision: np.ndarray

    @classmethod
    def of(cls, draws) -> "PriorLaw":
        """The law that fits draws of the prior, ``(count, d)``.

        Each component is first clipped at the quantiles `TAILS`, so that the moments
        exist for laws with heavy tails, too.
        """
        flat = np.asarray(draws, np.float64)
        flat = np.clip(flat, *np.quantile(flat, TAILS, axis=0))
        covariance = np.atleast_2d(np.cov(flat.T))
        return cls(flat.mean(axis=0), np.linalg.inv(covariance))


class Laws(NamedTuple):
    """The likelihood and the posterior of y for each of n slopes, with a normal prior.

    rows, target
        The likelihood of y is exp(-|rows y - target|^2 / 2). The shapes are
        ``(n, r, d)`` and ``(n, r)``, for r measured directions.
    mean, root
        Mean of the posterior, ``(n, d)``, and a root of its covariance, root root^T,
        ``(n, d, d)``.
    """

    rows: np.ndarray
    target: np.ndarray
    mean: np.ndarray
    root: np.ndarray


def laws_of(
    evidence: Evidence, prior: PriorLaw, is_measured, slopes: np.ndarray
) -> Laws:
    """The likelihood and the posterior of y for each of the slopes, ``(n, r, r)``.

    `is_measured`, ``(d,)``, says which components of y are in the r measured
    directions.
    """
    place, score, noise_sd = evidence.pooled
    scatter = evidence.scatter(slopes, noise_sd)
    factor = np.linalg.cholesky(scatter)
    rows = np.zeros((*slopes.shape[:2], len(is_measured)))
    rows[:, :, is_measured] = np.linalg.solve(factor, slopes)
    target = np.linalg.solve(factor, (score + slopes @ place)[:, :, None])
    transposed = np.swapaxes(rows, 1, 2)
    values, vectors = np.linalg.eigh(transposed @ rows + prior.precision)
    root = vectors / np.sqrt(values)[:, None]
    pull = transposed @ target + (prior.precision @ prior.mean)[:, None]
    mean = root @ (np.swapaxes(root, 1, 2) @ pull)
    return Laws(rows, target[:, :, 0], mean[:, :, 0], root)


class Law(NamedTuple):
    """A normal law q of y, as a candidate for the law that is closest to the posterior.

    mean, root
        Mean of q, ``(d,)``, and a root of its covariance, root root^T, ``(d, d)``.
    bound
        The lower bound on the log evidence that q gives, up to a constant.
    prior
        The local prior, a normal law. Its precision is minus the average over q of the
        Hessian of the log prior, with eigenvalues raised to `MIN_PRECISION`. The
        gradient of its log density at the mean of q is the average over q of the
        gradient of the log prior.
    posterior
        The posterior of y given the local prior and the `regular` slope, a `Laws` of
        one slope.
    """

    mean: np.ndarray
    root: np.ndarray
    bound: float
    prior: PriorLaw
    posterior: Laws


def closest(
    evidence: Evidence, logprior: Callable, origin, data_share, rng_key: jax.Array
) -> Law:
    """The normal law that is closest to the posterior.

    It is the normal law q that variational inference finds: the one which is its own
    `posterior` (Opper and Archambeau, Neural Computation 21, 2009). It exists also if
    the posterior has no mode, as that of effects of unknown scale. Steps of the natural
    gradient lead there, each of which raises the bound on the log evidence.

    Parameters
    ----------
    evidence
        What was released. Its `regular` slope is used as the slope.
    logprior, origin
        The log prior ``(y, origin) -> scalar``, and its second argument.
    data_share
        gamma of the frame, ``(d,)``.
    rng_key
        Key of the `NUM_POINTS` points at which averages over q are computed.

    Raises
    ------
    ValueError
        If the prior, or what was released, is not finite where the fit has ended.
    """
    dim = len(data_share)
    half = generator(rng_key).normal(size=(NUM_POINTS // 2, dim))
    points = np.concatenate([half, -half])
    is_measured, units = data_share > 0, np.sqrt(1 - data_share)

    def averages(ys, origin):
        def at(y):
            value, gradient = jax.value_and_grad(logprior)(y, origin)
            # Reverse mode twice, because the gradient of a differential equation's
            # solution may have no forward mode.
            return value, gradient, -jax.jacrev(jax.grad(logprior))(y, origin)

        return jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), jax.vmap(at)(ys))

    def arguments(ys):
        return jnp.asarray(ys, jnp.result_type(float)), origin

    averages_fn = compiled(averages, *arguments(points))

    def law(mean, root) -> Law | None:
        found = averages_fn(*arguments(mean + points @ root.T))
        value, gradient, matrix = (np.asarray(part, np.float64) for part in found)
        if not (np.isfinite(value) and np.all(np.isfinite(matrix))):
            return None
        matrix = (matrix + matrix.T) / 2 / np.outer(units, units)
        values, vectors = np.linalg.eigh(matrix)
        vectors = units[:, None] * vectors
        precision = (vectors * np.maximum(values, MIN_PRECISION)) @ vectors.T
        prior = PriorLaw(mean + np.linalg.solve(precision, gradient), precision)
        posterior = laws_of(evidence, prior, is_measured, evidence.regular[None])
        rows, target = posterior.rows[0], posterior.target[0]
        square = np.sum((rows @ mean - target) ** 2) + np.sum((rows @ root) ** 2)
        bound = value - square / 2 + np.linalg.slogdet(root)[1]
        return Law(mean, root, bound, prior, posterior)

    def moved(q: Law, share) -> Law | None:
        """The law after a share of a step, or after less of it if the step is long.

        It is None if averages over that law are not finite.
        """
        step = q.posterior.mean[0] - q.mean
        share /= max(1.0, np.abs(step).max() / MAX_MOVE)
        ahead = np.linalg.inv(q.posterior.root[0] @ q.posterior.root[0].T)
        precision = (1 - share) * np.linalg.inv(q.root @ q.root.T) + share * ahead
        step = share * np.linalg.solve(precision, ahead @ step)
        values, vectors = np.linalg.eigh(precision)
        return law(q.mean + step, vectors / np.sqrt(values))

    # Derivatives of the prior may overflow far from where the fit has ended. So the
    # first law is the widest of these for which they are finite.
    wide_first = (law(np.zeros(dim), np.eye(dim) / 4**i) for i in range(MAX_TRIALS))
    best, share = next((q for q in wide_first if q is not None), None), 1.0
    if best is None:
        raise ValueError(
            "the prior, or what was released, is not finite where the fit has ended, "
            "so there are no draws, though the budget is spent. The prior is too wide "
            "for the model: from its centre, numbers overflow on the way to the records"
        )
    for _ in range(MAX_TRIALS):
        trial = moved(best, share)
        if trial is None or trial.bound < best.bound:
            share /= 2
            continue
        gain, best, share = trial.bound - best.bound, trial, min(1.0, 2 * share)
        if gain < MIN_GAIN:
            break
    return best
