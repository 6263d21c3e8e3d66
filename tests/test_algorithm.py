"""Kernels evaluate a model's matrix products in full precision."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import dpjax
from dpjax.numpyro.fits import fit_algorithm
from tests.tiers import tiered

RNG = np.random.default_rng(0)
DATA = {"x": RNG.normal(size=(200, 3)), "y": RNG.normal(size=200)}
KERNELS = {
    "barker": functools.partial(dpjax.barker, step_size=0.1, clip_bound=1.0),
    "hmc": functools.partial(
        dpjax.hmc,
        step_size=0.1,
        num_integration_steps=2,
        noise_multiplier=2.0,
        clip_bound=1.0,
        l2_clip_norm=1.0,
    ),
    "sgld": functools.partial(
        dpjax.sgld, step_size=0.1, dim=3, l2_clip_norm=1.0, sampling_prob=1.0
    ),
    "fit": functools.partial(fit_algorithm, noise_multiplier=2.0),
}


def model(x, y=None):
    slopes = numpyro.sample("slopes", dist.Normal(0, 1).expand([3]).to_event(1))
    with numpyro.plate("n", len(x)):
        numpyro.sample("y", dist.Normal(x @ slopes, 1), obs=y)


@pytest.mark.parametrize("name", tiered(KERNELS, KERNELS.keys() - {"fit"}))
def test_matrix_products_of_a_model_are_made_in_float32(name):
    posterior = dpjax.numpyro.posterior(
        model, DATA, plate="n", example={"x": DATA["x"][::2]}
    )
    # NumPyro's own distributions promote ranks.
    with jax.numpy_rank_promotion("allow"):
        algorithm = KERNELS[name](posterior)
        state = algorithm.init({"slopes": jnp.zeros(3)})
        text = str(jax.make_jaxpr(algorithm.step)(jax.random.key(0), state))
    highest = "precision=(Precision.HIGHEST, Precision.HIGHEST)"
    assert text.count("dot_general[") == text.count(highest) > 0
