"""Run chains within a privacy budget: the one place where steps and chains multiply.

`run` traces the loop of a run (`dpjax.runner.program`), asks the algorithm what the
loop costs, refuses what the budget does not pay for, writes the charge to the ledger
(`dpjax.runner.ledger`), makes the steps (`dpjax.runner.loop`) and returns the draws.
The other functions are its parts. `dpjax.runner.batch`, `plan` and `reserve` use them
too, so all of these charge by the same rules.
"""

import functools
import json
import math
import os
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import privacy
from dpjax.algorithm import Algorithm
from dpjax.compiled import QUICKLY, evaluated
from dpjax.posterior import Posterior
from dpjax.privacy.accountant import largest
from dpjax.privacy.budget import check_budget
from dpjax.privacy.events import repeat
from dpjax.privacy.shown import epsilon_up
from dpjax.privacy.validate import check_count
from dpjax.random import chacha
from dpjax.runner import checkpoint as checkpoints
from dpjax.runner import ledger as ledgers
from dpjax.runner import loop, processes, signals
from dpjax.runner import program as programs
from dpjax.runner.check import (
    check_arguments,
    check_key,
    check_start,
    made,
    refuse_records,
    warn_of_large_delta,
)
from dpjax.runner.hashes import digest, keyed
from dpjax.runner.layout import check_size, chunk_size, make_layout
from dpjax.runner.messages import say
from dpjax.runner.results import Run
from dpjax.runner.statement import PrivacyStatement

__all__ = [
    "SEEDED",
    "affordable",
    "approve",
    "begin",
    "check_length",
    "cost_of",
    "fitted_draws",
    "nonce_of",
    "run",
    "secret_of",
    "settings_of",
    "total_epsilon",
    "trace",
]

FITTED_STREAM = 2**95
"""Number of the stream of random words (`dpjax.random.chacha.tape`) that draws from a
fitted distribution are seeded from. The streams of coins and steps
(`dpjax.runner.layout`) have smaller numbers, so no word is used twice."""

NOTHING_SPENT = ledgers.Spent(None, [], Counter())
"""What an absent or empty ledger says."""

SAME_CALL = (
    "all processes must make the same call, on records that are one array of all "
    "processes, or the same array in each; jax.make_array_from_process_local_data "
    "makes one of the parts"
)
SAME_MACHINE = (
    "every process computes the public part of a step for itself, so the machines must "
    "be of one kind, with the same software. Do not use the draws, and delete the "
    "checkpoint; what the run was charged stays spent"
)

SEEDED = "unsafe_key: whoever knows this key can undo the privacy"
"""What a statement says of the randomness if it came from an ``unsafe_key``."""


@checkpoints.holding
def run(
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
    ledger_rule: privacy.AdaptiveRule | None = None,
    checkpoint: str | os.PathLike | None = None,
    verbose: bool = True,
    unsafe_key: jax.Array | None = None,
) -> Run:
    """Draw posterior samples under differential privacy.

    The randomness comes from 256 bits of the operating system's entropy.

    Parameters
    ----------
    algorithm_fn
        ``posterior -> Algorithm``, such as ``functools.partial(dpjax.barker,
        step_size=0.1, clip_bound=0.01)``. It is called anew by every run, and the run
        executes and charges what it returns then.
    posterior
        What to sample, and the data.
    num_steps
        Steps of every chain; None takes as many as `reserve` set aside in the ledger,
        or else as many as the budget pays.
    initial_position
        Pytree whose leaves have `num_chains` entries along the leading axis, chosen
        without looking at the data.
    num_chains
        Number of chains. Chains compose: 20 chains release 20 times the events of one.
    budget
        What the whole run may spend, with its neighbouring relation. None switches the
        accounting off, for generated data and tests; the statement then says that the
        run is not private.
    thinning
        Keep every `thinning`-th state. All steps are charged.
    warmup_fraction
        Share of the steps, in [0, 1), that are left out of the draws. They are charged
        like the others.
    ledger
        File that records what the data set has spent, kept like the data. The run is
        charged there before its first step, and refused if earlier runs left too
        little, or spent the budget of other data. A later run may be chosen in view of
        what earlier ones released. The ledger of a data file ``records.csv`` is
        ``records.csv.ledger.jsonl`` beside it, which ``dpjax run`` takes by itself:
        name it here too, so that all runs share it. See `dpjax.runner.ledger`.
    ledger_rule
        How the runs of a new ledger add up. The default loses least if later runs
        resemble this one.
    checkpoint
        File from which a killed run goes on: a call with the same arguments continues
        where the killed run stood, and is not charged again. After the run the same
        call returns the same draws, without a step and without a charge. The file
        remembers the program, its cost, the budget, the ledger and a keyed hash of the
        data, and a call that differs in any of them is refused, or finds a ledger that
        no longer holds the charge. It holds the secret randomness key: delete it once
        the draws are saved.
    verbose
        Print the cost before the run, by the logger ``dpjax``, and a progress bar.
    unsafe_key
        A JAX key in place of the system's entropy, for generated or public data.
        Whoever knows it can undo the privacy; the ledger and the statement say that it
        was used. With a budget, the randomness depends also on what is charged, on the
        data, the arguments, the program and the state of the ledger. So a key repeats
        one and the same run, and two other runs with one key share no randomness.

    Returns
    -------
    Run
        Draws, accept rates and the privacy statement.

    Raises
    ------
    ValueError
        If an argument is out of range, or draws or infos would depend on the data by
        more than the kernel releases (`dpjax.release.taint`), or `algorithm_fn` returns
        an algorithm of another cost when it is called again. Each is raised before the
        data are read.
    TypeError
        If an argument is of another class, such as an `Algorithm` in place of a
        function that makes one.
    BudgetError
        If the budget does not pay for the run, before its first step.
    CheckpointError
        If `checkpoint` is the file of another run; the message says what differs. Or if
        a run that has not ended is at work on it.
    LedgerError
        If `ledger` is damaged, of other data, or cannot be written, before the first
        step.
    RuntimeError
        If another of several processes has ended: `dpjax.runner.processes.Lost`.

    Notes
    -----
    *Formal guarantees.* Everything in the returned `Run` together is (epsilon, delta)
    differentially private, for the neighbouring relation that its statement names. The
    steps at which a lazy kernel does nothing are skipped; which ones they were stays
    secret.

    Processes that `jax.distributed` has joined make the same call, and one run of it:
    see `dpjax.runner.processes`.
    """
    verbose = verbose and processes.is_first()
    check_key(unsafe_key)
    check_arguments(algorithm_fn, posterior)
    posterior = programs.on_auto_axes(posterior)
    num_chains = check_count("num_chains", num_chains)
    thinning = check_count("thinning", thinning)
    if num_steps is not None:
        num_steps = check_count("num_steps", num_steps)
    check_length(num_steps, warmup_fraction, budget)
    algorithm, states, cost_fn = begin(
        algorithm_fn, [posterior], initial_position, num_chains, budget
    )
    initial = programs.initial(algorithm.transition, states)
    stored = checkpoints.load(checkpoint, initial)
    if stored is not None:
        length = stored.num_steps
    elif num_steps is not None:
        length = num_steps
    else:
        length = affordable(cost_fn, num_chains, budget, ledger)
    num_discarded = math.floor(length * warmup_fraction)
    outline, program = trace(
        algorithm_fn,
        posterior,
        algorithm,
        initial,
        num_chains,
        budget,
        (length, num_discarded, thinning),
    )

    # `records()` hashes the data: once, and not before the run is paid for.
    records = functools.cache(lambda: digest(posterior.data))
    parameters = digest((programs.arrays_of(algorithm_fn), states))
    settings = settings_of(
        num_steps, num_chains, thinning, warmup_fraction, budget, outline, program
    )
    # Signals wait until the checkpoint is written. Otherwise one between the charge and
    # the checkpoint would leave a run that is charged and cannot be continued.
    with signals.deferred():
        secret = processes.first(lambda: secret_of(unsafe_key))
        if processes.are_many():
            names = dict(parameters=parameters, data=records())
            names = {name: keyed(secret, value).hex() for name, value in names.items()}
            options = dict(unsafe_key=unsafe_key, checkpoint=checkpoint, ledger=ledger)
            names |= {name: value is not None for name, value in options.items()}
            processes.check_same(settings | names, SAME_CALL)
        if stored is not None:
            key, reservation = stored.key, stored.reservation
        elif budget is None:
            key, reservation = secret, ""
        else:
            key, reservation = _pay(
                outline.events,
                cost_fn,
                budget,
                ledger,
                ledger_rule,
                secret,
                unsafe_key is not None,
                settings | dict(num_steps=length, parameters=parameters.hex()),
                records,
            )
        if checkpoint is not None:
            settings |= dict(
                ledger=ledger and os.path.realpath(ledger),
                unsafe_key=unsafe_key is not None
                and jax.random.key_data(unsafe_key).tolist(),
                software=_software(),
                parameters=keyed(key, parameters).hex(),
                data=keyed(key, records()).hex(),
            )
        if stored is not None:
            check = functools.partial(checkpoints.check, checkpoint, stored, settings)
            processes.first(check)
            if budget is not None and ledger is not None:
                _check_paid(checkpoint, ledger, reservation)
        statement = _statement(outline.events, budget, num_chains, length, unsafe_key)
        if budget is not None and ledger is not None:
            statement = statement._replace(epsilon_of_ledger=budget.epsilon)
        if verbose:
            say(statement)

        layout = make_layout(
            key, outline.laziness, length, num_chains, num_discarded, thinning
        )
        save = functools.partial(checkpoints.save, checkpoint, settings)
        if stored is None:
            stored = loop.begin(key, reservation, length, layout, initial)
            save(stored)
    drawn = loop.sample(program, stored, layout, save, verbose)
    if processes.are_many():
        processes.check_same(dict(draws=digest(drawn).hex()), SAME_MACHINE)
    positions, acceptance_rate, infos = drawn
    if algorithm.sample is not None:
        positions = fitted_draws(key, algorithm.sample, infos)
    return Run(
        Posterior.constrain(posterior, positions), acceptance_rate, statement, infos
    )


def begin(
    algorithm_fn,
    posteriors: Sequence[Posterior],
    initial_position,
    num_chains: int,
    budget,
):
    """Make the algorithm and the first states of a run, and check what they depend on.

    Parameters
    ----------
    posteriors
        The data sets that will be sampled, as posteriors with the same functions: one
        for `run`, several for `dpjax.runner.batch`.
    algorithm_fn, initial_position, num_chains, budget
        As in `run`.

    Returns
    -------
    algorithm
        The algorithm that `algorithm_fn` makes of the first posterior.
    states
        States of the chains before the first step, leaves ``(num_chains, ...)``.
    cost_fn
        ``num_steps -> [(event, count), ...]``: what all chains of one run release.
    """
    posterior, *others = posteriors
    positions = _check_positions(initial_position, num_chains)
    _check_densities(posterior, positions)
    algorithm = made(algorithm_fn, posterior, is_private=budget is not None)
    if budget is not None:
        check_start(algorithm_fn, algorithm, posterior, positions, others)
        warn_of_large_delta(budget, posterior)
    # `check_start` only traced these functions. They are executed here, once they are
    # known not to read the records.
    logpriors = evaluated(jax.vmap(posterior.logprior_fn), positions)
    if not np.all(np.isfinite(logpriors)):
        raise ValueError("the prior density is zero or undefined at initial_position")
    states = jax.vmap(algorithm.init)(positions)
    if budget is not None:
        # When it is executed, `init` may do otherwise than when it was traced. A second
        # search for the positions would take seconds where records are many.
        starts = jax.tree.leaves(positions)
        new = [
            leaf
            for leaf in jax.tree.leaves(states)
            if not any(np.array_equal(leaf, start) for start in starts)
        ]
        with processes.agreed():
            refuse_records(new, *posteriors)
    return algorithm, states, functools.partial(cost_of, algorithm, num_chains, budget)


def trace(
    algorithm_fn,
    posterior: Posterior,
    algorithm: Algorithm,
    initial,
    num_chains: int,
    budget,
    steps: tuple[int, int, int],
    **options,
) -> "tuple[_Outline, programs.Program]":
    """Trace the loop of a run, and ask the traced algorithm what the run costs.

    Parameters
    ----------
    algorithm_fn, posterior
        As in `run`.
    algorithm
        The algorithm that `begin` returned. The one that is traced must cost the same.
    initial
        What `programs.initial` makes of the states of all chains that the loop moves.
    num_chains
        Number of chains of one run, whose events are charged. The loop of a batch moves
        the chains of many runs.
    budget
        As in `run`. Without a budget, the loop is not searched for leaks.
    steps
        Three numbers: the steps of every chain, how many of the first ones are left out
        of the draws, and the thinning.
    options
        Further keyword arguments of `programs.trace`.

    Returns
    -------
    outline
        The events of all chains of one run, and what else a run needs to know of the
        algorithm (`_Outline`).
    program
        The loop, to be compiled when it is first called.

    Raises
    ------
    ValueError
        If `algorithm_fn` returns an algorithm of another cost, draws are from steps
        that tune, or the loop does not fit in memory.
    """
    num_steps, num_discarded, thinning = steps
    num_words = programs.num_words_of(algorithm.transition, initial[0])
    check_size(
        num_steps,
        len(jax.tree.leaves(initial[0])[0]),
        num_words * algorithm.transition.laziness,
        sum(leaf.size for leaf in jax.tree.leaves(initial[1])),
        (num_steps - num_discarded) / thinning,
    )
    outline_fn = functools.partial(_outline, num_chains, budget, num_steps)
    outline = outline_fn(algorithm)
    _check_tuning(outline.num_warmup, num_discarded, num_steps)
    num_releases = None
    if budget is not None:
        num_releases = programs.charged_releases(algorithm, outline.events)
        num_releases /= num_steps * num_chains
    program = programs.trace(
        algorithm_fn,
        posterior,
        initial[0],
        num_words,
        chunk_size=chunk_size(num_steps, outline.laziness),
        is_private=budget is not None,
        num_releases=num_releases,
        outline_fn=outline_fn,
        # A run of one step, such as a fit, takes longer to compile well than to run.
        compiler_options=QUICKLY if num_steps == 1 else None,
        **options,
    )
    if program.outline != outline:
        raise ValueError(
            "algorithm_fn made algorithms of different costs of one posterior, so what "
            "would run is not what would be charged: it must depend on its argument "
            "alone"
        )
    return outline, program


def _software() -> list[str]:
    """What may change how the records are rounded before they are added up."""
    device = jax.devices()[0].device_kind
    flags = os.environ.get("XLA_FLAGS", "")
    return [jax.__version__, jax.default_backend(), device, flags]


def settings_of(
    num_steps, num_chains, thinning, warmup_fraction, budget, outline, program
) -> dict:
    """What tells one run from another, by name and ready for JSON.

    Hashes of the records and of the arrays among the arguments are not in it; `run`
    adds them where they are needed.
    """
    return dict(
        num_steps=num_steps,
        num_chains=num_chains,
        thinning=thinning,
        warmup_fraction=warmup_fraction,
        budget=budget and [budget.epsilon, budget.delta],
        neighboring_relation=budget and budget.neighboring_relation.name,
        cost=[[event.to_json(), count] for event, count in outline.events],
        program=program.identity,
    )


def check_length(num_steps, warmup_fraction, budget) -> None:
    """Refuse a budget, a number of steps or a warm-up that `run` cannot take."""
    if budget is not None:
        check_budget(budget)
    if num_steps is None and budget is None:
        raise ValueError("without a budget, num_steps must be given")
    if not 0 <= warmup_fraction < 1:
        raise ValueError(f"warmup_fraction must be in [0, 1), got {warmup_fraction}")


def _check_positions(initial_position, num_chains: int):
    """`initial_position` as JAX arrays, if it has a finite start for every chain."""
    positions = jax.tree.map(jnp.asarray, initial_position)
    if not jax.tree.leaves(positions):
        raise ValueError("initial_position holds no arrays")
    for path, leaf in jax.tree_util.tree_leaves_with_path(positions):
        name = f"initial_position{jax.tree_util.keystr(path)}"
        if leaf.shape[:1] != (num_chains,):
            raise ValueError(
                f"{name} has shape {leaf.shape}; it needs {num_chains} entries along "
                "its leading axis, one for every chain"
            )
        if leaf.dtype not in (jnp.float32, jnp.float64):
            raise ValueError(
                f"{name} is of type {leaf.dtype}: give floats of 32 or 64 bits"
            )
        if not np.all(np.isfinite(leaf)):
            raise ValueError(f"{name} is not finite")
    return positions


def _check_densities(posterior, positions) -> None:
    """Refuse a log prior or log-likelihood that does not return a scalar."""
    # Only the shapes of the records are used.
    first = functools.partial(jax.tree.map, lambda leaf: leaf[0])
    position, record = jax.eval_shape(first, (positions, posterior.data))
    densities = dict(logprior_fn=(position,), loglikelihood_fn=(position, record))
    for name, arguments in densities.items():
        shape, kind = None, ""
        try:
            shape = jax.eval_shape(getattr(posterior, name), *arguments).shape
        except Exception as error:
            kind = type(error).__name__
        # Not raised while the error is handled: a traceback would print it too.
        if shape is None:
            raise ValueError(
                f"{name} cannot be evaluated for one position (and one record) of the "
                f"given shapes: {kind}, whose message is left out because it may quote "
                f"records; call {name} on made-up arrays of these shapes to see it"
            )
        if shape != ():
            raise ValueError(
                f"{name} must return a scalar for one position (and one record), got "
                f"shape {shape}"
            )


class _Outline(NamedTuple):
    """What a run needs to know of its algorithm before it begins.

    events
        ``[(event, count), ...]`` that all chains of one run release.
    laziness
        Chance that a step is active: see `dpjax.runner.layout`.
    num_warmup
        Number of first steps that tune the kernel.
    """

    events: list
    laziness: float
    num_warmup: int


def _outline(num_chains: int, budget, num_steps: int, algorithm: Algorithm):
    events = cost_of(algorithm, num_chains, budget, num_steps)
    return _Outline(
        events, algorithm.transition.laziness, algorithm.transition.num_warmup
    )


def cost_of(algorithm: Algorithm, num_chains: int, budget, num_steps: int) -> list:
    """``[(event, count), ...]`` that all chains release in `num_steps` steps.

    The list is empty without a budget, as nothing is then charged.
    """
    if budget is None:
        return []
    one_chain = algorithm.privacy(num_steps, budget.neighboring_relation)
    return repeat(one_chain, num_chains)


def affordable(cost_fn, num_chains: int, budget, ledger) -> int:
    """The largest number of steps that the budget pays for, given the ledger.

    Raises
    ------
    BudgetError
        If it does not pay for one step.
    """
    spent = NOTHING_SPENT
    if ledger is not None:
        spent = ledgers.read(ledger, budget.neighboring_relation.name)
    num_steps = _max_steps(cost_fn, budget, spent)
    if num_steps == 0:
        before = again = ""
        if spent.runs:
            before = f" beside what earlier runs in {ledger} spent"
            listing = ledgers.listing(ledger, budget.delta)
            again = f"; `{listing}` lists what was spent"
        raise privacy.BudgetError(
            f"epsilon = {budget.epsilon} at delta = {budget.delta} does not pay for "
            f"one more step of {num_chains} chains{before}: lower the clip bound or "
            "the step size, run fewer chains, or spend less before; dpjax.plan says "
            f"what several budgets pay for{again}"
        )
    return num_steps


def _max_steps(cost_fn, budget, spent: ledgers.Spent) -> int:
    """The largest number of steps that a plan in the ledger still covers (`reserve`).

    If it covers none, the largest number that the budget pays for, perhaps zero.
    """
    if planned := largest(lambda num_steps: spent.has_left(cost_fn(num_steps))):
        return planned
    if spent.rule is not None:
        return spent.rule.max_steps(cost_fn, spent.runs, budget)
    return privacy.max_steps(cost_fn, epsilon=budget.epsilon, delta=budget.delta)


def _check_tuning(num_warmup: int, num_discarded: int, num_steps: int) -> None:
    """Refuse draws from steps that tune the kernel."""
    if num_discarded < num_warmup:
        raise ValueError(
            f"the first {num_warmup} steps tune the kernel, but of {num_steps} only "
            f"{num_discarded} are left out of the draws: lower num_warmup, raise "
            "warmup_fraction, or lower the cost of a step"
        )


def _pay(
    events,
    cost_fn,
    budget,
    ledger,
    ledger_rule,
    secret: bytes,
    is_unsafe: bool,
    settings: dict,
    records,
) -> tuple[bytes, str]:
    """Refuse a run that the budget does not pay for; charge any other to the ledger.

    Returns the run's 32 secret bytes, from which all of its randomness comes, and the
    nonce of its line in the ledger. Two runs with one unsafe key get the same bytes
    only if their settings, their records and the state of their ledgers are equal. In
    all other cases they share no randomness.

    Parameters
    ----------
    events, cost_fn
        What the run releases, and ``num_steps -> events`` for the error message.
    secret
        32 bytes: the system's entropy, or those of the unsafe key.
    is_unsafe
        Whether the user chose the key.
    settings
        What tells the run from others, but for its records.
    records
        Function without arguments that returns the hash of the records.
    """

    def nonce_fn(ledger_state: str) -> str:
        return nonce_of(secret, settings, records(), ledger_state)

    approve_fn = functools.partial(approve, events, cost_fn, budget, ledger)
    if ledger is None:
        approve_fn()
        nonce = nonce_fn("")
    else:
        append = functools.partial(
            ledgers.reserve,
            ledger,
            events,
            budget.neighboring_relation.name,
            approve_fn,
            rule=ledger_rule or privacy.AdaptiveRule.of(events, budget),
            data_fn=records,
            nonce_fn=nonce_fn,
            unsafe_key=is_unsafe,
        )
        nonce = processes.first(lambda: append().encode()).decode()
    return keyed(secret, bytes.fromhex(nonce)), nonce


def nonce_of(secret: bytes, settings: dict, records: bytes, ledger_state="") -> str:
    """A hash in hex that sets a charged run apart from others with the same `secret`.

    It is the nonce of the run's line in the ledger, and the run's randomness depends on
    it: see `_pay`.
    """
    text = json.dumps(settings).encode()
    return keyed(secret, text, records, ledger_state.encode()).hex()


def approve(
    events, cost_fn, budget, ledger=None, spent: ledgers.Spent = NOTHING_SPENT
) -> None:
    """Refuse a run that the budget does not pay for beside what was spent before.

    Raises
    ------
    BudgetError
        If the `events` of the run and what was `spent` exceed the budget together. The
        message names `ledger`, and how many steps could be paid for.
    """
    total = total_epsilon(spent, events, budget.delta)
    if total > budget.epsilon:
        before = again = ""
        if spent.runs:
            before = f"earlier runs in {ledger} and "
            listing = ledgers.listing(ledger, budget.delta)
            again = f"; `{listing}` lists what was spent"
        most = _max_steps(cost_fn, budget, spent)
        raise privacy.BudgetError(
            f"{before}this run would spend epsilon = {epsilon_up(total)} of "
            f"{budget.epsilon} at delta = {budget.delta}, which pays for {most} steps "
            f"of as many chains: take no more steps, or a larger budget{again}"
        )


def total_epsilon(spent: ledgers.Spent, events, delta: float) -> float:
    """Epsilon of `events` together with what was spent before."""
    if spent.rule is None:
        return privacy.epsilon(events, delta)
    return spent.rule.epsilon(spent.after(events), delta)


def _check_paid(checkpoint, ledger, reservation: str) -> None:
    """Refuse to continue a run whose charge is not in the ledger any more."""
    if not ledgers.holds(ledger, reservation):
        raise checkpoints.CheckpointError(
            f"{ledger} no longer holds what the run of {checkpoint} was charged: put "
            "the ledger of that run back, as it was spent"
        )


def _statement(events, budget, num_chains: int, num_steps: int, unsafe_key):
    if budget is None:
        statement = PrivacyStatement.none(num_chains, num_steps)
    else:
        statement = PrivacyStatement.of(events, budget, num_chains, num_steps)
    return statement if unsafe_key is None else statement._replace(randomness=SEEDED)


def secret_of(unsafe_key) -> bytes:
    """32 secret bytes: the operating system's entropy, or bits of the unsafe key."""
    if unsafe_key is None:
        return secrets.token_bytes(32)
    return np.asarray(jax.random.bits(unsafe_key, (8,), jnp.uint32)).tobytes()


def fitted_draws(key: bytes, sample, infos):
    """Draws from the distributions that the chains of an algorithm such as DPVI fitted.

    For every chain, the parameters in its `infos` are averaged over the steps that were
    kept, and as many draws are made from the distribution with the averages.

    Parameters
    ----------
    key
        The run's 32 secret bytes.
    sample
        The field of that name of `dpjax.algorithm.Algorithm`.
    infos
        Infos of the kept steps, leaves ``(num_chains, num_draws, ...)``.
    """
    num_chains, num_draws = jax.tree.leaves(infos.parameters)[0].shape[:2]
    seed = chacha.tape(key, FITTED_STREAM, (num_chains, 2))
    keys = jax.random.wrap_key_data(jnp.asarray(seed), impl="threefry2x32")
    fits = jax.tree.map(lambda leaf: jnp.mean(leaf, axis=1), infos.parameters)
    return jax.vmap(lambda key, fit: sample(key, fit, num_draws))(keys, fits)
