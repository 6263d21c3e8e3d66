"""Many runs at once: every data set of an experiment, in one compiled program."""

import functools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dpjax import privacy
from dpjax.algorithm import Algorithm
from dpjax.posterior import Posterior
from dpjax.privacy.validate import check_count
from dpjax.release import on_disk
from dpjax.runner import loop, processes
from dpjax.runner import program as programs
from dpjax.runner.check import check_arguments, check_key
from dpjax.runner.hashes import digest, keyed
from dpjax.runner.layout import make_layout
from dpjax.runner.messages import say
from dpjax.runner.results import Run
from dpjax.runner.run import (
    SEEDED,
    affordable,
    approve,
    begin,
    check_length,
    fitted_draws,
    nonce_of,
    secret_of,
    settings_of,
    trace,
)
from dpjax.runner.statement import PrivacyStatement, listed, spent

__all__ = ["Batch", "BatchStatement", "batch"]

MAX_TERMS = 2**26
"""Log-likelihoods, of all chains and data sets, that an accelerator evaluates together
if one data set has less. More data sets are moved in groups, to bound memory."""


class BatchStatement(NamedTuple):
    """What a batch released of one data set, all runs on it together.

    epsilon, delta
        Of these runs together.
    neighboring_relation
        Name of the relation between data sets that the statement is about.
    num_runs
        Runs that read the data set.
    events
        What these runs together released, as text.
    randomness
        Where the random numbers came from.
    """

    epsilon: float
    delta: float
    neighboring_relation: str
    num_runs: int
    events: str
    randomness: str

    def __str__(self):
        if self.neighboring_relation == "NONE":
            return f"{self.num_runs} runs, not all with a budget: NOT PRIVATE"
        cost = spent(self.epsilon, self.delta, self.neighboring_relation)
        return (
            f"{self.num_runs} runs: {cost}\nreleased: {self.events}\n"
            f"randomness: {self.randomness}"
        )


@dataclass(frozen=True, repr=False)
class Batch:
    """Draws of many runs, and what they cost.

    positions
        By setting, pytrees of arrays ``(data sets, repetitions, chains, draws, ...)``:
        positions of the chains, or parameters if the posteriors have a `constrain_fn`.
    acceptance_rate
        By setting, ``(data sets, repetitions, chains, draws)`` as in `dpjax.run`; None
        if the kernel does not accept or reject.
    infos
        By setting, as in `dpjax.run`, with leaves like those of `positions`; None if
        the kernel accepts or rejects.
    run_statements
        By setting, the statement of one run, had no other run read its data set.
    statements
        One `BatchStatement` for each data set: of all runs on it together. A data set
        that was given several times has the runs of all of its copies.
    statement
        Of all runs together. It holds even if data sets share records; `statements` are
        about data sets that do not, but for copies.
    """

    positions: Mapping[Any, Any]
    acceptance_rate: Mapping[Any, np.ndarray | None]
    infos: Mapping[Any, Any]
    run_statements: Mapping[Any, PrivacyStatement]
    statements: Sequence[BatchStatement]
    statement: BatchStatement

    def __repr__(self) -> str:
        """What the data sets cost."""
        return _shown(self.statements, self.statement)

    def table(self, truth: Any = None, *, probability: float = 0.9):
        """Mean, sd and interval of every component in every run.

        Parameters
        ----------
        truth
            What the draws estimate: a pytree like one draw, the same for all data sets,
            or with a leading axis for the data sets.
        probability
            Of the interval between two quantiles of the draws, in (0, 1).

        Returns
        -------
        pandas.DataFrame
            One row for each component of each run, indexed by setting, data set,
            repetition and component. The columns are ``mean``, ``sd``, ``low`` and
            ``high``, over the draws of all chains; ``truth`` and ``is_covered`` if it
            is given; ``epsilon`` of all runs on the data set together, and
            ``epsilon_of_run``, had no other run read the data set.

        Raises
        ------
        ValueError
            If `truth` has other shapes, or `probability` is out of range.
        """
        import pandas

        if not 0 < probability < 1:
            raise ValueError(f"probability must be in (0, 1), got {probability}")
        tables = {}
        for name, positions in self.positions.items():
            num_data_sets, num_repetitions = jax.tree.leaves(positions)[0].shape[:2]
            flat = jax.tree.map(
                lambda leaf: leaf.reshape(-1, *leaf.shape[3:]), positions
            )
            statement = self.run_statements[name]
            names, draws = Run(flat, None, statement).components()
            shape = num_data_sets, num_repetitions, -1, len(names)
            draws = np.asarray(draws, np.float64).reshape(shape)
            index = pandas.MultiIndex.from_product(
                [range(num_data_sets), range(num_repetitions), names],
                names=["data_set", "repetition", "component"],
            )
            tail = (1 - probability) / 2
            columns = dict(
                mean=draws.mean(axis=2),
                sd=draws.std(axis=2),
                low=np.quantile(draws, tail, axis=2),
                high=np.quantile(draws, 1 - tail, axis=2),
            )
            if truth is not None:
                columns["truth"] = _truths(truth, positions)[:, None]
                is_above = columns["low"] <= columns["truth"]
                columns["is_covered"] = is_above & (columns["truth"] <= columns["high"])
            spent = np.array([each.epsilon for each in self.statements])
            columns["epsilon"] = spent[:, None, None]
            columns["epsilon_of_run"] = np.array(statement.epsilon)
            size = columns["mean"].shape
            columns = {
                key: np.broadcast_to(value, size).ravel()
                for key, value in columns.items()
            }
            tables[name] = pandas.DataFrame(columns, index)
        return pandas.concat(tables, names=["setting"])


def _shown(statements: Sequence[BatchStatement], together: BatchStatement) -> str:
    """Equal statements are shown once."""
    lines = [f"{n} data sets, each {each}" for each, n in Counter(statements).items()]
    if together.num_runs > max(each.num_runs for each in statements):
        lines.append(f"if data sets share records, {together}")
    return "\n".join(lines)


def _truths(truth, positions) -> np.ndarray:
    """``(data sets or one, components)``."""
    is_like = jax.tree.structure(truth) == jax.tree.structure(positions)
    columns = []
    if is_like:
        pairs = zip(jax.tree.leaves(truth), jax.tree.leaves(positions), strict=True)
        for value, leaf in pairs:
            value = np.asarray(value)
            if value.shape == leaf.shape[4:]:
                value = np.broadcast_to(value, (len(leaf), *value.shape))
            is_like = is_like and value.shape == (len(leaf), *leaf.shape[4:])
            columns.append(value.reshape(len(value), -1))
    if not is_like:
        raise ValueError(
            "truth must be a pytree like one draw, or like one draw of every data set"
        )
    return np.concatenate(columns, axis=1)


def batch(
    settings: Mapping[Any, tuple[Callable, privacy.Budget | None]],
    posteriors: Sequence[Posterior],
    num_steps: int | None = None,
    *,
    initial_position: Any,
    num_chains: int,
    num_repetitions: int = 1,
    thinning: int = 1,
    warmup_fraction: float = 0.5,
    verbose: bool = True,
    unsafe_key: jax.Array | None = None,
) -> Batch:
    """Run every setting on every data set: an experiment on generated data.

    Each run is one that `dpjax.run` would make. All runs of a setting are one compiled
    program, which moves the chains of many data sets at once on a GPU, and those of one
    data set after another on a CPU. Numbers of a kernel are part of its program, so
    another setting is another program, unless it differs only in the arrays of a
    `functools.partial`.

    Parameters
    ----------
    settings
        ``{name: (algorithm_fn, budget)}``: what runs, and what *one* run of it on one
        data set may spend; both as in `dpjax.run`. Budgets have the same delta and the
        same neighbouring relation.
    posteriors
        One for every data set, with the same functions and data of the same shapes.
    num_steps
        Steps of every chain; None takes as many as the budget of the setting pays for
        in one run.
    initial_position, num_chains
        As in `dpjax.run`, for every run.
    num_repetitions
        Runs of each setting on each data set. All runs of all settings have randomness
        of their own, unless there is an `unsafe_key`.
    thinning, warmup_fraction, verbose
        As in `dpjax.run`.
    unsafe_key
        As in `dpjax.run`. The run with number ``j`` on data set ``i`` has the unsafe
        key ``fold_in(fold_in(unsafe_key, i), j)``, in every setting.

    Returns
    -------
    Batch
        The draws, a statement for each data set, and a table.

    Raises
    ------
    TypeError, ValueError, BudgetError, RuntimeError
        As in `dpjax.run`, for any of the runs and before the first step of all; or if
        the posteriors or the budgets differ in what they must share, or there are
        several processes.

    Notes
    -----
    *Formal guarantees.* A budget bounds what one run spends. Runs on the same records
    add up: the statement of a data set composes all settings and repetitions on it, and
    those on data sets with equal arrays, so it tells which ones are equal. If data sets
    share some of their records, only `Batch.statement` holds, which composes all runs
    of the batch. There is no ledger: what a batch spends is not counted with other
    runs.

    The draws of a run are those of `dpjax.run` to the last bit, unless the likelihood
    is a matrix product, whose last digit may depend on how many are multiplied at once.
    """
    if processes.are_many():
        raise RuntimeError(
            "a batch is made by one process: with several, give each data sets of its "
            "own, before jax.distributed joins them"
        )
    check_key(unsafe_key)
    posteriors = _check_posteriors(posteriors)
    num_chains = check_count("num_chains", num_chains)
    num_repetitions = check_count("num_repetitions", num_repetitions)
    shape = len(posteriors), num_repetitions, num_chains
    thinning = check_count("thinning", thinning)
    if num_steps is not None:
        num_steps = check_count("num_steps", num_steps)
    _check_settings(settings, posteriors[0], num_steps, warmup_fraction)
    stacked = _stacked(posteriors)
    prepared = {}
    for name, (algorithm_fn, budget) in settings.items():
        prepared[name] = _prepare(
            algorithm_fn,
            budget,
            posteriors,
            stacked,
            shape,
            initial_position,
            (num_steps, warmup_fraction, thinning),
        )
    # The data are read once, and not before every run is known to be paid for.
    records = [digest(posterior.data) for posterior in posteriors]
    copies = Counter(records)
    statement_fn = functools.cache(
        functools.partial(_statement, list(prepared.values()), unsafe_key is not None)
    )
    statements = [statement_fn(num_repetitions * copies[each]) for each in records]
    together = statement_fn(num_repetitions * len(records))
    alone = {
        name: PrivacyStatement.none(num_chains, each.num_steps)
        if each.budget is None
        else PrivacyStatement.of(
            each.outline.events, each.budget, num_chains, each.num_steps
        )
        for name, each in prepared.items()
    }
    if verbose:
        say(_shown(statements, together))
    drawn = {}
    for name, each in prepared.items():
        keys = [
            each.key(_secret(unsafe_key, i, j), of_data)
            for i, of_data in enumerate(records)
            for j in range(num_repetitions)
        ]
        drawn[name] = _draw(each, posteriors[0], keys, shape, verbose)
    positions, acceptance_rate, infos = (
        {name: each[i] for name, each in drawn.items()} for i in range(3)
    )
    return Batch(positions, acceptance_rate, infos, alone, statements, together)


class _Prepared(NamedTuple):
    """The runs of a setting, checked, traced and paid for.

    algorithm, budget, outline, program
        Of the setting.
    initial
        `programs.initial` of all runs.
    num_steps, num_discarded, thinning
        Of every chain.
    settings
        What tells a run of the setting from other charged runs but for its records.
    """

    algorithm: Algorithm
    budget: privacy.Budget | None
    outline: Any
    program: programs.Program
    initial: Any
    num_steps: int
    num_discarded: int
    thinning: int
    settings: dict

    def key(self, secret: bytes, records: bytes) -> bytes:
        """The secret key of a run, as `dpjax.run` makes it."""
        if self.budget is None:
            return secret
        return keyed(secret, bytes.fromhex(nonce_of(secret, self.settings, records)))


def _check_posteriors(posteriors) -> list[Posterior]:
    if isinstance(posteriors, Posterior) or not all(
        isinstance(each, Posterior) for each in posteriors
    ):
        raise TypeError("posteriors must be a sequence of dpjax.Posterior")
    posteriors = list(posteriors)
    if not posteriors:
        raise ValueError("posteriors must hold at least one data set")
    if on_disk.is_any([each.data for each in posteriors]):
        raise ValueError(
            "a batch holds its data sets in memory: np.array reads an array from its "
            "file"
        )
    kinds = set()
    for each in posteriors:
        leaves, functions = jax.tree.flatten(replace(each, public=()))
        kinds.add((functions, *((leaf.shape, leaf.dtype) for leaf in leaves)))
    if len(kinds) > 1:
        raise ValueError(
            "posteriors must have the same functions, and data of the same shapes and "
            "types: make one, and the others by dataclasses.replace(posterior, "
            "data=other_data)"
        )
    return posteriors


def _check_settings(settings, posterior, num_steps, warmup_fraction) -> None:
    if not isinstance(settings, Mapping) or not settings:
        raise TypeError(
            "settings must be a dict {name: (algorithm_fn, budget)} that is not empty"
        )
    for name, setting in settings.items():
        if not isinstance(setting, tuple) or len(setting) != 2:
            raise TypeError(
                f"setting {name!r} must be a pair (algorithm_fn, budget), where the "
                "budget of generated data may be None"
            )
        check_arguments(setting[0], posterior)
        check_length(num_steps, warmup_fraction, setting[1])
    budgets = [budget for _, budget in settings.values() if budget is not None]
    kinds = {(each.delta, each.neighboring_relation) for each in budgets}
    if len(kinds) > 1:
        raise ValueError(
            "budgets must have the same delta and neighbouring relation, or what a "
            "data set spends in all settings has no epsilon"
        )


def _stacked(posteriors: list[Posterior]) -> Posterior:
    """One posterior with the data of all, along a new leading axis."""

    def together(*leaves):
        return jnp.stack(list(map(on_disk.array, leaves)))

    # An error would tell of a record that is not finite.
    with jax.debug_nans(False), jax.debug_infs(False):
        data = jax.tree.map(together, *(each.data for each in posteriors))
    return replace(posteriors[0], data=data)


def _prepare(
    algorithm_fn,
    budget,
    posteriors: list[Posterior],
    stacked: Posterior,
    shape: tuple[int, int, int],
    initial_position,
    steps: tuple[int | None, float, int],
) -> _Prepared:
    """Check, trace and approve the runs of a setting.

    `shape` are the data sets, repetitions and chains; `steps` the steps or None, the
    warm-up fraction and thinning.
    """
    num_data_sets, num_repetitions, num_chains = shape
    num_steps, warmup_fraction, thinning = steps
    algorithm, states, cost_fn = begin(
        algorithm_fn, posteriors, initial_position, num_chains, budget
    )
    if num_steps is None:
        num_steps = affordable(cost_fn, num_chains, budget, None)
    num_discarded = math.floor(num_steps * warmup_fraction)
    num_runs = num_data_sets * num_repetitions
    num_terms = posteriors[0].num_records * num_repetitions * num_chains
    together = min(_num_together(num_terms), num_data_sets)
    initial = programs.initial(
        algorithm.transition,
        jax.tree.map(lambda leaf: jnp.concatenate([leaf] * num_runs), states),
    )
    make = functools.partial(
        trace,
        algorithm_fn,
        algorithm=algorithm,
        num_chains=num_chains,
        budget=budget,
        steps=(num_steps, num_discarded, thinning),
    )
    outline, program = make(
        posterior=stacked,
        initial=initial,
        over_data_sets=functools.partial(_over_data_sets, shape, together),
        num_loops=-(-num_data_sets // together),
        posteriors=posteriors,
    )
    settings = {}
    if budget is not None:
        approve(outline.events, cost_fn, budget)
        initial_of_one = programs.initial(algorithm.transition, states)
        of_one = make(posterior=posteriors[0], initial=initial_of_one)
        settings = settings_of(
            num_steps, num_chains, thinning, warmup_fraction, budget, *of_one
        )
        parameters = digest((programs.arrays_of(algorithm_fn), states))
        settings["parameters"] = parameters.hex()
    return _Prepared(
        algorithm,
        budget,
        outline,
        program,
        initial,
        num_steps,
        num_discarded,
        thinning,
        settings,
    )


def _over_data_sets(shape, together: int, steps: Callable) -> Callable:
    """The loop of all runs, whose chains lie one run after another.

    It moves the chains of `together` data sets at once.
    """
    num_data_sets, num_repetitions, num_chains = shape
    width = num_repetitions * num_chains

    def apart(leaf, axis):
        leaf = jnp.asarray(leaf)
        split = (*leaf.shape[:axis], num_data_sets, width, *leaf.shape[axis + 1 :])
        return jnp.moveaxis(leaf.reshape(split), axis, 0)

    def joined(leaf, axis):
        leaf = jnp.moveaxis(leaf, 0, axis)
        return leaf.reshape(*leaf.shape[:axis], -1, *leaf.shape[axis + 2 :])

    def by_axis(function, axis, tree):
        return jax.tree.map(lambda leaf: function(leaf, axis), tree)

    def all_steps(data, chains, words, active):
        arguments = (
            data,
            by_axis(apart, 0, chains),
            by_axis(apart, 1, words),
            by_axis(apart, 1, active),
        )
        if together == 1:
            chains, history = lax.map(lambda each: steps(*each), arguments)
        elif together < num_data_sets:
            chains, history = lax.map(
                lambda each: steps(*each), arguments, batch_size=together
            )
        else:
            chains, history = jax.vmap(steps)(*arguments)
        return by_axis(joined, 0, chains), by_axis(joined, 1, history)

    return all_steps


def _num_together(num_terms: int) -> int:
    """Data sets that are moved together, if a step on one has so many terms."""
    # One data set keeps the cores of a CPU busy, and stays in their caches.
    if jax.default_backend() == "cpu":
        return 1
    return max(MAX_TERMS // num_terms, 1)


def _secret(unsafe_key, data_set: int, repetition: int) -> bytes:
    if unsafe_key is not None:
        unsafe_key = jax.random.fold_in(unsafe_key, data_set)
        unsafe_key = jax.random.fold_in(unsafe_key, repetition)
    return secret_of(unsafe_key)


def _statement(prepared: list[_Prepared], is_unsafe: bool, num_runs: int):
    """The statement of `num_runs` runs of every setting on the same records."""
    randomness = SEEDED if is_unsafe else PrivacyStatement._field_defaults["randomness"]
    num_all = num_runs * len(prepared)
    budgets = [each.budget for each in prepared if each.budget is not None]
    if len(budgets) < len(prepared):
        return BatchStatement(math.inf, 1.0, "NONE", num_all, "everything", randomness)
    events = [
        (event, count * num_runs)
        for each in prepared
        for event, count in each.outline.events
    ]
    delta, relation = budgets[0].delta, budgets[0].neighboring_relation.name
    total = privacy.epsilon(events, delta)
    return BatchStatement(total, delta, relation, num_all, listed(events), randomness)


def _draw(each: _Prepared, posterior: Posterior, keys: list[bytes], shape, verbose):
    """Positions, acceptance rates and infos of all runs of a setting."""
    layouts = [
        make_layout(
            key,
            each.outline.laziness,
            each.num_steps,
            shape[-1],
            each.num_discarded,
            each.thinning,
        )
        for key in keys
    ]
    layout = layouts[0]._replace(
        num_active=np.concatenate([one.num_active for one in layouts]),
        read_after=np.concatenate([one.read_after for one in layouts], axis=1),
    )
    # No checkpoint is written.
    begun = loop.begin(b"".join(keys), "", each.num_steps, layout, each.initial)
    drawn = loop.sample(each.program, begun, layout, lambda begun: None, verbose)
    positions, acceptance_rate, infos = drawn

    def by_run(leaf):
        return np.reshape(leaf, (*shape, *np.shape(leaf)[1:]))

    if each.algorithm.sample is not None:
        runs = jax.tree.map(
            lambda leaf: leaf.reshape(len(keys), -1, *leaf.shape[1:]), infos
        )
        fits = [
            fitted_draws(
                key, each.algorithm.sample, jax.tree.map(lambda x, i=i: x[i], runs)
            )
            for i, key in enumerate(keys)
        ]
        positions = jax.tree.map(lambda *leaves: np.concatenate(leaves), *fits)
    positions = Posterior.constrain(posterior, positions)
    return tuple(
        jax.tree.map(by_run, part) for part in (positions, acceptance_rate, infos)
    )
