"""The tables ``[model]`` and ``[data]`` of a NumPyro model: see `dpjax.config.job`."""

import dataclasses
import functools
import importlib.util
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.config.keys import ConfigError, check_keys
from dpjax.config.model import Model
from dpjax.datasets import files, tables
from dpjax.posterior import check_numbers
from dpjax.privacy.validate import check_count

__all__ = ["read"]


def read(model, source, folder: Path) -> Model:
    """The model that the two tables describe; files are looked up in `folder`.

    The model's file is run, and the function in it that makes up records. No data are
    read.

    Raises
    ------
    ConfigError
        If there are unknown or invalid keys.
    """
    # NumPyro is not imported by jobs that do not need it.
    from dpjax.numpyro import fisher_information, initial_position, posterior, sample

    check_keys(model, "[model]", ["numpyro", "plate"], ["public", "tempering"])
    function = _function(model["numpyro"], folder, "[model] numpyro")
    read_records, outline, example = _source(source, folder)
    made_up = posterior(
        function,
        outline,
        plate=model["plate"],
        public={k: _array(v) for k, v in model.get("public", {}).items()},
        tempering=model.get("tempering", 1.0),
        example=example,
    )

    @functools.cache
    def information():
        # A proposal asks for it while a program is traced.
        with jax.ensure_compile_time_eval():
            return jax.jit(fisher_information(made_up))

    def load():
        records = read_records()
        for name, values in records.items():
            check_numbers(f"the array {name!r} of [data]", values)
        arrays = jax.tree.map(jnp.asarray, records)
        return dataclasses.replace(made_up, data=arrays), None, None

    return Model(
        made_up,
        load,
        lambda position: information()(position),
        made_up.model.dim,
        initial_position_fn=lambda chains: initial_position(made_up, chains),
        sample_fn=sample,
    )


def _source(source, folder: Path):
    """A function that reads the records, records of their shapes, and a design."""
    keys = ["file", "columns"] if "file" in source else ["function", "example"]
    check_keys(source, "[data] (of a file or a function)", ["num_records", *keys])
    num_records = check_count("[data] num_records", source["num_records"])
    if "file" in source:
        columns, path = source["columns"], folder / source["file"]
        tables.check(columns)
        outline, design = tables.zeros(columns, num_records), tables.example(columns)
        return lambda: tables.read(path, columns, num_records), outline, design
    load = _function(source["function"], folder, "[data] function")
    example = _function(source["example"], folder, "[data] example")()
    outline = {
        name: np.broadcast_to(value[0], (num_records, *value.shape[1:]))
        for name, value in example.items()
    }

    def read():
        return {name: np.asarray(value) for name, value in load(num_records).items()}

    return lambda: files.readable("[data] function", read), outline, example


def _function(text, folder: Path, where: str) -> Callable:
    """The function that ``"file.py:name"`` names."""
    file, _, name = str(text).partition(":")
    path = folder / file
    if not (name and path.suffix == ".py" and path.is_file()):
        raise ConfigError(
            f'{where} must be "file.py:function" with a file beside the configuration, '
            f"got {text!r}"
        )
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not callable(getattr(module, name, None)):
        raise ConfigError(f"{where}: {path} has no function {name!r}")
    return getattr(module, name)


def _array(value):
    return np.asarray(value) if isinstance(value, list) else value
