"""Checks of the keys in configuration files."""

import inspect

__all__ = ["ConfigError", "choice", "keywords", "only"]


class ConfigError(ValueError):
    """The configuration file cannot be run as it stands."""


def only(table, required, allowed, where):
    """Refuse a table that lacks a required key or holds one that is not allowed."""
    if not isinstance(table, dict):
        raise ConfigError(f"{where} must be a table")
    if unknown := sorted(set(table) - set(allowed)):
        raise ConfigError(
            f"unknown key {unknown[0]!r} in {where}; allowed are {', '.join(allowed)}"
        )
    if missing := [key for key in required if key not in table]:
        raise ConfigError(f"{where} lacks the key {missing[0]!r}")


def choice(value, allowed, where):
    """`value`, if it is one of those allowed."""
    if value not in allowed:
        raise ConfigError(
            f"{where} must be one of {', '.join(map(str, allowed))}, got {value!r}"
        )
    return value


def keywords(function, required=False):
    """Names of the keyword-only arguments, or of those without a default."""
    return [
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind == parameter.KEYWORD_ONLY
        and (parameter.default is parameter.empty or not required)
    ]
