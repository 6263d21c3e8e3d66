"""Run chains within a privacy budget: the one place where steps and chains multiply."""

import hashlib
import math
import os
import re
import secrets
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import NeighboringRelation

from dpjax import privacy
from dpjax.algorithm import Algorithm
from dpjax.posterior import Posterior
from dpjax.random import chacha
from dpjax.runner import checkpoint as checkpoints
from dpjax.runner import ledger as ledgers
from dpjax.runner import loop
from dpjax.runner.results import PrivacyStatement, Run

__all__ = ["run"]

DRAWS = 2**95
"""Stream of the tape for draws of what was fitted, beyond those of the steps."""

SEEDED = "a JAX key: whoever knows it can undo the privacy"


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
    ledger: str | os.PathLike | None = None,
    checkpoint: str | os.PathLike | None = None,
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
    checkpoint
        File that lets a killed run go on: called again with the same arguments, it
        continues where it stood and is not charged again. It holds the secret
        randomness key, and is deleted when the run ends.
    verbose
        Print the cost before the run, and a progress bar.

    Returns
    -------
    Run
        Draws, accept rates and the privacy statement.

    Raises
    ------
    ValueError
        If an argument is out of range, or draws or infos would depend on the data by
        more than the kernel releases (`dpjax.release.taint`), before the data are read.
    BudgetError
        If the budget does not pay for the run, before its first step.
    CheckpointError
        If `checkpoint` is the file of a run with other arguments.

    Notes
    -----
    *Formal guarantees.* Everything in the returned `Run` is (epsilon, delta)
    differentially private as its statement says. Steps of lazy kernels that do nothing
    are skipped: which ones they were stays secret.
    """
    states, events_fn = _prepare(
        algorithm_fn, posterior, initial_position, num_chains, budget
    )
    if not (isinstance(thinning, int) and thinning >= 1):
        raise ValueError(f"thinning must be a positive integer, got {thinning}")
    if not 0 <= warmup_fraction < 1:
        raise ValueError(f"warmup_fraction must be in [0, 1), got {warmup_fraction}")
    if not (num_steps is None or (isinstance(num_steps, int) and num_steps >= 1)):
        raise ValueError(f"num_steps must be a positive integer, got {num_steps}")
    recipe = loop.recipe(algorithm_fn)
    algorithm = algorithm_fn(posterior)
    transition = algorithm.transition
    outline = loop.outline(transition, states)
    settings = (recipe, num_steps, num_chains, budget, thinning, warmup_fraction)
    fingerprint = _fingerprint(settings, rng_key, states, posterior)
    resumed = None
    if checkpoint is not None:
        resumed = checkpoints.load(checkpoint, outline, fingerprint)
    if resumed is not None:
        num_steps = resumed.num_steps
    elif budget is not None:
        num_steps = _affordable(events_fn, num_steps, num_chains, budget, ledger)
    if num_steps is None:
        raise ValueError("without a budget, num_steps must be given")
    if (left_out := math.floor(num_steps * warmup_fraction)) < transition.num_warmup:
        raise ValueError(
            f"the first {transition.num_warmup} steps tune the kernel, but of "
            f"{num_steps} only {left_out} are left out of the draws: lower num_warmup, "
            "raise warmup_fraction, or lower the cost of a step"
        )
    if budget is None:
        statement = PrivacyStatement.none(num_chains, num_steps)
    else:
        events = events_fn(num_steps)
        statement = PrivacyStatement.of(events, budget, num_chains, num_steps)
        if resumed is None:
            _charge(events, budget, ledger)
    if rng_key is not None:
        statement = statement._replace(randomness=SEEDED)
    if verbose:
        print(statement)
    key = resumed.key if resumed else _key(rng_key)
    plan = loop.schedule(
        key, transition.laziness, num_steps, num_chains, warmup_fraction, thinning
    )
    if resumed is None:
        resumed = loop.begin(key, num_steps, outline, plan)
        if checkpoint is not None:
            checkpoints.save(checkpoint, resumed, fingerprint)
    positions, acceptance_rate, infos = loop.sample(
        recipe, posterior, resumed, plan, checkpoint, fingerprint, verbose
    )
    if checkpoint is not None:
        os.remove(checkpoint)
    if algorithm.sample is not None:
        positions = _draws(key, algorithm.sample, infos.parameters)
    return Run(posterior.constrain(positions), acceptance_rate, statement, infos)


def _draws(key: bytes, sample, parameters):
    """As many draws of every chain's mean fit as steps were kept."""
    num_chains, num_draws = jax.tree.leaves(parameters)[0].shape[:2]
    seed = chacha.tape(key, DRAWS, (num_chains, 2))
    keys = jax.random.wrap_key_data(jnp.asarray(seed), impl="threefry2x32")
    fitted = jax.tree.map(lambda leaf: jnp.mean(leaf, axis=1), parameters)
    return jax.vmap(lambda key, fit: sample(key, fit, num_draws))(keys, fitted)


def _key(rng_key) -> bytes:
    if rng_key is None:
        return secrets.token_bytes(32)
    return np.asarray(jax.random.bits(rng_key, (8,), jnp.uint32)).tobytes()


def _fingerprint(settings, rng_key, states, posterior) -> str:
    """Names a run by everything public that its draws depend on."""
    shapes = jax.tree.map(lambda leaf: (leaf.shape, str(leaf.dtype)), posterior.data)
    arrays = jax.tree.leaves((settings[0], states))
    starts = [np.asarray(leaf).tobytes() for leaf in arrays]
    seed = None if rng_key is None else jax.random.key_data(rng_key).tolist()
    target = (posterior.logprior_fn, posterior.loglikelihood_fn, posterior.tempering)
    # Addresses in the text of functions change between processes.
    text = re.sub(r" at 0x[0-9a-f]+", "", repr((settings, shapes, seed, target)))
    software = (
        jax.__version__,
        jax.default_backend(),
        jax.config.read("jax_enable_x64"),
    )
    digest = hashlib.sha256(repr((text, starts, software)).encode())
    return digest.hexdigest()


def _prepare(algorithm_fn, posterior, initial_position, num_chains, budget):
    """Check everything public; return the chains' states, and steps -> events."""
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
    for name, arguments in (
        ("logprior_fn", (first,)),
        ("loglikelihood_fn", (first, record)),
    ):
        try:
            shape = jax.eval_shape(getattr(posterior, name), *arguments).shape
        except Exception as error:
            raise ValueError(
                f"{name} cannot be evaluated for one position (and one record) of the "
                f"given shapes: {error}"
            ) from error
        if shape != ():
            raise ValueError(
                f"{name} must return a scalar for one position (and one record), got "
                f"shape {shape}"
            )
    if not bool(jnp.all(jnp.isfinite(jax.vmap(posterior.logprior_fn)(positions)))):
        raise ValueError("the prior density is zero or undefined at initial_position")
    algorithm = algorithm_fn(posterior)
    states = jax.vmap(algorithm.init)(positions)

    def events_fn(num_steps):
        one_chain = algorithm.privacy(num_steps, budget.neighboring_relation)
        return [(event, count * num_chains) for event, count in one_chain]

    if budget is None:
        return states, events_fn
    events_fn(1)
    loop.check(algorithm_fn, posterior, positions)
    substitution = budget.neighboring_relation == NeighboringRelation.REPLACE_ONE
    if substitution and budget.delta >= 1 / posterior.num_records:
        warnings.warn(
            f"delta = {budget.delta} is not below 1/n = {1 / posterior.num_records:.2g}"
            ": publishing one record outright would satisfy it",
            stacklevel=3,
        )
    return states, events_fn


def _affordable(events_fn, num_steps, num_chains, budget, ledger) -> int:
    """As many steps as the budget pays, unless `num_steps` are asked for."""
    if num_steps is not None:
        return num_steps
    relation = budget.neighboring_relation.name
    num_steps = privacy.max_steps(
        events_fn,
        epsilon=budget.epsilon,
        delta=budget.delta,
        spent=ledgers.read(ledger, relation) if ledger else [],
    )
    if num_steps == 0:
        raise privacy.BudgetError(
            f"epsilon = {budget.epsilon} at delta = {budget.delta} does not pay for "
            f"one more step of {num_chains} chains: lower the clip bound or the step "
            "size, run fewer chains, or spend less before"
        )
    return num_steps


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
