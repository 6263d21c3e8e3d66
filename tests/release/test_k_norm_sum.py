"""K-norm noise has the law that is charged, and tells nothing beside."""

import math

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from dp_accounting import NeighboringRelation as Relation
from scipy import stats

from dpjax import privacy
from dpjax.privacy import audit
from dpjax.release import gaussian, taint
from dpjax.release.exact_sums import VECTOR_GRID
from dpjax.release.k_norm_sum import WORDS, KNormSum, _normal
from tests.release.test_gaussian_sum import posterior_of, released

CLIP = 0.7


@pytest.mark.parametrize("dim", [1, 2, 9])
def test_the_noise_has_the_law(dim):
    draws = released(KNormSum(CLIP, 1.5), posterior_of(jnp.zeros((5, dim))), 10_000)
    gamma = stats.gamma(dim, scale=1.5 * CLIP / math.sqrt(dim + 1))
    # The lattice of a sixteenth sd is rubbed out; each test fails by chance in 1e-8.
    rest = np.random.default_rng(1).uniform(-0.5, 0.5, draws.shape)
    draws = draws + spacing(1.5) * rest
    norms = np.linalg.norm(draws, axis=1)
    assert stats.kstest(norms, gamma.cdf).pvalue > 1e-8
    if dim == 1:
        assert stats.binomtest(int(np.sum(draws > 0)), 10_000).pvalue > 1e-8
        return
    direction = stats.beta((dim - 1) / 2, (dim - 1) / 2, loc=-1, scale=2)
    for axis in np.eye(dim)[0], np.ones(dim) / dim**0.5:
        assert stats.kstest(draws @ axis / norms, direction.cdf).pvalue > 1e-8
    # Neither tells anything about the other.
    assert stats.spearmanr(norms, draws[:, 0] / norms).pvalue > 1e-8


def spacing(noise_multiplier):
    cells = 2.0 ** math.floor(math.log2(noise_multiplier * VECTOR_GRID / 16))
    return cells * CLIP / VECTOR_GRID


def test_the_lattice_does_not_depend_on_the_draw(monkeypatch):
    nothing = posterior_of(jnp.zeros((5, 2)))

    def on_the_lattice():
        # The norm of z varies widely from draw to draw.
        cells = released(KNormSum(CLIP, 1.5), nothing, 2000) / spacing(1.5)
        return np.max(abs(cells - np.rint(cells))) < 1e-3

    assert on_the_lattice()
    on_lattice = gaussian.on_lattice

    def finer(integers, noise, unit, noise_multiplier):
        return on_lattice(integers, noise, unit, 0.3 * noise_multiplier)

    monkeypatch.setattr(gaussian, "on_lattice", finer)
    assert not on_the_lattice()


def test_the_multiplier_may_be_traced():
    data = posterior_of(jnp.asarray(np.random.default_rng(3).normal(size=(40, 3))))
    fixed, varying = KNormSum(CLIP, 2.5), KNormSum(CLIP, None)

    def vary(words, posterior, contribution_fn):
        with jax.enable_x64(True):
            noise = jnp.asarray(2.5, jnp.float64)
        return varying(words, posterior, contribution_fn, noise_multiplier=noise)

    vary.num_words = varying.num_words
    np.testing.assert_array_equal(released(fixed, data, 20), released(vary, data, 20))
    event = fixed.event(3, Relation.REPLACE_ONE)
    assert event == varying.event(3, Relation.REPLACE_ONE, 2.5)


@pytest.mark.parametrize(
    ("relation", "diameter", "sensitivity"),
    [
        (Relation.REPLACE_ONE, 2.0, 2.0),
        (Relation.REPLACE_ONE, 1.5, 1.5),
        (Relation.REPLACE_SPECIAL, 1.5, 1.0),
    ],
)
def test_events(relation, diameter, sensitivity):
    event = KNormSum(3.0, 6.0, diameter=diameter).event(5, relation)
    assert (event.noise_multiplier, event.dim) == (6.0 / sensitivity, 5)
    assert event.rate == pytest.approx(math.sqrt(6) / 6.0 * sensitivity)
    assert 0 < event.failure_prob < 1e-20
    assert 1e-10 < event.relative_error < 1e-8


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (dict(l2_clip_norm=0.0), "l2_clip_norm"),
        (dict(noise_multiplier=-1.0), "noise_multiplier"),
        (dict(noise_multiplier=np.nan), "noise_multiplier"),
        (dict(noise_multiplier=1e6), "noise_multiplier"),
        (dict(diameter=2.1), "diameter"),
    ],
)
def test_bad_arguments_raise(arguments, name):
    with pytest.raises(ValueError, match=name):
        KNormSum(**(dict(l2_clip_norm=1.0, noise_multiplier=1.0) | arguments))


def test_without_a_multiplier_or_in_many_dimensions_there_is_no_event():
    with pytest.raises(ValueError, match="noise_multiplier"):
        KNormSum(1.0, None).event(2, Relation.REPLACE_ONE)
    with pytest.raises(ValueError, match="not private"):
        KNormSum(1.0, 0.0).event(2, Relation.REPLACE_ONE)
    with pytest.raises(ValueError, match="dim"):
        KNormSum(1.0, 1.0).event(1001, Relation.REPLACE_ONE)


def test_normals_are_accurate_as_far_out_as_they_go():
    """Against the number with the same tail, from one half down to 2^-840."""
    rng = np.random.default_rng(0)
    wholes = [
        int.from_bytes(rng.bytes(4 * WORDS)) >> shift
        for shift in (*np.zeros(200, int).tolist(), *range(840))
    ]
    words = [np.frombuffer(whole.to_bytes(4 * WORDS), ">u4") for whole in wholes]
    with jax.enable_x64(True):
        numbers = _normal(jnp.asarray(np.transpose(words).astype(np.uint32)))
    assert max(abs(np.asarray(numbers))) > 33.9
    with mpmath.workdps(30):
        for whole, found in zip(wholes, np.asarray(numbers), strict=True):
            assert (found > 0) == (whole % 2 == 1)
            tail = (mpmath.mpf(whole) + 0.5) / mpmath.mpf(2) ** (32 * WORDS + 1)
            x = abs(mpmath.mpf(found))
            excess = mpmath.erfc(x / mpmath.sqrt(2)) / 2 - tail
            assert abs(excess / mpmath.npdf(x)) < 7e-16 * max(1, x)


def tainted():
    release = KNormSum(CLIP, 1.5)

    def program(words, data):
        return release(words, posterior_of(data), lambda record: record)

    inputs = jnp.zeros(release.num_words(2, 5), jnp.uint32), jnp.ones((5, 2))
    return taint.tainted(jax.make_jaxpr(program)(*inputs), [False, True])


def test_nothing_but_the_release_leaves(monkeypatch):
    assert tainted() == [False]
    monkeypatch.setattr(gaussian, "released", lambda value: value)
    assert tainted() == [True]


@pytest.mark.parametrize(
    ("relation", "low"), [(Relation.REPLACE_ONE, -1e6), (Relation.REPLACE_SPECIAL, 0)]
)
def test_an_attack_finds_no_more_than_is_charged(relation, low):
    """The likelihood ratio of two sums; a claim fails by chance in 1e-7."""
    release, dim, delta = KNormSum(CLIP, 2.0), 3, 1e-2
    centres = np.array([low / 1e6, 1.0]) * CLIP
    counts = []
    for seed, first in enumerate((low, 1e6)):
        data = jnp.zeros((4, dim)).at[0, 0].set(first)
        draws = released(release, posterior_of(data), 20_000, seed)
        distance, other = (
            np.linalg.norm(draws - centre * np.eye(dim)[0], axis=1)
            for centre in centres
        )
        scores = (distance - other) * math.sqrt(dim + 1) / 2.0 / CLIP
        counts.append(np.digitize(scores, np.linspace(-3, 3, 33)))
    found = audit.epsilon_lower_bound(*counts, delta, significance=1e-7)
    claim = privacy.epsilon([(release.event(dim, relation), 1)], delta)
    assert 0.6 * claim < found <= claim
    # What would be charged if records were clipped at a third of what they are.
    quiet = KNormSum(CLIP / 3, 6.0).event(dim, relation)
    assert found > privacy.epsilon([(quiet, 1)], delta)
