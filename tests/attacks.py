"""Attacks of `dpjax.privacy.audit` that tests share.

The data sets differ in one record, whose gradient, log ratio or site is far longer than
its clip bound and points the other way; what the others hold is known. The significance
is the chance that an honest claim fails.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import dpjax
from dpjax import privacy
from dpjax.privacy import NeighboringRelation, audit

SIGNIFICANCE = 1e-7
DELTA = 1e-2
TRIALS = 20_000
FAR = 1e6
SCORES = np.linspace(-4, 4, 33)
"""Thresholds, in nats."""


class Attack(NamedTuple):
    """A kernel, two data sets, and the score of a step.

    told
        Settings with the same noise and a third of the sensitivity: what an accountant
        hears whose kernel clips at three times what it says.
    share
        Of the claim, that the attack finds at least.
    """

    kernel: Callable
    low: Any
    high: Any
    score: Callable
    told: dict
    position: Any = np.zeros(1)
    num_steps: int = 2
    thresholds: Any = SCORES
    share: float = 0.45


def bound_of(counts):
    return audit.epsilon_lower_bound(*counts, DELTA, significance=SIGNIFICANCE)


def found(attack):
    """The bound on epsilon."""
    keys = jax.random.split(jax.random.key(7))
    scores = [
        audit.scores(
            key,
            attack.kernel,
            data,
            jax.tree.map(jnp.asarray, attack.position),
            attack.score,
            num_trials=TRIALS,
            num_steps=attack.num_steps,
        )
        for key, data in zip(keys, (attack.low, attack.high), strict=True)
    ]
    return bound_of([np.digitize(each, attack.thresholds) for each in scores])


def claimed(attack, relation=NeighboringRelation.REPLACE_ONE, **changes):
    kernel = functools.partial(attack.kernel, **changes)(attack.low)
    return privacy.epsilon(kernel.privacy(attack.num_steps, relation), DELTA)


def check(attack):
    bound, claim = found(attack), claimed(attack)
    assert attack.share * claim < bound <= claim
    if attack.told:
        assert bound > claimed(attack, **attack.told)


def flat(position):
    return 0.0 * jnp.sum(position)


def linear(position, record):
    """Its gradient is one that `dpjax.release.gradient_parts` takes apart."""
    return sum(position) * record


def data_sets(*others, loglikelihood=linear, prior=flat):
    """Posteriors whose first records are -FAR and FAR."""
    return [
        dpjax.Posterior(
            prior, loglikelihood, jnp.asarray([first, *others], jnp.float32)
        )
        for first in (-FAR, FAR)
    ]
