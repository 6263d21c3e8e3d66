"""One posterior sample, private because the posterior is wide, and SGLD from there.

If every log-likelihood lies in an interval of length R, substitution of one record
moves the tempered posterior density, its normalisation included, by a factor of at
most e^(2 T R). One exact draw from it is (2 T R, 0)-differentially private; under
ADD_OR_REMOVE_ONE (2 T B, 0), B the largest absolute value. To spend epsilon the
posterior is tempered, T = epsilon / (2 R), and log-likelihoods are clipped to the
interval, so that the bound holds whatever the records are. Further draws cost as much
again: a chain's trajectory is not private.

The hybrid sampler of the same paper spends a part of the budget on such a draw, in
place of a burn-in, and the rest on SGLD from there.

What cannot be checked is that the draw is exact. It is the last state of a NUTS chain;
if its law is a total variation d away from the tempered posterior, (1 + e^epsilon) d
comes to delta. Nor is NUTS written for secrecy: its time depends on the data.

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
        (low, high), nats, chosen without the data; log-likelihoods of one record are
        clipped to it.
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
    if not 0 < epsilon < np.inf:
        raise ValueError(f"epsilon must be positive and finite, got {epsilon}")
    moved = high - low
    if neighboring_relation != NeighboringRelation.REPLACE_ONE:
        moved = max(abs(low), abs(high))

    def clipped(position, record):
        loglikelihood = posterior.loglikelihood_fn(position, record)
        # What is no number must not spread to the others.
        return jnp.clip(jnp.nan_to_num(loglikelihood, nan=low), low, high)

    return dataclasses.replace(
        posterior,
        loglikelihood_fn=clipped,
        tempering=min(posterior.tempering, epsilon / (2 * moved)),
        constrain_fn=None,
    )


def one_posterior_sample(
    rng_key: jax.Array | None,
    posterior: Posterior,
    epsilon: float,
    *,
    loglikelihood_range: tuple[float, float],
    initial_position: Any,
    num_warmup: int = 1000,
    num_steps: int = 1000,
    neighboring_relation: NeighboringRelation = NeighboringRelation.REPLACE_ONE,
):
    """Draw once from the posterior, tempered for a pure epsilon.

    Parameters
    ----------
    rng_key
        None takes a key from the operating system.
    posterior, epsilon, loglikelihood_range, neighboring_relation
        As in `tempered`.
    initial_position
        Pytree without an axis for chains.
    num_warmup, num_steps
        Steps of NUTS that adapt it, and steps after those.

    Raises
    ------
    ValueError
        If an argument is out of range.

    Returns
    -------
    A pytree like `initial_position`, on the unconstrained space.

    Notes
    -----
    *Formal guarantees.* (epsilon, 0)-differential privacy of the draw, if it has
    exactly the law of the tempered posterior: see the module's docstring.
    """
    target = tempered(posterior, epsilon, loglikelihood_range, neighboring_relation)
    if rng_key is None:
        entropy = np.frombuffer(secrets.token_bytes(8), np.uint32)
        rng_key = jax.random.wrap_key_data(jnp.asarray(entropy), impl="threefry2x32")
    start = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], initial_position)
    draws = baselines.nuts(
        rng_key, target, num_steps, initial_position=start, num_warmup=num_warmup
    )
    return jax.tree.map(lambda leaf: leaf[0, -1], draws.positions)


def hybrid(
    rng_key: jax.Array | None,
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
    **options,
) -> Run:
    """A run whose chains start at one posterior sample.

    Parameters
    ----------
    rng_key, algorithm_fn, posterior, num_steps, num_chains
        As in `dpjax.run`; `algorithm_fn` is `dpjax.sgld` in the paper.
    initial_position, num_warmup, loglikelihood_range
        As in `one_posterior_sample`.
    budget
        Of the draw and the run together.
    first_epsilon
        What the draw may spend of it. The draw is one release that all chains share.
    options
        Further arguments of `dpjax.run`, except for a ledger or a checkpoint, which
        know nothing of the draw.

    Raises
    ------
    ValueError
        If an argument is out of range.

    Notes
    -----
    *Formal guarantees.* (epsilon, delta) of the budget by adding up both parts, with
    the assumption of `one_posterior_sample`.
    """
    if unknown := {"ledger", "checkpoint"} & set(options):
        raise ValueError(f"a hybrid run takes no {' or '.join(sorted(unknown))}")
    if not 0 < first_epsilon < budget.epsilon:
        raise ValueError(
            f"first_epsilon must be between 0 and {budget.epsilon}, got {first_epsilon}"
        )
    first, second = (None, None) if rng_key is None else jax.random.split(rng_key)
    start = one_posterior_sample(
        first,
        posterior,
        first_epsilon,
        loglikelihood_range=loglikelihood_range,
        initial_position=initial_position,
        num_warmup=num_warmup,
        neighboring_relation=budget.neighboring_relation,
    )
    rest = dataclasses.replace(budget, epsilon=budget.epsilon - first_epsilon)
    found = run(
        second,
        algorithm_fn,
        posterior,
        num_steps,
        initial_position=jax.tree.map(
            lambda leaf: np.broadcast_to(leaf, (num_chains, *leaf.shape)), start
        ),
        num_chains=num_chains,
        budget=rest,
        **options,
    )
    statement = found.statement
    draw = f"1 x posterior sample, epsilon = {first_epsilon:g} if its law is exact"
    statement = statement._replace(
        epsilon=statement.epsilon + first_epsilon,
        epsilon_per_chain=statement.epsilon_per_chain + first_epsilon,
        events=f"{draw}; {statement.events}",
    )
    return dataclasses.replace(found, statement=statement)
