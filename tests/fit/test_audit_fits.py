"""Attacks on what fits release: it tells no more than the accountant says."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax.algorithm import Algorithm, Transition
from dpjax.fit import score_fit as score_fits
from dpjax.fit import search, simulated
from dpjax.fit.clip_choice import NUM_BINS, clip_choice
from dpjax.fit.inquiry import KEY_WORDS, Inquiry, ScoreModel, Units
from dpjax.fit.noises import CURVATURE_CLIPS, Noises
from dpjax.fit.record_model import Moments, Window
from dpjax.fit.score_fit import score_fit
from dpjax.fit.scores import Scores
from dpjax.fit.simulated import simulated_fit
from dpjax.release.gaussian_sum import GaussianSum
from dpjax.release.k_norm_sum import KNormSum
from dpjax.release.mixed_norm import MixedNorm
from tests.attacks import FAR, Attack, check, claimed, data_sets, flat, found, linear

pytestmark = pytest.mark.thorough

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
    scores,
    None,
    lambda position: NUM_RECORDS * jnp.eye(1),
    np.zeros(1),
    np.eye(1) / 100,
)


def neighbours(low=(1.0, -FAR), high=(1.0, FAR)):
    """Posteriors with these first records; the others say nothing."""
    return [
        dpjax.Posterior(
            logprior,
            loglikelihood,
            jnp.asarray([first, *np.zeros((NUM_RECORDS - 1, 2))], jnp.float32),
        )
        for first in (low, high)
    ]


def log_ratio(state, info):
    """Of the three scores, whose frame may point either way."""
    noises = np.asarray(Noises.of(1, NUM_RECORDS, NOISE).scores)
    found = jnp.sign(info.stretch[0, 0]) * info.scores[:, 0] / info.score_noise_sds
    last = noises[-1]
    gaussian = 2 * found[:-1] / noises[:-1]
    return jnp.sum(gaussian) + laplace_log_ratio(found[-1] * last, last)


def laplace_log_ratio(total, noise):
    """Of a sum about one against one about minus one, with K-norm noise of this sd."""
    return (abs(total + 1) - abs(total - 1)) * 2**0.5 / noise


LAST = functools.partial(KNormSum, norm=MixedNorm((0,), 1))


def test_claims_of_scores_survive():
    noise = float(Noises.of(1, NUM_RECORDS, NOISE).scores[-1])
    kernel = functools.partial(
        score_fit, model=MODEL, noise_multiplier=NOISE, last=LAST(1.0, noise)
    )
    told = dict(noise_multiplier=3 * NOISE, last=LAST(1.0, 3 * noise))
    check(Attack(kernel, *neighbours(), log_ratio, told, num_steps=1))


class OneRelease(Inquiry):
    """Asks records once, and keeps what they released."""

    def ask(self, *arguments):
        found = super().ask(*arguments)
        self.released = jnp.atleast_1d(found)
        return found


def step(inquiry, kinds, noise, *there):
    words = inquiry.take(kinds.vector, 1)[0]
    walker = inquiry.start, jnp.zeros(1), jnp.ones(())
    search.walked(inquiry, kinds.vector, words, noise, walker, jnp.eye(1), None)


def curvature(inquiry, kinds, noise, z, units):
    words = inquiry.take(kinds.vector, 1)[0]
    search.correction_at(
        inquiry, kinds.vector, words, noise, z, units.axes, CURVATURE_CLIPS[0]
    )


def histogram(inquiry, kinds, noise, z, units):
    noises = Noises.of(1, NUM_RECORDS, NOISE)._replace(histogram=noise)
    clip_choice(inquiry, kinds.histogram, noises, z, units.axes)


def slope(inquiry, kinds, noise, z, units):
    score_fits._matrix(
        inquiry, kinds.vector, noise, lambda found: found.slope, z, units, units.bound
    )


def fit_check(inquiry, kinds, noise, *there):
    score_fits._scalar(inquiry, kinds.vector, noise, lambda found: found.excess, *there)


def variance(inquiry, kinds, noise, *there):
    score_fits._matrix(
        inquiry,
        kinds.vector,
        noise,
        lambda found: jnp.outer(found.score, found.score),
        *there,
    )


def lost(inquiry, kinds, noise, *there):
    score_fits._scalar(inquiry, kinds.vector, noise, lambda found: found.lost, *there)


def one_release(posterior, part, size, diameter, noise):
    """The kernel whose only release is that of a part of a fit."""
    vector = GaussianSum(1.0, None)
    charged = GaussianSum(1.0, None, diameter=diameter)
    kinds = score_fits._Kinds(vector, charged, vector)
    num_words = KEY_WORDS + charged.num_words(size, posterior.num_records)

    def move(words, state, memory):
        inquiry = OneRelease(posterior, MODEL, NUM_RECORDS, words, state, None)
        with jax.enable_x64(True):
            axes = inquiry.frame(inquiry.information(inquiry.start), jnp.eye(1))
            units = Units(axes, inquiry.unit(axes), jnp.asarray(2.0))
            part(inquiry, kinds, noise, inquiry.start, units)
        return state, inquiry.released, memory

    def privacy(num_steps, relation):
        return [(charged.event(size, relation, noise), num_steps)]

    return Algorithm.of(
        lambda position, rng_key=None: position,
        Transition(lambda state: num_words, move, lambda state: jnp.zeros(size)),
        privacy,
    )


SILENT = (0.0, 0.0)


def test_negative_weights_take_histograms_no_farther(monkeypatch):
    """A mixture whose shares are covariates may have such weights at some record."""

    def signed(position, record, rng_key):
        found = scores(position, record, rng_key)
        share = record[1]
        nodes = jnp.array([[0.3], [3.0]], record.dtype)
        return found._replace(nodes=nodes, weights=jnp.stack([share, 1 - share]))

    monkeypatch.setitem(
        globals(), "MODEL", dataclasses.replace(MODEL, scores_fn=signed)
    )
    kernel = functools.partial(one_release, part=histogram, size=NUM_BINS)
    below, above = (
        kernel(one, diameter=2.0, noise=1e-5).step(jax.random.key(0), jnp.zeros(1))[1]
        for one in neighbours((1.0, -30.0), (1.0, 30.0))
    )
    distance = np.linalg.norm(np.asarray(above - below))
    assert 1.4 < distance < np.sqrt(2) + 0.01


@pytest.mark.parametrize(
    ("part", "size", "diameter", "low", "high"),
    [
        (step, 1, 2.0, (1.0, -FAR), (1.0, FAR)),
        (curvature, 1, 2.0, SILENT, (FAR, 0.0)),
        (histogram, NUM_BINS, 2**0.5, SILENT, (FAR, 0.0)),
        (slope, 1, 2.0, SILENT, (FAR, 0.0)),
        (fit_check, 1, 2.0, (FAR, 0.0), (1e-3, FAR)),
        (variance, 1, 2.0, SILENT, (1.0, FAR)),
        (lost, 1, 2.0, (FAR, 0.0), (1.0, FAR)),
    ],
)
def test_claims_of_the_other_releases_survive(part, size, diameter, low, high):
    """What records add need not be as far apart as is charged: a matrix is positive.

    So the claim is held against the data sets' distance for the strength of the attack,
    and against what is charged for its truth.
    """
    kernel = functools.partial(one_release, part=part, size=size, diameter=diameter)
    data = neighbours(low, high)
    below, above = (
        np.asarray(kernel(one, noise=1e-3).step(jax.random.key(0), jnp.zeros(1))[1])
        for one in data
    )
    reach = np.linalg.norm(above - below) / diameter
    assert reach > 0.45

    def score(state, total):
        return (total - (below + above) / 2) @ (above - below) / (NOISE * reach) ** 2

    attack = Attack(
        functools.partial(kernel, noise=NOISE * reach), *data, score, {}, num_steps=1
    )
    bound = found(attack)
    assert attack.share * claimed(attack, noise=NOISE) < bound <= claimed(attack)
    assert bound > claimed(attack, noise=3 * NOISE)


class KnownModel:
    """Scores in their own units, clipped to one, whatever the model is."""

    @classmethod
    def of(cls, *arguments):
        return cls()

    def simulate(self, positions):
        return positions

    def window(self, center, noise_variance, predicted):
        return Window(center, jnp.eye(1), jnp.ones(()))

    def moments(self, window, num_blocks):
        nothing = jnp.zeros((1, 1))
        return Moments(jnp.zeros(1), nothing, nothing, jnp.eye(1), jnp.array(SQUARE))


class Told(simulated.Law):
    """Positions add up the log ratios of the releases before."""

    def mode(self):
        return self.window.center + 2 * self.total / self.root[0] ** 2

    def predicted(self, mode):
        return jnp.tile(mode, (len(self.prior.draws), 1))


SQUARE = 0.5


@pytest.fixture
def fit_of_simulated_records(monkeypatch):
    """A fit whose choices between releases are replaced; they read no data."""
    monkeypatch.setattr(simulated, "RecordModel", KnownModel)
    monkeypatch.setattr(simulated, "Law", Told)

    def fit(posterior, noise_multiplier, last=None):
        return simulated_fit(
            posterior,
            lambda rng_key, position: jax.random.normal(rng_key),
            lambda rng_key: jax.random.normal(rng_key, (1,)),
            noise_multiplier=noise_multiplier,
            last=last,
        )

    return fit


@pytest.mark.parametrize("kind", [GaussianSum, KNormSum])
def test_claims_of_fits_to_whole_records_survive(fit_of_simulated_records, kind):
    noise = NOISE / simulated.SHARES[-1] ** 0.5

    def score(state, info):
        total = info.total[0]
        gaussian = 2 * total / noise**2
        last = laplace_log_ratio(total, noise) if kind is KNormSum else gaussian
        return info.position[0] + last

    kernel = functools.partial(
        fit_of_simulated_records, noise_multiplier=NOISE, last=kind(1.0, noise)
    )
    told = dict(noise_multiplier=3 * NOISE, last=kind(1.0, 3 * noise))
    data = data_sets(*np.zeros(NUM_RECORDS - 1))
    check(Attack(kernel, *data, score, told, num_steps=1))


def test_claims_of_the_check_of_whole_records_survive(
    fit_of_simulated_records, monkeypatch
):
    monkeypatch.setattr(simulated, "SHARES", (1e-4,) * 5)
    monkeypatch.setattr(simulated, "CHECK_SHARE", 1.0)

    def score(state, info):
        return (info.excess + NUM_RECORDS * SQUARE - 0.5) / (NOISE / 2) ** 2

    kernel = functools.partial(fit_of_simulated_records, noise_multiplier=NOISE)
    silent = dpjax.Posterior(flat, linear, jnp.zeros(NUM_RECORDS, jnp.float32))
    _, high = data_sets(*np.zeros(NUM_RECORDS - 1))
    told = dict(noise_multiplier=3 * NOISE)
    check(Attack(kernel, silent, high, score, told, num_steps=1))
