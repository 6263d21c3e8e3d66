"""Fits to models whose records can be simulated: what they release, and the draws."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import NeighboringRelation as Relation
from scipy import stats

import dpjax
from dpjax import privacy
from dpjax.fit import simulated, simulated_draws
from dpjax.fit.precision import is_wide
from dpjax.fit.record_model import RecordModel
from dpjax.fit.simulated import CHECK_SHARE, SHARES, simulated_fit
from dpjax.fit.simulated_draws import draws
from dpjax.models.banana import banana, exact_sample, simulate
from dpjax.release.exact_sums import GRID, clip_to_grid, wide
from dpjax.release.k_norm_sum import KNormSum
from dpjax.runner.program import check_algorithm

NUM_RECORDS, CURVATURE = 4000, 5.0
PRIOR_SDS = np.array([2.0, 2.0, 0.5, 1.0])


def simulate_fn(rng_key, position):
    straight = position.at[1].add(CURVATURE * position[0] ** 2 - 3)
    return straight + simulate(rng_key, 1, 2)[0]


def prior_sample_fn(rng_key):
    straight = 1000**0.5 * jax.random.normal(rng_key, (2,))
    return straight.at[1].add(-CURVATURE * straight[0] ** 2)


def posterior_of(data, tempering=1.0):
    return banana(data, curvature=CURVATURE, tempering=tempering)


def algorithm_fn(posterior, noise_multiplier, **options):
    return simulated_fit(
        posterior,
        simulate_fn,
        prior_sample_fn,
        noise_multiplier=noise_multiplier,
        **options,
    )


@functools.partial(jax.jit, static_argnames="noise_multiplier")
def released(rng_key, posterior, noise_multiplier):
    algorithm = algorithm_fn(posterior, noise_multiplier)
    return algorithm.step(rng_key, algorithm.init(jnp.full(2, 0.1)))[1]


def drawn(posterior, info, num_draws):
    return draws(
        posterior,
        info,
        jax.random.key(7),
        num_draws,
        jnp.zeros(2),
        simulate_fn=simulate_fn,
    )


@pytest.fixture(scope="module")
def data():
    return simulate(jax.random.key(3), NUM_RECORDS, 2)


@pytest.mark.parametrize(
    ("relation", "sensitivity"),
    [(Relation.REPLACE_ONE, 2.0), (Relation.REPLACE_SPECIAL, 1.0)],
)
def test_all_releases_cost_what_one_costs(data, relation, sensitivity):
    algorithm = algorithm_fn(posterior_of(data), 3.0, nominal_num_records=5000)
    found = algorithm.privacy(1, relation)
    assert [count for _, count in found] == [1] * (len(SHARES) + 1)
    *firsts, check, last = [event.noise_multiplier for event, _ in found]
    expected = 3.0 / np.sqrt(SHARES) / sensitivity
    np.testing.assert_allclose([*firsts, last], expected, rtol=1e-12)
    # What two records add to the fit check differs by one at most.
    np.testing.assert_allclose(check, 3.0 / CHECK_SHARE**0.5 / 2, rtol=1e-12)
    np.testing.assert_allclose(sum(SHARES) + CHECK_SHARE, 1)


def test_the_last_release_may_have_k_norm_noise(data):
    options = dict(nominal_num_records=5000)
    gaussian = algorithm_fn(posterior_of(data), 3.0, **options).privacy(1)
    last = KNormSum(1.0, 2.0)
    found = algorithm_fn(posterior_of(data), 3.0, last=last, **options).privacy(1)
    assert found[:-1] == gaussian[:-1]
    assert found[-1] == (last.event(2, Relation.REPLACE_ONE), 1)


@pytest.mark.thorough
def test_records_get_out_through_releases_only(data):
    fit = functools.partial(algorithm_fn, noise_multiplier=3.0)
    check_algorithm(fit, posterior_of(data), jnp.full((1, 2), 0.1))


@pytest.mark.thorough
@pytest.mark.usefixtures("quickly_compiled")
def test_a_run_spends_its_budget(data):
    posterior = posterior_of(data)
    noise_multiplier = privacy.calibrate(
        lambda noise: algorithm_fn(posterior, noise).privacy(1),
        num_steps=1,
        epsilon=2.0,
        delta=1e-5,
        bracket=(0.1, 100.0),
    )
    run = dpjax.run(
        functools.partial(algorithm_fn, noise_multiplier=noise_multiplier),
        posterior,
        1,
        initial_position=jnp.full((1, 2), 0.1),
        num_chains=1,
        budget=dpjax.Budget(2.0, 1e-5),
        warmup_fraction=0.0,
        verbose=False,
        unsafe_key=jax.random.key(0),
    )
    assert 1.98 < run.statement.epsilon <= 2.0
    info = jax.tree.map(lambda leaf: leaf[0, 0], run.infos)
    positions, known = drawn(posterior, info, 500)
    assert known.are_independent and known.num_directions == 2
    assert 0.1 < known.position_error < 1
    exact = exact_sample(jax.random.key(1), data, 4000, curvature=CURVATURE)
    # The error in the mean of t1 is noise; 1e-7 for a normal variable.
    allowed = 5.4 * np.hypot(1, known.position_error) * np.std(exact[:, 0])
    assert abs(np.mean(positions[:, 0]) - np.mean(exact[:, 0])) < allowed


@pytest.mark.thorough
@pytest.mark.usefixtures("quickly_compiled")
def test_a_model_of_no_outliers_does_not_fit(data):
    """A tenth of the records is moved by 10 sds."""
    info = released(jax.random.key(0), posterior_of(data), 3.0)
    _, known = drawn(posterior_of(data), info, 100)
    ratio, error = known.fit_check
    # Beyond 6 standard errors with 2e-9.
    assert abs(ratio - 1) < 6 * error < 0.15
    moved = data.at[: NUM_RECORDS // 10, 0].add(10 / 0.05**0.5)
    info = released(jax.random.key(0), posterior_of(moved), 3.0)
    _, known = drawn(posterior_of(moved), info, 100)
    assert known.fit_check.ratio > 1 and not known.fit_check.holds


@pytest.mark.thorough
@pytest.mark.usefixtures("quickly_compiled")
def test_without_noise_to_speak_of_draws_are_exact(data):
    tempering = 0.05
    posterior = posterior_of(data, tempering)
    info = released(jax.random.key(0), posterior, 1e-3)
    positions, known = drawn(posterior, info, 2000)
    assert known.position_error < 0.02
    straight = np.array(positions, np.float64)
    straight[:, 1] += CURVATURE * straight[:, 0] ** 2
    variance = 1 / np.array([0.05, 0.4]) / (tempering * NUM_RECORDS)
    scaled = (straight - np.mean(np.asarray(data), axis=0)) / variance**0.5
    # Systematic resampling makes p-values larger; the chance of failure is 4e-8.
    for column in scaled.T:
        assert stats.kstest(column, "norm").pvalue > 1e-8
    assert stats.kstest(scaled.sum(axis=1) / 2**0.5, "norm").pvalue > 1e-8


def mixed(position):
    """Chance of the first component, both means, and the scale."""
    low, log_gap, log_scale, logit = position
    means = low + jnp.array([0.0, 1.0]) * jnp.exp(log_gap)
    return jax.nn.sigmoid(logit), means, jnp.exp(log_scale)


def mixed_loglikelihood(position, record):
    chance, means, scale = mixed(position)
    terms = -0.5 * ((record - means) / scale) ** 2 - jnp.log(scale)
    return jax.nn.logsumexp(terms + jnp.log(jnp.array([chance, 1 - chance])))


def mixed_record(rng_key, position):
    chance, means, scale = mixed(position)
    first, second = jax.random.split(rng_key)
    is_first = jax.random.uniform(first) < chance
    return jnp.where(is_first, *means) + scale * jax.random.normal(second)


@pytest.mark.thorough
def test_components_that_are_alike_on_the_way_are_told_apart():
    """Searches from the center alone fail in one of five fits."""
    truth = jnp.array([-1.5, np.log(2.5), np.log(0.8), np.log(0.4 / 0.6)])
    keys = jax.random.split(jax.random.key(0), 20_000)
    posterior = dpjax.Posterior(
        lambda t: -0.5 * jnp.sum((t / PRIOR_SDS) ** 2),
        mixed_loglikelihood,
        jax.vmap(mixed_record, (0, None))(keys, truth),
    )

    @jax.jit
    def fitted(rng_key, posterior):
        algorithm = simulated_fit(
            posterior,
            mixed_record,
            lambda key: PRIOR_SDS * jax.random.normal(key, (4,)),
            noise_multiplier=8.4,
        )
        start = algorithm.init(jnp.array([0.1, -0.4, 0.0, 0.1]))
        return algorithm.step(rng_key, start)[1].position

    found = [fitted(key, posterior) for key in jax.random.split(jax.random.key(1), 5)]
    # Over ten standard deviations of the release before the last.
    np.testing.assert_allclose(found, np.tile(truth, (5, 1)), atol=0.5)


@pytest.mark.thorough
def test_a_model_may_read_float64_arrays_where_x64_is_off():
    """JAX keeps the float32 form of a NumPy array that it traced with x64 off."""
    center, scale = np.array([1.0, -1.0]), np.array([2.0, 3.0])

    def simulate_fn(rng_key, position):
        return position + scale * jax.random.normal(rng_key, (2,))

    def prior_sample_fn(rng_key):
        return center + scale * jax.random.normal(rng_key, (2,))

    with jax.enable_x64(False):
        records = jax.vmap(simulate_fn, (0, None))(
            jax.random.split(jax.random.key(0), 5000), jnp.zeros(2)
        )
        posterior = dpjax.Posterior(
            lambda position: -0.5 * jnp.sum(((position - center) / scale) ** 2),
            lambda position, record: -0.5 * jnp.sum(((record - position) / scale) ** 2),
            records,
        )
        found = dpjax.sample(
            posterior,
            simulate_fn,
            prior_sample_fn,
            budget=dpjax.Budget(4.0, 1e-5),
            verbose=False,
            unsafe_key=jax.random.key(1),
        )
    assert "K-norm release of 2 numbers" in str(found.statement)
    assert found.positions.dtype == np.float32
    error = np.mean(found.positions, axis=(0, 1)) - np.mean(np.asarray(records), axis=0)
    # Noise moves the centre, and 4000 draws have a mean; 6 sds are exceeded with 4e-9.
    sds = np.hypot(found.known.position_error, 4000**-0.5) * scale / 5000**0.5
    assert np.all(np.abs(error) < 6 * sds)


def scaled_loglikelihood(position, record):
    return -position[0] - record**2 * jnp.exp(-2 * position[0]) / 2


def scaled_record(rng_key, position):
    return jnp.exp(position[0]) * jax.random.normal(rng_key)


@pytest.fixture(scope="module")
def scaled():
    """The scale of normal records: what is computed of it, and what it released."""
    model = RecordModel.of(scaled_loglikelihood, scaled_record, jnp.zeros(1), is_wide())
    functions = simulated_draws._Functions(lambda t: 0.0, model, 100, 1.0)
    with jax.enable_x64(True):
        window = model.window(jnp.zeros(1), 1e-3)
        moments = model.moments(window, 1)
        released = simulated.Released(
            *window,
            jnp.zeros(1),
            moments.mean,
            moments.slope,
            moments.information,
            jnp.eye(1),
            *jnp.ones(3),
        )
        yield functions, released


@pytest.mark.thorough
@pytest.mark.parametrize(("reach", "computed"), [(0.5, 1000), (0.2, 512)])
def test_determinants_are_computed_where_they_differ(scaled, reach, computed):
    """Of the nearer positions, four blocks are; a quadratic function has the rest."""
    functions, released = scaled
    count = 1000
    with jax.enable_x64(True):
        positions = np.random.default_rng(0).uniform(-reach, reach, (count, 1))
        slope = simulated_draws._Near.of(functions, released, 2048).slope
        slopes = [float(slope(jnp.asarray(t))[0, 0]) for t in positions[::29]]
        far, near = (
            simulated_draws._log_determinants(functions, released, scale * positions)
            for scale in (1, 1e-3)
        )
    assert np.std(np.log(slopes)) > 2 * simulated_draws.MAX_SPREAD
    errors = np.abs(far[::29] - np.log(slopes))
    np.testing.assert_array_equal(errors < 1e-5, np.arange(count)[::29] < computed)
    assert np.all(errors < 4 * simulated_draws.MAX_SPREAD)
    assert len(far) == len(near) == count and not np.any(near)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_what_records_add_to_the_fit_check_has_a_range_of_length_one(kind):
    """Where the scores of a model have few bits, too."""
    worst = 0.0
    for square in np.linspace(0, 1, 1000):
        ends = jnp.array([0, 0.3, 1, 1e4], kind)
        added = simulated._excess(ends, jnp.asarray(square, kind))
        (cells,) = clip_to_grid([wide(added)[None]], jnp.ones(4, bool), 1.0)
        worst = max(worst, np.ptp(np.asarray(cells)) / GRID)
    assert 0.999 < worst <= 1
