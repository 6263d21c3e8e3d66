"""One posterior sample, private because the posterior is wide, and SGLD from there.

Let every log-likelihood lie in an interval of length R, and let T be the tempering.
Substituting one record then changes the tempered posterior density, with its
normalisation, by a factor of at most e^(2 T R). So one exact draw is (2 T R, 0)-
differentially private. If a record is added, removed or replaced by a blank that adds
zero, it is (2 T B, 0), where B is the largest absolute value in the interval.

To spend epsilon, the posterior is tempered with T = epsilon / (2 R) or
epsilon / (2 B). Log-likelihoods are clipped to the interval, so that the bound holds
for any records. A second draw costs as much again, so the trajectory of a chain is not
private.

The hybrid sampler of the same paper spends a part of the budget on such a draw, in
place of a burn-in, and the rest on SGLD that starts there.

No check can tell whether the draw is exact. It is the last state of a NUTS chain. If
the law of that state has the total variation d from the tempered posterior, delta is
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
from dpjax.privacy.validate import check_positive_number, check_relation
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
        What to sample, and the data. T does not exceed its own tempering.
    epsilon
        Privacy of one draw, in nats; positive.
    loglikelihood_range
        The interval ``(low, high)`` to which the log-likelihood of each record is
        clipped, in nats. Choose it without looking at the data.
    neighboring_relation
        Which data sets are neighbours. Under REPLACE_ONE, T is at most
        epsilon / (2 (high - low)); under the other relations, it is at most
        epsilon / (2 max(abs(low), abs(high))).

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
    epsilon = check_positive_number("epsilon", epsilon)
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
    """Draw once from the posterior of `tempered`.

    Parameters
    ----------
    posterior, epsilon, loglikelihood_range, neighboring_relation
        As in `tempered`.
    initial_position
        Where the chain starts: a pytree without an axis for chains.
    num_warmup
        Number of steps in which NUTS adapts.
    num_steps
        Number of steps after those. The state after the last one is the draw.
    unsafe_key
        A JAX key in place of a secret one, as in `dpjax.run`. Without it, the key is 64
        bits from the operating system.

    Raises
    ------
    ValueError
        If an argument is out of range.

    Returns
    -------
    A position: a pytree like `initial_position`, to which no ``constrain_fn`` was
    applied.

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
    """Run chains that all start at the same draw of `one_posterior_sample`.

    Parameters
    ----------
    algorithm_fn, posterior, num_steps, num_chains, unsafe_key
        As in `dpjax.run`; `algorithm_fn` is `dpjax.sgld` in the paper.
    initial_position, num_warmup, loglikelihood_range
        As in `one_posterior_sample`.
    budget
        The budget of the draw and the run together.
    first_epsilon
        The part of the budget's epsilon that the draw spends. It is spent once for all
        chains.
    options
        Further arguments of `dpjax.run`. A ledger or a checkpoint is refused, because
        neither would record the draw.

    Raises
    ------
    ValueError
        If an argument is out of range.

    Notes
    -----
    *Formal guarantees.* If the law of the draw is exactly the tempered posterior, the
    draw and the run together are (epsilon, delta)-differentially private for the
    epsilon and delta of `budget`, because the epsilons of both parts add up.
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
