"""Small jobs on generated data, with some of their values changed."""

import tomllib

from dpjax import config

JOB = """
[model]
name = "correlated_gaussian"
[data]
source = "generated"
num_records = 2000
dim = 2
seed = 1
[algorithm]
{algorithm}
l2_clip_norm = 3.0
sampling_prob = 0.1
[privacy]
epsilon = 2.0
delta = 1e-5
[run]
num_chains = 2
num_steps = 80
start = [0.0, 0.0]
"""


def read(toml: str, **changes) -> config.Job:
    """The job with other values, ``table__key=value``; a None takes the key out."""
    tables = tomllib.loads(toml)
    for place, value in changes.items():
        table, key = place.split("__")
        tables.setdefault(table, {})[key] = value
        if value is None:
            del tables[table][key]
    return config.read(tables, "job")
