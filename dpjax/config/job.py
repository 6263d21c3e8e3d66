"""Jobs from TOML files: what to sample, how, and for which budget.

A file holds the tables below; an unknown key is an error. A key is required unless its
default or a condition is given.

``[model]`` and ``[data]``, for a model of `dpjax.models`:

- ``[model]``: ``name``, which is ``banana``, ``correlated_gaussian``, ``circle``,
  ``gaussian_mixture`` or ``logistic_regression``, and optionally the keyword arguments
  of that function in `dpjax.models`, such as ``curvature``, ``prior_sd`` or
  ``tempering``.
- ``[data]`` of ``logistic_regression``: ``source``, which is ``adult`` or ``mnist``.
  ``adult`` takes ``columns`` (``compact``, the default, or ``all``). ``mnist`` takes
  the two ``digits`` to tell apart, and ``features`` (``cosine``, the default, or
  ``published``, principal components of the data, which no budget covers).
- ``[data]`` of the other models: ``source``, which is ``generated``, ``num_records``,
  ``seed``, and for ``banana`` and ``correlated_gaussian`` also ``dim``.

``[model]`` and ``[data]``, for a NumPyro model and records of your own; files lie
beside the configuration:

- ``[model]``: ``numpyro``, as in ``"my_model.py:model"``; ``plate``, the name of the
  plate of the records; optionally ``public``, a table of the model's other arguments,
  and ``tempering``.
- ``[data]``: ``num_records``, and either ``file`` (.csv, .csv.gz, .npz or .parquet)
  with ``columns``, a table of the model's arrays as in `dpjax.datasets.tables`; or
  ``function`` and ``example``, as in ``"my_model.py:records"``. The first takes the
  number of records and returns the arrays; the second returns a few made-up ones, as in
  `dpjax.numpyro.posterior`.

``[algorithm]`` has a ``name``. For a NumPyro model the table may be left out;
`dpjax.numpyro.sample` then draws, with nothing to tune.

- ``barker``, ``penalty``, ``hmc``, ``minibatch_penalty``, ``minibatch_barker``,
  ``fast_mh``, ``fast_mh_published`` or ``tuna``: ``step_size`` and the keyword
  arguments of that function in `dpjax`, such as ``laziness``,
  ``test_noise_multiplier``, ``batch_size`` or ``num_integration_steps``. Of these,
  ``proposal`` is the name of one in `dpjax.proposals`. ``clip_bound`` is a number of
  nats, or for ``gaussian_mixture`` and ``logistic_regression`` the bound of
  `dpjax.bounds` that is called ``lipschitz``, or ``range`` with
  ``expected_batch_size``. ``clip_per_distance`` may stand in for it. ``metric``
  (default: none) is the Fisher information that the model expects of ``num_records``
  records: with ``fisher``, its inverse at ``start`` is the ``inverse_mass_matrix``;
  with ``geodesic``, ``barker`` and ``penalty`` walk along its geodesics
  (`dpjax.fisher.geodesic`). There is no ``metric`` for ``logistic_regression`` and
  ``gaussian_mixture``.
- ``dpvi``: the keyword arguments of `dpjax.dpvi`. Of these, ``guide`` is a table with
  ``name`` (``mean_field``, ``low_rank`` with a ``rank``, or ``full_rank``) and
  ``init_scale`` (default 0.1). ``optimizer`` is a table with ``name`` (``adam``,
  ``adagrad``, ``rmsprop`` or ``sgd``) and ``learning_rate``, or with the name
  ``noise_scaled_sgd`` and ``distance``. The default of ``noise_multiplier`` is what
  spends the budget on ``num_steps``.
- ``sgld``, ``sghmc`` or ``sgnht``: the keyword arguments of that function in `dpjax`
  but for ``dim``. ``step_size`` is a number or a table with ``schedule``,
  ``power_decay`` with an ``exponent`` or ``cosine_decay`` with ``decay_steps`` and
  ``alpha``, and with an ``init_value``. Without a ``step_size``, or without its
  ``init_value``, the size of the first step is what spends the budget on ``num_steps``.

``[adaptation]``, if step size and metric are to be tuned: ``num_warmup``,
``target_acceptance_rate`` and ``is_mass_matrix_diagonal`` (default: that of the initial
metric, if any) of `dpjax.adaptation.adapted`. Tuning begins at what ``[algorithm]``
says.

``[privacy]``: ``epsilon``, ``delta``, ``neighboring_relation`` (default
``REPLACE_ONE``) and ``ledger``, a file shared by the runs on one data set, which lies
beside the configuration like the data (default: ``ledger.jsonl`` in the folder of the
results). Under ``ADD_OR_REMOVE_ONE`` the number of records is secret: ``sgld``,
``sghmc``, ``sgnht`` and a ``published`` ``dpvi`` need a ``nominal_num_records``, and
NumPyro models, whose ``[data]`` state the number, are refused.

``[run]``: ``num_chains``; ``start``, the initial position (one number stands for all
components), with ``start_sd`` of jitter (default 0); and, all optional, ``num_steps``
(default: what the budget pays), ``thinning``, ``warmup_fraction`` and ``unsafe_seed``.
Chains on a NumPyro model start at `dpjax.numpyro.initial_position`, without ``start``
and ``start_sd``. Without an ``[algorithm]`` there are only ``num_chains``,
``num_steps``, ``thinning`` and ``unsafe_seed``. The latter makes a job on generated or
public data reproducible: whoever knows the seed can undo the privacy. Without it,
randomness is the operating system's entropy.
"""

import functools
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from dpjax.config import adaptation, algorithm, numpyro, privacy
from dpjax.config import model as models
from dpjax.config import run as runs
from dpjax.config.keys import ConfigError, check_keys
from dpjax.posterior import Posterior
from dpjax.privacy import Budget

__all__ = ["Job", "load", "read"]


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
    outline
        The posterior with made-up records, which is all that accounting needs.
    load
        Reads the data; returns the posterior, the parameters' names (None if they have
        names of their own), and a held-out test set of records or None.
    sample_fn
        Stands in for `dpjax.run` if there is no `algorithm_fn`; otherwise None.
    """

    name: str
    algorithm_fn: Callable | None
    budget: Budget
    run: dict[str, Any]
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
    required = ("model", "data", "privacy", "run")
    check_keys(tables, "the file", required, ("algorithm", "adaptation"))
    try:
        if "numpyro" in tables["model"]:
            model = numpyro.read(tables["model"], tables["data"], folder)
        else:
            model = models.read(tables["model"], tables["data"])
        budget, ledger = privacy.read(tables["privacy"], folder)
        relation = budget.neighboring_relation
        if "numpyro" in tables["model"] and relation != relation.REPLACE_ONE:
            raise ConfigError(
                "[data] num_records makes the number of records public, which "
                f"[privacy] neighboring_relation = {relation.name!r} keeps secret: "
                "use REPLACE_ONE"
            )
        algorithm_fn = sample_fn = None
        if "algorithm" in tables:
            run = runs.read(tables["run"], model)
            algorithm_fn = _algorithm_fn(tables, model, run, budget)
        elif model.sample_fn is None:
            raise ConfigError("the file lacks the key 'algorithm'")
        elif "adaptation" in tables:
            raise ConfigError("[adaptation] needs an [algorithm]")
        else:
            run, sample_fn = runs.read_without_algorithm(tables["run"]), model.sample_fn
    except ConfigError:
        raise
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name}: {error}") from error
    options = {**run.options, "ledger": ledger}
    outline, load = model.outline, model.load
    return Job(name, algorithm_fn, budget, options, outline, load, sample_fn)


def _algorithm_fn(tables, model, run, budget):
    """``posterior -> Algorithm``, tried on the outline of the model."""
    sampler, options = algorithm.read(tables["algorithm"], model, run, budget)
    algorithm_fn = functools.partial(sampler, **options)
    if "adaptation" in tables:
        name = tables["algorithm"]["name"]
        if name not in algorithm.ADAPTABLE:
            raise ConfigError(f"[adaptation] is not for {name}")
        algorithm_fn = adaptation.read(tables["adaptation"], sampler, options)
    trial = algorithm_fn(model.outline)
    trial.transition.num_words(trial.init(jax.tree.map(jnp.asarray, run.start)))
    trial.privacy(1, budget.neighboring_relation)
    return algorithm_fn
