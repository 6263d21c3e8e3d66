"""Neighbouring batches: what the kernels charge for is what they do."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import NeighboringRelation as Relation

import dpjax
from dpjax import acceptance, privacy, proposals
from dpjax.posterior import Posterior
from dpjax.random import batches
from dpjax.release import clip_bounds, exact_sums, log_ratios

minibatch_barker = importlib.import_module("dpjax.mcmc.minibatch_barker")
minibatch_penalty = importlib.import_module("dpjax.mcmc.minibatch_penalty")

RECORDS, BATCH, STEP = 40, 8, 0.25
PENALTY = dict(test_noise_multiplier=0.7, batch_size=BATCH)
KERNELS = {
    "penalty": lambda p: dpjax.minibatch_penalty(p, STEP, clip_bound=0.05, **PENALTY),
    "Lipschitz penalty": lambda p: dpjax.minibatch_penalty(
        p,
        STEP,
        clip_bound=clip_bounds.Lipschitz(0.3),
        proposal=proposals.fixed_length,
        **PENALTY,
    ),
    "barker": lambda p: dpjax.minibatch_barker(p, STEP, batch_size=BATCH),
}
SPECIAL = [np.nan, np.inf, -np.inf, 1e30, -1e30, 0.0, -0.0, 1e-40, 1.0, -1.0]


def no_prior(position):
    return jnp.zeros((), position.dtype)


def slope(position, record):
    """Log ratios are the record's size times the move along the first axis."""
    return record[0] * position[0]


def looked_up(position, record):
    """A record states its log-likelihoods on either side of zero."""
    return jnp.where(position > 0, record[1], record[0])


def adversarial(rng, shape, clip_bound):
    """Ratios of all magnitudes about the clip bound, saturated and special ones."""
    ratios = clip_bound * rng.normal(size=shape) * 2.0 ** rng.integers(-20, 5, shape)
    extreme = clip_bound * rng.choice([-2, -1, 1, 2], shape)
    ratios = np.where(rng.random(shape) < 0.6, extreme, ratios)
    # One record moves batches most whose other ratios all have the same sign.
    ratios = np.where(rng.random((shape[0], 1)) < 0.3, abs(ratios), ratios)
    return np.where(rng.random(shape) < 0.05, rng.choice(SPECIAL, shape), ratios)


def neighbouring_moments(batch_size, clip_bound, count=20_000):
    """Means and variances, ``(2, count)`` each, of batches that differ in a record."""
    rng = np.random.default_rng(batch_size)
    ratios = adversarial(rng, (count, batch_size), clip_bound)
    replaced = ratios.copy()
    replaced[:, 0] = adversarial(rng, (count, 1), clip_bound)[:, 0]

    @jax.jit
    @jax.vmap
    def moments(ratios):
        data = jnp.stack([jnp.zeros_like(ratios), ratios], axis=1)
        indices = jnp.arange(batch_size, dtype=jnp.uint32)
        posterior = Posterior(no_prior, looked_up, data)
        return log_ratios.batch_moments(posterior, indices, -1.0, 1.0, clip_bound)

    with np.errstate(over="ignore"):
        pair = [
            moments(jnp.asarray(part, jnp.result_type(float)))
            for part in (ratios, replaced)
        ]
    return np.array(pair, np.float64).swapaxes(0, 1)


@pytest.mark.parametrize("batch_size", [1, 2, 5, 100])
@pytest.mark.parametrize("clip_bound", [1e-6, 0.3, 50.0])
def test_sensitivity_of_moments_and_of_the_penalised_ratio(batch_size, clip_bound):
    means, variances = neighbouring_moments(batch_size, clip_bound)
    rounding = 1 + batch_size * 2.0**-48
    by_mean = abs(means[0] - means[1]).max() / (2 * clip_bound / batch_size)
    share = 4 * (1 - 1 / batch_size) * clip_bound**2 / batch_size
    by_variance = abs(variances[0] - variances[1]).max()
    assert by_mean <= rounding and by_variance <= share * rounding
    posterior = Posterior(no_prior, slope, jnp.zeros((1000, 1)), 0.5)
    ratio = 500 * means - 500**2 * variances / batch_size / 2
    moved = minibatch_penalty._sensitivity(posterior, batch_size, clip_bound)
    assert abs(ratio[0] - ratio[1]).max() <= moved
    if batch_size <= 5:
        assert by_mean > 0.98 and by_variance >= 0.98 * share
        assert abs(ratio[0] - ratio[1]).max() > 0.96 * moved


def test_moments_are_those_of_numpy():
    rng = np.random.default_rng(1)
    data = rng.normal(size=(50, 1)).astype(jnp.result_type(float))
    indices = rng.permutation(50)[:20]
    posterior = Posterior(no_prior, slope, jnp.asarray(data))
    for clip_bound in (0.5, np.inf):
        mean, variance = log_ratios.batch_moments(
            posterior, jnp.asarray(indices), jnp.zeros(1), jnp.ones(1), clip_bound
        )
        ratio = np.clip(data[indices, 0], -clip_bound, clip_bound)
        assert float(mean) == pytest.approx(ratio.mean(), abs=2 / exact_sums.GRID)
        assert float(variance) == pytest.approx(ratio.var(), rel=1e-4)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_ratios_count_as_zero(bad):
    data = jnp.array([[bad], [0.25], [0.25], [0.0]])
    posterior = Posterior(no_prior, slope, data)
    mean, variance = log_ratios.batch_moments(
        posterior, jnp.arange(4), jnp.zeros(1), jnp.ones(1), 1.0
    )
    assert float(mean) == 0.125 and float(variance) == 0.125**2


def test_large_batches_are_refused():
    def moments(indices):
        posterior = Posterior(no_prior, slope, jnp.zeros((2, 1)))
        return log_ratios.batch_moments(
            posterior, indices, jnp.zeros(1), jnp.ones(1), 1.0
        )

    with pytest.raises(ValueError, match=r"2\^20"):
        jax.eval_shape(moments, jax.ShapeDtypeStruct((2**20 + 1,), jnp.uint32))


@pytest.fixture
def seen(monkeypatch):
    """Arguments of every acceptance probability; every batch is the first records."""
    calls = {"penalty": [], "barker": []}
    penalty, barker = acceptance.probability, minibatch_barker._probability

    def penalty_spy(family, log_ratio, noise_sd):
        calls["penalty"].append((float(log_ratio), float(noise_sd)))
        return penalty(family, log_ratio, noise_sd)

    def barker_spy(log_ratio, variance, bound):
        calls["barker"].append((float(log_ratio), float(variance)))
        return barker(log_ratio, variance, bound)

    monkeypatch.setattr(acceptance, "probability", penalty_spy)
    monkeypatch.setattr(minibatch_barker, "_probability", barker_spy)
    monkeypatch.setattr(
        batches, "without_replacement", lambda words, size, _: jnp.arange(size)
    )
    return calls


def step_on(name, sizes, tempering):
    posterior = Posterior(no_prior, slope, jnp.asarray(sizes[:, None]), tempering)
    algorithm = KERNELS[name](posterior)
    algorithm.step(jax.random.key(1), algorithm.init(jnp.zeros(2)))
    return algorithm


def worst_neighbours():
    one = np.full(RECORDS, 1e9)
    other = one.copy()
    other[2] = -1e9
    return one, other


@pytest.mark.parametrize("tempering", [1.0, 0.25])
@pytest.mark.parametrize("name", ["penalty", "Lipschitz penalty"])
def test_penalty_charges_what_the_kernel_does(seen, name, tempering):
    # In one of the two directions both parts of the sensitivity are attained.
    for sizes in worst_neighbours():
        step_on(name, sizes, tempering)
        algorithm = step_on(name, -sizes, tempering)
    [(event, count)] = algorithm.privacy(7)
    assert count == 7 and isinstance(event, privacy.FixedBatch)
    assert (event.batch_size, event.num_records) == (BATCH, RECORDS)
    ratios, sds = np.array(seen["penalty"]).T
    moved = np.max(abs(ratios[:2] - ratios[2:]))
    assert moved <= event.event.sensitivity
    assert moved == pytest.approx(event.event.sensitivity, rel=1e-12)
    assert event.event.acceptance.family == "penalty"
    np.testing.assert_allclose(sds, event.event.acceptance.noise_sd, rtol=1e-15)


@pytest.mark.parametrize("tempering", [1.0, 0.25])
def test_barker_charges_what_the_kernel_does(seen, tempering):
    for sizes in worst_neighbours():
        algorithm = step_on("barker", sizes, tempering)
    assert algorithm.privacy(3) == [
        (privacy.FixedBatch(privacy.BarkerTest(BATCH), BATCH, RECORDS), 3)
    ]
    ratios, variances = np.array(seen["barker"]).T
    # What Theorem 3.3 of the thesis assumes at most, and how much of it is attained.
    assert 1.97 < abs(ratios[0] - ratios[1]) * BATCH**0.5 <= 2
    by_variance = abs(variances[0] - variances[1])
    assert by_variance <= 5 / BATCH
    assert by_variance == pytest.approx(4 * 0.9801 * (1 - 1 / BATCH) / BATCH)
    half = np.where(np.arange(RECORDS) < BATCH // 2, 1e9, -1e9)
    step_on("barker", half, tempering)
    assert seen["barker"][-1][1] == pytest.approx(0.9801, rel=1e-12)


def test_growing_clip_bounds_keep_the_ratio_of_noise_to_sensitivity(seen):
    def make(posterior):
        return dpjax.minibatch_penalty(
            posterior, 0.02, clip_bound=clip_bounds.Lipschitz(0.3), **PENALTY
        )

    posterior = Posterior(no_prior, slope, jnp.zeros((RECORDS, 1)))
    [(event, count)] = make(posterior).privacy(5)
    release = privacy.GaussianRelease(0.7, acceptance.FAILURE_PROB)
    assert (event, count) == (privacy.FixedBatch(release, BATCH, RECORDS), 5)
    for sizes in worst_neighbours():
        for sign in (1, -1):
            data = jnp.asarray(sign * sizes[:, None])
            algorithm = make(Posterior(no_prior, slope, data))
            algorithm.step(jax.random.key(1), algorithm.init(jnp.zeros(2)))
    ratios, sds = np.array(seen["penalty"]).T
    moved = np.max(abs(ratios[:2] - ratios[2:]))
    assert len(set(sds)) == 1
    assert sds[0] / moved == pytest.approx(0.7, rel=1e-6)


@pytest.mark.parametrize("name", KERNELS)
def test_privacy_reads_no_data(name):
    one, other = (
        Posterior(no_prior, slope, jnp.full((RECORDS, 1), value))
        for value in (0.0, np.nan)
    )
    assert KERNELS[name](one).privacy(11) == KERNELS[name](other).privacy(11)
    with pytest.raises(ValueError, match="REPLACE_ONE"):
        KERNELS[name](one).privacy(11, Relation.REPLACE_SPECIAL)


@pytest.mark.parametrize("name", KERNELS)
def test_data_of_equal_clipped_moments_give_equal_chains(name):
    # How far a ratio is above the clip bound must not be seen.
    sizes = np.tile([1e6, -1e6, 1e7, -1e7], RECORDS // 4)

    @jax.jit
    @jax.vmap
    def chain(data):
        algorithm = KERNELS[name](Posterior(no_prior, slope, data))
        return jax.lax.scan(
            lambda state, key: algorithm.step(key, state),
            algorithm.init(jnp.zeros(2)),
            jax.random.split(jax.random.key(2), 60),
        )

    data = np.stack([sizes, 37 * sizes, np.abs(sizes)])[..., None]
    state, info = chain(data.astype(jnp.result_type(float)))
    np.testing.assert_array_equal(state.position[0], state.position[1])
    np.testing.assert_array_equal(info.is_accepted[0], info.is_accepted[1])
    assert 0 < np.mean(info.is_accepted[0]) < 1
    assert np.any(info.is_accepted[0] != info.is_accepted[2])


def test_bad_arguments_raise():
    posterior = Posterior(no_prior, slope, jnp.zeros((RECORDS, 1)))
    for size, words in (
        (0, "batch_size"),
        (RECORDS // 2 + 1, "half of the 40 records"),
    ):
        with pytest.raises(ValueError, match=words):
            dpjax.minibatch_barker(posterior, STEP, batch_size=size)
    for bad in (-1.0, np.inf, np.nan):
        with pytest.raises(ValueError, match="test_noise_multiplier"):
            dpjax.minibatch_penalty(
                posterior, STEP, clip_bound=1.0, test_noise_multiplier=bad, batch_size=4
            )
    with pytest.raises(TypeError, match="Posterior"):
        dpjax.minibatch_barker(no_prior, STEP, batch_size=4)
    noiseless = dpjax.minibatch_penalty(
        posterior, STEP, clip_bound=1.0, test_noise_multiplier=0.0, batch_size=4
    )
    with pytest.raises(ValueError, match="not private"):
        noiseless.privacy(1)
