"""Noise-aware DPVI: its posterior against NUTS, the truth, and a run of DPVI."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

import dpjax
from dpjax.runner.results import Run, load
from dpjax.runner.statement import PrivacyStatement
from dpjax.vi import exact_draws
from dpjax.vi.dpvi import DPVIInfo
from dpjax.vi.guides import MeanField
from dpjax.vi.trace_model import log_joint


def simulated(rng, num_chains, num_steps, dim, *, spread, sd, curvature, error=0.0):
    """Infos drawn from the model itself, and phi* drawn from its prior."""
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


def flat(tree):
    return np.concatenate([tree["location"][0], tree["rho"][0]], axis=1)


def test_density_is_that_of_all_steps():
    infos, error_sd = small(), 1.5
    rng = np.random.default_rng(0)
    x, g = flat(infos.parameters), flat(infos.gradient)
    s, size = 2.0, x.shape[1]
    centered = x - x.mean(axis=0)
    sxx = np.sum(centered**2, axis=0)
    slope = stats.norm(abs(np.sum(centered * g, axis=0)) / sxx, s / np.sqrt(sxx))
    # The guide's mean scales s give 1 / s^2, and 2 (d log s / d rho)^2 for rho.
    rho = infos.parameters["rho"][0].mean()
    scale, tangent = np.log1p(np.exp(rho)), 1 / (1 + np.exp(-rho))
    guess = np.log([scale**-2, 2 * (tangent / scale) ** 2])
    options = dict(sampling_error_sd=error_sd, optimum_mean=0.3, optimum_sd=0.7)
    for log_sd in (None, 0.5):
        posterior = dpjax.noise_aware(infos, curvature_log_sd=log_sd, **options)
        found, expected = [], []
        for _ in range(4):
            optimum, u, r = rng.normal(size=(3, size))
            a = np.log1p(np.exp(u))
            sd = np.hypot(s, r)
            value = stats.norm.logpdf(g, a * (optimum - x), sd).sum(axis=0)
            value += stats.norm.logpdf(optimum, 0.3, 0.7)
            value += stats.norm.logpdf(r, 0, error_sd)
            if log_sd is None:
                value += slope.logpdf(u)
            else:
                value += stats.norm.logpdf(np.log(a), guess, log_sd)
                value += np.log(1 / (1 + np.exp(-u)) / a)
            found.append(log_joint(posterior.model, optimum, u, r))
            expected.append(value)
        difference = np.subtract(found, expected)
        np.testing.assert_allclose(difference - difference[0], 0, atol=1e-8)


@pytest.mark.thorough
def test_nuts_agrees_with_exact_draws():
    infos = small()
    options = dict(sampling_error_sd=1.5, optimum_mean=0.3, optimum_sd=0.7)
    exact, nuts = (
        dpjax.noise_aware(infos, method=method, **options).sample(
            jax.random.key(1), size
        )
        for method, size in (("exact", 20_000), ("nuts", 2000))
    )
    for draws, chain in (
        (flat(exact.parameters), flat(nuts.parameters)),
        (flat(exact.curvature), flat(nuts.curvature)),
    ):
        sd = draws.std(axis=0)
        # Six standard errors, if NUTS has 800 effective draws.
        assert np.all(abs(chain.mean(axis=0) - draws.mean(axis=0)) < 0.22 * sd)
        assert np.all(abs(chain.std(axis=0) / sd - 1) < 0.16)


def test_laplace_is_exact_where_the_posterior_is_normal():
    settings = dict(spread=1.0, sd=5.0, curvature=200.0, error=8.0)
    infos, _ = simulated(np.random.default_rng(6), 1, 2000, 2, **settings)
    options = dict(sampling_error_sd=10.0)
    exact, laplace = (
        dpjax.noise_aware(infos, method=method, **options).sample(
            jax.random.key(1), 50_000
        )
        for method in ("exact", "laplace")
    )
    for draws, normal in (
        (flat(exact.parameters), flat(laplace.parameters)),
        (flat(exact.curvature), flat(laplace.curvature)),
    ):
        sd = draws.std(axis=0)
        # Six standard errors, and room for the skewness that is left at 2000 steps.
        assert np.all(abs(normal.mean(axis=0) - draws.mean(axis=0)) < 0.1 * sd)
        assert np.all(abs(normal.std(axis=0) / sd - 1) < 0.05)


@pytest.mark.thorough
def test_published_laplace_pushes_small_curvatures_up():
    infos, _ = simulated(
        np.random.default_rng(7), 1, 2000, 1, spread=0.5, sd=20.0, curvature=1.3
    )
    sound, published = (
        dpjax.noise_aware(infos, method=method, sampling_error_sd=10.0).sample(
            jax.random.key(1), 4000
        )
        for method in ("laplace", "published_laplace")
    )
    assert np.all(np.mean(flat(published.curvature), 0) > 2)
    assert np.all(
        np.mean(flat(published.curvature), 0) > 1.5 * np.mean(flat(sound.curvature), 0)
    )
    assert np.all(
        np.std(flat(published.parameters), 0) < np.std(flat(sound.parameters), 0)
    )


def test_an_uninformative_trace_leaves_the_priors():
    settings = dict(spread=1e-3, sd=1e4, curvature=3.0)
    infos, _ = simulated(np.random.default_rng(8), 1, 50, 1, **settings)
    infos.parameters["rho"][:] += np.log(np.expm1(3**-0.5))
    posterior = dpjax.noise_aware(
        infos,
        optimum_mean={"location": 5.0, "rho": 0.0},
        optimum_sd=0.5,
        curvature_log_sd=0.4,
    )
    draws = posterior.sample(jax.random.key(0), 20_000)
    location = draws.parameters["location"]
    # Six standard errors.
    assert abs(np.mean(location) - 5.0) < 6 * 0.5 / 20_000**0.5
    assert abs(np.std(location) / 0.5 - 1) < 6 / 40_000**0.5
    curvature = np.log(draws.curvature["location"])
    assert abs(np.mean(curvature) - np.log(3)) < 6 * 0.4 / 20_000**0.5 + 0.01
    assert abs(np.std(curvature) / 0.4 - 1) < 6 / 40_000**0.5 + 0.01
    scales = jax.nn.softplus(draws.parameters["rho"])
    np.testing.assert_allclose(scales**2 * draws.curvature["location"], 1, rtol=1e-3)


def test_a_curvature_that_is_known_keeps_the_scales_of_the_trace():
    infos = small()
    known = {"location": np.full((1, 1), 20.0), "rho": np.full((1, 1), 2.0)}
    options = dict(curvature=known, curvature_log_sd=1e-3)
    draws = dpjax.noise_aware(infos, **options).sample(jax.random.key(0), 1000)
    np.testing.assert_allclose(draws.curvature["location"], 20, rtol=0.01)
    np.testing.assert_allclose(draws.curvature["rho"], 2, rtol=0.01)
    assert np.std(draws.parameters["rho"]) > 0.05


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


@pytest.mark.thorough
@pytest.mark.parametrize("error", [0.0, 200.0])
def test_intervals_cover_the_optimum(error):
    # The steps are ten times as wide as the prior, so that it does not matter that the
    # run is counted twice, nor, at a curvature of 50, that u is not the curvature.
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


def test_chains_and_components_do_not_know_of_each_other():
    settings = dict(spread=1.0, sd=3.0, curvature=2.0)
    infos, _ = simulated(np.random.default_rng(2), 3, 30, 2, **settings)
    whole = exact_draws.grid(dpjax.noise_aware(infos, sampling_error_sd=1.0).model)
    second = jax.tree.map(lambda leaf: leaf[1:2], infos)
    alone = exact_draws.grid(dpjax.noise_aware(second, sampling_error_sd=1.0).model)
    for array, part in zip(whole, alone, strict=True):
        np.testing.assert_array_equal(array[4:8], part)


@pytest.fixture(scope="module")
def normal_mean():
    """A run on a normal mean, whose ELBO is quadratic in the location, and records."""
    records = 2000 + np.random.default_rng(4).normal(size=(500, 1))
    posterior = dpjax.Posterior(
        lambda position: -0.5 * jnp.sum(position**2) / 9,
        lambda position, record: -0.5 * jnp.sum((record - 2000 - position) ** 2),
        jnp.asarray(records),
        tempering=0.5,
    )
    algorithm = functools.partial(
        dpjax.dpvi,
        optimizer=optax.sgd(1e-3),
        guide=MeanField(1),
        l2_clip_norm=20.0,
        noise_multiplier=2.0,
        sampling_prob=0.5,
        aligned=False,
    )
    run = dpjax.run(
        algorithm,
        posterior,
        400,
        initial_position=jnp.full((1, 1), 0.5),
        num_chains=1,
        budget=None,
        warmup_fraction=0.0,
        verbose=False,
        unsafe_key=jax.random.key(1),
    )
    return run, records


def saved(infos, path):
    statement = PrivacyStatement.none(1, 60)
    Run({"x": np.zeros((1, 60))}, None, statement, infos).save(path)
    return load(path).infos


def test_saved_traces_are_those_of_the_run(tmp_path):
    rng = np.random.default_rng(11)

    def tree(sd, dtype):
        def leaf(*shape):
            return rng.normal(0, sd, (1, 60, *shape)).astype(dtype)

        location = {"a.b": leaf(), "a": {"it's": leaf(2, 2), "c d": leaf(1)}}
        return {"location": location, "rho": leaf(6)}

    for dtype in (np.float32, np.float64):
        infos = DPVIInfo(*(tree(sd, dtype) for sd in (0.1, 3.0, 1.0)))
        found = saved(infos, tmp_path / f"{dtype.__name__}.nc")
        assert jax.tree.structure(found) == jax.tree.structure(infos)
        for leaf, expected in zip(*map(jax.tree.leaves, (found, infos)), strict=True):
            np.testing.assert_array_equal(leaf, expected, strict=True)
    aligned = saved(infos._replace(noise_sd=None), tmp_path / "aligned.nc")
    assert aligned.noise_sd is None


@pytest.mark.thorough
def test_finds_the_optimum_and_curvature_of_a_run(normal_mean):
    run, records = normal_mean
    noise_aware = dpjax.noise_aware(run.infos, sampling_error_sd=2.0)
    optima = noise_aware.sample(jax.random.key(2), 2000)
    precision = 0.5 * 500 + 1 / 9
    mean = 0.5 * np.sum(records - 2000) / precision
    for draws, truth in (
        (optima.parameters["location"], mean),
        (optima.curvature["location"], precision),
    ):
        # Six sd, 2e-9, of a posterior that is too narrow by a factor of sqrt(2).
        assert abs(np.mean(draws) - truth) < 6 * 2**0.5 * np.std(draws)
    assert np.std(optima.curvature["location"]) < 0.2 * precision
    theta = noise_aware.draws(jax.random.key(3), MeanField(1), 2000)
    scale = jax.nn.softplus(optima.parameters["rho"])
    spread = np.var(optima.parameters["location"]) + np.mean(scale**2)
    np.testing.assert_allclose(np.var(theta), spread, rtol=6 * (2 / 1000) ** 0.5)


def test_refuses_bad_arguments():
    infos = small()
    with pytest.raises(ValueError, match=r"Run\.infos of dpjax\.dpvi"):
        dpjax.noise_aware(None)
    with pytest.raises(ValueError, match="aligned=False"):
        dpjax.noise_aware(infos._replace(noise_sd=None))
    with pytest.raises(ValueError, match="same at every step"):
        still = jax.tree.map(np.ones_like, infos.parameters)
        dpjax.noise_aware(infos._replace(parameters=still))
    with pytest.raises(ValueError, match="optimum_sd"):
        dpjax.noise_aware(infos, optimum_sd={"location": 1.0, "rho": 0.0})
    with pytest.raises(ValueError, match="method"):
        dpjax.noise_aware(infos, method="hmc")
    with pytest.raises(ValueError, match="curvature_log_sd"):
        dpjax.noise_aware(infos, curvature_log_sd=0.0)
    with pytest.raises(ValueError, match="curvature_log_sd"):
        dpjax.noise_aware(infos, curvature=infos.parameters)
    with pytest.raises(ValueError, match="mean field"):
        factor = infos.parameters | {"factor": infos.parameters["rho"]}
        dpjax.noise_aware(infos._replace(parameters=factor), curvature_log_sd=1.0)
    with pytest.raises(ValueError, match="sampling_error_sd"):
        dpjax.noise_aware(infos, sampling_error_sd=-1.0)
    with pytest.raises(ValueError, match="three"):
        dpjax.noise_aware(jax.tree.map(lambda leaf: leaf[:, :2], infos))
