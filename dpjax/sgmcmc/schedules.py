"""Step sizes that decrease, as optax's schedules: ``count -> step size``.

Any schedule of optax will do, such as ``optax.cosine_decay_schedule`` with an ``alpha``
above zero. A sum of step sizes costs the same privacy however it is spread, as long as
none is large: see `dpjax.privacy.step_size`.
"""

from collections.abc import Callable

__all__ = ["power_decay"]


def power_decay(init_value: float, exponent: float = 1 / 3) -> Callable:
    """The schedule ``init_value * (count + 1)^-exponent``, counts from 0.

    The exponent 1/3 minimises the bound on the mean square error of averages that Li et
    al. 2019 take from Teh, Thiery and Vollmer 2016.
    """
    return lambda count: init_value * (count + 1.0) ** -exponent
