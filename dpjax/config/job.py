"""Jobs from TOML files: what to sample, how, for what budget. Unknown keys are errors.

Tables and keys; those without a default are required:

- ``[model]``: ``name`` (``banana``, ``correlated_gaussian``, ``circle``,
  ``gaussian_mixture`` or ``logistic_regression``) and the keyword arguments of that
  function in `dpjax.models`, such as ``curvature``, ``prior_sd`` or ``tempering``.
- ``[data]``: ``source``, either ``generated`` with ``num_records``, ``seed`` and
  ``dim``, ``adult`` with ``columns`` (``compact`` or ``all``), or ``mnist`` with the
  two ``digits`` to tell apart and ``features`` (``cosine``, the default, or
  ``published``, principal components, which no budget covers).
  Models and data of your own: see `dpjax.config.numpyro`.
- ``[algorithm]``: ``name`` (``barker``, ``penalty``, ``hmc``, ``minibatch_penalty``,
  ``minibatch_barker``, ``fast_mh``, ``fast_mh_published`` or ``tuna``),
  ``step_size`` and the keyword arguments of that function in `dpjax`, such as
  ``laziness``, ``test_noise_multiplier``, ``batch_size`` or
  ``num_integration_steps``. Of these, ``proposal`` is the name of one in
  `dpjax.proposals`; ``clip_bound`` is a number of nats, or for ``gaussian_mixture`` and
  ``logistic_regression`` the bound of `dpjax.bounds` that is called ``lipschitz`` or
  (minibatches of Poisson size) ``range``; ``clip_per_distance`` may stand in for it.
  ``metric``, if given, is the Fisher information that the model expects of
  ``num_records`` records: ``fisher`` is its inverse at ``start`` as the
  ``inverse_mass_matrix``, ``geodesic`` (barker and penalty) walks along its geodesics
  with `dpjax.fisher.geodesic`. Not for ``logistic_regression`` and
  ``gaussian_mixture``.
  Or ``name = "dpvi"``: the keyword arguments of `dpjax.dpvi`, of which ``guide`` is a
  table with ``name`` (``mean_field``, ``low_rank`` with a ``rank``, or ``full_rank``)
  and ``init_scale`` (default 0.1), ``optimizer`` one with ``name`` (``adam``,
  ``adagrad``, ``rmsprop`` or ``sgd``) and ``learning_rate``, or ``noise_scaled_sgd``
  and ``distance``, and ``noise_multiplier`` is by default what spends the budget on
  ``num_steps``.
  Or ``sgld``, ``sghmc`` or ``sgnht``: the keyword arguments of that function but for
  ``dim``, and ``step_size``, a number or a table with ``schedule``: ``power_decay``
  with an ``exponent``, or ``cosine_decay`` with ``decay_steps`` and ``alpha``, and an
  ``init_value``. What is left out of both is what spends the budget on ``num_steps``.
- ``[adaptation]``, if step size and metric are to be tuned: ``num_warmup``,
  ``target_acceptance_rate`` and ``is_mass_matrix_diagonal`` (default: that of the
  initial metric, if any) of `dpjax.adaptation.adapted`. What ``[algorithm]`` says is
  where tuning begins.
- ``[privacy]``: ``epsilon``, ``delta``, ``neighboring_relation`` (default
  ``REPLACE_ONE``), ``ledger`` (a file shared by the runs on one data set).
- ``[run]``: ``num_chains``, ``start``, the initial position (one number: the same for
  all components), with ``start_sd`` of jitter (default 0), ``num_steps`` (default: what
  the budget pays), ``thinning``, ``warmup_fraction``, ``seed`` (default: operating
  system entropy).
"""

import functools
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import fisher, proposals
from dpjax.adaptation import adapted
from dpjax.comparisons.fast_mh_published import fast_mh_published
from dpjax.comparisons.tuna import tuna
from dpjax.config import model as models
from dpjax.config import numpyro, sgmcmc, vi
from dpjax.config.keys import ConfigError, choice, keywords, only
from dpjax.mcmc.barker import barker
from dpjax.mcmc.fast_mh import fast_mh
from dpjax.mcmc.hmc import hmc
from dpjax.mcmc.minibatch_barker import minibatch_barker
from dpjax.mcmc.minibatch_penalty import minibatch_penalty
from dpjax.mcmc.penalty import penalty
from dpjax.posterior import Posterior
from dpjax.privacy import Budget, NeighboringRelation
from dpjax.release.clip_bounds import Lipschitz, Range

__all__ = ["ConfigError", "Job", "load", "read"]

ALGORITHMS = {
    "barker": barker,
    "penalty": penalty,
    "hmc": hmc,
    "minibatch_penalty": minibatch_penalty,
    "minibatch_barker": minibatch_barker,
    "fast_mh": fast_mh,
    "fast_mh_published": fast_mh_published,
    "tuna": tuna,
}
BY_GRADIENTS = {
    "dpvi": vi,
    **dict.fromkeys(sgmcmc.SAMPLERS, sgmcmc),
}
PROPOSALS = ("fixed_length", "gaussian", "one_component", "guided_walk")


@dataclass(frozen=True)
class Job:
    """A validated configuration.

    name
        The file's name without its ending.
    algorithm_fn
        ``posterior -> Algorithm``, or None if `sample_fn` draws.
    budget
        What the run may spend.
    run
        Keyword arguments for `dpjax.run`.
    seed
        None for operating system entropy.
    outline
        The posterior with made-up records: all that accounting needs.
    load
        Reads the data; returns the posterior, the parameters' names (None if they have
        names of their own), and a held-out test set of records or None.
    sample_fn
        Stands in for `dpjax.run` if there is no `algorithm_fn`.
    """

    name: str
    algorithm_fn: Callable | None
    budget: Budget
    run: dict[str, Any]
    seed: int | None
    outline: Posterior
    load: Callable[[], tuple[Posterior, list[str] | None, Any]]
    sample_fn: Callable | None = None


def load(path) -> Job:
    """Read and check a configuration; no data are read.

    Raises
    ------
    ConfigError
        If the file is missing, is not TOML, or holds unknown or invalid keys.
    """
    path = Path(path)
    try:
        tables = tomllib.loads(path.read_text())
    except FileNotFoundError as error:
        raise ConfigError(f"there is no configuration file {path}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    return read(tables, path.stem, path.parent)


def read(tables, name: str, folder: Path = Path()) -> Job:
    """The job that the tables of a file in `folder` describe; no data are read.

    Raises
    ------
    ConfigError
        If there are unknown or invalid keys.
    """
    names = ("model", "data", "algorithm", "privacy", "run")
    required = [name for name in names if name != "algorithm"]
    only(tables, required, (*names, "adaptation"), "the file")
    try:
        if "numpyro" in tables["model"]:
            model = numpyro.read(tables["model"], tables["data"], folder)
        else:
            model = models.read(tables["model"], tables["data"])
        budget, ledger = _privacy(tables["privacy"])
        if "algorithm" not in tables and model.sample_fn is not None:
            return _automatic(tables, name, model, budget, ledger)
        only(tables, names, tables, "the file")
        run, start, seed = _run(tables["run"], model)
        kind = tables["algorithm"].get("name")
        if kind in BY_GRADIENTS:
            if "adaptation" in tables:
                raise ConfigError(f"[adaptation] is not for {kind}")
            sampler, options = BY_GRADIENTS[kind].read(
                tables["algorithm"], model.dim, budget, run, model.outline
            )
        else:
            sampler, options = _algorithm(tables["algorithm"], model, start)
        if "adaptation" in tables:
            algorithm_fn = _adapted(tables["adaptation"], sampler, options)
        else:
            algorithm_fn = functools.partial(sampler, **options)
        algorithm = algorithm_fn(model.outline)
        start = jax.tree.map(jnp.asarray, start)
        algorithm.transition.num_words(algorithm.init(start))
        algorithm.privacy(1, budget.neighboring_relation)
    except ConfigError:
        raise
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name}: {error}") from error
    return Job(
        name,
        algorithm_fn,
        budget,
        {**run, "ledger": ledger},
        seed,
        model.outline,
        model.load,
    )


def _algorithm(table, model, start):
    """The sampler and its keyword arguments."""
    name = choice(table.get("name"), (*ALGORITHMS, *BY_GRADIENTS), "[algorithm] name")
    sampler = ALGORITHMS[name]
    arguments = ["step_size", *keywords(sampler.as_top_level_api)]
    required = ["step_size", *keywords(sampler.as_top_level_api, required=True)]
    clips = ["clip_bound", "clip_per_distance"] if "clip_bound" in arguments else []
    only(
        table,
        ["name", *(key for key in required if key not in clips)],
        ["name", "metric", *arguments, *clips[1:]],
        "[algorithm]",
    )
    if clips and sum(key in table for key in clips) != 1:
        raise ConfigError("[algorithm] needs clip_bound or clip_per_distance, not both")
    options = {key: value for key, value in table.items() if key in arguments}
    if isinstance(table.get("clip_bound"), str):
        options["clip_bound"] = _public_bound(table, model.bounds)
    if "clip_per_distance" in table:
        options["clip_bound"] = Lipschitz(table["clip_per_distance"])
    if "proposal" in table:
        choice(table["proposal"], PROPOSALS, "[algorithm] proposal")
        options["proposal"] = getattr(proposals, table["proposal"])
    if "inverse_mass_matrix" in table:
        matrix = np.asarray(table["inverse_mass_matrix"], float)
        if matrix.shape not in ((model.dim,), (model.dim, model.dim)):
            raise ConfigError(
                f"[algorithm] inverse_mass_matrix must be {model.dim} numbers, or as "
                f"many rows of them, got shape {matrix.shape}"
            )
        options["inverse_mass_matrix"] = matrix
    if "metric" in table:
        options |= _metric(table, model.fisher_information, start)
    return sampler, options


def _public_bound(table, bounds):
    """The model's own bound that the table names."""
    kinds = ["lipschitz"]
    if "expected_batch_size" in keywords(ALGORITHMS[table["name"]].as_top_level_api):
        kinds.append("range")
    kind = choice(table["clip_bound"], kinds, "[algorithm] clip_bound, if no number,")
    if bounds is None or "metric" in table or "inverse_mass_matrix" in table:
        raise ConfigError(
            f"[algorithm] clip_bound = {kind!r}: there is no public bound for this "
            "model and these data, or not in a metric; give a number, or "
            "clip_per_distance"
        )
    if kind == "range":
        return Range(bounds, bounds.half_range)
    return Lipschitz(bounds.lipschitz)


def _metric(table, fisher_information, start):
    kind = choice(table["metric"], ("fisher", "geodesic"), "[algorithm] metric")
    if fisher_information is None:
        raise ConfigError(
            "[algorithm] metric: of this model no Fisher information is at hand (for "
            "logistic_regression it is an expectation over features, of which no "
            "public law is known); give a public inverse_mass_matrix, or tune one with "
            "[adaptation]"
        )
    if "inverse_mass_matrix" in table:
        raise ConfigError("[algorithm] takes metric or inverse_mass_matrix, not both")
    if kind == "geodesic":
        choice(
            table["name"],
            ("barker", "penalty"),
            "[algorithm] name with metric = 'geodesic'",
        )
        if "proposal" in table:
            raise ConfigError(
                "[algorithm] takes proposal or metric = 'geodesic', not both"
            )
        return {"proposal": fisher.geodesic(fisher_information)}
    with jax.enable_x64(True):
        information = np.asarray(fisher_information(jax.tree.map(jnp.asarray, start)))
    return {"inverse_mass_matrix": np.linalg.inv(information)}


def _adapted(table, sampler, options):
    beginning = ("step_size", "inverse_mass_matrix")
    initial = {f"initial_{key}": options[key] for key in beginning if key in options}
    keys = [key for key in keywords(adapted) if not key.startswith("initial_")]
    only(table, keywords(adapted, required=True), keys, "[adaptation]")
    if "proposal" in options and options["proposal"].has_metric:
        raise ConfigError(
            "[adaptation] learns a metric; metric = 'geodesic' has one already"
        )
    is_diagonal = np.ndim(options.get("inverse_mass_matrix")) < 2
    rest = {key: value for key, value in options.items() if key not in beginning}
    return functools.partial(
        adapted,
        sampler=sampler,
        **{"is_mass_matrix_diagonal": is_diagonal, **table, **initial, **rest},
    )


def _privacy(table):
    keys = ("epsilon", "delta", "neighboring_relation", "ledger")
    only(table, keys[:2], keys, "[privacy]")
    relations = [relation.name for relation in NeighboringRelation]
    relation = choice(
        table.get("neighboring_relation", "REPLACE_ONE"),
        relations,
        "[privacy] neighboring_relation",
    )
    budget = Budget(table["epsilon"], table["delta"], NeighboringRelation[relation])
    return budget, table.get("ledger")


def _automatic(tables, name, model, budget, ledger):
    """The job of a table without an ``[algorithm]``."""
    if "adaptation" in tables:
        raise ConfigError("[adaptation] needs an [algorithm]")
    keys = ("num_chains", "num_steps", "thinning", "seed")
    only(tables["run"], keys[:1], keys, "[run] without [algorithm]")
    run = {**tables["run"], "ledger": ledger}
    seed = run.pop("seed", None)
    return Job(
        name, None, budget, run, seed, model.outline, model.load, model.sample_fn
    )


def _run(table, model):
    """Keyword arguments of `dpjax.run`, the start, and the seed."""
    keys = ("num_steps", "thinning", "warmup_fraction")
    places = [] if model.initial_position_fn else ["start", "start_sd"]
    allowed = ["num_chains", *places, *keys, "seed"]
    only(table, ["num_chains", *places[:1]], allowed, "[run]")
    chains = table["num_chains"]
    if not (isinstance(chains, int) and chains > 0):
        raise ConfigError("[run] num_chains must be a positive integer")
    if model.initial_position_fn:
        positions = model.initial_position_fn(chains)
        start = jax.tree.map(lambda leaf: leaf[0], positions)
    else:
        start = np.asarray(table["start"], float)
        start = np.full(model.dim, start) if start.ndim == 0 else start
        if start.shape != (model.dim,):
            raise ConfigError(f"[run] start must be a list of {model.dim} numbers")
        jitter = np.random.default_rng(0).normal(size=(chains, start.size))
        positions = jnp.asarray(start + table.get("start_sd", 0.0) * jitter)
    run = {key: table[key] for key in keys if key in table}
    run |= {"num_chains": chains, "initial_position": positions}
    return run, start, table.get("seed")
