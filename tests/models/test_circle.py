import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.models.circle import circle, exact_sample, simulate


@pytest.mark.parametrize("sharpness", [1e-3, 0.1])
def test_exact_sample_has_the_posterior_as_its_law(assert_exact, sharpness):
    constants = dict(sharpness=sharpness, tempering=0.5)
    data = simulate(jax.random.key(0), 30)
    draws = exact_sample(jax.random.key(1), data, 20_000, **constants)
    assert_exact(circle(data, **constants), draws)


def test_loglikelihood():
    posterior = circle(jnp.array([3.0]), sharpness=0.5)
    np.testing.assert_allclose(posterior(jnp.array([1.0, 2.0])), -0.5 * (5 - 9) ** 2)


def test_refuses_bad_arguments():
    with pytest.raises(ValueError, match="shape"):
        circle(jnp.ones((3, 2)))
    with pytest.raises(ValueError, match="sharpness"):
        circle(jnp.ones(3), sharpness=0.0)
