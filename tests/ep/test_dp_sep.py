"""DP-SEP and DP-EM: releases are what is charged, and fits are near the truth."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import dpjax
from dpjax import privacy
from dpjax.comparisons.dp_sep_published import dp_sep_published
from dpjax.comparisons.ep import ep
from dpjax.ep import sites
from dpjax.ep.dp_em import dp_em
from dpjax.ep.dp_sep import dp_sep
from dpjax.ep.gaussians import Full
from dpjax.posterior import Posterior
from dpjax.privacy import NeighboringRelation as Relation
from dpjax.release import vector_sums
from dpjax.release.exact_sums import VECTOR_GRID
from tests.tiers import tiered

FAMILY = Full((2,))
AR = Relation.REPLACE_SPECIAL


def flat(position, record):
    return 0.0 * jnp.sum(position)


def gaussian_mean(records):
    """The mean of N(w, 1) under N(0, 1), exact posterior N(n xbar / (n + 1), ...)."""
    records = jnp.asarray(records)
    data = jnp.ones((records.size, 1)), records
    return Posterior(lambda w: -0.5 * jnp.sum(w**2), flat, data)


def run(kernel, posterior, num_steps, start, seed=1, warmup_fraction=0.0, **settings):
    return dpjax.run(
        functools.partial(kernel, **settings),
        posterior,
        num_steps,
        initial_position=start,
        num_chains=len(start),
        budget=None,
        warmup_fraction=warmup_fraction,
        verbose=False,
        unsafe_key=jax.random.key(seed),
    )


@pytest.fixture(scope="module")
def means():
    rng = np.random.default_rng(5)
    return gaussian_mean(0.65 + rng.normal(size=1000))


@pytest.mark.thorough
def test_without_noise_it_is_stochastic_ep(linear_regression):
    posterior, site_fn, mean, covariance = linear_regression
    found = run(
        dp_sep,
        posterior,
        30,
        jnp.zeros((1, 2)),
        match=site_fn,
        family=FAMILY,
        l2_clip_norm=200.0,
        noise_multiplier=0.0,
        schedule=lambda k: 0.5,
        init_scale=0.5,
        preconditioner=np.array([1.0, 0.2, 1.0, 0.8, 0.2]),
    )
    last = FAMILY.moments(jnp.asarray(found.infos.parameters[0, -1]))
    # Truncation loses up to a cell of the grid, 2^-16 of 200, per record and component.
    assert np.allclose(last.mean, mean, rtol=0.01, atol=0.003)
    assert np.allclose(last.covariance, covariance, rtol=0.02, atol=2e-5)


@pytest.mark.thorough
def test_noise_has_the_stated_law():
    """The records carry no information, so that theta moves by the noise alone."""
    records = 400
    data = jnp.zeros((records, 2)), jnp.zeros(records)
    posterior = Posterior(lambda w: -5e3 * jnp.sum(w**2), flat, data)
    chains, weights = 400, np.array([1.0, 0.5, 2.0, 1.0, 3.0])
    scale = 3.0 * 2.0 / 0.25 / weights
    found = run(
        dp_sep,
        posterior,
        1,
        jnp.zeros((chains, 2)),
        match=sites.linear(1.0),
        family=FAMILY,
        l2_clip_norm=2.0,
        noise_multiplier=3.0,
        sampling_prob=0.25,
        schedule=lambda k: 1.0,
        preconditioner=weights,
    )
    # In each coordinate the noise of sd C * multiplier / w is scaled by rho n / (q n).
    start = np.array([0.0, 0.0, 1e4, 0.0, 1e4])
    moved = (found.infos.parameters[:, 0] - start) / scale
    assert stats.kstest(np.ravel(moved), "norm").pvalue > 1e-7


@pytest.mark.thorough
def test_precisions_stay_above_their_floor():
    """The records carry no information: the noise of sd 4 is added to precision 1."""
    posterior = Posterior(
        lambda w: -0.5 * jnp.sum(w**2), flat, (jnp.zeros((50, 1)), jnp.zeros(50))
    )
    found = run(
        dp_sep,
        posterior,
        1,
        jnp.zeros((50, 1)),
        match=sites.linear(1.0),
        family=Full((1,)),
        l2_clip_norm=4.0,
        noise_multiplier=1.0,
        schedule=lambda k: 1.0,
        least_precision=3.0,
    )
    _, precision = found.infos.parameters[:, 0].T
    assert np.min(precision) == pytest.approx(3.0, rel=1e-14)
    assert np.max(precision) > 3.0


@pytest.mark.thorough
def test_a_floor_about_the_mean_does_not_shrink():
    """The posterior of 20 records has the precision 21, and the floor is 90."""
    records = 2.0 + jnp.asarray(np.random.default_rng(3).normal(size=(20, 2)))
    posterior = Posterior(lambda w: -0.5 * jnp.sum(w**2), flat, records)

    def site(record, mean, covariance):
        return record, jnp.eye(2)

    exact = jnp.sum(records, axis=0) / 21
    for recentre, mean in ((True, exact), (False, 21 * exact / 90)):
        found = run(
            dp_sep,
            posterior,
            200,
            jnp.zeros((1, 2)),
            match=site,
            family=FAMILY,
            l2_clip_norm=100.0,
            noise_multiplier=0.0,
            schedule=lambda k: 0.5,
            least_precision=90.0,
            recentre=recentre,
        )
        moments = FAMILY.moments(jnp.asarray(found.infos.parameters[0, -1]))
        np.testing.assert_allclose(moments.mean, mean, rtol=2e-3)
        sd = jnp.sqrt(moments.covariance[0, 0])
        np.testing.assert_allclose(sd, 90**-0.5, rtol=1e-5)


@pytest.mark.thorough
def test_it_lands_within_its_noise(classification, x64):
    posterior = classification["probit"]
    expected = ep(posterior, sites.probit, family=FAMILY, initial_position=jnp.zeros(2))
    found = run(
        dp_sep,
        posterior,
        200,
        jnp.zeros((20, 2)),
        warmup_fraction=0.5,
        match=sites.probit,
        family=FAMILY,
        l2_clip_norm=6.0,
        noise_multiplier=0.3,
        sampling_prob=0.25,
    )
    errors = found.positions.mean(axis=(0, 1)) - np.asarray(expected.mean)
    sds = np.sqrt(np.diag(expected.covariance))
    assert np.all(np.abs(errors) < 0.25 * sds)
    within = found.positions.std(axis=1).mean(axis=0)
    assert np.allclose(within, sds, rtol=0.15)


TABLE = [(10, 40, 2.49), (50, 40, 5.39), (100, 40, 7.58), (100, 100, 11.9)]


@pytest.mark.parametrize(
    ("batch", "epochs", "sigma"),
    tiered(TABLE, TABLE[3:]),
)
def test_noise_for_epsilon_one_is_the_table(means, batch, epochs, sigma):
    def events(value):
        kernel = dp_sep(
            means,
            sites.linear(1.0),
            family=Full((1,)),
            l2_clip_norm=1.0,
            noise_multiplier=value,
            sampling_prob=batch / 1000,
            nominal_num_records=1000,
        )
        return kernel.privacy(1, AR)

    found = privacy.calibrate(
        events,
        num_steps=epochs * 1000 // batch,
        epsilon=1.0,
        delta=1e-5,
        bracket=(sigma / 2, 2 * sigma),
    )
    assert np.isclose(found, sigma, rtol=0.01)


def test_the_published_order_is_charged_epoch_by_epoch(means):
    settings = dict(family=Full((1,)), l2_clip_norm=1.0)
    for epochs, sigma in ((40, 23.6), (100, 37.3)):
        kernel = dp_sep_published(
            means, sites.linear(1.0), noise_multiplier=2 * sigma, **settings
        )
        epsilon = privacy.epsilon(kernel.privacy(epochs), 1e-5)
        assert np.isclose(epsilon, 1.0, rtol=0.01)
    with pytest.raises(ValueError, match="REPLACE_ONE"):
        kernel.privacy(1, AR)
    silent = dp_sep_published(
        means, sites.linear(1.0), noise_multiplier=0.0, **settings
    )
    with pytest.raises(ValueError, match="not private"):
        silent.privacy(1)


@pytest.mark.thorough
def test_the_published_steps_are_too_short(means, x64):
    """After T epochs theta_f has gone 1 - (1 - 1/n^2)^(n T) of the way to its goal."""
    found = run(
        dp_sep_published,
        means,
        10,
        jnp.zeros((1, 1)),
        match=sites.linear(1.0),
        family=Full((1,)),
        l2_clip_norm=20.0,
        noise_multiplier=0.0,
    )
    _, targets = means.data
    tolerance = 1e-3 if x64 else 5e-3
    for epochs in (1, 10):
        moments = Full((1,)).moments(jnp.asarray(found.infos.parameters[0, epochs - 1]))
        share = 1 - (1 - 1e-6) ** (1000 * epochs)
        precision = 1 + 1000 * share
        assert np.isclose(moments.covariance[0, 0], 1 / precision, rtol=tolerance)
        mean = 1000 * share * float(jnp.mean(targets)) / precision
        assert np.isclose(moments.mean[0], mean, rtol=2e-3 + tolerance)


@pytest.mark.thorough
def test_a_published_site_carries_the_stated_noise():
    """In a visit of the only record theta moves by g/n times noise of sd C sigma."""
    posterior = Posterior(
        lambda w: -5e3 * jnp.sum(w**2), flat, (jnp.zeros((1, 2)), jnp.zeros(1))
    )
    found = run(
        dp_sep_published,
        posterior,
        1,
        jnp.zeros((400, 2)),
        match=sites.linear(1.0),
        family=FAMILY,
        l2_clip_norm=1e3,
        noise_multiplier=0.1,
        damping=0.5,
    )
    moved = np.ravel(found.infos.parameters[:, 0, :2]) / (0.5 * 1e3 * 0.1)
    assert stats.kstest(moved, "norm").pvalue > 1e-7


@pytest.mark.thorough
@pytest.mark.parametrize("kernel", tiered([dp_sep, dp_sep_published], [dp_sep]))
def test_one_record_moves_a_step_by_its_clip(kernel, means):
    """Without noise, theta differs by at most the sensitivity on neighbouring data."""
    settings = dict(family=Full((1,)), l2_clip_norm=0.7, noise_multiplier=0.0)
    features, targets = means.data
    other = Posterior(
        means.logprior_fn, flat, (features, targets.at[0].set(jnp.array(1e6)))
    )
    after = [
        run(kernel, data, 1, jnp.zeros((1, 1)), match=sites.linear(1.0), **settings)
        .infos.parameters
        for data in (means, other)
    ]  # fmt: skip
    moved = np.linalg.norm(after[0] - after[1])
    # dp_sep moves by rho / q = 1/2 times the difference of sums, an epoch by g/n times.
    rate = 0.5 if kernel is dp_sep else 1e-3
    assert 0 < moved <= 2 * 0.7 * rate * (1 + 1e-3)


@pytest.mark.thorough
def test_a_batch_reads_only_the_records_drawn(means):
    """A record whose site is not finite leaves the parameters finite."""
    features, targets = means.data
    broken = Posterior(means.logprior_fn, flat, (features, targets.at[3].set(jnp.nan)))
    found = run(
        dp_sep,
        broken,
        3,
        jnp.zeros((1, 1)),
        match=sites.linear(1.0),
        family=Full((1,)),
        l2_clip_norm=5.0,
        noise_multiplier=1.0,
        sampling_prob=0.5,
    )
    assert np.all(np.isfinite(found.infos.parameters))


def clusters():
    rng = np.random.default_rng(1)
    centres = np.array([[-2.0, 0.0], [2.0, 0.0]])
    labels = rng.integers(2, size=2000)
    return centres, centres[labels] + 0.5 * rng.normal(size=(2000, 2))


@pytest.mark.thorough
def test_em_finds_the_clusters():
    centres, records = clusters()
    posterior = Posterior(
        lambda w: -0.5 * jnp.sum(w**2) / 9, flat, jnp.asarray(records)
    )
    found = run(
        dp_em,
        posterior,
        10,
        jnp.asarray(np.stack(2 * [centres + np.array([0.0, 0.5])])),
        warmup_fraction=0.9,
        family=Full((2, 2)),
        component_sd=0.7,
        record_norm=3.5,
        noise_multiplier=0.2,
    )
    mixture = found.infos.parameters
    assert np.allclose(mixture.means[:, -1], centres, atol=0.06)
    assert np.allclose(mixture.weights[:, -1], 0.5, atol=0.05)
    spread = mixture.covariances[:, -1]
    assert np.allclose(spread, 0.25 * np.eye(2), atol=0.05)


@pytest.mark.thorough
def test_em_statistics_are_within_their_clip():
    """If |x| <= R, nothing is clipped, and without noise the counts add up to n."""
    _, records = clusters()
    assert np.max(np.linalg.norm(records, axis=1)) < 4.0
    posterior = Posterior(
        lambda w: -0.5 * jnp.sum(w**2) / 9, flat, jnp.asarray(records)
    )
    settings = dict(family=Full((2, 2)), component_sd=0.7, prior_strength=1e-6)
    found = run(
        dp_em,
        posterior,
        1,
        jnp.asarray([[[-1.0, 0.0], [1.0, 0.3]]]),
        record_norm=4.0,
        noise_multiplier=0.0,
        **settings,
    )
    mixture = jax.tree.map(lambda leaf: leaf[0, 0], found.infos.parameters)
    mean = np.sum(mixture.weights[:, None] * mixture.means, axis=0)
    assert np.allclose(mean, records.mean(axis=0), atol=2e-3)
    settings |= dict(record_norm=4.0, noise_multiplier=37.3, nominal_num_records=1000)
    kernel = dp_em(posterior, **settings)
    assert np.isclose(privacy.epsilon(kernel.privacy(100, AR), 1e-5), 1.0, rtol=0.01)


@pytest.mark.thorough
def test_em_records_are_no_further_apart_than_charged(monkeypatch):
    """Cells that single records add, among them records beyond R and far apart."""
    rng = np.random.default_rng(3)
    records = rng.normal(size=(12, 2)) * 10.0 ** rng.uniform(-1, 2, (12, 1))
    records[:2] = [[-4, 0], [4, 0]]
    seen = []
    vector_sum = vector_sums.vector_sum

    def spy(*arguments):
        seen.append(vector_sum(*arguments))
        return seen[-1]

    monkeypatch.setattr(vector_sums, "vector_sum", spy)
    position = jnp.asarray([[-2.0, 0.0], [2.0, 0.0]])
    for record in records:
        posterior = Posterior(flat, flat, jnp.asarray(record[None]))
        kernel = dp_em(
            posterior,
            family=Full((2, 2)),
            component_sd=0.7,
            record_norm=4.0,
            noise_multiplier=1.0,
        )
        kernel.step(jax.random.key(0), kernel.init(position))
    added = np.array(seen) / VECTOR_GRID
    apart = np.linalg.norm(added[:, None] - added, axis=-1).max()
    [(event, _)] = kernel.privacy(1, Relation.REPLACE_ONE)
    assert apart <= 1 / event.noise_multiplier
    assert apart == pytest.approx(2**0.5, rel=1e-3)
    assert 1 / event.noise_multiplier == pytest.approx(2**0.5, rel=1e-3)


def test_bad_parameters_are_refused(means):
    good = dict(family=Full((1,)), l2_clip_norm=1.0, noise_multiplier=1.0)
    for kernel in (dp_sep, dp_sep_published):
        for message, bad in {
            "l2_clip_norm": dict(l2_clip_norm=0.0),
            "noise_multiplier": dict(noise_multiplier=-1.0),
        }.items():
            with pytest.raises(ValueError, match=message):
                kernel(means, sites.linear(1.0), **(good | bad))
        steep = Posterior(lambda w: -jnp.sum(w**4), flat, means.data)
        with pytest.raises(ValueError, match="proper Gaussian"):
            kernel(steep, sites.linear(1.0), **good)
    with pytest.raises(ValueError, match="damping"):
        dp_sep_published(means, sites.linear(1.0), damping=0.0, **good)
    for message, bad in {
        "least_precision": dict(least_precision=0.4),
        "positive and finite": dict(preconditioner=np.array([1.0, 0.0])),
        "shape": dict(preconditioner=np.ones(3)),
    }.items():
        with pytest.raises(ValueError, match=message):
            dp_sep(means, sites.linear(1.0), **(good | bad))
    with pytest.raises(ValueError, match="init_scale"):
        dp_sep(means, sites.linear(1.0), init_scale=2.0, **good).init(jnp.zeros(1))
    em = dict(family=FAMILY, component_sd=1.0, record_norm=1.0, noise_multiplier=1.0)
    for message, bad in {
        "record_norm": dict(record_norm=0.0),
        "family must": dict(family=FAMILY),
        "family must be Full": dict(family=type("Other", (Full,), {})((2, 1))),
    }.items():
        with pytest.raises(ValueError, match=message):
            dp_em(means, **(em | dict(family=Full((2, 1))) | bad))
