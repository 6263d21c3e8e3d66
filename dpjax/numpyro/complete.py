"""Incomplete records: models in which they have the likelihood one."""

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
        A NumPyro model that does not treat missing values.
    plate
        Name of the plate of its records.

    Returns
    -------
    Callable
        The same model with a further argument ``complete``, booleans ``(n,)`` as
        `dpjax.records.Schema.read` returns them. The sites in the plate are masked
        where it is False. A ``simulate_fn`` or ``score_nodes`` of
        `dpjax.numpyro.posterior` finds ``complete`` among a record's covariates and
        returns it as it is. What it returns for an incomplete record adds nothing.

    Notes
    -----
    *Formal guarantees.* The log-likelihood of a record is multiplied by zero or one;
    this factor is a function of that record alone. So bounds on the log-likelihood
    still hold. No record is left out, so the number of records does not reveal how many
    are incomplete.
    """

    @functools.wraps(model)
    def masked(complete, **arguments):
        with _Mask(plate, complete):
            return model(**arguments)

    # A mask does not change how observations are drawn, so `dpjax.runner.predict` does
    # not ask for `complete`.
    vars(masked)["not_needed"] = {COMPLETE}
    return masked


class _Mask(Messenger):
    """A handler that masks the sites in a plate where `complete` is False.

    Parameters
    ----------
    plate
        Name of the plate.
    complete
        Booleans, ``(n,)``, along the plate.
    """

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
