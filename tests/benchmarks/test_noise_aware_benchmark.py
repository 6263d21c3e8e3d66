"""Noise-aware DPVI's experiments: closed forms, baselines, rows and their summary."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
import pytest
from jax.flatten_util import ravel_pytree
from numpyro.distributions import transforms

import dpjax
from benchmarks.noise_aware import (
    __main__,
    bernstein_sheldon,
    closed_form,
    evaluate,
    families,
    gibbs_linear,
    linear_regression,
    models,
)
from benchmarks.thesis import report
from dpjax.random import variates
from dpjax.release.exact_sums import GRID
from dpjax.vi.guides import MeanField

pytestmark = pytest.mark.thorough

NUM_RECORDS = 30
NUM_SAMPLES = 4


def softmax(z):
    """Onto the simplex, the last logit zero, and the log Jacobian."""
    theta = jax.nn.softmax(jnp.append(z, 0.0))
    return theta, jnp.sum(jnp.log(theta))


def through(transform):
    def forward(z):
        theta = transform(z)
        return theta, transform.log_abs_det_jacobian(z, theta)

    return forward


def of_first(transform):
    return lambda z: through(transform)(z[0])


FORWARD = {
    ("gamma_exponential", "published"): of_first(transforms.SoftplusTransform()),
    ("gamma_exponential", "numpyro"): of_first(transforms.ExpTransform()),
    ("beta_bernoulli", "published"): of_first(transforms.SigmoidTransform()),
    ("beta_bernoulli", "numpyro"): of_first(transforms.SigmoidTransform()),
    ("dirichlet_categorical", "published"): softmax,
    ("dirichlet_categorical", "numpyro"): through(transforms.StickBreakingTransform()),
}
PRIOR = {
    "gamma_exponential": dist.Gamma(8.0, 2.0),
    "beta_bernoulli": dist.Beta(10.0, 10.0),
    "dirichlet_categorical": dist.Dirichlet(jnp.full(3, 5.0)),
}


def loglikelihood(model, theta, statistic):
    if model == "gamma_exponential":
        return dist.Exponential(theta).log_prob(statistic[0])
    if model == "beta_bernoulli":
        return dist.Bernoulli(theta).log_prob(statistic[0])
    return jnp.sum(jnp.log(theta) * jnp.append(statistic, 1 - jnp.sum(statistic)))


def target(model, space, statistics):
    forward = FORWARD[model, space]

    def logprior(z):
        theta, jacobian = forward(z)
        return PRIOR[model].log_prob(theta) + jacobian

    return dpjax.Posterior(
        logprior,
        lambda z, statistic: loglikelihood(model, forward(z)[0], statistic),
        statistics,
    )


def records(model, rng):
    if model == "gamma_exponential":
        return rng.exponential(0.5, (NUM_RECORDS, 1))
    labels = 2 if model == "beta_bernoulli" else 3
    return np.eye(labels)[rng.integers(labels, size=NUM_RECORDS)][:, :-1]


@pytest.mark.parametrize(
    "model, space, inside",
    [
        ("gamma_exponential", "published", True),
        ("dirichlet_categorical", "numpyro", False),
    ],
)
def test_closed_form_is_the_gradient_of_dpvi(model, space, inside):
    """The step of `dpjax.dpvi` on the same draws, without noise, half of it clipped."""
    rng = np.random.default_rng(1)
    family = models.FAMILIES[model, space]
    statistics = jnp.asarray(records(model, rng))
    algorithm = dpjax.dpvi(
        target(model, space, statistics),
        optax.sgd(1.0),
        guide=MeanField(family.dim),
        l2_clip_norm=0.6,
        noise_multiplier=0.0,
        num_samples=NUM_SAMPLES,
        aligned=False,
        preconditioner={"location": 1.0, "rho": 5.0},
        published=inside,
    )
    state = algorithm.init(jnp.asarray(0.3 * rng.normal(size=family.dim)))
    width = algorithm.transition.num_words(state)
    words = jnp.asarray(rng.integers(0, 2**32, width, np.uint32))
    _, info, _ = jax.jit(algorithm.transition.move)(words, state, None)
    expected, _ = ravel_pytree(info.gradient)
    release = closed_form.Release(0.6, (1.0, 5.0), 0.0, 1.0, NUM_RECORDS, inside)
    normals = variates.normal(words[: NUM_SAMPLES * family.dim], expected.dtype)
    parameters, _ = ravel_pytree(info.parameters)
    found = jax.jit(closed_form.plain_gradient(family, release))(
        parameters,
        normals.reshape(NUM_SAMPLES, family.dim),
        statistics,
        jnp.ones(NUM_RECORDS, expected.dtype),
        jnp.zeros(2 * family.dim, expected.dtype),
    )
    # A grid cell of every record, and single precision of sums of thirty.
    rounding = NUM_RECORDS * (0.6 / GRID + float(jnp.finfo(expected.dtype).eps) * 8)
    assert np.max(abs(found - expected)) < rounding


def test_aligned_closed_form_is_the_gradient_of_dpvi():
    """Nothing is clipped: here dpvi leaves the prior out of the clip."""
    rng = np.random.default_rng(2)
    key = "dirichlet_categorical", "published"
    family, statistics = models.FAMILIES[key], jnp.asarray(records(key[0], rng))
    algorithm = dpjax.dpvi(
        target(*key, statistics),
        optax.sgd(1.0),
        guide=MeanField(2),
        l2_clip_norm=8.0,
        noise_multiplier=0.0,
    )
    state = algorithm.init(jnp.asarray(rng.normal(size=2)))
    width = algorithm.transition.num_words(state)
    words = jnp.asarray(rng.integers(0, 2**32, width, np.uint32))
    _, info, _ = jax.jit(algorithm.transition.move)(words, state, None)
    expected, _ = ravel_pytree(info.gradient)
    release = closed_form.Release(8.0, (1.0, 1.0), 0.0, 1.0, NUM_RECORDS)
    found = jax.jit(closed_form.aligned_gradient(family, release))(
        ravel_pytree(info.parameters)[0],
        variates.normal(words[:2], expected.dtype)[None],
        statistics,
        jnp.ones(NUM_RECORDS, expected.dtype),
        jnp.zeros(2, expected.dtype),
    )
    np.testing.assert_allclose(found, expected, atol=NUM_RECORDS * 16 / GRID)


@pytest.mark.parametrize("model, space", models.FAMILIES)
def test_spaces_are_maps_of_the_same_theta(model, space):
    rng = np.random.default_rng(3)
    family = models.FAMILIES[model, space]
    z = jnp.asarray(rng.normal(size=family.dim))
    theta, _ = FORWARD[model, space](z)
    again, _ = FORWARD[model, "published"](family.published(z))
    np.testing.assert_allclose(again, theta, rtol=1e-5)
    statistics, masses = family.made_up(z)
    expected = 1 / theta if model == "gamma_exponential" else theta
    mean = np.sum(masses[:, None] * statistics, axis=0)
    expected = np.resize(np.asarray(expected), family.dim)
    np.testing.assert_allclose(mean, expected, rtol=1e-5)


def test_clipping_is_added_back_on_average():
    """As many made-up records for data: their clipped gradients are whole again."""
    family = models.FAMILIES["gamma_exponential", "numpyro"]
    parameters = jnp.asarray([0.4, -3.0])
    statistics, masses = family.made_up(parameters[:1])
    normals = jnp.asarray(np.random.default_rng(4).normal(size=(NUM_SAMPLES, 1)))

    def gradient(clip, corrected):
        release = closed_form.Release(clip, (1.0, 1.0), 0.0, 1.0, 100, False, corrected)
        return jax.jit(closed_form.plain_gradient(family, release))(
            parameters, normals, statistics, 100 * masses, jnp.zeros(2)
        )

    whole = gradient(1e6, False)
    assert np.max(abs(gradient(0.5, False) - whole)) > 5
    np.testing.assert_allclose(gradient(0.5, True), whole, rtol=1e-4, atol=1e-4)


def test_expected_curvature_of_a_log_rate():
    """That of n (z + E e^z x) with records of mean e^-m, and of the prior, by hand."""
    family = models.FAMILIES["gamma_exponential", "numpyro"]
    location, rho = 0.4, -2.0
    release = closed_form.Release(1e6, (1.0, 1.0), 5.0, 0.1, 100)
    curvature_fn = functools.partial(closed_form.expected_curvature, family, release)
    found = jax.jit(curvature_fn)(jnp.array([location, rho]))
    scale, slope = np.logaddexp(0, rho), 1 / (1 + np.exp(-rho))
    # Two draws, one sd to either side.
    weight = 100 + 2 * np.exp(location)
    of_location = weight * np.cosh(scale)
    second = slope * (1 - slope)
    of_rho = weight * (np.cosh(scale) * slope**2 + np.sinh(scale) * second)
    of_rho -= second / scale - (slope / scale) ** 2
    np.testing.assert_allclose(found, [of_location, of_rho], rtol=1e-4)


@pytest.mark.parametrize("model", ["gamma_exponential", "dirichlet_categorical"])
def test_runs_follow_their_gradients(model):
    rng = np.random.default_rng(5)
    family = models.FAMILIES[model, "numpyro"]
    _, data = models.simulate(model, rng, 3, 1000)
    release = closed_form.Release(1.0, (1.0, 10.0), 2.0, 0.2, 1000)
    location, _ = models.PRIOR_MOMENTS[model]
    num_steps = closed_form.BLOCK + 10
    parameters, gradients, last = closed_form.run(
        rng,
        closed_form.plain_gradient(family, release),
        optax.sgd(1e-4),
        data,
        np.array([*location, *[-3.0] * family.dim]),
        release=release,
        num_samples=2,
        num_steps=num_steps,
        antithetic=True,
        noise_sd=np.ones(2 * family.dim),
    )
    assert parameters.shape == gradients.shape == (3, num_steps, 2 * family.dim)
    after = np.concatenate([parameters[:, 1:], last[:, None]], axis=1)
    np.testing.assert_allclose(after, parameters + 1e-4 * gradients, atol=1e-6)
    # Ascent, by far more than the noise: .01 in all.
    assert np.max(abs(last - parameters[:, 0])) > 0.1


def test_every_record_is_sampled_alike():
    rng = np.random.default_rng(6)
    places, held = closed_form._samples(rng, np.zeros((50, 2)), 0.3, 4000)
    times = np.zeros(50)
    np.add.at(times, places, held)
    # Six standard errors of 50 binomials: 1e-7.
    assert np.max(abs(times / 4000 - 0.3)) < 6 * (0.3 * 0.7 / 4000) ** 0.5
    for row, is_held in zip(places, held > 0, strict=True):
        assert len(set(row[is_held])) == is_held.sum()
    counts = closed_form._samples(rng, np.array([[40, 10]]), 0.3, 4000)
    error = 6 * (np.array([[40, 10]]) * 0.3 * 0.7 / 4000) ** 0.5
    assert np.all(abs(counts.mean(axis=0) - [[12.0, 3.0]]) < error)


def test_prior_moments_are_those_of_draws():
    for model in models.MODELS:
        truth, _ = models.simulate(model, np.random.default_rng(7), 100_000, 1)
        location, sd = models.PRIOR_MOMENTS[model]
        if model == "gamma_exponential":
            truth = np.log(np.logaddexp(0, truth))
        if model == "dirichlet_categorical":
            second = truth[:, 1]
            first = truth[:, 0] - np.logaddexp(0, second) + np.log(2)
            truth = np.stack([first, second], axis=1)
        # Six standard errors, of the sd of nearly normal draws.
        error = 6 * np.array(sd) / 100_000**0.5
        assert np.all(abs(truth.mean(axis=0) - location) < error)
        assert np.all(abs(truth.std(axis=0) - sd) < error)


def test_exact_posteriors_and_little_noise_agree():
    """Bernstein and Sheldon's release at a large epsilon leaves the posterior as is."""
    for model in models.MODELS:
        rng = np.random.default_rng(8)
        _, data = models.simulate(model, rng, 20, 2000)
        if model == "gamma_exponential":
            # Next to none above the bound, beyond which they are unknown.
            data = rng.exponential(1 / 6, data.shape)
        exact = models.exact_posterior(model, rng, data, 2000)
        sizes = dict(num_warmup=100, num_samples=400)
        if model == "gamma_exponential":
            rates = bernstein_sheldon.exponential(rng, data, (8.0, 2.0), 1e3, **sizes)
            found = np.log(np.expm1(rates))[..., None]
        else:
            prior = models.CONCENTRATIONS[model]
            found = bernstein_sheldon.categorical(rng, data, prior, 1e3, **sizes)
        assert found.shape == (20, 400, exact.shape[-1])
        sd = exact.std(axis=1)
        gaps = (found.mean(axis=1) - exact.mean(axis=1)) / sd
        # Six standard errors of two hundred independent draws; sds likewise.
        assert np.max(abs(gaps)) < 6 / 200**0.5
        assert np.max(abs(found.std(axis=1) / sd - 1)) < 6 / 400**0.5


def test_much_noise_leaves_the_prior():
    rng = np.random.default_rng(9)
    _, counts = models.simulate("beta_bernoulli", rng, 300, 100)
    found = bernstein_sheldon.categorical(
        rng, counts, 10.0, 1e-4, num_warmup=300, num_samples=300
    )
    # Draws of one chain hang together: means over 300 chains, six standard errors.
    sd = models.PRIOR_MOMENTS["beta_bernoulli"][1][0]
    assert abs(found.mean()) < 6 * sd / 300**0.5
    assert abs(found.std() / sd - 1) < 6 / 600**0.5


def test_gibbs_without_noise_is_the_conjugate_posterior():
    rng = np.random.default_rng(10)
    prior = gibbs_linear.Prior(np.array([0.1, 0.0, 0.2]), np.eye(3) / 4, 20.0, 0.5)
    data, statistics = [], []
    for truth in ([0.5, -1.0, 0.3], [-0.2, 0.4, 1.0]):
        features = rng.normal(size=(300, 2))
        x = np.concatenate([features, np.ones((300, 1))], axis=1)
        response = x @ truth + 0.5 * rng.normal(size=300)
        data.append((x, response))
        bounds = dict(feature_bound=np.full(2, 5.0), response_bound=10.0)
        statistics.append(
            gibbs_linear.release(rng, features, response, epsilon=1e9, **bounds)
        )
    chains = gibbs_linear.sample(
        rng, statistics, prior, num_warmup=20, num_samples=1500
    )
    for (x, response), theta, variance in zip(data, *chains, strict=True):
        precision = x.T @ x + prior.precision
        pull = x.T @ response + prior.precision @ prior.mean
        mean = np.linalg.solve(precision, pull)
        residual = np.sum((response - x @ mean) ** 2)
        shift = (mean - prior.mean) @ prior.precision @ (mean - prior.mean)
        shape, rate = 20 + 150, 0.5 + (residual + shift) / 2
        expected = rate / (shape - 1)
        sd = np.sqrt(expected * np.diag(np.linalg.inv(precision)))
        # Independent draws without noise: six standard errors of means and of sds.
        assert np.all(abs(theta.mean(axis=0) - mean) < 6 * sd / 1500**0.5)
        assert np.all(abs(theta.std(axis=0) / sd - 1) < 6 / 3000**0.5)
        spread = expected / (shape - 2) ** 0.5
        assert abs(variance.mean() - expected) < 6 * spread / 1500**0.5
        assert abs(variance.std() / spread - 1) < 6 / 3000**0.5 + 0.05


def test_gibbs_sums_given_what_is_released():
    """Mean and covariance of sums that are seen with noise, by the formula."""
    rng = np.random.default_rng(12)
    root, mean = rng.normal(size=(3, 5)), np.array([1.0, -2.0, 0.5])
    noise_variance, released = np.array([0.5, 2.0, 8.0]), np.array([3.0, 0.0, -1.0])
    num = 200_000
    draws = gibbs_linear._given(
        rng,
        *(np.broadcast_to(part, (num, *part.shape)) for part in (mean, root, released)),
        np.broadcast_to(noise_variance, (num, 3)),
    )
    prior = np.linalg.inv(root @ root.T)
    covariance = np.linalg.inv(prior + np.diag(1 / noise_variance))
    expected = covariance @ (prior @ mean + released / noise_variance)
    sd = np.sqrt(np.diag(covariance))
    # Six standard errors, 2e-9 each.
    assert np.all(abs(draws.mean(axis=0) - expected) < 6 * sd / num**0.5)
    limit = 6 * np.outer(sd, sd) * (2 / num) ** 0.5
    assert np.all(abs(np.cov(draws.T) - covariance) < limit)


def test_gibbs_moments_are_those_of_the_sums_of_a_record():
    rng = np.random.default_rng(13)
    x = np.column_stack([rng.gamma(2.0, size=(400, 2)), np.ones(400)])
    theta, sigma2 = np.array([0.5, -1.0, 0.3]), 0.7
    second = x.T @ x / 400
    outer = (x[:, :, None] * x[:, None]).reshape(400, -1)
    fourth = outer.T @ outer / 400 - np.outer(second, second)
    upper = tuple(part[:-1] for part in np.triu_indices(3))
    batched = theta[None], np.array([sigma2]), upper
    mean = gibbs_linear._mean(second[None], *batched)
    roots = gibbs_linear._root(fourth).reshape(3, 3, 9), gibbs_linear._root(second)
    root = gibbs_linear._covariance_root(*(r[None] for r in roots), *batched)[0]
    # The expectation over records is over these rows, that of the noise by quadrature.
    nodes, weights = np.polynomial.hermite_e.hermegauss(5)
    weights = np.repeat(weights / weights.sum(), 400) / 400
    y = np.ravel(x @ theta + sigma2**0.5 * nodes[:, None])
    x = np.tile(x, (5, 1))
    sums = np.column_stack([x[:, upper[0]] * x[:, upper[1]], x * y[:, None], y**2])
    np.testing.assert_allclose(mean[0], weights @ sums, rtol=1e-10)
    expected = np.cov(sums.T, aweights=weights, bias=True)
    np.testing.assert_allclose(root @ root.T, expected, rtol=1e-8, atol=1e-8)


def test_gibbs_noise_is_scaled_for_substitution():
    """The largest change of the released sums, found by trying corners of the box."""
    bounds, top = np.array([2.0, 0.5]), 3.0
    statistics = gibbs_linear.release(
        np.random.default_rng(11),
        np.zeros((4, 2)),
        np.zeros(4),
        feature_bound=bounds,
        response_bound=top,
        epsilon=1.0,
    )
    levels = [-1.0, 0.0, 1.0]
    corners = np.array(np.meshgrid(levels, levels, levels)).reshape(3, -1).T
    x1, x2, y = (corners * [*bounds, top]).T
    sums = np.stack([x1**2, x1 * x2, x2**2, x1, x2, x1 * y, x2 * y, y, y**2])
    separate = np.sum(sums.max(axis=1) - sums.min(axis=1))
    assert statistics.noise_scale == pytest.approx(2 * separate)


def test_rows_of_every_method_and_their_summary(tmp_path):
    job = __main__.settings("families")
    job = __main__.merged(job, job["quick"])
    small = dict(num_steps=40, posterior_samples=50, models=["beta_bernoulli"])
    # What `published` runs, `ours` runs.
    job |= small | dict(finished=[], variants=families.VARIANTS[1:])
    path = tmp_path / "families.csv"
    report.append(path, list(families.rows(job)))
    job["finished"] = report.read(path)
    assert not list(families.rows(job))
    found = evaluate.summary(job["finished"])
    assert {row["method"] for row in found} == {
        "noise_aware",
        "last_iterate",
        "iterate_average",
        "dpvim",
        "bernstein_sheldon",
        "exact",
    }
    assert all(row["draws"] == 20 and row["rmse"] > 0 for row in found)
    for row in found:
        # One component is all of them, but for the reference points.
        assert abs(float(row["marginal"]) - row["rmse"]) < 0.1
    assert len(evaluate.quintiles(job["finished"])) == len(found)


def test_rows_of_the_gibbs_sampler():
    job = __main__.settings("linear_regression")
    job = __main__.merged(job, job["quick"]) | dict(methods=["gibbs"])
    (row,) = linear_regression.rows(job)
    assert row["draws"] == 2 and 0 < row["rmse"] < 0.6
    assert len(row["marginal"].split()) == linear_regression.DIM
    finished = [{key: str(value) for key, value in row.items()}]
    assert not list(linear_regression.rows(job | dict(finished=finished)))
