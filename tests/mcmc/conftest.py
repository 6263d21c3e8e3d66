"""Posteriors with exact samplers, scaled so that every coordinate has a known law."""

import importlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

bananas, circles, gaussians = (
    importlib.import_module(f"dpjax.models.{name}")
    for name in ("banana", "circle", "gaussian")
)


class Target(NamedTuple):
    """A posterior, exact draws, the map to independent uniforms, and a step size."""

    posterior: Any
    draws: jax.Array
    uniforms: Any
    step_size: float


def normal_uniforms(points, mean, precision):
    """Uniforms of N(mean, precision^-1): of each axis, and of the distance."""
    scaled = (points - mean) @ np.linalg.cholesky(precision)
    square = stats.chi2(points.shape[1]).cdf((scaled**2).sum(1))
    return [*stats.norm.cdf(scaled).T, square]


def banana(key, count, tempering):
    first, second = jax.random.split(key)
    constants = dict(curvature=3.0, prior_precision=0.1, tempering=tempering)
    data = bananas.simulate(first, 100, 2)
    draws = bananas.exact_sample(second, data, count, **constants)
    weight = 100 * tempering * np.array([0.05, 0.4])
    mean = weight * np.asarray(data, float).mean(0) / (weight + 0.1)

    def uniforms(draws):
        straight = draws.copy()
        straight[:, 1] += 3 * draws[:, 0] ** 2
        return normal_uniforms(straight, mean, np.diag(weight + 0.1))

    posterior = bananas.banana(data, **constants)
    return Target(posterior, draws, uniforms, 0.4 * tempering**-0.5)


def gaussian(key, count, tempering):
    first, second = jax.random.split(key)
    covariance = np.array([[1.0, 0.8], [0.8, 1.0]])
    constants = dict(covariance=covariance, prior_sd=2.0, tempering=tempering)
    data = gaussians.simulate(first, 100, covariance=covariance)
    draws = gaussians.exact_sample(second, data, count, **constants)
    weight = 100 * tempering * np.linalg.inv(covariance)
    precision = weight + np.eye(2) / 4
    mean = np.linalg.solve(precision, weight @ np.asarray(data, float).mean(0))
    posterior = gaussians.correlated_gaussian(data, **constants)
    return Target(posterior, draws, lambda x: normal_uniforms(x, mean, precision), 0.12)


def circle(key, count, tempering):
    first, second = jax.random.split(key)
    constants = dict(sharpness=2e-3, tempering=tempering)
    data = circles.simulate(first, 100)
    draws = circles.exact_sample(second, data, count, **constants)
    centre = np.mean(np.asarray(data, float) ** 2)
    sd = (2 * 2e-3 * tempering * 100) ** -0.5
    law = stats.truncnorm(-centre / sd, np.inf, centre, sd)

    def uniforms(draws):
        angle = np.arctan2(draws[:, 1], draws[:, 0]) / (2 * np.pi) + 0.5
        return [law.cdf((draws**2).sum(1)), angle]

    return Target(circles.circle(data, **constants), draws, uniforms, 1.0)


MODELS = {"banana": banana, "gaussian": gaussian, "circle": circle}


@pytest.fixture
def make_target():
    """``(model, count, tempering) -> Target`` of the running precision."""

    def make(model, count=4000, tempering=1.0):
        return MODELS[model](jax.random.key(7), count, tempering)

    return make


@pytest.fixture
def dyadic_data():
    """Records, width 2 or 16, with which float32 arithmetic makes no rounding error."""

    def make(size, width, seed=0):
        numbers = np.random.default_rng(seed).integers(-16, 16, (size, width))
        return jnp.asarray(numbers / 16.0, jnp.result_type(float))

    return make
