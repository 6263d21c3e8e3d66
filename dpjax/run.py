"""Run chains within a privacy budget: the one place where steps and chains multiply."""

import functools
import math
import secrets
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import NeighboringRelation
from tqdm import tqdm

from dpjax import noise, privacy
from dpjax.algorithm import Algorithm, bernoulli
from dpjax.posterior import Posterior
from dpjax.privacy import ledger as ledgers
from dpjax.results import PrivacyStatement, Run

__all__ = ["run"]

CHUNKS = 20
"""Compiled loops a run is cut into; the progress bar moves between them."""


SEEDED = "a JAX key: whoever knows it can undo the privacy"


class _Recipe(NamedTuple):
    """`functools.partial` that compares by value, so that equal runs compile once."""

    function: Callable[..., Algorithm]
    arguments: tuple
    keywords: tuple

    def __call__(self, posterior):
        return self.function(posterior, *self.arguments, **dict(self.keywords))


def _recipe(algorithm_fn):
    if isinstance(algorithm_fn, functools.partial):
        keywords = tuple(sorted(algorithm_fn.keywords.items()))
        return _Recipe(algorithm_fn.func, algorithm_fn.args, keywords)
    return algorithm_fn


def run(
    rng_key: jax.Array | None,
    algorithm_fn: Callable[[Posterior], Algorithm],
    posterior: Posterior,
    num_steps: int | None = None,
    *,
    initial_position: Any,
    num_chains: int,
    budget: privacy.Budget | None,
    thinning: int = 1,
    warmup_fraction: float = 0.5,
    ledger: str | None = None,
    verbose: bool = True,
) -> Run:
    """Draw posterior samples under differential privacy.

    Parameters
    ----------
    rng_key
        None takes 256 bits from the operating system: the default for private data.
        A JAX key makes the run reproducible, and its privacy hangs on that key.
    algorithm_fn
        ``posterior -> Algorithm``, such as ``functools.partial(dpjax.barker,
        step_size=0.1, clip_bound=0.01)``.
    posterior
        What to sample, and the data.
    num_steps
        Steps of every chain; None takes as many as the budget pays.
    initial_position
        Pytree whose leaves have `num_chains` entries along the leading axis, chosen
        without looking at the data.
    num_chains
        Chains compose: releasing 20 costs 20 times the events of one.
    budget
        What the whole run may spend, with its neighbouring relation. None switches
        accounting off, for generated data and tests: the statement says not private.
    thinning
        Keep every `thinning`-th state. All steps are charged.
    warmup_fraction
        Share of the steps left out of the draws; they are charged like the others.
    ledger
        File that records what the data set has spent. The run is charged there before
        its first step and refused if earlier runs left too little.
    verbose
        Print the cost before the run, and a progress bar.

    Returns
    -------
    Run
        Draws, accept rates and the privacy statement.

    Raises
    ------
    ValueError
        If an argument is out of range, before the data are read.
    BudgetError
        If the budget does not pay for the run, before its first step.

    Notes
    -----
    *Formal guarantees.* Everything in the returned `Run` is (epsilon, delta)
    differentially private as its statement says. Steps of lazy kernels that do nothing
    are skipped: which ones they were stays secret.
    """
    states, step_events = _prepare(
        algorithm_fn, posterior, initial_position, num_chains, budget
    )
    if not (isinstance(thinning, int) and thinning >= 1):
        raise ValueError(f"thinning must be a positive integer, got {thinning}")
    if not 0 <= warmup_fraction < 1:
        raise ValueError(f"warmup_fraction must be in [0, 1), got {warmup_fraction}")
    if not (num_steps is None or (isinstance(num_steps, int) and num_steps >= 1)):
        raise ValueError(f"num_steps must be a positive integer, got {num_steps}")
    if budget is None:
        if num_steps is None:
            raise ValueError("without a budget, num_steps must be given")
        events, statement = None, PrivacyStatement.none(num_chains, num_steps)
    else:
        events, num_steps = _afford(step_events, num_steps, num_chains, budget, ledger)
        statement = PrivacyStatement.of(events, budget, num_chains, num_steps)
    if verbose:
        print(statement)
    if events is not None:
        _charge(events, budget, ledger)
    if rng_key is None:
        key = secrets.token_bytes(32)
    else:
        statement = statement._replace(randomness=SEEDED)
        key = np.asarray(jax.random.bits(rng_key, (8,), jnp.uint32)).tobytes()
    return _sample(
        key,
        _recipe(algorithm_fn),
        posterior,
        states,
        num_steps,
        _kept_steps(num_steps, warmup_fraction, thinning),
        thinning,
        statement,
        verbose,
    )


def _prepare(algorithm_fn, posterior, initial_position, num_chains, budget):
    """Check everything public; return the chains' states and the events of a step."""
    if not isinstance(posterior, Posterior):
        raise TypeError(f"expected a dpjax.Posterior, got {type(posterior).__name__}")
    if not (budget is None or isinstance(budget, privacy.Budget)):
        raise TypeError(f"expected a dpjax.Budget, got {type(budget).__name__}")
    if not (isinstance(num_chains, int) and num_chains >= 1):
        raise ValueError(f"num_chains must be a positive integer, got {num_chains}")
    positions = jax.tree.map(jnp.asarray, initial_position)
    for path, leaf in jax.tree_util.tree_leaves_with_path(positions):
        name = f"initial_position{jax.tree_util.keystr(path)}"
        if leaf.ndim == 0 or leaf.shape[0] != num_chains:
            raise ValueError(
                f"{name} has shape {leaf.shape}; it needs {num_chains} entries along "
                "its leading axis, one for every chain"
            )
        if not bool(jnp.all(jnp.isfinite(leaf))):
            raise ValueError(f"{name} is not finite")
    first = jax.tree.map(lambda leaf: leaf[0], positions)
    record = jax.eval_shape(
        lambda data: jax.tree.map(lambda leaf: leaf[0], data), posterior.data
    )
    for name, shape in (
        ("logprior_fn", jax.eval_shape(posterior.logprior_fn, first)),
        (
            "loglikelihood_fn",
            jax.eval_shape(posterior.loglikelihood_fn, first, record),
        ),
    ):
        if getattr(shape, "shape", None) != ():
            raise ValueError(
                f"{name} must return a scalar for one position (and one record), got "
                f"{shape}"
            )
    if not bool(jnp.all(jnp.isfinite(jax.vmap(posterior.logprior_fn)(positions)))):
        raise ValueError("the prior density is zero or undefined at initial_position")
    algorithm = algorithm_fn(posterior)
    states = jax.vmap(algorithm.init)(positions)
    if budget is None:
        return states, None
    substitution = budget.neighboring_relation == NeighboringRelation.REPLACE_ONE
    if substitution and budget.delta >= 1 / posterior.num_records:
        warnings.warn(
            f"delta = {budget.delta} is not below 1/n = {1 / posterior.num_records:.2g}"
            ": publishing one record outright would satisfy it",
            stacklevel=3,
        )
    return states, algorithm.privacy(1, budget.neighboring_relation)


def _afford(step_events, num_steps, num_chains, budget, ledger):
    """The events and the steps of the run: as many as the budget pays, or given."""
    chain_events = [(event, count * num_chains) for event, count in step_events]
    if num_steps is None:
        num_steps = privacy.max_steps(
            chain_events,
            epsilon=budget.epsilon,
            delta=budget.delta,
            spent=ledgers.read(ledger, budget.neighboring_relation.name)
            if ledger
            else [],
        )
    if num_steps == 0:
        raise privacy.BudgetError(
            f"epsilon = {budget.epsilon} at delta = {budget.delta} does not pay for "
            f"one more step of {num_chains} chains: lower the clip bound or the step "
            "size, run fewer chains, or spend less before"
        )
    return [(event, count * num_steps) for event, count in chain_events], num_steps


def _charge(events, budget, ledger):
    """Refuse what the budget cannot pay, then write the ledger."""

    def approve(earlier):
        total = privacy.epsilon(earlier + events, budget.delta)
        if total > budget.epsilon:
            before = f"earlier runs in {ledger} and " if earlier else ""
            raise privacy.BudgetError(
                f"{before}this run would spend epsilon = {total:.4g} of "
                f"{budget.epsilon} at delta = {budget.delta}: take fewer steps or "
                "chains, or a larger budget"
            )

    if ledger is None:
        return approve([])
    ledgers.reserve(ledger, events, budget.neighboring_relation.name, approve)


def _kept_steps(num_steps, warmup_fraction, thinning):
    """Numbers (from 1) of the steps whose states are drawn, thinned from the end."""
    first = math.floor(num_steps * warmup_fraction)
    return np.arange(num_steps, first, -thinning)[::-1]


@functools.partial(jax.jit, static_argnums=0)
def _recall(recipe, posterior, states):
    return jax.vmap(recipe(posterior).transition.recall)(states)


@functools.partial(jax.jit, static_argnums=0, donate_argnums=3)
def _advance(recipe, posterior, states, memory, words, active):
    """Move all chains along ``words (steps, chains, width)`` where `active`."""
    transition = recipe(posterior).transition

    def one(carry, row):
        states, memory = carry
        words, active = row
        moved, info, memory = jax.vmap(transition.move)(words, states, memory)

        def keep(new, old):
            mask = active.reshape(active.shape + (1,) * (new.ndim - 1))
            return jnp.where(mask, new, old)

        states = jax.tree.map(keep, moved, states)
        return (states, memory), (states.position, info.is_accepted & active)

    (states, memory), history = jax.lax.scan(one, (states, memory), (words, active))
    return states, memory, history


def _sample(
    key, recipe, posterior, states, num_steps, kept, thinning, statement, verbose
):
    """Loop over the active steps of every chain and repeat states for the others."""
    transition = recipe(posterior).transition
    num_chains = statement.num_chains
    coins = np.ones((num_steps, num_chains), bool)
    if transition.laziness < 1:
        words = noise.tape(key, 0, (num_steps, num_chains, 2))
        coins = np.asarray(bernoulli(words, transition.laziness))
    # Active steps taken by every chain after 0, 1, ... steps.
    clock = np.cumsum(np.pad(coins, ((1, 0), (0, 0))), axis=0)
    counts, read_at = clock[-1], clock[kept]
    total = int(counts.max())
    # A public length: runs of equal settings compile once, whatever the coins.
    chunk = math.ceil(num_steps * transition.laziness / CHUNKS)
    width = transition.num_words(jax.tree.map(lambda leaf: leaf[0], states))
    draws = jax.tree.map(
        lambda leaf: np.array(np.broadcast_to(leaf, (len(kept), *leaf.shape))),
        states.position,
    )
    accepted = [np.zeros((1, num_chains), bool)]
    memory = _recall(recipe, posterior, states)
    # The bar counts chunks, not passes: how many steps were active is secret too.
    with tqdm(total=CHUNKS, disable=not verbose, unit="part") as bar:
        for start in range(0, total, chunk):
            words = noise.tape(key, 1 + start, (chunk, num_chains, width))
            active = np.arange(start, start + chunk)[:, None] < counts
            states, memory, (positions, bits) = _advance(
                recipe, posterior, states, memory, words, active
            )
            row, chain = np.nonzero((read_at > start) & (read_at <= start + chunk))
            source = read_at[row, chain] - start - 1
            for store, leaf in zip(
                jax.tree.leaves(draws), jax.tree.leaves(positions), strict=True
            ):
                store[row, chain] = np.asarray(leaf)[source, chain]
            accepted.append(np.asarray(bits))
            bar.update(min(1, CHUNKS - bar.n))
        bar.update(CHUNKS - bar.n)
    moves = np.cumsum(np.concatenate(accepted), axis=0)
    earlier = np.maximum(kept - thinning, 0)
    gained = np.take_along_axis(moves, read_at, 0) - np.take_along_axis(
        moves, clock[earlier], 0
    )
    return Run(
        positions=jax.tree.map(lambda leaf: np.moveaxis(leaf, 0, 1), draws),
        acceptance_rate=(gained / (kept - earlier)[:, None]).T,
        statement=statement,
    )
