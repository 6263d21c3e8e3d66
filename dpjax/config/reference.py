"""The reference of the configuration, in Markdown, printed from its schema.

``python -m dpjax.config.reference > docs/configuration.md`` writes the page.
"""

import re

from dpjax.config import (
    adaptation,
    algorithm,
    data,
    job,
    model,
    numpyro,
    privacy,
    run,
    sgmcmc,
    vi,
)
from dpjax.config.keys import REQUIRED, Key

__all__ = ["markdown"]

START = """# Configuration

A job is a TOML file, which `dpjax run FILE.toml` and `dpjax plan FILE.toml` read.
An unknown key is an error, and so is a value of another kind than the one below. Files
that a configuration names lie beside it. This page is printed by
`python -m dpjax.config.reference`.

`configs/numpyro/own_csv.toml` and `configs/numpyro/own_formula.toml` are whole jobs on
a table of your own, to copy. Such a job has the tables `[model]`, `[data]`, `[privacy]`
and `[run]`, which may be empty but must be there. Sections on `[algorithm]` and
`[adaptation]` are for chains.
"""


def markdown() -> str:
    """The text of the page docs/configuration.md."""
    parts = [START, *_section("The file", job.TABLES)]
    for name, keys in model.KEYS.items():
        parts += _section(f'[model] with name = "{name}"', keys)
    parts += _section("[model] of NumPyro", numpyro.keys())
    parts += _section("[model] of a formula", numpyro.formula_keys())
    parts += _section('[data] with source = "generated"', data.GENERATED)
    parts += _section('[data] with source = "adult"', data.ADULT)
    parts += _section('[data] with source = "mnist"', data.MNIST)
    parts += _section("[data] of NumPyro, from a file", numpyro.FILE)
    parts += _section("[data] of a formula", numpyro.FORMULA_FILE)
    parts += _section("[data] of NumPyro, from a function", numpyro.FUNCTION)
    for name in algorithm.ADAPTABLE:
        parts += _section(f'[algorithm] with name = "{name}"', algorithm.keys(name))
    for name in sgmcmc.SAMPLERS:
        parts += _section(f'[algorithm] with name = "{name}"', sgmcmc.keys(name))
    for name, keys in sgmcmc.SCHEDULES.items():
        parts += _section(f'[algorithm] step_size with schedule = "{name}"', keys)
    parts += _section('[algorithm] with name = "dpvi"', vi.keys("dpvi"))
    for name, keys in vi.GUIDE_KEYS.items():
        parts += _section(f'[algorithm] guide with name = "{name}"', keys)
    for name, keys in vi.OPTIMIZER_KEYS.items():
        parts += _section(f'[algorithm] optimizer with name = "{name}"', keys)
    parts += _section("[adaptation]", adaptation.KEYS)
    parts += _section("[privacy]", privacy.KEYS)
    parts += _section("[run]", run.KEYS | run.START)
    parts += _section("[run], without [algorithm]", run.keys_without_algorithm())
    return "\n".join(parts)


def _section(title: str, keys: dict[str, Key]) -> list[str]:
    return [f"## {title}\n", *map(_line, keys, keys.values()), ""]


def _line(name: str, key: Key) -> str:
    if key.default is REQUIRED:
        default = "required"
    elif key.default is None:
        default = "optional"
    else:
        default = f"default {_toml(key.default)}"
    meaning = re.sub("`+", "`", key.meaning)
    return f"- `{name}` ({default}): {key.kind.words}. {meaning}".rstrip()


def _toml(value) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


if __name__ == "__main__":
    print(markdown(), end="")
