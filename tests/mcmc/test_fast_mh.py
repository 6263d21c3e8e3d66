"""Exact minibatch kernels keep the posterior, and charge what they do."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import NeighboringRelation as Relation
from scipy import stats

import dpjax
from dpjax import acceptance, privacy, proposals
from dpjax.posterior import Posterior
from dpjax.random import batches, chacha
from dpjax.release import poisson_log_ratios
from dpjax.release.clip_bounds import Lipschitz, Range
from tests.tiers import tiered


@pytest.mark.parametrize("half_range", [0.05, 0.3])
def test_counts_estimate_every_ratio_without_bias(half_range):
    base_rate, rate = 0.02, 0.32
    ratio = np.append(np.linspace(-0.4, 0.4, 41), [np.inf, -np.inf, np.nan])
    with jax.enable_x64(True):
        threshold, weight = map(
            np.asarray,
            poisson_log_ratios.thinning(
                jnp.asarray(ratio), half_range, base_rate, rate
            ),
        )
    clipped = np.clip(ratio, -half_range, half_range)
    clipped[~np.isfinite(ratio)] = 0
    chance = threshold / 2**32
    assert np.all(threshold == np.round(threshold)) and chance.max() <= 1
    # E exp(s w) = exp(a (e^w - 1)) = e^v, in whole cells of the grid.
    np.testing.assert_allclose(
        rate * chance * np.expm1(weight), clipped, atol=1.01 * rate / 2**32
    )
    # Going back, rates exchange places and weights change their sign.
    np.testing.assert_array_equal(threshold[:41] + threshold[40::-1], 2 * threshold[20])
    np.testing.assert_allclose(weight[:41], np.log(chance[40::-1] / chance[:41]), 1e-14)
    # Never above the rate, the bound and the odds that are charged.
    assert 2 * rate * chance.min() <= 2 * base_rate * (1 + 1e-15)
    assert rate * np.ptp(chance) <= half_range * (1 + 1e-15)
    assert chance.max() / chance.min() <= 1 + half_range / base_rate + 1e-15


def test_sums_do_not_depend_on_the_order():
    posterior = Posterior(
        lambda position: jnp.zeros_like(position),
        lambda position, record: record * position,
        jnp.asarray(np.random.default_rng(0).normal(size=500), jnp.result_type(float)),
    )
    drawn = batches.Arrivals(
        jnp.arange(500, dtype=jnp.uint32), jnp.ones(500, bool), jnp.zeros(500, "uint32")
    )
    estimates = []
    for seed in range(8):
        order = np.random.default_rng(seed).permutation(500)
        shuffled = jax.tree.map(lambda leaf, order=order: leaf[order], drawn)
        with jax.enable_x64(True):
            centre, half = jnp.zeros(()), jnp.asarray(1.0)
        estimate = poisson_log_ratios.poisson_log_ratio(
            posterior, shuffled, 3.0, jnp.asarray(0.0), jnp.asarray(0.3), centre, half,
            2.0,
        )  # fmt: skip
        estimates.append(float(estimate))
    assert len(set(estimates)) == 1 and estimates[0] != 0


def test_no_weight_is_larger_than_charged_for():
    """One record is counted at a time, beside its log(b / a) in long doubles."""
    size, half_range, base_rate, rate = 200, 0.1, 0.2, 0.3
    posterior = slope_posterior(np.random.default_rng(0).uniform(-0.2, 0.2, size))
    old, new = jnp.zeros(1), jnp.ones(1)

    @jax.jit
    @jax.vmap
    def estimate(is_drawn):
        drawn = batches.Arrivals(
            jnp.arange(size, dtype=jnp.uint32), is_drawn, jnp.zeros(size, "uint32")
        )
        with jax.enable_x64(True):
            bounds = jnp.zeros(()), jnp.asarray(half_range)
        return poisson_log_ratios.poisson_log_ratio(
            posterior, drawn, rate, old, new, *bounds, base_rate
        )

    with jax.enable_x64(True):
        ratio = jnp.append(posterior.data.astype(float), 0.0)
        threshold, _ = poisson_log_ratios.thinning(ratio, half_range, base_rate, rate)
    *low, middle = np.asarray(threshold, np.longdouble)
    low = np.array(low)
    weight = np.log((2 * middle - low) / low)
    used = np.asarray(estimate(np.eye(size, dtype=bool)), np.longdouble)
    # A sum of so many weights has room for units of 2^-46.
    assert np.all(np.abs(used) <= np.abs(weight) * (1 + 2.0**-52))
    np.testing.assert_allclose(
        used.astype(float), weight.astype(float), rtol=0, atol=2.0**-45
    )


# A truncated normal posterior: records and positions in the box [-1, 1]^2.
SIZE = 50
STEPS = 40
FALSE_ALARM = 2e-8
"""Chance that one case fails by chance; all cases of this file stay below 1e-6."""


def box_prior(position):
    return jnp.where(jnp.all(jnp.abs(position) < 1), 0.0, -jnp.inf)


def normal_loglikelihood(position, record):
    return -0.5 * jnp.sum((record - position) ** 2)


def box_range(position, proposed):
    """(record - middle) . jump over all records of the box."""
    jump, middle = proposed - position, (proposed + position) / 2
    centre, half = -jnp.sum(middle * jump), jnp.sum(jnp.abs(jump))
    return centre - half, centre + half


def box_posterior(tempering=1.0):
    data = np.random.default_rng(1).normal(0.7, 0.6, (SIZE, 2)).clip(-1, 1)
    data = jnp.asarray(data, jnp.result_type(float))
    return Posterior(box_prior, normal_loglikelihood, data, tempering)


BOX = dict(clip_bound=Lipschitz(8**0.5), expected_batch_size=20.0, step_size=0.2)
KERNELS = {
    "tuna": functools.partial(dpjax.tuna, **BOX),
    "fast_mh": functools.partial(dpjax.fast_mh, **BOX, laziness=0.7),
    "centred": functools.partial(
        dpjax.fast_mh, **BOX | dict(clip_bound=Range(box_range, 2**0.5))
    ),
    "metric": functools.partial(
        dpjax.fast_mh,
        **BOX | dict(step_size=1.0, clip_bound=3.0),
        inverse_mass_matrix=np.array([0.04, 0.02]),
        proposal=proposals.gaussian,
    ),
    "published": functools.partial(
        dpjax.fast_mh_published, **BOX, max_batch_size=50.0, epsilon=10.0, delta=1e-3
    ),
}


def smallest_pvalue(algorithm_fn, tempering):
    posterior = box_posterior(tempering)
    precision = SIZE * tempering
    mean = np.asarray(posterior.data, np.float64).mean(0)
    sd = precision**-0.5
    law = stats.truncnorm((-1 - mean) / sd, (1 - mean) / sd, mean, sd)
    chains = 2000
    start = law.rvs((chains, 2), random_state=np.random.default_rng(2))

    @jax.jit
    def run(posterior, start, key):
        algorithm = algorithm_fn(posterior)
        states, info = jax.lax.scan(
            lambda states, keys: jax.vmap(algorithm.step)(keys, states),
            jax.vmap(algorithm.init)(start),
            jax.random.split(key, (STEPS, chains)),
        )
        return states.position, info.acceptance_rate.mean()

    start = jnp.asarray(start, jnp.result_type(float))
    positions, rate = run(posterior, start, jax.random.key(3))
    assert 0.05 < rate < 0.9 and np.mean(positions != start) > 0.8
    uniforms = law.cdf(np.asarray(positions, np.float64))
    return min(stats.kstest(u, "uniform").pvalue for u in uniforms.T)


@pytest.mark.thorough
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_keep_the_posterior(name):
    assert smallest_pvalue(KERNELS[name], tempering=0.5) > FALSE_ALARM


@pytest.mark.thorough
def test_the_wrong_posterior_is_detected():
    algorithm_fn = KERNELS["centred"]

    def of_whole(posterior):
        return algorithm_fn(box_posterior())

    assert smallest_pvalue(of_whole, tempering=0.5) < FALSE_ALARM


@pytest.mark.parametrize("name", tiered(["tuna", "centred", "published"], ["centred"]))
def test_run_makes_the_same_steps(name):
    posterior = box_posterior()
    chains, num_steps = 3, 20
    result = dpjax.run(
        KERNELS[name], posterior, num_steps,
        initial_position=jnp.zeros((chains, 2)), num_chains=chains,
        budget=None, warmup_fraction=0.0, verbose=False, unsafe_key=jax.random.key(4),
    )  # fmt: skip
    key = np.asarray(jax.random.bits(jax.random.key(4), (8,), jnp.uint32)).tobytes()
    algorithm = KERNELS[name](posterior)
    states = jax.vmap(algorithm.init)(jnp.zeros((chains, 2)))
    width = algorithm.transition.num_words(algorithm.init(jnp.zeros(2)))
    move = jax.jit(jax.vmap(algorithm.transition.move, (0, 0, None)))
    for i in range(num_steps):
        words = jnp.asarray(chacha.tape(key, 1 + i, (1, chains, width))[0])
        states, _, _ = move(words, states, None)
        np.testing.assert_array_equal(result.positions[:, i], states.position)
    assert len(np.unique(result.positions)) > 10


@pytest.mark.parametrize(("distance", "moves"), [(0.1, True), (9.0, False)])
def test_proposals_too_far_for_the_capacity_are_rejected(distance, moves):
    """The proposal makes almost no jump, but states the distance that is tested."""

    def propose(words, position, walk, step_size):
        return proposals.Move(position + 1e-6, jnp.asarray(distance), walk, walk)

    proposal = proposals.Proposal(
        lambda position: (), lambda dim: 0, propose, lambda step_size: None
    )
    algorithm = dpjax.tuna(box_posterior(), **BOX, proposal=proposal)
    keys = jax.random.split(jax.random.key(5), 50)
    state = algorithm.init(jnp.zeros(2))
    bits = jax.jit(jax.vmap(lambda key: algorithm.step(key, state)[1].is_accepted))
    assert np.any(bits(keys)) == moves


def privacy_settings(clip_bound):
    return dict(clip_bound=clip_bound, expected_batch_size=10.0, step_size=0.25)


def slope_posterior(sizes, tempering=1.0):
    """Log ratios are a record's size times the move along the first axis."""
    return Posterior(
        lambda position: jnp.zeros((), position.dtype),
        lambda position, record: record * position[0],
        jnp.asarray(sizes, jnp.result_type(float)),
        tempering,
    )


BOUNDS = {
    "number": (0.5, 0.5),
    "Lipschitz": (Lipschitz(3.0), 0.75),
    # The range is wider than its half range says, so it is clipped to what is charged.
    "Range": (Range(lambda old, new: (-7.0, 9.0), 4.0), 1.0),
}


@pytest.mark.parametrize("tempering", tiered([1.0, 0.25], [0.25]))
@pytest.mark.parametrize("name", BOUNDS)
def test_charges_what_the_kernel_does(monkeypatch, name, tempering):
    """Records that saturate their bound attain the rates and the odds charged."""
    clip_bound, bound = BOUNDS[name]
    found = []
    thin, draw = poisson_log_ratios.thinning, batches.arrivals

    def spy(*args):
        found.append(thin(*args))
        return found[-1]

    def count(words, rate, num_records):
        found.append(rate)
        return draw(words, rate, num_records)

    monkeypatch.setattr(poisson_log_ratios, "thinning", spy)
    monkeypatch.setattr(batches, "arrivals", count)
    posterior = slope_posterior(np.tile([-1e9, 1e9], 20), tempering)
    algorithm = dpjax.fast_mh(posterior, laziness=0.5, **privacy_settings(clip_bound))
    algorithm.step(jax.random.key(0), algorithm.init(jnp.zeros(2)))
    [(event, count)] = algorithm.privacy(7)
    rate, (threshold, weight) = found[0], map(np.asarray, found[1])
    assert count == 7 and algorithm.transition.laziness == 0.5
    assert event == privacy.PoissonAcceptBit(
        acceptance.barker(0.5),
        tempering * bound,
        1 + 40 * tempering * bound / 10,
    )
    # lambda + n H draws a step.
    assert rate * 40 == pytest.approx(10 + 40 * event.bound)
    spread = rate * (threshold.max() - threshold.min()) / 2**32
    assert spread == pytest.approx(event.bound, rel=1e-8)
    assert float(weight.max()) == pytest.approx(np.log(event.max_odds), rel=1e-8)


def test_an_interval_with_its_ends_exchanged_is_its_centre():
    """Half of its width was negative, and a bit told .4 nats of the first record."""
    exchanged = Range(lambda old, new: (2.7, 2.3), 1e-3)

    def bits(records):
        algorithm = dpjax.fast_mh(
            slope_posterior(records),
            1e-3,
            clip_bound=exchanged,
            expected_batch_size=0.4,
        )
        state = algorithm.init(jnp.zeros(2))
        step = jax.vmap(lambda key: algorithm.step(key, state)[1].is_accepted)
        return jax.jit(step)(jax.random.split(jax.random.key(7), 500))

    np.testing.assert_array_equal(bits([0.0, np.nan]), bits([np.nan, np.nan]))


@pytest.mark.parametrize("name", tiered(KERNELS, ["fast_mh", "centred"]))
def test_chains_see_clipped_records_only(name):
    sizes = np.tile([1e6, -1e6, 1e7, -1e7], 10)

    @jax.jit
    @jax.vmap
    def chain(sizes):
        algorithm = KERNELS[name](slope_posterior(sizes), clip_bound=0.5)
        return jax.lax.scan(
            lambda state, key: algorithm.step(key, state),
            algorithm.init(jnp.zeros(2)),
            jax.random.split(jax.random.key(6), 60),
        )

    data = np.stack([sizes, 37 * sizes, np.abs(sizes)])
    state, info = chain(jnp.asarray(data, jnp.result_type(float)))
    np.testing.assert_array_equal(state.position[0], state.position[1])
    np.testing.assert_array_equal(info.is_accepted[0], info.is_accepted[1])
    assert 0 < np.mean(info.is_accepted[0]) < 1
    assert np.any(info.is_accepted[0] != info.is_accepted[2])


@pytest.mark.parametrize("name", ["fast_mh", "metric"])
def test_privacy_reads_no_data(name):
    events = [
        KERNELS[name](slope_posterior(np.full(40, size)), clip_bound=0.5).privacy(11)
        for size in (0.0, np.nan)
    ]
    assert events[0] == events[1]


def published(**changes):
    settings = privacy_settings(Lipschitz(0.2)) | dict(
        max_batch_size=20.0, epsilon=2.0, delta=1e-3, proposal=proposals.fixed_length
    )
    return dpjax.fast_mh_published(box_posterior(), **settings | changes)


def test_published_steps_cost_what_they_are():
    # The bound is .05 nats, so a step expects 10 + 50 * .05 draws.
    [(free, _)] = published().privacy(1)
    metropolis = acceptance.metropolis()
    assert free == privacy.PoissonAcceptBit(metropolis, 0.2 * 0.25, 1.25)
    whole = published(max_batch_size=12.0)
    for relation, moved in (
        (Relation.REPLACE_ONE, 0.1),
        (Relation.REPLACE_SPECIAL, 0.05),
    ):
        [(event, _)] = whole.privacy(1, relation)
        assert event.acceptance == metropolis
        assert moved < event.sensitivity < moved * (1 + 1e-6)
    [(event, _)] = published(epsilon=0.5).privacy(1)
    inner_epsilon, inner_delta = 0.5 * 50 / (6 * 20), 1e-3 * 50 / (2 * 20)
    multiplier = np.sqrt(2 * np.log(1.25 / inner_delta)) / inner_epsilon
    assert event.acceptance.family == "penalty"
    assert event.acceptance.noise_sd == pytest.approx(multiplier * 2 * np.log(1.25))
    [(event, _)] = published(epsilon=0.09, max_batch_size=12.0).privacy(1)
    multiplier = np.sqrt(2 * np.log(1.25 / 1e-3)) / 0.09
    assert event.acceptance.noise_sd == pytest.approx(multiplier * 0.1)
    assert event.sensitivity == pytest.approx(0.1)


def test_privacy_for_free_is_not():
    """At the threshold the claim is (.1, 1e-3); the truth is 1 - e^-.1."""
    [(event, _)] = published(epsilon=0.1, max_batch_size=12.0).privacy(1)
    assert event.acceptance.family == "metropolis"
    for epsilon in (0.1, 1.0, 5.0):
        found = privacy.delta([(event, 1)], epsilon)
        assert found == pytest.approx(-np.expm1(-0.1), rel=1e-6)


def test_the_barker_bit_is_private_where_the_published_is_not():
    settings = privacy_settings(Lipschitz(0.2))
    events = dpjax.fast_mh(box_posterior(), **settings).privacy(100)
    assert privacy.delta(events, 2.0) < 1e-4
    settings["proposal"] = proposals.fixed_length
    assert (
        privacy.delta(dpjax.tuna(box_posterior(), **settings).privacy(100), 2.0) > 0.9
    )


@pytest.mark.parametrize("name", ["tuna", "centred", "published"])
def test_costs_without_a_bound_are_refused(name):
    algorithm = KERNELS[name](box_posterior(), proposal=proposals.gaussian)
    with pytest.raises(ValueError, match="constant length"):
        algorithm.privacy(1)


def test_addition_of_a_record_is_refused():
    with pytest.raises(ValueError, match="substitution"):
        KERNELS["fast_mh"](box_posterior()).privacy(1, Relation.REPLACE_SPECIAL)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(expected_batch_size=0.0), "expected_batch_size must be positive"),
        (dict(expected_batch_size=np.inf), "expected_batch_size must be positive"),
        (dict(expected_batch_size=1e-6), "too small"),
        (dict(expected_batch_size=1e8), r"at most 2\^22"),
        (dict(clip_bound=np.inf), r"at most 2\^22"),
        (dict(clip_bound=Range(box_range, 0.0)), "clip_bound must be positive"),
        (dict(step_size=jnp.asarray(0.5)), "Python numbers"),
        (dict(step_size=-1.0), "step_size must be positive"),
        (dict(laziness=0.0), "laziness"),
    ],
)
def test_bad_arguments_raise(changes, message):
    with pytest.raises(ValueError, match=message):
        KERNELS["fast_mh"](box_posterior(), **changes)


def test_traced_clip_bounds_are_refused():
    def traced(bound):
        return KERNELS["fast_mh"](box_posterior(), clip_bound=bound).privacy(1)

    with pytest.raises(ValueError, match="Python numbers"):
        jax.eval_shape(traced, 0.5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(clip_bound=Range(box_range, 1.0)), "no centre"),
        (dict(epsilon=0.0), "epsilon must be positive"),
        (dict(delta=1.0), "delta in"),
        (dict(max_batch_size=0.02), "max_batch_size"),
        (dict(max_batch_size=np.inf), "max_batch_size"),
    ],
)
def test_bad_arguments_of_the_published_kernel_raise(changes, message):
    with pytest.raises(ValueError, match=message):
        published(**changes)


def test_a_deafening_noise_is_no_event():
    with pytest.raises(ValueError, match="noise_sd"):
        published(epsilon=1e-3).privacy(1)
