"""Attacks on what fits release: it tells no more than the accountant says."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax.fit.score_fit import Noises, ScoreModel, score_fit
from dpjax.fit.scores import Scores
from dpjax.release.gaussian_sum import GaussianSum
from dpjax.release.k_norm_sum import KNormSum
from tests.attacks import FAR, Attack, check

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("quickly_compiled")]

NUM_RECORDS = 8
NOISE = 1.5
NODES = np.linspace(-5, 5, 21)
WEIGHTS = np.exp(-(NODES**2) / 2) / np.sum(np.exp(-(NODES**2) / 2))


def logprior(position):
    return -jnp.sum(position**2) / 200


def loglikelihood(position, record):
    x, y = record
    return -((y - x * position[0]) ** 2) / 2


def scores(position, record, rng_key):
    (x, y), dtype = record, record.dtype
    return Scores(
        (y - x * position[0])[None],
        jnp.asarray(NODES, dtype)[:, None],
        jnp.asarray(WEIGHTS, dtype),
        x[None, None],
    )


MODEL = ScoreModel(
    scores,
    lambda position: NUM_RECORDS * jnp.eye(1),
    np.zeros(1),
    np.eye(1) / 100,
)


def neighbours():
    """Posteriors whose first records are FAR off; the others say nothing."""
    return [
        dpjax.Posterior(
            logprior,
            loglikelihood,
            jnp.asarray([[1.0, first], *np.zeros((NUM_RECORDS - 1, 2))], jnp.float32),
        )
        for first in (-FAR, FAR)
    ]


def log_ratio(state, info, kind):
    """Of the three scores, whose frame may point either way."""
    noises = np.asarray(Noises.of(1, NUM_RECORDS, NOISE).scores)
    found = jnp.sign(info.stretch[0, 0]) * info.scores[:, 0] / info.score_noise_sds
    ratios = 2 * found / noises
    if kind is KNormSum:
        last, far = noises[-1], found[-1] * noises[-1]
        laplace = (abs(far + 1) - abs(far - 1)) * 2**0.5 / last
        ratios = ratios.at[-1].set(laplace)
    return jnp.sum(ratios)


@pytest.mark.parametrize("kind", [GaussianSum, KNormSum])
def test_claims_of_scores_survive(kind):
    noise = float(Noises.of(1, NUM_RECORDS, NOISE).scores[-1])
    kernel = functools.partial(
        score_fit, model=MODEL, noise_multiplier=NOISE, last=kind(1.0, noise)
    )
    told = dict(noise_multiplier=3 * NOISE, last=kind(1.0, 3 * noise))
    score = functools.partial(log_ratio, kind=kind)
    check(Attack(kernel, *neighbours(), score, told, num_steps=1))
