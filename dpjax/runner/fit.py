"""Fits: one step that spends a budget, then as many draws as wanted, at no cost."""

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from dpjax import caller, privacy
from dpjax.algorithm import Algorithm, in_full_precision
from dpjax.posterior import Posterior
from dpjax.privacy.filter import NOISE_MULTIPLIERS
from dpjax.privacy.shown import shown
from dpjax.privacy.validate import check_count
from dpjax.release.k_norm_sum import KNormSum
from dpjax.release.mixed_norm import MixedNorm
from dpjax.release.noisy_sum import NoisySum
from dpjax.release.quietest_sum import is_quieter, mixed_norm_sum, quietest_sum
from dpjax.runner import checkpoint as checkpoints
from dpjax.runner import checks
from dpjax.runner import ledger as ledgers
from dpjax.runner.hashes import digest
from dpjax.runner.messages import say
from dpjax.runner.results import Fit
from dpjax.runner.run import run

__all__ = ["fit", "least_noise", "spending", "too_little"]

MAX_NUMBERS = 2**31
"""Most numbers in memory while draws are made: each draw needs a d x d matrix."""


@in_full_precision
def fit(
    algorithm_fn: Callable[[Posterior], Algorithm],
    draws_fn: Callable,
    posterior: Posterior,
    *,
    initial_position: Any,
    budget: privacy.Budget,
    num_draws: int,
    num_chains: int,
    verbose: bool = True,
    **options,
) -> Fit:
    """Spend a budget on a fit, and draw from what it released.

    Parameters
    ----------
    algorithm_fn
        ``posterior -> Algorithm`` of one step, which spends the budget.
    draws_fn
        ``(posterior, released, rng_key, num_draws, like) -> (positions, known)``.
    posterior, budget, verbose, options
        As in `dpjax.run`: the options are its ledger, checkpoint and unsafe key.
    initial_position
        Where the fit starts: one position, chosen without looking at the data.
    num_draws, num_chains
        The draws come as `num_chains` chains of `num_draws` draws each.

    Raises
    ------
    ValueError, TypeError, BudgetError, LedgerError, CheckpointError
        As in `dpjax.run`; or if there are too many draws, before the fit is made.

    Warns
    -----
    UserWarning
        If a check of the fit fails that has `Check.is_warned`.
    """
    num_draws = check_count("num_draws", num_draws)
    num_chains = check_count("num_chains", num_chains)
    size = sum(leaf.size for leaf in jax.tree.leaves(initial_position))
    if num_chains * num_draws * size**2 > MAX_NUMBERS:
        most = MAX_NUMBERS // (num_chains * size**2)
        remedy = f"ask for {most:,} draws or fewer of each"
        if most == 0:
            remedy = "a fit is for fewer parameters; dpjax.sgld has no such matrix"
        raise ValueError(
            f"{num_chains} chains of {num_draws:,} draws of {size} parameters are too "
            f"many for the memory, as a matrix belongs to each draw: {remedy}"
        )
    found = run(
        algorithm_fn,
        posterior,
        1,
        initial_position=jax.tree.map(lambda leaf: leaf[None], initial_position),
        num_chains=1,
        budget=budget,
        warmup_fraction=0.0,
        verbose=verbose,
        **options,
    )
    released = jax.tree.map(lambda leaf: _rounded(leaf[0, 0]), found.infos)
    # Draws follow from what was released, so a resumed fit repeats them.
    seed = int.from_bytes(digest(released)[:4], "little")
    if verbose:
        say("the fit is made; its draws follow from it, and cost nothing")
    try:
        positions, known = draws_fn(
            posterior,
            released,
            jax.random.key(seed),
            num_chains * num_draws,
            initial_position,
        )
    except Exception as error:
        error.add_note(
            "The fit itself was made, and is paid for. If the call had a checkpoint=, "
            "the same call, or one for fewer draws, goes on from it at no further cost."
        )
        raise
    if verbose:
        say(known)
    for check in checks.of_fit(known):
        if check.is_warned and not check.is_fine:
            caller.warn(str(check))

    def chains(leaf):
        return np.reshape(leaf, (num_chains, num_draws, *leaf.shape[1:]))

    positions = Posterior.constrain(posterior, jax.tree.map(chains, positions))
    statement = found.statement
    return Fit(positions, None, statement, released=released, known=known)


def _rounded(numbers):
    """Float64 numbers to 32 significant bits.

    The sums that a fit releases are exact however the records are spread. What the loop
    computes from them may differ in its last bits between layouts.
    """
    if numbers.dtype != np.float64:
        return numbers
    mantissa, exponent = np.frexp(numbers)
    return np.ldexp(np.round(mantissa * 2.0**32) / 2.0**32, exponent)


def spent_before(budget: privacy.Budget, ledger, checkpoint) -> ledgers.Spent | None:
    """What a ledger says was spent before a run; None if that is nothing."""
    if ledger is None:
        return None
    own = checkpoints.reservation(checkpoint)
    spent = ledgers.read(ledger, budget.neighboring_relation.name, before=own)
    return spent if spent.runs else None


def too_little(
    budget: privacy.Budget, num_records: int, dim: int, hidden: str, factor: float
) -> tuple[str, str]:
    """In words, why a budget is too small, and what would do.

    Parameters
    ----------
    budget, num_records, dim
        The budget, n, and the number of parameters.
    hidden
        What noise will hide.
    factor
        How many times as many records, or as large an epsilon, it takes.
    """
    reason = (
        f"epsilon = {budget.epsilon:.3g} is too little for {num_records:,} records and "
        f"{dim} parameters: noise will hide {hidden}"
    )
    remedy = (
        f"About {shown(factor * num_records)} records, or epsilon = "
        f"{shown(factor * budget.epsilon)}, or fewer parameters, would do; "
        "dpjax.plan_sample, dpjax.numpyro.plan, or dpjax plan with a configuration, "
        "says what several budgets would give"
    )
    return reason, remedy


def spending(
    algorithm_fn,
    posterior: Posterior,
    size: int,
    budget: privacy.Budget,
    norm: MixedNorm | None = None,
    **files,
) -> tuple[float, NoisySum | None]:
    """The noise multiplier of a fit that spends a budget, and its last release.

    Parameters
    ----------
    algorithm_fn, posterior, budget, files
        As in `least_noise`. The last of the events that the algorithm states is that of
        its last release.
    size
        The numbers of that release.
    norm
        A norm that may suit them. If it does, the other releases are told.

    Returns
    -------
    The noise multiplier, and the quietest last release. That is None where it is
    Gaussian because of what was spent before.

    Raises
    ------
    BudgetError
        If too little is left.
    """
    noise_multiplier = least_noise(algorithm_fn, posterior, budget, **files)
    if spent_before(budget, files.get("ledger"), files.get("checkpoint")) is not None:
        return noise_multiplier, None

    def others(**last):
        algorithm = algorithm_fn(posterior, noise_multiplier=noise_multiplier, **last)
        return algorithm.privacy(1, budget.neighboring_relation)[:-1]

    quietest = quietest_sum(1.0, size, others(), budget)
    if norm is None:
        return noise_multiplier, quietest
    beside = others(last=KNormSum(1.0, noise_multiplier, norm=norm))
    mixed = mixed_norm_sum(norm, beside, budget)
    return noise_multiplier, mixed if is_quieter(mixed, quietest) else quietest


def least_noise(
    algorithm_fn, posterior, budget: privacy.Budget, *, ledger=None, checkpoint=None
) -> float:
    """The noise multiplier at which one step spends what is left of a budget.

    Parameters
    ----------
    algorithm_fn
        ``(posterior, noise_multiplier=...) -> Algorithm``.
    posterior, budget, ledger, checkpoint
        As in `dpjax.run`. A run that goes on from its checkpoint gets the same noise
        again: what it was charged itself does not count as spent.

    Raises
    ------
    BudgetError
        If too little is left for any.
    """

    def cost(noise_multiplier):
        algorithm = algorithm_fn(posterior, noise_multiplier=noise_multiplier)
        return algorithm.privacy(1, budget.neighboring_relation)

    spent = spent_before(budget, ledger, checkpoint)
    if spent is not None:
        assert spent.rule is not None
        least = spent.rule.least_noise(spent.runs, budget, cost)
        if least == math.inf:
            raise privacy.BudgetError(
                f"earlier runs in {ledger} leave too little of epsilon = "
                f"{budget.epsilon:g} at delta = {budget.delta:g} for a fit. The budget "
                "is that of all runs on these records together: raise it, if that can "
                f"be answered for. `{ledgers.listing(ledger, budget.delta)}` lists "
                "what was spent"
            )
        return least
    needed = privacy.epsilon(cost(NOISE_MULTIPLIERS[1]), budget.delta)
    if needed > budget.epsilon:
        raise privacy.BudgetError(
            f"epsilon = {budget.epsilon:g} at delta = {budget.delta:g} is too small "
            f"for a fit of this posterior, which takes epsilon = {shown(needed)} or "
            "more: its releases would be noise alone. Raise the budget; "
            "dpjax.plan_sample or dpjax.numpyro.plan says what several would give"
        )
    return privacy.calibrate(
        cost,
        num_steps=1,
        epsilon=budget.epsilon,
        delta=budget.delta,
        bracket=NOISE_MULTIPLIERS,
    )
