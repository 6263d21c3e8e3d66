"""What a chain has cost on the way it went, and what it read.

A step whose proposal has half range H, the bound on how far one record's log ratio is
from a public centre, costs what a step of constant bound H costs. Summed over a
finished chain that is an odometer reading: it says what the way was worth, but is no
guarantee, as another data set would have gone another way. Guarantees are the cost of
the worst step, composed over the number of steps, or a filter that stops the chain in
time (`privacy.RdpFilter`).
"""

import functools
from typing import NamedTuple

import jax
import numpy as np

import dpjax
from dpjax import privacy

__all__ = ["Path", "events", "half_ranges", "records", "walk"]

RESOLUTION = 8
"""Half ranges within a factor 2^(1/8) are charged as their root mean square."""


class Path(NamedTuple):
    """Finished chains: ``(chains, steps, d)``, and the bits ``(chains, steps)``."""

    positions: np.ndarray
    proposed: np.ndarray
    is_accepted: np.ndarray


def _remembering(proposal):
    """`proposal`, memoryless, whose walk is the last position that it proposed."""

    def propose(words, position, walk, step_size):
        move = proposal.propose(words, position, (), step_size)
        return move._replace(walk_accepted=move.position, walk_rejected=move.position)

    return proposal._replace(init=lambda position: position, propose=propose)


@functools.partial(jax.jit, static_argnames=("algorithm_fn", "num_steps"))
def _walk(algorithm_fn, posterior, starts, rng_key, num_steps):
    algorithm = algorithm_fn(posterior)

    def step(states, rng_key):
        keys = jax.random.split(rng_key, len(starts))
        moved, info = jax.vmap(algorithm.step)(keys, states)
        return moved, (states.position, moved.walk, info.is_accepted)

    keys = jax.random.split(rng_key, num_steps)
    return jax.lax.scan(step, jax.vmap(algorithm.init)(starts), keys)[1]


def walk(algorithm_fn, proposal, posterior, starts, num_steps, rng_key) -> Path:
    """Run chains and keep what they proposed.

    Parameters
    ----------
    algorithm_fn
        ``posterior -> Algorithm``, a `functools.partial` that takes `proposal`.
    starts
        ``(chains, d)``.
    """
    algorithm_fn = functools.partial(algorithm_fn, proposal=_remembering(proposal))
    path = _walk(algorithm_fn, posterior, starts, rng_key, num_steps)
    return Path(*(np.moveaxis(np.asarray(leaf), 0, 1) for leaf in path))


def half_ranges(clip_bound, path: Path) -> np.ndarray:
    """H of every proposal in nats, without tempering, ``(chains, steps)``.

    Parameters
    ----------
    clip_bound
        A `clip_bounds.Lipschitz` or `clip_bounds.Range`.
    """
    if isinstance(clip_bound, dpjax.Lipschitz):
        jumps = path.proposed - path.positions
        return clip_bound.constant * np.linalg.norm(jumps, axis=-1)
    bounds_fn = jax.jit(jax.vmap(jax.vmap(clip_bound.bounds_fn)))
    low, high = bounds_fn(path.positions, path.proposed)
    return (np.asarray(high) - np.asarray(low)) / 2


def events(algorithm_fn, posterior, half_ranges, num_steps: int) -> list:
    """What steps of these half ranges release, ``(event, count)``.

    Parameters
    ----------
    half_ranges
        ``(m,)``, of any number of paths; a step that was rejected without a look at
        the data is left out.
    num_steps
        Steps, of the same mixture, that the counts add up to.
    """
    cells = np.round(RESOLUTION * np.log2(half_ranges))
    found = []
    for cell in np.unique(cells):
        members = half_ranges[cells == cell]
        count = round(members.size / half_ranges.size * num_steps)
        if count:
            typical = float(np.sqrt(np.mean(members**2)))
            step = functools.partial(algorithm_fn, clip_bound=typical)
            found += step(posterior).privacy(count)
    return found


def records(events, num_records: int) -> float:
    """Mean number of records that a step reads."""
    read = 0.0
    for event, count in events:
        match event:
            case privacy.PoissonAcceptBit(bound=bound, max_odds=odds, acceptance=test):
                share = test.laziness * bound * odds / (odds - 1)
            case privacy.FixedBatch(batch_size=size):
                share = size / num_records
            case privacy.AcceptBit(acceptance=test):
                share = test.laziness
            case _:
                raise ValueError(f"it is not known what a step with a {event} reads")
        read += count * num_records * share
    return read / sum(count for _, count in events)
