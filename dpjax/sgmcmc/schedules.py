"""Step sizes that decrease, as functions of the number of steps made.

They have the signature of optax's schedules, ``count -> step size``, and those of optax
can be used as well, such as ``optax.cosine_decay_schedule`` with an ``alpha`` above
zero. The privacy that a run costs depends on the sum of its step sizes only, as long as
none of them is large: see `dpjax.privacy.step_size`.
"""

from collections.abc import Callable

__all__ = ["power_decay"]


def power_decay(init_value: float, exponent: float = 1 / 3) -> Callable:
    """The schedule ``init_value * (count + 1)^-exponent``, with counts from 0.

    Parameters
    ----------
    init_value
        The first step size.
    exponent
        How fast the step sizes fall, as a power of the count.

    Notes
    -----
    Li et al. 2019 take a bound on the mean square error of averages over the chain from
    Teh, Thiery and Vollmer 2016. The exponent 1/3 minimises this bound.
    """
    return lambda count: init_value * (count + 1.0) ** -exponent
