"""The table ``[adaptation]``."""

import functools

import numpy as np

from dpjax.adaptation import adapted
from dpjax.config.keys import ConfigError, check_keys, keys_of, without

__all__ = ["KEYS", "read"]

KEYS = keys_of(
    adapted, names=["num_warmup", "is_mass_matrix_diagonal", "target_acceptance_rate"]
)
KEYS["is_mass_matrix_diagonal"] = KEYS["is_mass_matrix_diagonal"]._replace(
    meaning="Whether the metric is ``(d,)`` or ``(d, d)``; by default as that of "
    "``[algorithm]``, and ``(d,)`` if it has none.",
    default=None,
)

INITIAL = ("step_size", "inverse_mass_matrix")
"""Arguments of the sampler that give the values at which tuning begins."""


def read(table, sampler, options: dict):
    """``posterior -> Algorithm``: the adapted sampler.

    Parameters
    ----------
    table
        The table.
    sampler
        A sampler of dpjax.
    options
        The keyword arguments of the sampler from ``[algorithm]``.

    Raises
    ------
    ConfigError
        If there are unknown or invalid keys.
    """
    check_keys(table, "[adaptation]", KEYS)
    if "proposal" in options and options["proposal"].has_metric:
        raise ConfigError(
            "[adaptation] learns a metric; metric = 'geodesic' has one already"
        )
    is_diagonal = np.ndim(options.get("inverse_mass_matrix", 0)) < 2
    initial = {f"initial_{key}": options[key] for key in INITIAL if key in options}
    return functools.partial(
        adapted,
        sampler=sampler,
        **{"is_mass_matrix_diagonal": is_diagonal, **table, **initial},
        **without(options, *INITIAL),
    )
