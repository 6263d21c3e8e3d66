import jax
import jax.numpy as jnp
import numpy as np
import pytest


@pytest.fixture
def assert_exact():
    """Stein's identity: E[grad log p] = 0 and E[grad log p theta^T] = -I."""

    def check(posterior, draws):
        scores = jax.jit(jax.vmap(jax.grad(posterior)))(draws)
        scores, draws = np.asarray(scores, float), np.asarray(draws, float)
        products = scores[:, :, None] * (draws - draws.mean(0))[:, None, :]
        for terms, expected in ((scores, 0.0), (products, -np.eye(draws.shape[1]))):
            error = terms.std(axis=0) / len(terms) ** 0.5
            np.testing.assert_array_less(abs(terms.mean(0) - expected), 5 * error)

    return check


@pytest.fixture
def assert_stable():
    """Equal parameters compile once."""

    def check(build, data):
        traces = []

        def density(posterior, position):
            traces.append(1)
            return posterior(position)

        compiled = jax.jit(density)
        for scale in (1, 2):
            compiled(build(data * scale), jnp.ones(2, data.dtype))
        assert len(traces) == 1

    return check
