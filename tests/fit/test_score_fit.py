"""What a fit releases is what it charges, and what it says is the posterior."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax import privacy
from dpjax.fit import noises, slope_changes
from dpjax.fit.clip_choice import ROBUST_CLIP_NORM, clip_choice
from dpjax.fit.inquiry import Inquiry, ScoreModel
from dpjax.fit.score_draws import draws
from dpjax.fit.score_fit import score_fit
from dpjax.fit.scores import Scores
from dpjax.privacy import NeighboringRelation
from dpjax.release.gaussian_sum import GaussianSum
from dpjax.release.k_norm_sum import KNormSum
from dpjax.release.mixed_norm import MixedNorm

NODES = np.linspace(-5, 5, 41)
WEIGHTS = np.exp(-(NODES**2) / 2) / np.sum(np.exp(-(NODES**2) / 2))
START = {"slope": jnp.zeros(2)}
MIXED = MixedNorm((0,), 2, 1.3)
"""Of scores of which one component is single."""


def logprior(position):
    return -jnp.sum(position["slope"] ** 2) / 200


def loglikelihood(position, record):
    return -((record["y"] - record["x"] @ position["slope"]) ** 2) / 2


def scores(position, record, rng_key):
    """Of a normal law about x . slope: the residual times x."""
    residual = record["y"] - record["x"] @ position["slope"]
    dtype = residual.dtype
    return Scores(
        residual[None],
        jnp.asarray(NODES, dtype)[:, None],
        jnp.asarray(WEIGHTS, dtype),
        record["x"][None],
    )


def regression(num_records=2000, seed=0, truth=(1.0, -2.0), sds=1.0, **options):
    """Records of which the covariates have these sds, where a fit expects one."""
    rng = np.random.default_rng(seed)
    x = sds * rng.standard_normal((num_records, len(truth)))
    y = x @ np.asarray(truth) + rng.standard_normal(num_records)
    data = jax.tree.map(
        lambda leaf: jnp.asarray(leaf, jnp.result_type(float)), dict(x=x, y=y)
    )
    return dpjax.Posterior(logprior, loglikelihood, data, **options)


def fitted(posterior, noise_multiplier, **options):
    size = posterior.tempering * (
        options.get("nominal_num_records") or posterior.num_records
    )
    dim = posterior.data["x"].shape[1]
    model = ScoreModel(
        scores,
        scores,
        None,
        lambda position: size * jnp.eye(dim),
        np.zeros(dim),
        np.eye(dim) / 100,
    )
    return score_fit(posterior, model, noise_multiplier=noise_multiplier, **options)


def released(posterior, noise_multiplier, seed=0, **options):
    """Of one run without accounting."""
    found = dpjax.run(
        functools.partial(fitted, noise_multiplier=noise_multiplier, **options),
        posterior,
        1,
        initial_position={"slope": jnp.zeros((1, posterior.data["x"].shape[1]))},
        num_chains=1,
        budget=None,
        warmup_fraction=0.0,
        verbose=False,
        unsafe_key=jax.random.key(seed),
    )
    return jax.tree.map(lambda leaf: leaf[0, 0], found.infos)


@pytest.mark.thorough
def test_events_are_the_releases_that_run(monkeypatch):
    """Each sum that gets noise, executed step by step, is one event with this noise.

    Phases of the search are shorter here, as programs that are not compiled are slow.
    """
    phases = zip((2, 1, 1), noises.PHASES, strict=True)
    phases = [(steps, *rest) for steps, (_, *rest) in phases]
    monkeypatch.setattr(noises, "PHASES", phases)
    posterior = regression(20)
    algorithm = fitted(posterior, 3.0, robust=True)
    called, release = [], GaussianSum.with_noise

    def counted(self, words, total, noise_multiplier):
        found = release(self, words, total, noise_multiplier)
        noise = float(noise_multiplier)
        called.append(self.event(found.size, NeighboringRelation.REPLACE_ONE, noise))
        return found

    monkeypatch.setattr(GaussianSum, "with_noise", counted)
    with jax.disable_jit():
        algorithm.step(jax.random.key(0), algorithm.init(START))
    charged = [event for event, count in algorithm.privacy(1) for _ in range(count)]

    assert len(called) == 2 + 1 + 1 + 3 + 1 + 1 + 4 + 1 + 2
    assert sorted(map(str, called)) == sorted(map(str, charged))


@pytest.mark.parametrize("noise_multiplier", [0.5, 8.0, 100.0])
@pytest.mark.parametrize("robust", [False, True])
def test_shares_add_up_to_one_release(noise_multiplier, robust):
    """All of it costs as much as one release with the stated noise, to 1 %."""
    events = fitted(regression(5000), noise_multiplier, robust=robust).privacy(1)
    budget = privacy.epsilon(events, 1e-6)
    one = privacy.epsilon([(privacy.GaussianRelease(noise_multiplier / 2), 1)], 1e-6)
    assert budget == pytest.approx(one, rel=0.01)


@pytest.mark.thorough
def test_records_do_not_reach_the_result_past_the_releases():
    """The check of every private run, with a budget."""
    last = KNormSum(1.0, 20.0, norm=MIXED)
    found = dpjax.run(
        functools.partial(fitted, noise_multiplier=8.0, robust=True, last=last),
        regression(300),
        1,
        initial_position={"slope": jnp.zeros((1, 2))},
        num_chains=1,
        budget=dpjax.Budget(2.0, 1e-6),
        warmup_fraction=0.0,
        verbose=False,
    )
    assert found.statement.epsilon < 2.0


@pytest.mark.thorough
def test_without_noise_a_fit_finds_the_maximum():
    posterior = regression(4000)
    found = released(posterior, 1e-3, last=KNormSum(1.0, 1e-3, norm=MIXED))
    x, y = (np.asarray(posterior.data[name], float) for name in ("x", "y"))
    precision = x.T @ x + np.eye(2) / 100
    mode = np.linalg.solve(precision, x.T @ y)
    apart = np.linalg.cholesky(precision).T @ (found.position - mode)
    # What clipping at three and more standard deviations loses.
    assert np.linalg.norm(apart) < 0.3
    # The frame need not be that of the data; the slope is what it is in the frame.
    expected = found.stretch.T @ precision @ found.stretch
    np.testing.assert_allclose(found.slope, expected, atol=0.1)
    assert 0.9 < found.inefficiency <= 1.0


@pytest.mark.thorough
def test_robust_draws_are_as_wide_as_the_sandwich(monkeypatch):
    """The sd of an observation grows with x, where the model says that it is one.

    The slope is released with hardly any noise, of which widths would have 4 %.
    """
    monkeypatch.setattr(noises, "SLOPE_NOISE", 1e-4)
    posterior = regression(4000)
    x, y = (np.asarray(posterior.data[name], float) for name in ("x", "y"))
    rest = 0.5 * (y - x @ [1.0, -2.0]) * (1 + np.abs(x[:, 0]))
    posterior.data["y"] = jnp.asarray(x @ [1.0, -2.0] + rest, jnp.result_type(float))
    found = released(posterior, 1e-3, robust=True)
    positions, known = draws(
        posterior, found, jax.random.key(1), 16_000, START, lambda released: 0.0
    )
    inverse = np.linalg.inv(x.T @ x)
    residual = rest - x @ inverse @ (x.T @ rest)
    sandwich = inverse @ ((x.T * residual**2) @ x) @ inverse
    ratio = np.std(positions["slope"], axis=0) / np.sqrt(np.diag(sandwich))
    # Clipping takes off .14 and .03. The standard error of 16,000 draws is .006, and
    # six are allowed.
    np.testing.assert_allclose(ratio, [0.86, 0.97], atol=0.036)
    assert found.clip_norm == ROBUST_CLIP_NORM
    assert known.is_robust and "what the records show" in str(known)


@pytest.mark.thorough
def test_noise_is_what_it_says():
    """Centres have the variance that draws count with, over 60 fits."""
    posterior, last = regression(5_000), KNormSum(1.0, 2.0, norm=MIXED)

    @jax.jit
    def fit(rng_key):
        algorithm = fitted(posterior, 2.0, last=last)
        found = algorithm.step(rng_key, algorithm.init(START))[1]
        weights = found.score_noise_sds**-2.0
        score, place = (
            weights @ leaf / jnp.sum(weights) for leaf in (found.scores, found.places)
        )
        moves = found.stretch @ jnp.linalg.inv(found.slope)
        variances = jnp.sum(moves**2, axis=1) / jnp.sum(weights)
        return found.position + found.stretch @ place + moves @ score, variances

    keys = jax.random.split(jax.random.key(3), 60)
    centres, variances = (np.asarray(part) for part in jax.lax.map(fit, keys))
    spread = np.std(centres, axis=0) / np.sqrt(np.mean(variances, axis=0))
    # A standard deviation of 60 has a standard error of 9 %.
    assert np.all((0.55 < spread) & (spread < 1.5))


@pytest.mark.thorough
def test_the_fit_check_sees_outliers_and_nothing_where_the_model_holds():
    """20 fits each, with and without 5 % of the records moved by 5 sds."""

    @jax.jit
    def excess(rng_key, posterior):
        algorithm = fitted(posterior, 8.0)
        found = algorithm.step(rng_key, algorithm.init(START))[1]
        return found.excess, found.excess_noise_sd, found.expected_square

    def deviations(moved):
        found = []
        for seed in range(20):
            posterior = regression(10_000, seed)
            posterior.data["y"] = posterior.data["y"].at[:500].add(moved)
            found.append(excess(jax.random.key(seed), posterior))
        excesses, noise, expected = np.transpose(np.asarray(found, np.float64))
        np.testing.assert_allclose(noise, 80.0)
        return excesses / np.sqrt(noise**2 + expected), excesses / expected

    right, _ = deviations(0.0)
    # Each is beyond 6 standard errors with 2e-9, and so is their mean.
    assert abs(np.mean(right)) < 6 / np.sqrt(20) and np.all(np.abs(right) < 6)
    # Without clipping it would be 1.25. The standard error of the mean is 0.01.
    _, more = deviations(5.0)
    assert 0.1 < np.mean(more) < 0.5


@pytest.mark.thorough
def test_the_frame_is_corrected_along_a_latent_where_noise_hides_eigenvalues():
    """The information along the first latent is a twentieth of what is expected.

    Noise on the released curvature has an sd of .15, and the largest eigenvalue of such
    noise is about one. A share above .75 would be a deviation of 4.7 sds in each of
    three phases, which has a chance of 1e-17.
    """
    dim, num_records = 16, 2000
    sds = np.where(np.arange(dim) == 0, np.sqrt(0.05), 1.0)
    posterior = regression(num_records, truth=np.zeros(dim), sds=sds)
    found = released(posterior, 0.9)
    back = np.linalg.inv(found.stretch)
    shares = np.sum(back**2, axis=0) / num_records
    assert shares[0] < 0.75
    np.testing.assert_allclose(np.median(shares[1:]), 1, atol=0.2)


def expected_of(covariates):
    """`ScoreModel.expected` over public covariates, ``(m, d)``."""

    def expected(function, has_pairs=False):
        def of_one(x, columns):
            record = dict(x=x, y=jnp.zeros_like(x[0]))
            found = scores({"slope": jnp.zeros_like(x)}, record, None)
            columns = columns.astype(x.dtype)
            return function(found._replace(directions=found.directions @ columns))

        def mean(position, columns):
            found = jax.vmap(of_one, (0, None))(covariates, columns)
            return [jnp.mean(leaf, axis=0) for leaf in found]

        return mean

    return expected


@pytest.mark.thorough
def test_products_of_a_rare_level_are_smaller_by_its_number_of_records():
    """Six levels of 2 % of the records, where 12 % of the public ones are of each.

    The correlation of an intercept and a level of share p is sqrt(p): .14 in the data,
    and .35 in public. Scales of the levels do not change it.
    """
    dim, num_records = 7, 20_000
    rng, like = np.random.default_rng(0), regression(10)
    dtype = like.data["y"].dtype

    def covariates(share, count):
        chances = [1 - 6 * share, *6 * [share]]
        x = np.eye(dim)[rng.choice(dim, count, p=chances)]
        x[:, 0] = 1.0
        return jnp.asarray(x, dtype)

    public, x = covariates(0.12, 2000), covariates(0.02, num_records)
    y = x @ np.linspace(0, 1, dim) + rng.normal(size=num_records)
    information = np.asarray(public.T @ public, float) * num_records / len(public)
    model = ScoreModel(
        scores,
        scores,
        expected_of(public),
        lambda position: jnp.asarray(information),
        np.zeros(dim),
        np.eye(dim) / 100,
    )
    found = dpjax.run(
        functools.partial(score_fit, model=model, noise_multiplier=20.0),
        dpjax.Posterior(like.logprior_fn, like.loglikelihood_fn, dict(x=x, y=y)),
        1,
        initial_position={"slope": jnp.zeros((1, dim))},
        num_chains=1,
        budget=None,
        warmup_fraction=0.0,
        verbose=False,
        unsafe_key=jax.random.key(0),
    ).infos
    back = np.linalg.inv(found.stretch[0, 0])
    whole = back.T @ back
    correlations = whole[0, 1:] / np.sqrt(whole[0, 0] * np.diag(whole)[1:])
    assert np.max(np.abs(correlations - np.sqrt(0.02))) < 0.08


@pytest.mark.thorough
def test_long_scores_that_noise_hides_are_expected_by_public_covariates():
    """One of 100 records has covariates ten times as long, which noise hides.

    With the same noise no count is less where public covariates are known, and the clip
    norm was 1.1 to 2.3 times as large.
    """
    num_records, z = 4000, jnp.zeros(2)
    rare = np.where(np.arange(num_records) % 100 == 0, 10.0, 1.0)[:, None]
    posterior = regression(num_records, sds=rare)
    covariates = posterior.data["x"]

    expected = expected_of(covariates)
    information = np.asarray(covariates.T @ covariates, float)
    noise = noises.Noises.of(2, num_records, 2.0)
    histogram = GaussianSum(1.0, None, diameter=2**0.5)

    @functools.partial(jax.jit, static_argnums=1)
    def clip_norm(rng_key, expected):
        model = ScoreModel(
            scores,
            scores,
            expected,
            lambda position: jnp.asarray(information),
            np.zeros(2),
            np.eye(2) / 100,
        )
        words = jax.random.bits(rng_key, (1000,), jnp.uint32)
        with jax.enable_x64(True):
            inquiry = Inquiry(posterior, model, num_records, words, START, None)
            axes = inquiry.frame(inquiry.information(z), jnp.eye(2))
            return clip_choice(inquiry, histogram, noise, z, axes).clip_norm

    keys = jax.random.split(jax.random.key(0), 5)
    known = [float(clip_norm(key, expected)) for key in keys]
    unknown = [float(clip_norm(key, None)) for key in keys]
    assert np.all(np.array(known) > unknown), (known, unknown)


@pytest.fixture
def wide():
    """The precision in which a fit turns its slope."""
    with jax.enable_x64(True):
        yield


@pytest.mark.usefixtures("wide")
def test_the_slope_follows_the_information_where_it_changes_by_much():
    rng = np.random.default_rng(0)
    vectors, _ = np.linalg.qr(rng.normal(size=(4, 4)))
    before = np.diag([1.0, 4.0, 9.0, 16.0])
    root = np.sqrt(before)

    def turned(factors):
        after = root @ (vectors * factors) @ vectors.T @ root
        one, other = map(slope_changes.root, (jnp.asarray(before), jnp.asarray(after)))
        turn = np.asarray(slope_changes.between(one, other).turn)
        back = np.asarray(slope_changes.between(other, one).turn_back)
        np.testing.assert_allclose(back, turn, rtol=1e-9, atol=1e-9)
        return turn @ before @ turn.T, after

    much = np.array([0.1, 0.5, 2.0, 9.0])
    np.testing.assert_allclose(*turned(much), rtol=1e-9, atol=1e-9)
    found, _ = turned(np.array([0.92, 0.97, 1.03, 1.09]))
    np.testing.assert_allclose(found, before, rtol=1e-9, atol=1e-9)
    found, _ = turned(np.full(4, 1.2))
    assert np.all(before.diagonal() < found.diagonal())
    assert np.all(found.diagonal() < 1.2 * before.diagonal())


@pytest.mark.usefixtures("wide")
def test_scores_add_up_slopes_that_change_on_the_way():
    """To the mean of M^(1/2) exp(t C) M^(1/2) over t in [0, 1], times the way."""
    rng = np.random.default_rng(0)
    vectors, _ = np.linalg.qr(rng.normal(size=(4, 4)))
    factors = np.array([0.01, 0.5, 2.0, 9.0])
    root = np.diag([1.0, 2.0, 3.0, 4.0])
    times, weights = np.polynomial.legendre.leggauss(40)
    mean = weights / 2 @ factors[None] ** ((times[:, None] + 1) / 2)

    def between(factors):
        return root @ (vectors * factors) @ vectors.T @ root

    one, other = (
        slope_changes.root(jnp.asarray(slope))
        for slope in (root @ root, between(factors))
    )
    found = root @ root @ slope_changes.between(one, other).mean_over_first
    np.testing.assert_allclose(found, between(mean), rtol=1e-9, atol=1e-9)
    same = slope_changes.between(one, one).mean_over_first
    np.testing.assert_allclose(same, np.eye(4), atol=1e-9)


@pytest.mark.usefixtures("wide")
def test_no_change_of_the_information_makes_a_slope_that_is_no_number():
    """Products of these matrices have eigenvalues that rounding may leave negative."""
    rng = np.random.default_rng(0)

    def root(largest):
        axes, _ = np.linalg.qr(rng.normal(size=(5, 5)))
        return axes * 10 ** rng.uniform(-1.5, largest, 5)

    turns = [slope_changes.between(root(2.5), root(4.5)).turn for _ in range(200)]
    assert np.all(np.isfinite(turns))
