"""Private draws with nothing to tune, for any model whose records can be simulated."""

import functools
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from dpjax import caller, privacy
from dpjax.compiled import evaluated, one_call
from dpjax.fit.scores import MAX_MEAN, MOVING_END, NUM_CHECKS
from dpjax.fit.simulated import (
    MIN_RESOLUTION,
    expected_resolution,
    num_parameters,
    simulated_fit,
)
from dpjax.fit.simulated_draws import draws
from dpjax.posterior import Posterior
from dpjax.privacy.budget import check_budget
from dpjax.release.captured import check_functions, check_simulation
from dpjax.release.nominal import nominal_size
from dpjax.runner.fit import fit, spending, too_little
from dpjax.runner.results import Fit

__all__ = ["checked_prior_draws", "prior_draws", "sample"]

NUM_PRIOR_DRAWS = 100
"""Draws from the prior, at whose mean the search begins."""

NUM_CHECKED = 4000
"""Number of made-up records at each position where their scores are averaged. The mean
of normal scores then exceeds `MAX_MEAN` with a chance below 1e-9."""

NUM_GROUPS, MAX_COLUMNS, LEAST_SIGN = 4, 16, 6.0
"""Made-up records are put into so many groups by the values of an array: of each of so
many of its components, and of their running sums. The law of the array depends on the
parameters if a group has a mean score of more than `LEAST_SIGN` standard errors."""


@one_call
def sample(
    posterior: Posterior,
    simulate_fn: Callable[[jax.Array, Any], Any],
    prior_sample_fn: Callable[[jax.Array], Any],
    *,
    budget: privacy.Budget,
    num_draws: int = 1000,
    num_chains: int = 4,
    nominal_num_records: int | None = None,
    ledger: str | os.PathLike | None = None,
    checkpoint: str | os.PathLike | None = None,
    verbose: bool = True,
    unsafe_key: jax.Array | None = None,
) -> Fit:
    """Draw from a posterior, and spend all of a budget, without a chain.

    A few noisy sums of clipped scores are released, and what they say of the parameters
    is computed from simulated records: see `dpjax.fit.simulated`. So the draws keep the
    shape of a curved posterior, and their width includes what clipping and noise hide.

    Parameters
    ----------
    posterior
        The model and the data. The likelihood must be a density of the record, with all
        factors that depend on the position.
    simulate_fn
        ``(rng_key, position) -> record``, a draw of that density. It must not read the
        data. Records are drawn whole: a model of observations given covariates is for
        `dpjax.numpyro.sample`.
    prior_sample_fn
        ``rng_key -> position``, a draw of the prior. If the prior is flat, it is a draw
        from where the parameters may be.
    nominal_num_records
        n. None is the number of records.
    budget, ledger, checkpoint, verbose, unsafe_key
        As in `dpjax.run`.
    num_draws, num_chains
        The draws come as so many chains of so many draws, and cost nothing. They are
        independent if ``known.are_independent`` says so.

    Returns
    -------
    Fit
        The draws, and what they know.

    Raises
    ------
    TypeError, ValueError, CheckpointError
        As in `dpjax.run`; or if made-up records do not follow the likelihood
        (`checked_prior_draws`).
    BudgetError
        As in `dpjax.run`, or if the budget is too small for the number of records, so
        that draws would not be right. Nothing is spent then.

    Warns
    -----
    UserWarning
        If the records vary otherwise than the model says, by more than noise and chance
        explain. The draws do not allow for that.

    Notes
    -----
    *Formal guarantees.* All that is returned, and all runs that were charged to the
    ledger before, are together (epsilon, delta) differentially private for the relation
    of the budget. Before the fit no record is read, except that arrays which the
    functions hold are compared with the data. The number of records is public.
    """
    check_budget(budget)
    of_prior = checked_prior_draws(posterior, simulate_fn, prior_sample_fn)
    start = jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), of_prior)
    algorithm_fn = functools.partial(
        simulated_fit,
        simulate_fn=simulate_fn,
        prior_sample_fn=prior_sample_fn,
        nominal_num_records=nominal_num_records,
    )
    draws_fn = functools.partial(
        draws, simulate_fn=simulate_fn, nominal_num_records=nominal_num_records
    )
    dim = num_parameters(prior_sample_fn)
    noise_multiplier, last = spending(
        algorithm_fn, posterior, dim, budget, ledger=ledger, checkpoint=checkpoint
    )
    _check_resolution(
        dim,
        nominal_size(posterior, nominal_num_records),
        noise_multiplier,
        budget,
    )
    return fit(
        functools.partial(algorithm_fn, noise_multiplier=noise_multiplier, last=last),
        draws_fn,
        posterior,
        initial_position=start,
        budget=budget,
        num_draws=num_draws,
        num_chains=num_chains,
        ledger=ledger,
        checkpoint=checkpoint,
        verbose=verbose,
        unsafe_key=unsafe_key,
    )


def checked_prior_draws(
    posterior: Posterior, simulate_fn: Callable, prior_sample_fn: Callable
) -> Any:
    """Public draws from the prior, once the functions of a fit have been checked.

    Parameters
    ----------
    posterior, simulate_fn, prior_sample_fn
        As in `sample`.

    Returns
    -------
    Leaves ``(NUM_PRIOR_DRAWS, ...)``.

    Raises
    ------
    ValueError
        If a function holds records (`dpjax.release.captured`), or made-up records do
        not follow the likelihood: the mean of their scores is not about zero.

    Warns
    -----
    UserWarning
        If the law of an array of made-up records does not depend on the parameters, as
        that of covariates does not. A fit takes it for the law of the data.
    """
    check_simulation(posterior, simulate_fn, prior_sample_fn)
    of_prior = prior_draws(prior_sample_fn, NUM_PRIOR_DRAWS)
    # What the next check says must not depend on records that a function holds.
    check_functions(posterior, jax.tree.map(lambda leaf: leaf[:1], of_prior))
    _check_simulated_scores(posterior, simulate_fn, of_prior)
    return of_prior


def _check_simulated_scores(
    posterior: Posterior, simulate_fn: Callable, of_prior: Any
) -> None:
    """Refuse made-up records that do not follow the likelihood; warn of covariates.

    No data are read.

    The score of a record is the gradient of its log-likelihood. If records are drawn
    from the density that the likelihood computes, at some position, then their scores
    at this position have mean zero. That is checked at draws of the prior, after these
    were moved towards their mean by seven tenths of the distance, as numbers may
    overflow far from it. Given covariates, scores have mean zero as well. So an array
    is taken for covariates if the mean is zero among records with similar values of it.

    Parameters
    ----------
    posterior, simulate_fn
        As in `sample`. The functions hold no records.
    of_prior
        What `_prior_draws` returned.

    Raises
    ------
    ValueError
        If the mean of the scores is not about zero.
    """

    def moments(position, seed):
        def one(rng_key):
            record = simulate_fn(rng_key, position)
            gradient = jax.grad(posterior.loglikelihood_fn)(position, record)
            score = ravel_pytree(gradient)[0]
            return record, jnp.nan_to_num(score, posinf=0.0, neginf=0.0)

        keys = jax.random.split(jax.random.key(seed), NUM_CHECKED)
        records, scores = jax.vmap(one)(keys)
        size = jnp.sqrt(jnp.mean(scores**2, axis=0))
        sd: jax.Array = size * np.sqrt(NUM_GROUPS / NUM_CHECKED)

        def sign(array):
            """The largest mean score of a group, in standard errors."""
            columns = array.reshape(NUM_CHECKED, -1)[:, :MAX_COLUMNS]
            # The law of sums also depends on how components vary together.
            columns = jnp.concatenate([columns, jnp.cumsum(columns, axis=1)], axis=1)
            order = jnp.argsort(columns, axis=0)
            groups = scores[order].reshape(NUM_GROUPS, -1, *order.shape[1:], len(size))
            found = jnp.max(jnp.abs(jnp.mean(groups, axis=1)), axis=(0, 1))
            return jnp.max(jnp.where(sd > 0, found / sd, 0.0))

        return jnp.mean(scores, axis=0), size, jax.tree.map(sign, records)

    def everywhere(positions, seeds):
        return jax.lax.map(lambda each: moments(*each), (positions, seeds))

    def nearer(leaf):
        mean = jnp.mean(leaf, axis=0)[None]
        return mean + 0.3 * (leaf[:NUM_CHECKS] - mean)

    positions = jax.tree.map(nearer, of_prior)
    seeds = np.arange(NUM_CHECKS, dtype=np.uint32)
    means, sizes, signs = evaluated(everywhere, positions, seeds)
    if np.any(np.abs(means) > MAX_MEAN * np.asarray(sizes)):
        raise ValueError(
            "records drawn by simulate_fn, or by the sites of a model, do not follow "
            "the likelihood: the gradients of their log-likelihoods do not have mean "
            "zero where they were drawn. Draw records from the law whose density the "
            f"likelihood computes. {MOVING_END}"
        )
    names = [
        jax.tree_util.keystr(path, simple=True, separator=".")
        for path, found in jax.tree_util.tree_leaves_with_path(signs)
        if np.max(found) < LEAST_SIGN
    ]
    if names:
        caller.warn(
            f"the law of {', '.join(names)} in made-up records does not depend on the "
            "parameters, as that of covariates does not. The fit takes it for the law "
            "in the data: if that is another one, draws are wrong, and no check of the "
            "fit need say so. For observations given covariates, give "
            "dpjax.numpyro.sample a model that takes these as arguments"
        )


def _check_resolution(dim, num_records, noise_multiplier, budget) -> None:
    """Refuse a budget that will not find the parameters."""
    resolution = expected_resolution(dim, num_records, noise_multiplier)
    if resolution < MIN_RESOLUTION:
        hidden, factor = "where the parameters are", MIN_RESOLUTION / resolution
        reason, remedy = too_little(budget, num_records, dim, hidden, factor)
        raise privacy.BudgetError(
            f"{reason}, and draws would not be right. Nothing was spent. {remedy}"
        )


def prior_draws(prior_sample_fn: Callable[[jax.Array], Any], count: int) -> Any:
    """Public draws from the prior, leaves ``(count, ...)``."""

    def draws(seed):
        keys = jax.random.split(jax.random.key(seed), count)
        return jax.vmap(prior_sample_fn)(keys)

    return evaluated(draws, np.uint32(0))
