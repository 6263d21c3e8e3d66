"""One posterior sample, private because the posterior is wide, and SGLD from there.

Let every log-likelihood lie in an interval of length R. Substituting one record then
changes the tempered posterior density, with its normalisation, by a factor of at most
e^(2 T R), where T is the tempering. One exact draw is therefore (2 T R, 0)-
differentially private; under ADD_OR_REMOVE_ONE it is (2 T B, 0), where B is the largest
absolute value in the interval. To spend epsilon, the posterior is tempered with
T = epsilon / (2 R) or epsilon / (2 B), and log-likelihoods are clipped to the interval,
so that the bound holds for any records. A further draw costs as much again: the
trajectory of a chain is not private.

The hybrid sampler of the same paper spends a part of the budget on such a draw, in
place of a burn-in, and the rest on SGLD from there.

No check can tell whether the draw is exact. It is the last state of a NUTS chain; if
the law of that state is a total variation d away from the tempered posterior, delta is
(1 + e^epsilon) d. Moreover, the time that NUTS takes depends on the data.

Reference: Wang, Fienberg and Smola 2015, Theorem 1 (4 B for |log p| <= B) and
Algorithm 3.
"""

import dataclasses
import secrets
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import NeighboringRelation

from dpjax.comparisons import baselines
from dpjax.posterior import Posterior
from dpjax.privacy import Budget
from dpjax.privacy.validate import check_positive, check_relation
from dpjax.runner.results import Run
from dpjax.runner.run import run

__all__ = ["hybrid", "one_posterior_sample", "tempered"]


def tempered(
    posterior: Posterior,
    epsilon: float,
    loglikelihood_range: tuple[float, float],
    neighboring_relation: NeighboringRelation = NeighboringRelation.REPLACE_ONE,
) -> Posterior:
    """The posterior of which one exact draw is (epsilon, 0)-differentially private.

    Parameters
    ----------
    posterior
        What to sample, and the data. Its own tempering is an upper bound on T.
    epsilon
        Nats, positive.
    loglikelihood_range
        (low, high), nats, chosen without looking at the data. The log-likelihood of one
        record is clipped to it.
    neighboring_relation
        Which data sets are neighbours.

    Raises
    ------
    ValueError
        If an argument is out of range.
    """
    low, high = (float(bound) for bound in loglikelihood_range)
    if not -np.inf < low < high < np.inf:
        raise ValueError(
            f"loglikelihood_range must be finite (low, high), got {(low, high)}"
        )
    check_positive(epsilon=epsilon)
    sensitivity = high - low
    relation = check_relation("neighboring_relation", neighboring_relation)
    if relation != NeighboringRelation.REPLACE_ONE:
        sensitivity = max(abs(low), abs(high))

    def clipped(position, record):
        loglikelihood = posterior.loglikelihood_fn(position, record)
        # A NaN of one record must not make the sum over all records NaN.
        return jnp.clip(jnp.nan_to_num(loglikelihood, nan=low), low, high)

    return dataclasses.replace(
        posterior,
        loglikelihood_fn=clipped,
        tempering=min(posterior.tempering, epsilon / (2 * sensitivity)),
        constrain_fn=None,
    )


def one_posterior_sample(
    posterior: Posterior,
    epsilon: float,
    *,
    loglikelihood_range: tuple[float, float],
    initial_position: Any,
    num_warmup: int = 1000,
    num_steps: int = 1000,
    neighboring_relation: NeighboringRelation = NeighboringRelation.REPLACE_ONE,
    unsafe_key: jax.Array | None = None,
):
    """Draw once from the posterior, tempered for a pure epsilon.

    Parameters
    ----------
    posterior, epsilon, loglikelihood_range, neighboring_relation
        As in `tempered`.
    initial_position
        Pytree of the start of the one chain, without an axis for chains.
    num_warmup, num_steps
        Steps of NUTS that adapt it, and the steps after those.
    unsafe_key
        As in `dpjax.run`; without it, 64 bits come from the operating system.

    Raises
    ------
    ValueError
        If an argument is out of range.

    Returns
    -------
    A pytree like `initial_position`, in the unconstrained space.

    Notes
    -----
    *Formal guarantees.* The draw is (epsilon, 0)-differentially private if its law is
    exactly the tempered posterior: see the docstring of the module.
    """
    target = tempered(posterior, epsilon, loglikelihood_range, neighboring_relation)
    entropy = np.frombuffer(secrets.token_bytes(8), np.uint32)
    secret = jax.random.wrap_key_data(jnp.asarray(entropy), impl="threefry2x32")
    draws = baselines.nuts(
        secret if unsafe_key is None else unsafe_key,
        target,
        num_steps,
        initial_position=jax.tree.map(lambda x: jnp.asarray(x)[None], initial_position),
        num_warmup=num_warmup,
    )
    return jax.tree.map(lambda leaf: leaf[0, -1], draws.positions)


def hybrid(
    algorithm_fn,
    posterior: Posterior,
    num_steps: int | None = None,
    *,
    initial_position: Any,
    num_chains: int,
    budget: Budget,
    first_epsilon: float,
    loglikelihood_range: tuple[float, float],
    num_warmup: int = 1000,
    unsafe_key: jax.Array | None = None,
    **options,
) -> Run:
    """Run chains that all start at one posterior sample.

    Parameters
    ----------
    algorithm_fn, posterior, num_steps, num_chains, unsafe_key
        As in `dpjax.run`; `algorithm_fn` is `dpjax.sgld` in the paper.
    initial_position, num_warmup, loglikelihood_range
        As in `one_posterior_sample`.
    budget
        What the draw and the run together may spend.
    first_epsilon
        The part of the budget's epsilon that the draw spends, once for all chains.
    options
        Further arguments of `dpjax.run`. A ledger or a checkpoint is refused, because
        it would not record the draw.

    Raises
    ------
    ValueError
        If an argument is out of range.

    Notes
    -----
    *Formal guarantees.* The draw and the run together are (epsilon, delta)-
    differentially private as the budget says, by adding up both parts, if the law of
    the draw is exact as in `one_posterior_sample`.
    """
    if unknown := {"ledger", "checkpoint"} & set(options):
        raise ValueError(f"a hybrid run takes no {' or '.join(sorted(unknown))}")
    if not 0 < first_epsilon < budget.epsilon:
        raise ValueError(
            f"first_epsilon must be between 0 and {budget.epsilon}, got {first_epsilon}"
        )
    first = second = None
    if unsafe_key is not None:
        first, second = jax.random.split(unsafe_key)
    start = one_posterior_sample(
        posterior,
        first_epsilon,
        loglikelihood_range=loglikelihood_range,
        initial_position=initial_position,
        num_warmup=num_warmup,
        neighboring_relation=budget.neighboring_relation,
        unsafe_key=first,
    )
    starts = jax.tree.map(lambda leaf: np.stack([leaf] * num_chains), start)
    found = run(
        algorithm_fn,
        posterior,
        num_steps,
        initial_position=starts,
        num_chains=num_chains,
        budget=dataclasses.replace(budget, epsilon=budget.epsilon - first_epsilon),
        unsafe_key=second,
        **options,
    )
    draw = f"1 x posterior sample, epsilon = {first_epsilon:g} if its law is exact"
    statement = found.statement._replace(
        epsilon=found.statement.epsilon + first_epsilon,
        epsilon_per_chain=found.statement.epsilon_per_chain + first_epsilon,
        events=f"{draw}; {found.statement.events}",
    )
    return dataclasses.replace(found, statement=statement)
