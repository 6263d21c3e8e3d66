"""The table ``[adaptation]``: see `dpjax.config.job`."""

import functools

import numpy as np

from dpjax.adaptation import adapted
from dpjax.config.keys import ConfigError, check_keys, keywords, without

__all__ = ["read"]

INITIAL = ("step_size", "inverse_mass_matrix")
"""Arguments of the sampler at which tuning begins."""


def read(table, sampler, options: dict):
    """``posterior -> Algorithm``: the sampler with these options, adapted.

    Raises
    ------
    ConfigError
        If there are unknown or invalid keys.
    """
    required, optional = keywords(adapted)
    not_initial = [key for key in optional if not key.startswith("initial_")]
    check_keys(table, "[adaptation]", required, not_initial)
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
