"""The noise of a released gradient is the noise that is charged."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import NeighboringRelation as Relation
from scipy import stats

from dpjax import privacy
from dpjax.posterior import Posterior
from dpjax.random import batches
from dpjax.release import gaussian
from dpjax.release.gaussian_sum import GaussianSum
from dpjax.release.traced import parts
from tests.tiers import tiered


def posterior_of(data):
    return Posterior(lambda position: 0.0, lambda position, record: 0.0, data)


def released(release, posterior, count, seed=0):
    width = release.num_words(posterior.data.shape[1], posterior.num_records)
    words = np.random.default_rng(seed).integers(0, 2**32, (count, width), np.uint32)
    draws = jax.vmap(lambda row: release(row, posterior, lambda record: record))
    return np.asarray(jax.jit(draws)(words), np.float64)


@pytest.mark.parametrize("sampling_prob", tiered([1.0, 0.25, 0.001], [0.001]))
def test_measured_noise_is_the_noise_charged(sampling_prob):
    release = GaussianSum(0.7, 1.5, sampling_prob)
    nothing = posterior_of(jnp.zeros((4000, 3)))
    draws = released(release, nothing, 10_000)
    event = release.event(3, Relation.REPLACE_SPECIAL)
    sd = event.noise_multiplier * 0.7
    for column in draws.T:
        # The lattice of a sixteenth sd is far below what 10 000 draws resolve.
        assert stats.kstest(column / sd, "norm").pvalue > 1e-8
    # 3e-9 for six standard errors of a variance, the lattice's included.
    variance = np.var(draws / sd)
    assert abs(variance - 1 - 1 / (12 * 16**2)) < 6 * (2 / 30_000) ** 0.5


def test_mean_over_q_is_the_clipped_sum_of_all_records():
    rng = np.random.default_rng(3)
    data = jnp.asarray(rng.normal(size=(400, 2)))
    norms = np.linalg.norm(data, axis=1, keepdims=True)
    clipped = np.asarray(data) * np.minimum(1, 1.2 / norms)
    release = GaussianSum(1.2, 0.0, 0.2)
    draws = released(release, posterior_of(data), 20_000) / release.sampling_prob
    expected = clipped.sum(axis=0)
    sd = np.sqrt((1 / 0.2 - 1) * np.sum(clipped**2, axis=0))
    # Six standard errors, and truncation of less than a cell a record.
    allowed = 6 * sd / 20_000**0.5 + 400 * 4 * 1.2 / 2**16
    assert np.all(abs(draws.mean(axis=0) - expected) < allowed)
    np.testing.assert_allclose(draws.std(axis=0), sd, rtol=6 / 40_000**0.5 + 0.01)


@pytest.mark.parametrize(
    ("relation", "sensitivity"),
    [(Relation.REPLACE_ONE, 2.0), (Relation.REPLACE_SPECIAL, 1.0)],
)
def test_events(relation, sensitivity):
    failure, relative = 5 * gaussian.FAILURE_PROB, 5 * gaussian.RELATIVE_ERROR
    whole = GaussianSum(3.0, 2.0).event(5, relation)
    assert whole == privacy.GaussianRelease(2.0 / sensitivity, failure, relative)
    sampled = GaussianSum(3.0, 2.0, 0.25).event(5, relation)
    assert sampled == privacy.PoissonGaussianRelease(
        2.0, 0.25, relation, failure + batches.FAILURE_PROB, relative
    )


def steps_that_read(jaxpr, length):
    """Primitives that read or make arrays of that length, in loops and calls too."""
    for eqn in jaxpr.eqns:
        inner = parts(eqn)
        for program in inner:
            yield from steps_that_read(getattr(program, "jaxpr", program), length)
        shapes = [getattr(v.aval, "shape", ()) for v in (*eqn.invars, *eqn.outvars)]
        if not inner and any(length in shape for shape in shapes):
            yield eqn.primitive.name


@pytest.mark.parametrize("dim", [2, 30])
def test_a_sum_costs_what_the_sample_holds(dim):
    num_records = 100_003

    def read(sampling_prob):
        release = GaussianSum(0.7, 1.5, sampling_prob)
        width = release.num_words(dim, num_records)

        def sums(words, data):
            target = posterior_of(data)
            return jax.vmap(lambda row: release(row, target, lambda x: x))(words)

        words = jax.ShapeDtypeStruct((3, width), jnp.uint32)
        data = jax.ShapeDtypeStruct((num_records, dim), jnp.float32)
        return set(
            steps_that_read(jax.make_jaxpr(sums)(words, data).jaxpr, num_records)
        )

    assert read(0.001) == {"gather"}
    assert "gather" not in read(1.0)


def test_sampling_prob_is_rounded_up():
    release = GaussianSum(1.0, 1.0, 0.1)
    assert 0.1 <= release.sampling_prob <= 0.1 + 2.0**-32
    assert release.sampling_prob * 2**32 % 1 == 0


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ((0.0, 1.0), "l2_clip_norm"),
        ((np.inf, 1.0), "l2_clip_norm"),
        ((np.nan, 1.0), "l2_clip_norm"),
        ((np.ones(2), 1.0), "l2_clip_norm must be one number"),
        ((1.0, -1.0), "noise_multiplier"),
        ((1.0, np.nan), "noise_multiplier"),
        ((1.0, 1e6), "noise_multiplier"),
        ((1.0, 1.0, 0.0), "sampling_prob"),
        ((1.0, 1.0, 1.1), "sampling_prob"),
    ],
)
def test_bad_arguments_raise(arguments, name):
    with pytest.raises(ValueError, match=name):
        GaussianSum(*arguments)


def test_every_number_has_noise_of_its_own():
    posterior, release = posterior_of(jnp.zeros((7, 4))), GaussianSum(1.0, 1.0)
    for size in (1, 3, 5):
        words = jnp.zeros(release.num_words(size, 7), jnp.uint32)
        with pytest.raises(ValueError, match="adds 4 numbers, but noise was made"):
            release(words, posterior, lambda record: record)
        with pytest.raises(ValueError, match="not the noise of a sum"):
            release.with_noise(words, np.zeros(4, np.int64))
    words = jnp.zeros(release.num_words(4, 7), jnp.uint32)
    with pytest.raises(ValueError, match="one number, not an array"):
        GaussianSum(1.0, None).with_noise(words, np.zeros(4, np.int64), np.ones(4))


def test_noise_is_not_rounded_to_half_precision():
    """In which the multiplier times the grid is infinite."""
    posterior = posterior_of(jnp.zeros((7, 3)))
    half, full = (
        released(GaussianSum(number, number), posterior, 5)
        for number in (np.float16(1.3), float(np.float16(1.3)))
    )
    np.testing.assert_array_equal(half, full)


def test_without_noise_there_is_no_event():
    with pytest.raises(ValueError, match="not private"):
        GaussianSum(1.0, 0.0).event(2, Relation.REPLACE_ONE)
