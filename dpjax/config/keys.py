"""Checks of the keys and values in configuration files."""

import inspect
from typing import Any

__all__ = [
    "ConfigError",
    "check_keys",
    "choice",
    "keywords",
    "named",
    "without",
]


class ConfigError(ValueError):
    """The configuration file cannot be run as it stands."""


def check_keys(table, where: str, required=(), optional=()) -> None:
    """Refuse a table that lacks a required key, or holds one that is not known."""
    if not isinstance(table, dict):
        raise ConfigError(f"{where} must be a table")
    allowed = [*required, *optional]
    if unknown := sorted(set(table) - set(allowed)):
        raise ConfigError(
            f"unknown key {unknown[0]!r} in {where}; allowed are {', '.join(allowed)}"
        )
    if missing := [key for key in required if key not in table]:
        raise ConfigError(f"{where} lacks the key {missing[0]!r}")


def choice(value, allowed, where: str) -> Any:
    """`value`, if it is one of those allowed."""
    if value not in allowed:
        raise ConfigError(
            f"{where} must be one of {', '.join(map(str, allowed))}, got {value!r}"
        )
    return value


def named(table, key: str, allowed, where: str) -> tuple[Any, dict]:
    """The value of `key`, if it is one of those allowed, and the rest of the table."""
    if not isinstance(table, dict):
        raise ConfigError(f"{where} must be a table")
    return choice(table.get(key), allowed, f"{where} {key}"), without(table, key)


def without(table: dict, *keys: str) -> dict:
    """The table without these keys."""
    return {key: value for key, value in table.items() if key not in keys}


def keywords(function) -> tuple[list[str], list[str]]:
    """Names of the keyword-only arguments: those without a default, those with one."""
    found = inspect.getfullargspec(function)
    optional = found.kwonlydefaults or {}
    return [key for key in found.kwonlyargs if key not in optional], list(optional)
