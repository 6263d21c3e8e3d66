"""Records that every process has read, spread over the devices of all processes."""

import dataclasses

import jax
import numpy as np
from jax.sharding import Mesh

from dpjax.posterior import Posterior
from dpjax.release import on_disk
from dpjax.runner import processes
from dpjax.runner.hashes import digest

__all__ = ["spread"]


def spread(posterior: Posterior) -> Posterior:
    """The posterior with its records spread evenly over the devices of all processes.

    Every process calls it with all records, and keeps its part of them.

    Raises
    ------
    ValueError
        If the devices do not divide the number of records. If the processes have other
        records, or have them in another order: the parts of two processes could then
        hold the same person, whose records would count twice.
    """
    same = dict(records=digest(posterior.data).hex())
    processes.check_same(same, "every process must read the same records in one order")
    mesh = Mesh(jax.devices(), "data")
    sharding = jax.NamedSharding(mesh, jax.P("data"))
    if posterior.num_records % mesh.size:
        raise ValueError(
            f"the records cannot be spread evenly over {mesh.size} devices: take a "
            "number of processes that divides the number of records"
        )

    def part(leaf):
        return jax.make_array_from_callback(
            leaf.shape, sharding, lambda rows: on_disk.canonical(leaf[rows])
        )

    data = jax.tree.map(part, jax.tree.map(np.asarray, posterior.data))
    return dataclasses.replace(posterior, data=data)
