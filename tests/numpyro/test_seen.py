"""Latents of which the made-up records of an example tell nothing."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.flatten_util import ravel_pytree

import dpjax
from dpjax.numpyro import seen
from dpjax.numpyro.adapter import model_of, posterior
from dpjax.numpyro.seen import _slopes, check_latents
from tests.tiers import tiered


def hierarchical(group, x, y):
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    scale = numpyro.sample("scale", dist.HalfNormal(1))
    law = dist.Normal(mean * jnp.ones(9), scale).to_event(1)
    effect = numpyro.sample("effect", law)
    slope = numpyro.sample("slope", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("data", len(y)):
        logits = effect[group] + x @ slope
        numpyro.sample("obs", dist.Bernoulli(logits=logits), obs=y)


def checked(group, x):
    data = dict(group=np.arange(500) % 9, x=np.ones((500, 2)), y=np.ones(500))
    example = dict(group=group, x=x)
    check_latents(
        model_of(posterior(hierarchical, data, plate="data", example=example))
    )


@pytest.mark.thorough
def test_groups_of_which_no_record_tells_are_named():
    """The two records of the last group count, among 600 of the others."""
    group = np.concatenate([np.arange(600) % 2, [8, 8]])
    message = r"depends on effect\[2\], effect\[3\], .* effect\[7\]\. The fit"
    with pytest.warns(UserWarning, match=message):
        checked(group, np.ones((602, 2)))


@pytest.mark.thorough
def test_columns_that_are_zero_are_named():
    with pytest.warns(UserWarning, match=r"depends on slope\[1\]\. The fit"):
        checked(np.arange(30) % 9, np.ones((30, 2)) * [1, 0])


def test_hyperparameters_are_no_such_latents():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        checked(np.arange(600) % 9, np.ones((600, 2)))


def of_quantile(loc):
    return dist.AsymmetricLaplaceQuantile(loc, 1.0, 0.9)


@pytest.mark.parametrize(
    ("law", "has_corners"),
    [(dist.Laplace, True), (of_quantile, True), (dist.LogNormal, False)],
)
def test_laws_with_corners_are_named(law, has_corners):
    def model(x, y):
        slope = numpyro.sample("slope", dist.Normal(0, 1))
        with numpyro.plate("data", len(y)):
            numpyro.sample("obs", law(slope * x), obs=y)

    data = dict(x=np.linspace(-1, 1, 300), y=np.ones(300))
    example = dict(x=np.linspace(-2, 2, 50))
    target = posterior(model, data, plate="data", example=example)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        check_latents(model_of(target))
    assert len(found) == has_corners
    assert all("densities of 'obs' have corners" in str(each.message) for each in found)


@pytest.mark.thorough
def test_levels_of_outcomes_that_the_example_leaves_out_are_drawn():
    """The model generates answers, so an example of covariates tells of all levels."""

    def ordinal(x, y):
        slope = numpyro.sample("slope", dist.Normal(0, 1))
        ordered = dist.transforms.OrderedTransform()
        law = dist.Normal(0, 1).expand([4]).to_event(1)
        cuts = numpyro.sample("cuts", dist.TransformedDistribution(law, ordered))
        with numpyro.plate("data", len(y)):
            numpyro.sample("obs", dist.OrderedLogistic(slope * x, cuts), obs=y)

    data = dict(x=np.ones(500), y=np.arange(500) % 5)
    example = dict(x=np.linspace(-1, 1, 200))
    target = posterior(ordinal, data, plate="data", example=example)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_latents(model_of(target))


@jax.custom_vjp
def known(start, rate, times):
    """Amounts in closed form, but like those of a solver without a forward mode."""
    return start * jnp.exp(-rate * times)


def forward(start, rate, times):
    found = known(start, rate, times)
    return found, (found, start, times)


def backward(residuals, cotangent):
    found, start, times = residuals
    by_start = jnp.sum(cotangent * found) / start
    return by_start, -jnp.sum(cotangent * found * times), jnp.zeros_like(times)


known.defvjp(forward, backward)


def decay(time, y):
    start = numpyro.sample("start", dist.LogNormal(0, 0.5))
    rate = numpyro.sample("rate", dist.LogNormal(0, 0.5))
    mean = jax.vmap(lambda time: known(start, rate, time[None])[0])(time)
    with numpyro.plate("data", len(y)):
        numpyro.sample("obs", dist.Normal(mean, 0.1), obs=y)


def decaying():
    rng = np.random.default_rng(0)
    time = rng.uniform(0.1, 3, 2000)
    y = 1.5 * np.exp(-0.7 * time) + 0.1 * rng.normal(size=2000)
    data, example = dict(time=time, y=y), dict(time=rng.uniform(0.1, 3, 200))
    return posterior(decay, data, plate="data", example=example)


@pytest.mark.thorough
def test_models_without_derivatives_in_forward_mode_are_fitted():
    """Six posterior sds are exceeded with a probability below 1e-7.

    Noise makes them half as long again.
    """
    with jax.numpy_rank_promotion("allow"):  # The model promotes.
        run = dpjax.numpyro.sample(
            decaying(),
            budget=dpjax.Budget(4, 1e-6),
            num_draws=100,
            verbose=False,
            unsafe_key=jax.random.key(0),
        )
    for name, truth in (("start", 1.5), ("rate", 0.7)):
        draws = np.asarray(run.positions[name], np.float64)
        assert abs(draws.mean() - truth) < 6 * draws.std() < 0.15


@pytest.mark.thorough
def test_whole_records_without_derivatives_in_forward_mode_are_fitted():
    """The tolerance is that of the test above."""

    def series(y, times):
        rate = numpyro.sample("rate", dist.LogNormal(0, 0.5))
        mean = known(jnp.array(1.5), rate, times)
        with numpyro.plate("data", len(y)):
            law = dist.Normal(mean[None], 0.1).to_event(1)
            numpyro.sample("obs", law, obs=y)

    times = np.array([0.5, 1.0, 2.0])
    noise = np.random.default_rng(0).normal(size=(2000, 3))
    target = posterior(
        series,
        dict(y=1.5 * np.exp(-0.7 * times) + 0.1 * noise),
        plate="data",
        public=dict(times=times),
    )
    with jax.numpy_rank_promotion("allow"):  # NumPyro promotes.
        run = dpjax.numpyro.sample(
            target,
            budget=dpjax.Budget(4, 1e-6),
            num_draws=100,
            verbose=False,
            unsafe_key=jax.random.key(0),
        )
    draws = np.asarray(run.positions["rate"], np.float64)
    assert abs(draws.mean() - 0.7) < 6 * draws.std() < 0.15


def uniform(y):
    end = numpyro.sample("end", dist.LogNormal(0, 2))
    with numpyro.plate("data", len(y)):
        numpyro.sample("obs", dist.Uniform(0, end), obs=y)


def truncated(y):
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    high = numpyro.sample("high", dist.Normal(2, 1))
    with numpyro.plate("data", len(y)):
        numpyro.sample("obs", dist.TruncatedNormal(mean, 1.0, high=high), obs=y)


@pytest.mark.parametrize("model", tiered([uniform, truncated], [uniform]))
def test_densities_that_end_at_a_latent_are_refused(model):
    """Draws of the end would be off by 10,000 of their sds."""
    y = np.random.default_rng(0).uniform(size=(2, 1000))
    y = y if model is uniform else -y
    target = posterior(model, dict(y=y[0]), plate="data", example=dict(y=y[1]))
    budget = dpjax.Budget(1.0, 1e-6)
    for call in (dpjax.numpyro.sample, dpjax.numpyro.plan):
        with pytest.raises(ValueError, match=r"as that of Uniform"):
            call(target, budget=budget)


def test_long_records_are_compared_in_bounded_memory(monkeypatch):
    monkeypatch.setattr(seen, "MAX_NUMBERS", 2**22)

    def series(y):
        mean = numpyro.sample("mean", dist.Normal(0, 1).expand([50]).to_event(1))
        with numpyro.plate("data", y.shape[0]):
            law = dist.Normal(jnp.repeat(mean, 40)[None], 1).to_event(1)
            numpyro.sample("obs", law, obs=y)

    rng = np.random.default_rng(0)
    target = posterior(
        series,
        dict(y=rng.normal(size=(300, 2000))),
        plate="data",
        example=dict(y=np.zeros((300, 2000))),
    )
    model = model_of(target)
    _, unravel = ravel_pytree(jax.tree.map(jnp.zeros_like, model.outline))
    positions = np.zeros((4, 50), jnp.result_type(float))
    slopes = _slopes(model, unravel, positions)
    assert 2000 <= slopes.shape[1] and slopes.size <= 2**22
