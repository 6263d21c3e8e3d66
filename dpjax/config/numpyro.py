"""The tables ``[model]`` and ``[data]`` for a NumPyro model, or for a formula."""

import dataclasses
import functools
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import jax
import numpy as np

from dpjax.config.keys import (
    COUNT,
    NUMBERS,
    OF_TYPES,
    ROWS,
    TABLE,
    TEXT,
    ConfigError,
    Key,
    Kind,
    check_keys,
    either,
    keys_of,
    one_of,
    without,
)
from dpjax.config.model import Model
from dpjax.datasets import files
from dpjax.posterior import check_numbers
from dpjax.records.schema import COMPLETE, Schema
from dpjax.release import on_disk

__all__ = ["FILE", "FORMULA_FILE", "FUNCTION", "formula_keys", "keys", "read"]

NUM_RECORDS = {
    "num_records": Key(COUNT, "How many records there are, a public number.")
}
FILE = NUM_RECORDS | {
    "file": Key(TEXT, "A .csv, .csv.gz, .npz or .parquet file."),
    "schema": Key(
        either(TEXT, TABLE),
        "The columns that are read, with their ranges and levels: a TOML file, of "
        "which `dpjax schema FILE` prints a template, or a table of the same form. "
        "`dpjax.records.schema` says what a schema holds, and what becomes of missing "
        "values.",
    ),
    "arrays": Key(
        TABLE,
        "The column of each of the model's arrays, or a list of columns for an array "
        "of shape (n, k). Left out, every column of the schema is an array.",
        None,
    ),
}
FORMULA_FILE = without(FILE, "arrays") | {
    "example": Key(
        TEXT,
        "A file of the same form, of made-up records or of an earlier study that was "
        "published, which is more like the data than records made up from the schema. "
        "Give one if some levels are rare, but never rows of the data.",
        None,
    ),
}
FUNCTION = NUM_RECORDS | {
    "function": Key(
        TEXT,
        'As in ``"my_model.py:records"``. It takes the number of records and returns a '
        "dict of the model's arrays. Those of `numpy.memmap` stay on disk.",
    ),
    "example": Key(
        TEXT,
        "Such a function that takes nothing and returns a few made-up records, as in "
        "`dpjax.numpyro.posterior`.",
    ),
}


def _is_public(value) -> bool:
    kinds = *OF_TYPES.values(), NUMBERS, ROWS
    is_table = isinstance(value, dict)
    return is_table and all(any(k.accepts(v) for k in kinds) for v in value.values())


TEXTS = Kind(
    "a table of texts",
    lambda value: isinstance(value, dict) and all(map(TEXT.accepts, value.values())),
)

MAKERS = ("simulate_fn", "score_nodes")
"""Keys that name functions which make up observations."""

PUBLIC = Kind("a table of numbers, texts, and lists or rows of numbers", _is_public)


def keys() -> dict[str, Key]:
    """The keys of ``[model]`` for a NumPyro model."""
    from dpjax.numpyro import posterior

    function = Key(TEXT, 'The model, as in ``"my_model.py:model"``.')
    names = ["plate", "public", "tempering", *MAKERS]
    kinds = {"public": PUBLIC, **dict.fromkeys(MAKERS, TEXT)}
    return {"numpyro": function, **keys_of(posterior, kinds, names)}


def formula_keys() -> dict[str, Key]:
    """The keys of ``[model]`` for a formula."""
    from dpjax.numpyro import Regression
    from dpjax.numpyro.glm import FAMILIES

    kinds = {"family": one_of(FAMILIES), "priors": TEXTS}
    return keys_of(Regression, kinds, ["formula", "family", "priors"])


def read(model, source, folder: Path) -> Model:
    """The model that the tables ``[model]`` and ``[data]`` describe.

    Python files that the tables name are executed, and so is the function that makes up
    records. No data are read.

    Parameters
    ----------
    model, source
        The tables ``[model]`` and ``[data]``.
    folder
        The folder in which files that the tables name are looked up.

    Raises
    ------
    ConfigError
        If there are unknown or invalid keys.
    """
    # NumPyro is imported here, so that jobs without it do not import it.
    from dpjax.numpyro import fisher_information, initial_position, plan, sample

    of_tables = _of_formula if "formula" in model else _of_function
    made_up, outline, read_records, stated = of_tables(model, source, folder)
    shapes = {name: np.shape(values) for name, values in outline.items()}

    @functools.cache
    def information():
        # A proposal calls this while a program is traced.
        with jax.ensure_compile_time_eval():
            return jax.jit(fisher_information(made_up))

    def load():
        records = read_records()
        found = {name: np.shape(values) for name, values in records.items()}
        if found != shapes:
            raise ValueError(
                f"the arrays of [data] have the shapes {found}, but num_records and "
                f"the schema or example say {shapes}"
            )
        for name, values in records.items():
            check_numbers(f"the array {name!r} of [data]", values)
        arrays = jax.tree.map(on_disk.array, records)
        return dataclasses.replace(made_up, data=arrays), None, None

    return Model(
        made_up,
        load,
        lambda position: information()(position),
        made_up.model.dim,
        initial_position_fn=lambda chains: initial_position(made_up, chains),
        sample_fn=sample,
        plan_fn=plan,
        file=folder / source["file"] if "file" in source else None,
        stated=stated,
    )


def _of_function(model, source, folder: Path):
    """The posterior of a NumPyro model, before its records are read.

    Returns
    -------
    made_up
        The posterior with made-up records.
    outline
        These records, a dict of arrays of the shapes of the data.
    read_records
        ``() -> records``: reads the data, a dict of arrays.
    stated
        As in `dpjax.config.model.Model`.
    """
    from dpjax.numpyro import complete_cases, posterior

    known = keys()
    check_keys(model, "[model]", known)
    # Executed once for a job, and anew for the next one, also in the same process.
    module_fn = functools.cache(_module)
    function = _function(model["numpyro"], folder, "[model] numpyro", module_fn)
    read_records, outline, example = _source(source, folder, module_fn)
    if COMPLETE in outline:
        function = complete_cases(function, model["plate"])
    made_up = posterior(
        function,
        outline,
        plate=model["plate"],
        public={k: _array(v) for k, v in model.get("public", {}).items()},
        tempering=model.get("tempering", known["tempering"].default),
        example=example,
        **{
            name: _function(model[name], folder, f"[model] {name}", module_fn)
            for name in MAKERS
            if name in model
        },
    )
    return made_up, outline, read_records, None


def _of_formula(model, source, folder: Path):
    """The posterior of a formula; it returns what `_of_function` returns."""
    from dpjax.numpyro import Regression

    check_keys(model, "[model]", formula_keys())
    check_keys(source, "[data] (of a formula)", FORMULA_FILE)
    regression = Regression(**model, schema=_schema(source, folder))
    outline = _outline(regression.example, source["num_records"])
    path, example = folder / source["file"], None
    if "example" in source:
        example = regression.read(folder / source["example"])
    made_up = regression.of_arrays(outline, example)
    stated = {"priors": regression.priors}
    if regression.reference_levels:
        stated["reference_levels"] = regression.reference_levels
    return made_up, outline, lambda: regression.read(path), stated


def _schema(source, folder: Path) -> Schema:
    schema = source["schema"]
    return Schema(folder / schema if isinstance(schema, str) else schema)


def _source(source, folder: Path, module_fn: Callable):
    """The records that ``[data]`` describes, before they are read.

    Returns
    -------
    read
        ``() -> records``: reads the data, a dict of arrays.
    outline
        Made-up records of the shapes of the data, a dict of arrays.
    example
        A few made-up records, for the `example` of `dpjax.numpyro.posterior`.
    """
    known = FILE if "file" in source else FUNCTION
    check_keys(source, "[data] (of a file or a function)", known)
    num_records = source["num_records"]
    if "file" in source:
        schema, arrays = _schema(source, folder), source.get("arrays")
        example = schema.example(arrays)
        path = folder / source["file"]
        return (
            lambda: schema.read(path, arrays),
            _outline(example, num_records),
            example,
        )
    load = _function(source["function"], folder, "[data] function", module_fn)
    made_up = _function(source["example"], folder, "[data] example", module_fn)
    example = files.readable(
        "[data] example", lambda: {k: np.asarray(v)[:] for k, v in made_up().items()}
    )

    def read():
        found = files.readable("[data] function", lambda: dict(load(num_records)))
        for name, rows in found.items():
            if not hasattr(rows, "dtype"):
                raise ConfigError(
                    f"[data] function makes a {type(rows).__name__} of {name!r}, and "
                    "one record could change the type of the array that is made of it: "
                    "return arrays of a type that you choose, such as "
                    "np.asarray(rows, float)"
                )
        return {name: np.asanyarray(rows) for name, rows in found.items()}

    return read, _outline(example, num_records), example


def _outline(example: dict, num_records: int) -> dict:
    """`num_records` copies of the first record of `example`, which take no memory."""
    return {
        name: np.broadcast_to(value[:1], (num_records, *value.shape[1:]))
        for name, value in example.items()
    }


def _function(text, folder: Path, where: str, module_fn: Callable) -> Callable:
    """The function that ``"file.py:name"`` names, of the file's ``module_fn(path)``.

    Raises
    ------
    ConfigError
        If there is no such file or function. The message calls the text `where`.
    """
    file, _, name = str(text).partition(":")
    path = folder / file
    if not (name and path.suffix == ".py" and path.is_file()):
        raise ConfigError(
            f'{where} must be "file.py:function" with a file beside the configuration, '
            f"got {text!r}"
        )
    module = module_fn(path.resolve())
    if not callable(getattr(module, name, None)):
        raise ConfigError(f"{where}: {path} has no function {name!r}")
    return getattr(module, name)


def _module(path: Path) -> ModuleType:
    """The module that the file at `path` makes when it is executed."""
    name = f"{path.stem}_{hash(path):x}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    loader, module = spec.loader, importlib.util.module_from_spec(spec)
    # Classes look their module up here, as those of `dataclasses` do. The name is that
    # of the path alone, so that a file executed again takes the place of the first.
    sys.modules[name] = module
    try:
        files.readable(path, lambda: loader.exec_module(module))
    except RuntimeError as error:
        del sys.modules[name]
        raise ConfigError(f"{error}; `python {path}` shows it") from error
    return module


def _array(value):
    return np.asarray(value) if isinstance(value, list) else value
