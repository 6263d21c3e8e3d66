"""The test for the linear part of a trace has its level, and finds the part."""

import jax
import numpy as np
import pytest

from dpjax.vi.convergence import num_warmup, p_values
from dpjax.vi.dpvi import DPVIInfo

STEPS, RATE, SD = 600, 0.03, 20.0


def trace(rng, num_chains, size, start=0.0, bend=np.inf):
    """Stochastic ascent where the gradient does not exceed `bend`."""
    position, rows = np.full((num_chains, size), start), []
    for _ in range(STEPS):
        gradient = -np.clip(position, -bend, bend) + SD * rng.normal(
            size=position.shape
        )
        rows.append((position, gradient))
        position = position + RATE * gradient
    positions, gradients = np.swapaxes(rows, 0, 1)
    parameters, gradients = np.swapaxes(positions, 0, 1), np.swapaxes(gradients, 0, 1)
    return DPVIInfo({"location": parameters}, {"location": gradients}, None)


@pytest.mark.parametrize("start", [0.0, 100.0])
def test_linear_traces_pass_as_often_as_the_level_says(start):
    p = p_values(trace(np.random.default_rng(0), 1000, 6, start))
    # The upper bound is six standard errors above the level. The lower one says that
    # the test is not too conservative to have power.
    assert 0.003 < np.mean(p < 0.05) < 0.05 + 6 * (0.05 * 0.95 / 1000) ** 0.5
    assert num_warmup(trace(np.random.default_rng(1), 3, 6, start)) == STEPS / 5


def test_a_bent_beginning_is_left_out():
    # The pull is at most 40, so it takes about 200 steps of 1.2 to come from 300.
    bent = trace(np.random.default_rng(2), 4, 6, start=300.0, bend=40.0)
    assert np.all(p_values(bent) < 1e-6)
    first = num_warmup(bent)
    assert 180 <= first <= 300
    rest = jax.tree.map(lambda leaf: leaf[:, first:], bent)
    assert np.all(p_values(rest) >= 1e-3)


def test_warns_if_no_part_is_linear():
    infos = trace(np.random.default_rng(3), 1, 2)
    growth = np.exp(0.2 * np.arange(STEPS))[None, :, None]
    gradient = {"location": infos.gradient["location"] + growth}
    with pytest.warns(UserWarning, match="more steps"):
        num_warmup(infos._replace(gradient=gradient))


def test_too_few_steps_are_refused():
    infos = jax.tree.map(
        lambda leaf: leaf[:, :25], trace(np.random.default_rng(4), 1, 1)
    )
    with pytest.raises(ValueError, match="too few"):
        p_values(infos)
