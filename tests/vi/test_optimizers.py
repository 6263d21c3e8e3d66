"""Step sizes from the noise: how far noise carries a run, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dpjax
from dpjax import guides
from dpjax.vi.optimizers import noise_scaled_sgd

STEPS = 400


def test_noise_moves_a_run_by_the_distance():
    posterior = dpjax.Posterior(
        lambda position: 0.0, lambda position, record: 0.0, jnp.zeros((20, 1))
    )
    distance = {"location": np.array([1.0, 3.0]), "rho": 0.01}
    algorithm = dpjax.dpvi(
        posterior,
        noise_scaled_sgd(STEPS, distance),
        guide=guides.MeanField(2),
        l2_clip_norm=7.0,
        noise_multiplier=5.0,
        sampling_prob=0.5,
        aligned=False,
        preconditioner={"location": 1.0, "rho": 50.0},
    )
    start = algorithm.init(jnp.zeros(2))
    state, info = jax.jit(algorithm.step)(jax.random.key(0), start)
    for part, sd in (("location", 70.0), ("rho", 70.0 / 50)):
        rate = (state.position[part] - start.position[part]) / info.gradient[part]
        # The noise of the steps is independent, and there are four components.
        reached = rate * sd * STEPS**0.5
        np.testing.assert_allclose(reached, distance[part] / 2 * np.ones(2), rtol=3e-3)


def test_refuses_bad_arguments():
    with pytest.raises(ValueError, match="num_steps"):
        noise_scaled_sgd(0)
    with pytest.raises(ValueError, match="distance"):
        noise_scaled_sgd(10, {"location": 1.0, "rho": -1.0})
    optimizer = optax.with_extra_args_support(noise_scaled_sgd(10))
    gradient = {"location": jnp.ones(2), "rho": jnp.ones(2)}
    with pytest.raises(ValueError, match="aligned=False"):
        optimizer.update(gradient, optimizer.init(gradient), noise_sd=None)
