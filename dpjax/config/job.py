"""Jobs from TOML files: what to sample, how, and for which budget.

The page docs/configuration.md lists the tables of a file and their keys.
`dpjax.config.reference` prints that page from the schema that files are checked with.
An unknown key is an error.
"""

import functools
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from dpjax.config import adaptation, algorithm, numpyro, privacy
from dpjax.config import model as models
from dpjax.config import run as runs
from dpjax.config.keys import TABLE, ConfigError, Key, check_keys, without
from dpjax.posterior import Posterior
from dpjax.privacy import Budget
from dpjax.runner.ledger import beside

__all__ = ["TABLES", "Job", "load", "read"]

TABLES = {
    "model": Key(TABLE, "What is believed of the data."),
    "data": Key(TABLE, "Where the records are."),
    "algorithm": Key(
        TABLE,
        "How draws are made. For a NumPyro model the table may be left out; "
        "`dpjax.numpyro.sample` then draws, with nothing to tune.",
        None,
    ),
    "adaptation": Key(
        TABLE,
        "If step size and metric are to be tuned. Tuning begins at what "
        "``[algorithm]`` says.",
        None,
    ),
    "privacy": Key(TABLE, "What the run may spend."),
    "run": Key(TABLE, "How many chains and steps."),
}


@dataclass(frozen=True)
class Job:
    """A validated configuration.

    name
        The file's name without its ending.
    algorithm_fn
        ``posterior -> Algorithm``, or None if `sample_fn` draws.
    budget
        The budget that the run may spend.
    run
        Keyword arguments for `dpjax.run`, or for `sample_fn` if there is no
        `algorithm_fn`. The ledger among them is None if the configuration names no
        ledger and the data are not a file of the user's own.
    outline
        The posterior with made-up records of the shapes of the data. Accounting needs
        no more.
    load
        ``() -> (posterior, names, test)``: reads the data. `names` are those of the
        parameters, or None if the leaves of a position have names of their own. `test`
        is a held-out test set of records, or None.
    sample_fn
        Function to call in place of `dpjax.run` if there is no `algorithm_fn`;
        otherwise None.
    plan_fn
        Function that plans a call of `sample_fn`, as `dpjax.numpyro.plan`; None if
        there is no `sample_fn`.
    file
        The user's own file of records. None for other data.
    tables
        The tables of the file, with all priors of a formula, and without the seed,
        which would undo the privacy.
    """

    name: str
    algorithm_fn: Callable | None
    budget: Budget
    run: dict[str, Any]
    outline: Posterior
    load: Callable[[], tuple[Posterior, list[str] | None, Any]]
    sample_fn: Callable | None = None
    plan_fn: Callable | None = None
    file: Path | None = None
    tables: dict[str, Any] = field(default_factory=dict)


def load(path) -> Job:
    """Read and check the configuration file `path`; no data are read.

    Raises
    ------
    ConfigError
        If the file is missing, cannot be read, is not TOML, or holds unknown or invalid
        keys.
    """
    path = Path(path)
    try:
        tables = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"there is no configuration file {path}") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    try:
        return read(tables, path.stem, path.parent)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def read(tables, name: str, folder: Path = Path()) -> Job:
    """The job that the tables of a configuration describe; no data are read.

    Parameters
    ----------
    tables
        The tables of the file, as `tomllib` returns them.
    name
        Name of the job.
    folder
        The folder in which files that the configuration names are looked up.

    Raises
    ------
    ConfigError
        If there are unknown or invalid keys.
    """
    check_keys(tables, "the file", TABLES)
    try:
        is_numpyro = not {"numpyro", "formula"}.isdisjoint(tables["model"])
        if is_numpyro:
            model = numpyro.read(tables["model"], tables["data"], folder)
        else:
            model = models.read(tables["model"], tables["data"])
        budget, ledger = privacy.read(tables["privacy"], folder)
        algorithm_fn = sample_fn = plan_fn = None
        if "algorithm" in tables:
            run = runs.read(tables["run"], model)
            algorithm_fn = _algorithm_fn(tables, model, run, budget)
        elif model.sample_fn is None:
            raise ConfigError("the file lacks the key 'algorithm'")
        elif "adaptation" in tables:
            raise ConfigError("[adaptation] needs an [algorithm]")
        else:
            run = runs.read_without_algorithm(tables["run"])
            sample_fn, plan_fn = model.sample_fn, model.plan_fn
    except ConfigError:
        raise
    except (TypeError, ValueError) as error:
        raise ConfigError(str(error)) from error
    if ledger is None and model.file is not None:
        ledger = beside(model.file)
    options = {**run.options, "ledger": ledger}
    outline, load = model.outline, model.load
    said = tables | {
        "model": tables["model"] | (model.stated or {}),
        "run": without(tables["run"], "unsafe_seed"),
    }
    return Job(
        name,
        algorithm_fn,
        budget,
        options,
        outline,
        load,
        sample_fn,
        plan_fn,
        model.file,
        said,
    )


def _algorithm_fn(tables, model, run, budget):
    """``posterior -> Algorithm``.

    It is tried on the outline of the model, so that invalid options raise an error
    before data are read.
    """
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
