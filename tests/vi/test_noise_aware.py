"""Noise-aware DPVI: its posterior against NUTS, the truth, and a run of DPVI."""

import functools
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.infer import MCMC, NUTS

import dpjax
from dpjax.vi import exact_draws
from dpjax.vi.dpvi import DPVIInfo
from dpjax.vi.guides import MeanField


def simulated(rng, num_chains, num_steps, dim, *, spread, sd, curvature, error=0.0):
    """Infos of the model itself, and phi* drawn from its prior."""
    shape = num_chains, num_steps, 2 * dim
    parameters = spread * rng.normal(size=shape)
    optimum = parameters.mean(axis=1) + rng.normal(size=(num_chains, 2 * dim))
    noise = np.hypot(sd, error) * rng.normal(size=shape)
    gradient = curvature * (optimum[:, None] - parameters) + noise

    def tree(array):
        return {"location": array[..., :dim], "rho": array[..., dim:]}

    levels = np.full(shape, sd)
    return DPVIInfo(tree(parameters), tree(gradient), tree(levels)), tree(optimum)


def small():
    rng = np.random.default_rng(5)
    return simulated(rng, 1, 60, 1, spread=0.3, sd=2.0, curvature=3.0, error=2.0)[0]


def by_nuts(infos, error_sd):
    """The model with all its steps, as written in the docstring."""
    x, g = (
        np.concatenate([tree["location"][0], tree["rho"][0]], axis=1)
        for tree in (infos.parameters, infos.gradient)
    )
    s = infos.noise_sd["rho"][0, 0, 0]
    centered = x - x.mean(axis=0)
    sxx = np.sum(centered**2, axis=0)
    m = abs(np.sum(centered * g, axis=0)) / sxx
    size = x.shape[1]

    def model(x, g):
        with numpyro.plate("components", size):
            optimum = numpyro.sample("optimum", dist.Normal(x.mean(axis=0), 1.0))
            u = numpyro.sample("u", dist.Normal(m, s / np.sqrt(sxx)))
            r = numpyro.sample("r", dist.Normal(0.0, error_sd).expand([size]))
        a = numpyro.deterministic("a", jax.nn.softplus(u))
        mean = a[None] * (optimum[None] - x)
        numpyro.sample("g", dist.Normal(mean, jnp.sqrt(s**2 + r**2)[None]), obs=g)

    sampler = MCMC(NUTS(model), num_warmup=500, num_samples=2500, progress_bar=False)
    with jax.debug_key_reuse(False):
        sampler.run(jax.random.key(0), jnp.asarray(x), jnp.asarray(g))
    return sampler.get_samples()


def test_agrees_with_nuts():
    infos, error_sd = small(), 1.5
    chain = by_nuts(infos, error_sd)
    posterior = dpjax.noise_aware(infos, sampling_error_sd=error_sd)
    optima = posterior.sample(jax.random.key(1), 20_000)
    for name, tree in (("optimum", optima.parameters), ("a", optima.curvature)):
        exact = np.concatenate([tree["location"][0], tree["rho"][0]], axis=1)
        sd = exact.std(axis=0)
        # With 1000 effective draws of NUTS, six standard errors of either.
        assert np.all(abs(chain[name].mean(axis=0) - exact.mean(axis=0)) < 0.2 * sd)
        assert np.all(abs(chain[name].std(axis=0) / sd - 1) < 0.15)


@pytest.mark.parametrize(
    "settings",
    [
        dict(num_steps=50, spread=0.5, sd=5.0, curvature=0.5),
        dict(num_steps=1000, spread=1.0, sd=1.0, curvature=200.0),
    ],
    ids=["weak", "strong"],
)
def test_curvatures_follow_their_density(settings):
    infos, _ = simulated(np.random.default_rng(3), 1, dim=1, **settings)
    optima = dpjax.noise_aware(infos).sample(jax.random.key(0), 100_000)
    x, g = infos.parameters["rho"][0, :, 0], infos.gradient["rho"][0, :, 0]
    n, v = settings["num_steps"], settings["sd"] ** 2
    sxx, sxg = n * np.var(x), np.sum((x - x.mean()) * g)
    m, tau = abs(sxg) / sxx, (v / sxx) ** 0.5
    u = np.linspace(m - 12 * tau, m + 16 * tau, 200_001)
    a = np.logaddexp(0, u)
    of_mean = v / n + a**2
    log_density = -((u - m) ** 2) / (2 * tau**2) - (2 * a * sxg + a**2 * sxx) / (2 * v)
    log_density -= np.log(of_mean) / 2 + g.mean() ** 2 / (2 * of_mean)
    cumulative = np.cumsum(np.exp(log_density - log_density.max()))
    for level in (0.01, 0.1, 0.5, 0.9, 0.99):
        quantile = np.quantile(optima.curvature["rho"], level)
        found = np.interp(quantile, a, cumulative / cumulative[-1])
        # Six standard errors: 2e-9.
        assert abs(found - level) < 6 * (level * (1 - level) / 100_000) ** 0.5


@pytest.mark.parametrize("error", [0.0, 200.0])
def test_intervals_cover_the_optimum(error):
    # Steps ten times as wide as the prior: what is counted twice does not matter, and
    # at a curvature of 50 neither does softplus in its prior.
    settings = dict(spread=10.0, sd=250.0, curvature=50.0, error=error)
    infos, optimum = simulated(np.random.default_rng(1), 1, 40, 500, **settings)
    posterior = dpjax.noise_aware(infos, sampling_error_sd=error)
    parameters = posterior.sample(jax.random.key(2), 1000).parameters
    ranks = jax.tree.map(
        lambda draws, truth: np.mean(draws < truth[:, None], axis=1),
        parameters,
        optimum,
    )
    ranks = np.concatenate(jax.tree.leaves(ranks), axis=None)
    for level in (0.5, 0.9):
        covered = np.mean(abs(ranks - 0.5) < level / 2)
        # Six standard errors of 1000 components, 2e-9 each.
        assert abs(covered - level) < 6 * (level * (1 - level) / 1000) ** 0.5


def test_the_release_alone_gives_the_posterior():
    infos = small()
    stored = pickle.loads(pickle.dumps(infos))
    guide, key = MeanField(1), jax.random.key(3)
    draws = dpjax.noise_aware(infos).draws(key, guide, 50)
    again = dpjax.noise_aware(stored).draws(jax.random.clone(key), guide, 50)
    assert draws.shape == (1, 50, 1)
    np.testing.assert_array_equal(draws, again)


def test_chains_and_components_do_not_know_of_each_other():
    settings = dict(spread=1.0, sd=3.0, curvature=2.0)
    infos, _ = simulated(np.random.default_rng(2), 3, 30, 2, **settings)
    whole = exact_draws.grid(dpjax.noise_aware(infos, sampling_error_sd=1.0).model)
    second = jax.tree.map(lambda leaf: leaf[1:2], infos)
    alone = exact_draws.grid(dpjax.noise_aware(second, sampling_error_sd=1.0).model)
    for array, part in zip(whole, alone, strict=True):
        np.testing.assert_array_equal(array[4:8], part)


def test_finds_the_optimum_and_curvature_of_a_run():
    """The ELBO of a normal mean is quadratic in the location."""
    records = 2000 + np.random.default_rng(4).normal(size=(500, 1))
    posterior = dpjax.Posterior(
        lambda position: -0.5 * jnp.sum(position**2) / 9,
        lambda position, record: -0.5 * jnp.sum((record - 2000 - position) ** 2),
        jnp.asarray(records),
        tempering=0.5,
    )
    guide = MeanField(1)
    algorithm = functools.partial(
        dpjax.dpvi,
        optimizer=optax.sgd(1e-3),
        guide=guide,
        l2_clip_norm=20.0,
        noise_multiplier=2.0,
        sampling_prob=0.5,
        aligned=False,
    )
    run = dpjax.run(
        jax.random.key(1),
        algorithm,
        posterior,
        400,
        initial_position=jnp.full((1, 1), 0.5),
        num_chains=1,
        budget=None,
        warmup_fraction=0.0,
        verbose=False,
    )
    noise_aware = dpjax.noise_aware(run.infos, sampling_error_sd=2.0)
    optima = noise_aware.sample(jax.random.key(2), 2000)
    precision = 0.5 * 500 + 1 / 9
    mean = 0.5 * np.sum(records - 2000) / precision
    for draws, truth in (
        (optima.parameters["location"], mean),
        (optima.curvature["location"], precision),
    ):
        # Six sd, 2e-9, of a posterior by sqrt(2) too narrow.
        assert abs(np.mean(draws) - truth) < 6 * 2**0.5 * np.std(draws)
    assert np.std(optima.curvature["location"]) < 0.2 * precision
    theta = noise_aware.draws(jax.random.key(3), guide, 2000)
    scale = jax.nn.softplus(optima.parameters["rho"])
    spread = np.var(optima.parameters["location"]) + np.mean(scale**2)
    np.testing.assert_allclose(np.var(theta), spread, rtol=6 * (2 / 1000) ** 0.5)


def test_refuses_bad_arguments():
    infos = small()
    with pytest.raises(ValueError, match="aligned=False"):
        dpjax.noise_aware(infos._replace(noise_sd=None))
    with pytest.raises(ValueError, match="same at every step"):
        still = jax.tree.map(np.ones_like, infos.parameters)
        dpjax.noise_aware(infos._replace(parameters=still))
    with pytest.raises(ValueError, match="optimum_sd"):
        dpjax.noise_aware(infos, optimum_sd={"location": 1.0, "rho": 0.0})
    with pytest.raises(ValueError, match="method"):
        dpjax.noise_aware(infos, method="hmc")
    with pytest.raises(ValueError, match="sampling_error_sd"):
        dpjax.noise_aware(infos, sampling_error_sd=-1.0)
    with pytest.raises(ValueError, match="three"):
        dpjax.noise_aware(jax.tree.map(lambda leaf: leaf[:, :2], infos))
