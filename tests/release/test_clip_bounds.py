"""Clip bounds answer for themselves, and kernels take what they can clip to."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax.posterior import Posterior
from dpjax.proposals import Move
from dpjax.release import clip_bounds
from dpjax.release.clip_bounds import Constant, Lipschitz, Range

RANGE = Range(lambda position, proposed: (-1.0, 2.0), 0.5)


@pytest.mark.parametrize(
    ("bound", "at", "of_varying", "limits"),
    [
        (Constant(0.7), 0.7, 0.7, (-0.7, 0.7)),
        (Lipschitz(3.0), 6.0, None, (-6.0, 6.0)),
        (RANGE, 1.0, None, (-1.0, 2.0)),
    ],
)
def test_answers(bound, at, of_varying, limits):
    # A proposal of the user may state a negative distance.
    assert bound.at(2.0) == bound.at(-2.0) == bound.largest(2.0) == at
    assert bound.largest(None) == of_varying
    assert bound.is_constant == (of_varying is not None)
    assert bound.limits(0.0, Move(1.0, 2.0, (), ())) == limits


def test_numbers_become_constants():
    assert clip_bounds.of(0.5) == Constant(0.5)
    assert clip_bounds.of(Lipschitz(1.0)) == Lipschitz(1.0)
    assert clip_bounds.of(RANGE, has_centre=True) == RANGE
    assert jax.jit(lambda number: clip_bounds.of(number).at(None))(0.5) == 0.5


def test_subclasses_are_refused():
    """They could answer otherwise in a step than where the step is charged."""

    class Loose(Lipschitz):
        def at(self, distance):
            return 10.0 * self.number * distance

    with pytest.raises(ValueError, match="must be a number of nats"):
        clip_bounds.of(Loose(1.0))


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, Lipschitz(0.0), Constant(-1.0)])
def test_bounds_that_are_not_positive_raise(bad):
    with pytest.raises(ValueError, match="clip_bound must be positive"):
        clip_bounds.of(bad)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("barker", {}),
        ("penalty", dict(test_noise_multiplier=1.0)),
        ("minibatch_penalty", dict(test_noise_multiplier=1.0, batch_size=2)),
    ],
)
def test_kernels_without_a_centre_refuse_ranges(name, settings):
    posterior = Posterior(jnp.sum, lambda position, record: record, jnp.zeros(9))
    with pytest.raises(ValueError, match="no centre"):
        getattr(dpjax, name)(posterior, 0.1, clip_bound=RANGE, **settings)
