"""Records that lack a value say nothing."""

import functools
from collections.abc import Callable

import jax.numpy as jnp
from numpyro.primitives import Messenger

from dpjax.numpyro.model import in_plate
from dpjax.records.schema import COMPLETE

__all__ = ["complete_cases"]


def complete_cases(model: Callable, plate: str) -> Callable:
    """A model whose incomplete records have the likelihood one.

    Parameters
    ----------
    model
        A NumPyro model, which need not know of missing values.
    plate
        Name of the plate of its records.

    Returns
    -------
    Callable
        The same model with a further argument ``complete``, booleans ``(n,)`` as
        `dpjax.records.Schema.read` returns them. The sites in the plate are masked
        where it is False.

    Notes
    -----
    *Formal guarantees.* The log-likelihood of a record is multiplied by zero or one, by
    a value of that record. So it is bounded as before, and no record is left out: their
    number tells nothing of what is missing.
    """

    @functools.wraps(model)
    def masked(complete, **arguments):
        with _Mask(plate, complete):
            return model(**arguments)

    # A mask changes no observation that is drawn.
    vars(masked)["not_needed"] = {COMPLETE}
    return masked


class _Mask(Messenger):
    """Masks the sites in a plate."""

    def __init__(self, plate: str, complete):
        super().__init__()
        self.plate, self.complete = plate, complete

    def process_message(self, msg):
        if msg["type"] == "sample" and in_plate(msg, self.plate):
            (dim,) = (
                frame.dim
                for frame in msg["cond_indep_stack"]
                if frame.name == self.plate
            )
            mask = jnp.reshape(self.complete, (-1, *(1,) * (-1 - dim)))
            msg["fn"] = msg["fn"].mask(mask != 0)
