"""Observations that draws predict: their law, their inputs, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import dpjax.numpyro
from dpjax.runner.results import Run
from dpjax.runner.statement import PrivacyStatement

STATEMENT = PrivacyStatement(1.5, 1e-6, 0.5, "REPLACE_ONE", 2, 40, "bits", "rdp")
RNG = np.random.default_rng(0)
RUN = Run(
    {"slope": np.linspace(1.0, 2.0, 80).reshape(2, 40), "sd": np.full((2, 40), 0.1)},
    None,
    STATEMENT,
)
SECRET = {"x": RNG.normal(size=500), "y": RNG.normal(size=500)}


def model(x, y, offset):
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    sd = numpyro.sample("sd", dist.HalfNormal(1.0))
    with numpyro.plate("records", len(y)):
        law = dist.Normal(slope * x + offset, sd)
        numpyro.sample("seen", law, obs=y)


def by_factor(x, y):
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    sd = numpyro.sample("sd", dist.HalfNormal(1.0))
    with numpyro.plate("records", len(y)):
        numpyro.factor("seen", dist.Normal(slope * x, sd).log_prob(y))


@pytest.fixture(scope="module")
def posterior():
    return dpjax.numpyro.posterior(
        model, SECRET, plate="records", public={"offset": 5.0}
    )


@pytest.mark.thorough
def test_each_draw_predicts_records_of_its_own(posterior):
    """Their mean is slope x + offset, with an error of .1 / sqrt(400) = .005."""
    x = np.tile([1.0, -1.0], 200)
    found = RUN.predict(posterior, {"x": x}, num_draws=20)
    assert set(found) == {"seen"} and found["seen"].shape == (20, 400)
    slopes = np.mean(x * (found["seen"] - 5.0), axis=1)
    expected = RUN.positions["slope"].reshape(-1)[2::4]
    # Twenty means, six standard errors each: a false alarm in 2e7.
    np.testing.assert_allclose(slopes, expected, atol=0.03)
    apart = found["seen"] - 5.0 - slopes[:, None] * x
    np.testing.assert_allclose(apart.std(), 0.1, rtol=0.05)
    whole = RUN.predict(
        model, {"x": x, "y": np.zeros(400), "offset": 5.0}, num_draws=20
    )
    np.testing.assert_array_equal(whole["seen"], found["seen"])
    key = jax.random.key(1)
    other = RUN.predict(posterior, {"x": x}, num_draws=20, rng_key=key)["seen"]
    assert not np.any(other == found["seen"])


def test_observations_of_a_known_law_are_not_drawn():
    """The means of 80 predictions have standard errors of .011 about 1.5 x."""

    def regression(x, y):
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
        with numpyro.plate("records", len(y)):
            numpyro.sample("x", dist.Normal(0.0, 1.0), obs=x)
            numpyro.sample("y", dist.Normal(slope * x, 0.1), obs=y)

    posterior = dpjax.numpyro.posterior(regression, SECRET, plate="records")
    positions = {"slope": np.full((2, 40), 1.5)}
    found = Run(positions, None, STATEMENT).predict(posterior, {"x": [5.0, -5.0]})
    assert set(found) == {"y"}
    np.testing.assert_allclose(found["y"].mean(axis=0), [7.5, -7.5], atol=0.08)
    with pytest.raises(ValueError, match="inputs lack"):
        Run(positions, None, STATEMENT).predict(posterior, num_records=2)


def test_records_to_predict_lack_no_value(posterior):
    data = SECRET | {"complete": RNG.random(500) < 0.9}
    masked = dpjax.numpyro.posterior(
        dpjax.numpyro.complete_cases(model, "records"),
        data,
        plate="records",
        public={"offset": 5.0},
        example={"x": np.ones(4), "y": np.ones(4), "complete": np.ones(4, bool)},
    )
    inputs = {"x": np.ones(30)}
    found = RUN.predict(masked, inputs, num_draws=20)
    expected = RUN.predict(posterior, inputs, num_draws=20)
    np.testing.assert_array_equal(found["seen"], expected["seen"])


def test_a_model_of_whole_records_makes_as_many_as_asked():
    def whole(y):
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
        sd = numpyro.sample("sd", dist.HalfNormal(1.0))
        with numpyro.plate("records", len(y)):
            numpyro.sample("y", dist.Normal(slope, sd), obs=y)

    data = {"y": SECRET["y"]}
    posterior = dpjax.numpyro.posterior(whole, data, plate="records")
    found = RUN.predict(posterior, num_records=7, num_draws=1)
    assert found["y"].shape == (1, 7) and np.all(np.abs(found["y"] - 1.5) < 0.8)
    with pytest.raises(ValueError, match="follows from inputs or num_records"):
        RUN.predict(posterior)


@pytest.mark.thorough
def test_a_factor_is_predicted_by_its_simulator():
    def simulate(rng_key, latents, record):
        noise = jax.random.normal(rng_key)
        seen = latents["slope"] * record["x"] + latents["sd"] * noise
        return record | {"y": seen.astype(jnp.result_type(record["y"]))}

    posterior = dpjax.numpyro.posterior(
        by_factor, SECRET, plate="records", simulate_fn=simulate
    )
    inputs = {"x": np.ones(300), "y": np.zeros(300)}
    found = RUN.predict(posterior, inputs, num_draws=2)
    assert set(found) == {"x", "y"} and found["y"].shape == (2, 300)
    np.testing.assert_allclose(found["y"].mean(1), [1.25, 1.75], atol=0.04)


def test_what_cannot_be_predicted_is_refused(posterior):
    with pytest.raises(ValueError, match=r"inputs lack \['x'\].*would not be private"):
        RUN.predict(posterior, num_records=3)
    with pytest.raises(ValueError, match=r"got \[2, 3\]"):
        RUN.predict(posterior, {"x": np.ones(2)}, num_records=3)
    with pytest.raises(ValueError, match="num_draws must be 1 to 80, got 81"):
        RUN.predict(posterior, {"x": np.ones(2)}, num_draws=81)
    with pytest.raises(ValueError, match="a function predicts as many records"):
        RUN.predict(model, {"x": np.ones(2), "offset": 5.0}, num_records=3)
    with pytest.raises(ValueError, match="draws no observation"):
        RUN.predict(by_factor, {"x": np.ones(2), "y": np.ones(2)})
    with pytest.raises(ValueError, match="have no names"):
        Run(np.zeros((2, 5, 1)), None, STATEMENT).predict(model, {})
