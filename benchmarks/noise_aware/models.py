"""Three exponential families with conjugate priors, in two unconstrained spaces each.

The log-likelihood of a record with statistic t at the unconstrained z is

    l(z) = eta(z) . t - A(z),

and the prior with its Jacobian has the same form, tau . eta(z) - nu A(z): that of nu
records with the sum tau (the softplus has a Jacobian of its own).

    gamma exponential       theta ~ Gamma(8, 2),           x ~ Exponential(theta)
    beta bernoulli          theta ~ Beta(10, 10),          x ~ Bernoulli(theta)
    dirichlet categorical   theta ~ Dirichlet(5, 5, 5),    x ~ Categorical(theta)

In the published space theta is softplus(z), logistic(z) and softmax(z, 0). In that of
NumPyro, the default for the support of theta, z is log theta, logit theta
and the logits of stick breaking. There the posterior is close to a mean field: the
information about log theta is n everywhere, and the sticks are independent. Coverage is
judged in the published space.

Reference: arXiv 2410.19371, section 5.1.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax.nn import log_sigmoid, logsumexp, softplus
from scipy.special import digamma, polygamma

__all__ = [
    "CONCENTRATIONS",
    "FAMILIES",
    "MODELS",
    "PRIOR_MOMENTS",
    "Family",
    "exact_posterior",
    "simulate",
]

MODELS = "gamma_exponential", "beta_bernoulli", "dirichlet_categorical"
CONCENTRATIONS = {"beta_bernoulli": 10.0, "dirichlet_categorical": 5.0}
"""Of the symmetric Dirichlet priors, the first of which is a beta."""


@dataclass(frozen=True, eq=False)
class Family:
    """One model in one unconstrained space.

    natural
        eta, from z ``(dim,)`` to as many numbers.
    log_partition
        A.
    logprior
        Log density of z, up to a constant.
    made_up
        Statistics ``(size, dim)`` and weights ``(size,)`` that stand for a record
        given z.
    published
        From z to the published space.
    dim
        Numbers in z.
    """

    natural: Callable
    log_partition: Callable
    logprior: Callable
    made_up: Callable
    published: Callable
    dim: int


def _conjugate(natural, log_partition, total, count, **others):
    total = np.array(total)

    def logprior(z):
        return jnp.sum(total * natural(z)) - count * log_partition(z)

    parts = dict(natural=natural, log_partition=log_partition, logprior=logprior)
    return Family(**parts | others)


EDGES = np.linspace(0, 18, 121)
"""Where exponential variables of rate one are cut; 2e-8 of the mass is beyond."""


def _exponential(rate_fn):
    """Cells of an exponential variable, a mean and a mass each."""
    tail = np.exp(-EDGES)
    mass = -np.diff(tail)
    means = -np.diff((EDGES + 1) * tail) / mass

    def made_up(z):
        return jnp.asarray(means)[:, None] / rate_fn(z)[None], jnp.asarray(mass)

    return made_up


def _labels(log_probabilities_fn):
    """All labels but the last as unit vectors."""

    def made_up(z):
        logs = jnp.stack(log_probabilities_fn(z))
        return jnp.eye(len(logs))[:, :-1], jnp.exp(logs)

    return made_up


def _same(z):
    return z


def _log_partition_softplus(z):
    return -jnp.log(softplus(z[0]))


def _log_softmax(z):
    total = logsumexp(jnp.append(z, 0.0))
    return z[0] - total, z[1] - total, -total


def _log_sticks(z):
    first, second = z[0] - math.log(2), z[1]
    rest = log_sigmoid(-first)
    return log_sigmoid(first), rest + log_sigmoid(second), rest + log_sigmoid(-second)


def _stick_ratios(z):
    logs = _log_sticks(z)
    return jnp.stack(logs[:2]) - logs[2]


_LOGISTIC = _conjugate(
    natural=_same,
    log_partition=lambda z: softplus(z[0]),
    total=[10.0],
    count=20.0,
    made_up=_labels(lambda z: (log_sigmoid(z[0]), log_sigmoid(-z[0]))),
    published=_same,
    dim=1,
)

FAMILIES = {
    ("gamma_exponential", "published"): _conjugate(
        natural=lambda z: -softplus(z),
        log_partition=_log_partition_softplus,
        logprior=lambda z: (
            7 * jnp.log(softplus(z[0])) - 2 * softplus(z[0]) + log_sigmoid(z[0])
        ),
        total=[2.0],
        count=7.0,
        made_up=_exponential(softplus),
        published=_same,
        dim=1,
    ),
    ("gamma_exponential", "numpyro"): _conjugate(
        natural=lambda z: -jnp.exp(z),
        log_partition=lambda z: -z[0],
        total=[2.0],
        count=8.0,
        made_up=_exponential(jnp.exp),
        published=lambda z: jnp.exp(z) + jnp.log(-jnp.expm1(-jnp.exp(z))),
        dim=1,
    ),
    ("beta_bernoulli", "published"): _LOGISTIC,
    ("beta_bernoulli", "numpyro"): _LOGISTIC,
    ("dirichlet_categorical", "published"): _conjugate(
        natural=_same,
        log_partition=lambda z: -_log_softmax(z)[2],
        total=[5.0, 5.0],
        count=15.0,
        made_up=_labels(_log_softmax),
        published=_same,
        dim=2,
    ),
    ("dirichlet_categorical", "numpyro"): _conjugate(
        natural=_stick_ratios,
        log_partition=lambda z: -_log_sticks(z)[2],
        total=[5.0, 5.0],
        count=15.0,
        made_up=_labels(_log_sticks),
        published=_stick_ratios,
        dim=2,
    ),
}
"""By model and space."""

PRIOR_MOMENTS = {
    "gamma_exponential": ([digamma(8) - math.log(2)], [polygamma(1, 8) ** 0.5]),
    "beta_bernoulli": ([0.0], [(2 * polygamma(1, 10)) ** 0.5]),
    "dirichlet_categorical": (
        [digamma(5) - digamma(10) + math.log(2), 0.0],
        [(polygamma(1, 5) + polygamma(1, 10)) ** 0.5, (2 * polygamma(1, 5)) ** 0.5],
    ),
}
"""Mean and sd of z in NumPyro's space."""


def simulate(model: str, rng: np.random.Generator, num_draws: int, num_records: int):
    """Truths from the prior and data.

    Returns
    -------
    truth
        In the published space, ``(num_draws, dim)``.
    data
        Records ``(num_records, num_draws)`` of the exponential; of the others how many
        have each label, ``(num_draws, labels)``.
    """
    if model == "gamma_exponential":
        rates = rng.gamma(8.0, 1 / 2.0, num_draws)
        records = rng.exponential(1 / rates, (num_records, num_draws))
        return np.log(np.expm1(rates))[:, None], records
    labels = 2 if model == "beta_bernoulli" else 3
    concentration = np.full(labels, CONCENTRATIONS[model])
    probabilities = rng.dirichlet(concentration, num_draws)
    counts = rng.multinomial(num_records, probabilities)
    return _log_ratios(probabilities), counts


def exact_posterior(model: str, rng: np.random.Generator, data, num_samples: int):
    """Samples from the posterior without privacy, in the published space.

    Returns
    -------
    ``(num_draws, num_samples, dim)``
    """
    if model == "gamma_exponential":
        shape, rates = 8.0 + len(data), 2.0 + data.sum(axis=0)
        draws = rng.gamma(shape, 1 / rates[:, None], (len(rates), num_samples))
        return np.log(np.expm1(draws))[..., None]
    weights = CONCENTRATIONS[model] + data
    draws = rng.gamma(weights[:, None], size=(len(data), num_samples, data.shape[1]))
    return _log_ratios(draws)


def _log_ratios(weights):
    return np.log(weights[..., :-1] / weights[..., -1:])
