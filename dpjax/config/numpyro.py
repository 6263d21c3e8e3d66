"""Configurations of a NumPyro model and records of the user's own.

In place of the tables of `dpjax.config`; files lie beside the configuration:

- ``[model]``: ``numpyro``, as in ``"my_model.py:model"``, ``plate``, the name of the
  plate of the records, ``public``, a table of the model's other arguments, and
  ``tempering``.
- ``[data]``: ``num_records``, and either ``file`` (.csv, .csv.gz, .npz, .parquet) with
  ``columns``, a table of the model's arrays as in `tables`; or ``function`` and
  ``example``, as in ``"my_model.py:records"``: the first takes the number of records
  and returns the arrays, the second returns a few made-up ones, as in
  `dpjax.numpyro.posterior`.
- ``[algorithm]``: may be left out for `dpjax.numpyro.sample`, with nothing to tune;
  then ``[run]`` has ``num_chains``, ``num_steps``, ``thinning`` and ``seed``. Otherwise
  as there; chains start at `dpjax.numpyro.initial_position`.
"""

import dataclasses
import functools
import importlib.util
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.config.keys import ConfigError, only
from dpjax.config.model import Model
from dpjax.datasets import tables

__all__ = ["read"]


def read(model, source, folder: Path) -> Model:
    """The model that the two tables describe; files are looked up in `folder`.

    The model's file is run, and a function of it that makes up records; no data are
    read.
    """
    # NumPyro is imported where it is asked for.
    from dpjax.numpyro import fisher_information, initial_position, posterior, sample

    keys = ("numpyro", "plate", "public", "tempering")
    only(model, keys[:2], keys, "[model]")
    function = _function(model["numpyro"], folder, "[model] numpyro")
    records, outline, example = _source(source, folder)
    options = dict(
        plate=model["plate"],
        public={k: _array(v) for k, v in model.get("public", {}).items()},
        tempering=model.get("tempering", 1.0),
        example=example,
    )
    made_up = posterior(function, outline, **options)
    outlines = jax.eval_shape(lambda: initial_position(made_up, 1))

    @functools.cache
    def information():
        # A proposal asks for it inside a program that is being traced.
        with jax.ensure_compile_time_eval():
            return jax.jit(fisher_information(made_up))

    def load():
        arrays = {name: jnp.asarray(values) for name, values in records().items()}
        return dataclasses.replace(made_up, data=arrays), None, None

    return Model(
        made_up,
        load,
        lambda position: information()(position),
        sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(outlines)),
        initial_position_fn=lambda chains: initial_position(made_up, chains),
        sample_fn=sample,
    )


def _source(source, folder):
    """A function that reads the records, records of their shapes, and a design."""
    num_records = source.get("num_records")
    if not (isinstance(num_records, int) and num_records > 0):
        raise ConfigError("[data] num_records must be a positive integer")
    if "file" in source:
        keys = ("file", "columns", "num_records")
        only(source, keys, keys, "[data]")
        columns, path = source["columns"], folder / source["file"]
        tables.check(columns)
        outline = tables.zeros(columns, num_records)
        design = tables.example(columns)
        return lambda: tables.read(path, columns, num_records), outline, design
    keys = ("function", "example", "num_records")
    only(source, keys, keys, "[data] (or file)")
    load = _function(source["function"], folder, "[data] function")
    example = _function(source["example"], folder, "[data] example")()
    outline = {
        name: np.broadcast_to(value[0], (num_records, *value.shape[1:]))
        for name, value in example.items()
    }
    return lambda: load(num_records), outline, example


def _function(text, folder, where):
    """``"file.py:name"``."""
    file, _, name = str(text).partition(":")
    path = folder / file
    if not (name and path.suffix == ".py" and path.is_file()):
        raise ConfigError(
            f'{where} must be "file.py:function" with a file beside the configuration, '
            f"got {text!r}"
        )
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not callable(getattr(module, name, None)):
        raise ConfigError(f"{where}: {path} has no function {name!r}")
    return getattr(module, name)


def _array(value):
    return np.asarray(value) if isinstance(value, list) else value
