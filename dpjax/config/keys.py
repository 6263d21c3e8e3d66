"""The schema of configuration files: which keys a table has, and what they may hold.

The schema of a table is a dict from the names of its keys to a `Key` each. Most keys
stand for the arguments of a function, and `keys_of` takes them from its signature and
its docstring. Each table is checked by the module that reads it.
`dpjax.config.reference` prints all schemata.
"""

import inspect
import re
import reprlib
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

__all__ = [
    "COUNT",
    "NUMBER",
    "NUMBERS",
    "REQUIRED",
    "ROWS",
    "SEED",
    "TABLE",
    "TEXT",
    "TREE",
    "ConfigError",
    "Key",
    "Kind",
    "check_keys",
    "choice",
    "count_to",
    "either",
    "keys_of",
    "named",
    "one_of",
    "without",
]

REQUIRED = inspect.Parameter.empty
"""The `Key.default` of a key that must be given."""

TINY, HUGE = 1e-30, 1e30
"""Smallest and largest absolute value of a number other than zero. Float32 holds these
numbers, and the squares of numbers of ordinary size."""


class ConfigError(ValueError):
    """The configuration file cannot be run as it stands."""


class Kind(NamedTuple):
    """A set of values that a key may have.

    words
        What the error message says after "must be", such as "a number".
    accepts
        ``value -> bool``, for any value that TOML can hold.
    """

    words: str
    accepts: Callable[[Any], bool]


class Key(NamedTuple):
    """A key of a table.

    kind
        The values that the key may have.
    meaning
        Text for the reference, in Markdown.
    default
        The value that holds if the key is left out. It is `REQUIRED` if the key must be
        given, and None if the meaning says what holds.
    """

    kind: Kind
    meaning: str
    default: Any = REQUIRED


def count_to(most: int) -> Kind:
    """The kind of integers from 1 to `most`."""
    return Kind(
        f"a whole number between 1 and {most:,}",
        lambda value: type(value) is int and 1 <= value <= most,
    )


def one_of(names: Collection[str]) -> Kind:
    """The kind of texts that are among `names`."""
    return Kind(
        f"one of {', '.join(names)}",
        lambda value: isinstance(value, str) and value in names,
    )


def either(first: Kind, second: Kind) -> Kind:
    """The kind of values that are of one of two kinds."""
    return Kind(
        f"{first.words}, or {second.words}",
        lambda value: first.accepts(value) or second.accepts(value),
    )


def _is_number(value) -> bool:
    # A bool is an int in Python. The comparisons are false for nan.
    is_real = type(value) in (int, float)
    return is_real and (value == 0 or TINY <= abs(value) <= HUGE)


def _are_numbers(value) -> bool:
    return isinstance(value, list) and all(map(_is_number, value)) and value != []


def _are_rows(value) -> bool:
    is_list = isinstance(value, list) and all(map(_are_numbers, value))
    return is_list and len(set(map(len, value))) == 1


def _is_tree(value) -> bool:
    if isinstance(value, dict):
        return value != {} and all(map(_is_tree, value.values()))
    return _is_number(value) or _are_numbers(value)


NUMBER = Kind("a number (0, or of a size between 1e-30 and 1e30)", _is_number)
NUMBERS = Kind("a list of numbers", _are_numbers)
ROWS = Kind("a list of rows of numbers", _are_rows)
COUNT = count_to(10**9)
SEED = Kind(
    "a whole number between 0 and 2^32 - 1",
    lambda value: type(value) is int and 0 <= value < 2**32,
)
TEXT = Kind("a text, not empty", lambda value: isinstance(value, str) and value != "")
TREE = Kind(f"{NUMBER.words}, or a table or list of them", _is_tree)
TABLE = Kind("a table", lambda value: isinstance(value, dict))

OF_TYPES = {
    bool: Kind("true or false", lambda value: isinstance(value, bool)),
    int: COUNT,
    float: NUMBER,
    str: TEXT,
}


def check_keys(table, where: str, keys: dict[str, Key]) -> None:
    """Refuse a table that does not fit its schema.

    Parameters
    ----------
    table
        The table.
    where
        The name of the table in an error message.
    keys
        The schema.

    Raises
    ------
    ConfigError
        If it is not a table, a key is not in the schema, a required key is missing, or
        a value is of another kind.
    """
    if not isinstance(table, dict):
        raise ConfigError(f"{where} must be a table, got {_shown(table)}")
    if unknown := sorted(set(table) - set(keys)):
        raise ConfigError(
            f"unknown key {reprlib.repr(unknown[0])} in {where}; allowed are "
            f"{', '.join(keys)}"
        )
    for name, key in keys.items():
        if name in table:
            _check(table[name], key.kind, f"{where} {name}")
        elif key.default is REQUIRED:
            raise ConfigError(f"{where} lacks the key {name!r}")


def named(table, key: str, allowed, where: str) -> tuple[Any, dict]:
    """The value of `key`, which must be one of those allowed, and the other keys.

    Raises
    ------
    ConfigError
        If it is not a table, or the value is missing or another.
    """
    _check(table, TABLE, where)
    return choice(table.get(key), allowed, f"{where} {key}"), without(table, key)


def choice(value, allowed: Collection[str], where: str) -> Any:
    """`value`, which must be one of those allowed.

    Raises
    ------
    ConfigError
        If it is not; the message calls it `where`.
    """
    _check(value, one_of(allowed), where)
    return value


def _check(value, kind: Kind, where: str) -> None:
    if not kind.accepts(value):
        raise ConfigError(f"{where} must be {kind.words}, got {_shown(value)}")


def _shown(value) -> str:
    """A value as an error message shows it: short, and in one line."""
    if value is None:
        return "nothing"
    try:
        return reprlib.repr(value)
    except ValueError:
        return "an integer of more digits than Python prints"


def without(table: dict, *keys: str) -> dict:
    """A copy of the table without these keys."""
    return {key: value for key, value in table.items() if key not in keys}


def keys_of(
    function: Callable,
    kinds: Mapping[str, Kind] = types.MappingProxyType({}),
    names: Iterable[str] | None = None,
) -> dict[str, Key]:
    """Keys for arguments of a function.

    The kind of a key is that of the argument's annotation or default, its meaning is
    that of the docstring, and its default is that of the argument.

    Parameters
    ----------
    function
        A function or class with a docstring in the style of numpydoc.
    kinds
        Kinds by the name of the argument, for arguments whose annotations and defaults
        do not determine the kind.
    names
        Names of the arguments. By default they are the keyword-only ones, and those in
        `kinds`.
    """
    arguments = inspect.signature(function).parameters
    if names is None:
        names = [
            name
            for name, argument in arguments.items()
            if name in kinds or argument.kind is argument.KEYWORD_ONLY
        ]
    meanings = _meanings(function)
    return {
        name: Key(
            kinds.get(name) or _kind(arguments[name]),
            meanings.get(name, ""),
            arguments[name].default,
        )
        for name in names
    }


def _kind(argument: inspect.Parameter) -> Kind:
    """The kind of an argument's annotation, in which None is ignored.

    Without an annotation it is the kind of the default.
    """
    annotation = argument.annotation
    if annotation is REQUIRED:
        annotation = type(argument.default)
    (kind,) = {annotation, *typing.get_args(annotation)} & set(OF_TYPES)
    return OF_TYPES[kind]


def _meanings(function) -> dict[str, str]:
    """The descriptions of the parameters in a docstring, by name.

    For a class, those of its bases are included.
    """
    found = {}
    for source in reversed(getattr(function, "__mro__", [function])):
        text = inspect.cleandoc(source.__doc__ or "")
        section = re.search(
            r"^Parameters\n-+\n(.*?)(?=\n\n\S+\n-+\n|\Z)", text, re.M | re.S
        )
        if section is None:
            continue
        entries = re.split(r"^(?=\S)", section[1], flags=re.M)
        for entry in filter(None, entries):
            names, _, meaning = entry.partition("\n")
            words = " ".join(meaning.split())
            found |= dict.fromkeys(names.split(", "), words)
    return found
