import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.models import THESIS_MODELS, thesis_model
from tests.tiers import tiered

# Means and mean squares of the data's first two columns; standard deviations of the
# reference, their mean; first start; log-likelihood at the start's centre.
PUBLISHED = {
    "easy-2d": (0.0133320, 2.9979086, 19.976602, 11.467897, 0.014098, 0.010771,
                0.0124346, -0.003541, 2.988513, -478939.2734),
    "tempered-2d": (0.0133320, 2.9979086, 19.976602, 11.467897, 0.140980, 0.558293,
                    0.3496366, -0.099563, 2.677002, -478939.2734),
    "easy-10d": (0.0201469, 3.0018267, 19.937399, 11.496183, 0.009969, 0.009274,
                 0.0037044, 0.002559, 2.998204, -3227415.7607),
    "tempered-10d": (0.0201469, 3.0018267, 19.937399, 11.496183, 0.140980, 0.566756,
                     0.0959490, 0.066269, 2.953484, -3227415.7607),
    "gauss-30d": (0.0201469, 3.0018267, 19.937399, 11.496183, 0.009969, 0.003547,
                  0.0025410, 0.000685, 2.998893, -8904157.4539),
    "hard-2d": (0.0091310, 3.0031526, 20.082813, 11.529230, 0.011511, 0.100029,
                0.0557703, -0.015881, 2.948479, -719703.2693),
    "hard-gauss-2d": (0.0028320, 3.0027890, 1.000419, 10.017020, 0.002272, 0.002271,
                      0.0022715, -0.000647, 2.997902, -200289.0691),
}  # fmt: skip


@pytest.mark.parametrize("key", tiered(PUBLISHED, ["easy-2d"]))
def test_numbers_are_the_thesis_codes(key, x64):
    model = thesis_model(key)
    data, reference = model.simulate(), model.reference()
    assert data.shape == (model.num_records, model.dim)
    assert data.dtype == (jnp.float64 if x64 else jnp.float32)
    start = model.starts(reference)[0]
    wide = np.asarray(data[:, :2], np.float64)
    spread = np.asarray(reference, np.float64).std(axis=0)
    found = [*wide.mean(0), *(wide**2).mean(0), *spread[:2], spread.mean(), *start[:2]]
    published = PUBLISHED[key]
    np.testing.assert_allclose(found, published[:-1], rtol=1e-6, atol=6e-7)

    posterior = model.posterior(data)
    theta = jnp.asarray(model.true_theta)
    found = (posterior(theta) - posterior.logprior_fn(theta)) / model.tempering
    if key != "hard-gauss-2d":
        constant = model.dim * np.log(2 * np.pi) + np.log(20 * 2.5)
        found = float(found) - 0.5 * model.num_records * constant
    np.testing.assert_allclose(found, published[-1], rtol=1e-8 if x64 else 1e-5)


def test_circle_numbers_are_the_thesis_codes():
    model = thesis_model("circle")
    data = model.simulate()
    np.testing.assert_allclose(jnp.mean(data), 2.9959764, rtol=1e-6)
    np.testing.assert_allclose(jnp.mean(data**2), 9.976272, rtol=1e-6)
    start = model.starts(model.reference())[0]
    np.testing.assert_allclose(start, [-0.284762, 0.076191], atol=1e-6)
    at_centre = model.posterior(data)(jnp.asarray(model.start_centre))
    np.testing.assert_allclose(at_centre, -118.5545, rtol=1e-6)


def test_exact_sample_follows_the_caller(x64):
    model = thesis_model("tempered-2d")
    draws = model.exact_sample(jax.random.key(0), model.simulate(), 5)
    assert draws.shape == (5, 2)
    assert draws.dtype == (jnp.float64 if x64 else jnp.float32)


def test_settings_are_restored():
    before = jax.config.jax_threefry_partitionable, jax.config.jax_enable_x64
    thesis_model("circle").simulate()
    after = jax.config.jax_threefry_partitionable, jax.config.jax_enable_x64
    assert before == after


def test_registry():
    assert len(THESIS_MODELS) == 8
    assert all(key == model.key for key, model in THESIS_MODELS.items())
    with pytest.raises(ValueError, match="unknown model"):
        thesis_model("hard-3d")
