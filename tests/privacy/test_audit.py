"""Attacks on the kernels: honest claims survive them, false ones do not.

Every bound has a significance of 1e-7, the chance that an honest claim fails.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax_privacy import auditing
from scipy import stats

import dpjax
from dpjax import acceptance, privacy
from dpjax.privacy import audit
from dpjax.proposals import Move, Proposal

SIGNIFICANCE = 1e-7
DELTA = 1e-3
BOUND = 0.25
TRIALS, STEPS = 20_000, 20
TO_ONE = Proposal(
    init=lambda position: (),
    num_words=lambda dimension: 0,
    propose=lambda words, position, walk, step_size: Move(
        jnp.ones_like(position), 1.0, walk, walk
    ),
    longest=lambda step_size: 1.0,
)
"""Always proposes the position 1, where a record's log ratio is what it holds."""


def flat(position):
    return jnp.zeros_like(position[0])


def loglikelihood(position, record):
    return position[0] * record


def posterior(*records):
    return dpjax.Posterior(flat, loglikelihood, jnp.asarray(records, jnp.float32))


# A substitution moves the ratio from -BOUND to BOUND; the others put it at 0.
LOW, HIGH = posterior(-BOUND, 0.0), posterior(BOUND, 0.0)


def attack(algorithm_fn, num_steps=STEPS, low=LOW, high=HIGH):
    keys = jax.random.split(jax.random.key(7))
    return [
        audit.accept_counts(
            key,
            algorithm_fn,
            data,
            jnp.zeros(1),
            num_trials=TRIALS,
            num_steps=num_steps,
        )
        for key, data in zip(keys, (low, high), strict=True)
    ]


def claim(algorithm_fn):
    return privacy.epsilon(algorithm_fn(LOW).privacy(STEPS), DELTA)


KERNELS = {
    "Barker": functools.partial(dpjax.barker, step_size=1.0, clip_bound=BOUND),
    "lazy Barker": functools.partial(
        dpjax.barker, step_size=1.0, clip_bound=BOUND, laziness=0.5
    ),
    "penalty": functools.partial(
        dpjax.penalty, step_size=1.0, clip_bound=BOUND, test_noise_multiplier=2.0
    ),
    "fast MH, R = 2": functools.partial(
        dpjax.fast_mh, step_size=1.0, clip_bound=BOUND, expected_batch_size=0.5
    ),
    "fast MH, R = 5": functools.partial(
        dpjax.fast_mh, step_size=1.0, clip_bound=BOUND, expected_batch_size=0.125
    ),
}
KERNELS = {name: functools.partial(k, proposal=TO_ONE) for name, k in KERNELS.items()}


@pytest.mark.thorough
@pytest.mark.parametrize("name", KERNELS)
def test_claims_survive(name):
    counts = attack(KERNELS[name])
    found = audit.epsilon_lower_bound(*counts, DELTA, significance=SIGNIFICANCE)
    claimed = claim(KERNELS[name])
    assert 0.2 * claimed < found <= claimed
    events = KERNELS[name](LOW).privacy(STEPS)
    lost = audit.delta_lower_bound(*counts, claimed / 4, significance=SIGNIFICANCE)
    assert 0 < lost <= privacy.delta(events, claimed / 4)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["Barker", "penalty", "fast MH, R = 2"])
def test_a_kernel_that_is_charged_too_little_is_caught(name):
    """The kernel clips at three times what its accountant is told."""
    honest = KERNELS[name]
    told = functools.partial(honest, clip_bound=BOUND / 3)
    if name == "penalty":
        told = functools.partial(told, test_noise_multiplier=6.0)
    found = audit.epsilon_lower_bound(*attack(honest), DELTA, significance=SIGNIFICANCE)
    assert found > claim(told)


def test_bits_of_a_metropolis_test_have_no_epsilon():
    """`penalty` without noise, at l = 0 and l = -D: rejections give the data away."""
    metropolis = functools.partial(
        dpjax.penalty,
        step_size=1.0,
        clip_bound=BOUND,
        test_noise_multiplier=0.0,
        proposal=TO_ONE,
    )
    moved = 2 * BOUND
    low, high = posterior(-BOUND, -BOUND), posterior(BOUND, -BOUND)
    counts = attack(metropolis, 1, low, high)
    assert counts[1].min() == 1
    exact = -math.expm1(-moved)
    rejected = np.mean(counts[0] == 0)
    # 6 standard deviations.
    assert abs(rejected - exact) < 6 * math.sqrt(exact * (1 - exact) / TRIALS)
    events = [(privacy.AcceptBit(acceptance.metropolis(), moved), 1)]
    for epsilon in (0.0, 1.0, 3.0):
        found = audit.delta_lower_bound(*counts, epsilon, significance=SIGNIFICANCE)
        assert found <= privacy.delta(events, epsilon)
        assert found > 0.8 * exact - 0.001 * math.exp(epsilon)
    # What is certified grows like the logarithm of the trials, without end.
    bounds = [
        audit.epsilon_lower_bound(
            counts[0][:n], counts[1][:n], DELTA, significance=SIGNIFICANCE
        )
        for n in (200, 2000, 20_000)
    ]
    assert np.all(np.diff(bounds) > 0.9 * math.log(10))
    assert bounds[-1] > 5
    assert privacy.epsilon(events, DELTA) == math.inf


@pytest.mark.thorough
def test_tuna_is_not_private():
    tuna = functools.partial(
        dpjax.tuna,
        step_size=1.0,
        clip_bound=BOUND,
        expected_batch_size=0.5,
        proposal=TO_ONE,
    )
    counts = attack(tuna, 1, posterior(-BOUND, 0.0), posterior(0.0, 0.0))
    assert counts[1].min() == 1
    found = audit.delta_lower_bound(*counts, 3.0, significance=SIGNIFICANCE)
    assert 0.5 * BOUND < found <= privacy.delta(tuna(LOW).privacy(1), 3.0)


@pytest.mark.thorough
def test_the_published_claim_of_fast_mh_is_refuted():
    """(epsilon, delta) a step where a substitution moves the ratio by epsilon."""
    claimed = 2 * BOUND
    published = functools.partial(
        dpjax.fast_mh_published,
        step_size=1.0,
        clip_bound=BOUND,
        expected_batch_size=0.5,
        max_batch_size=0.5,
        epsilon=claimed,
        delta=1e-5,
        proposal=TO_ONE,
    )
    low, high = posterior(-BOUND, -BOUND), posterior(BOUND, -BOUND)
    counts = attack(published, 1, low, high)
    found = audit.epsilon_lower_bound(*counts, 1e-5, significance=SIGNIFICANCE)
    assert found > 10 * claimed
    lost = audit.delta_lower_bound(*counts, claimed, significance=SIGNIFICANCE)
    assert 0.3 < lost <= privacy.delta(published(low).privacy(1), claimed)


def test_clopper_pearson_agrees_with_jax_privacy():
    rng = np.random.default_rng(0)
    low, high = rng.binomial(1, 0.3, 1000), rng.binomial(1, 0.6, 800)
    for delta in (0.0, 0.05):
        oracle = auditing.CanaryScoreAuditor(high, low).epsilon_clopper_pearson(
            # Theirs covers two bounds. Ours covers four, with half of its significance:
            # the other half is for more thresholds than one.
            significance=0.005,
            delta=delta,
            one_sided=False,
            threshold_strategy=auditing.Explicit(0.5),
        )
        for counts in ((low, high), (high, low)):
            found = audit.epsilon_lower_bound(*counts, delta, significance=0.02)
            assert found == pytest.approx(oracle, rel=1e-9)


def test_bounds_hold_about_as_often_as_they_say():
    """At 20 %, four bounds of 2.5 %, two of which matter, and rarely both are off."""
    p, q, size = 0.2, 0.5, 400
    rng = np.random.default_rng(1)
    counts = rng.binomial(1, np.array([p, q])[:, None, None], (2, 2000, size))
    wrong = [0, 0]
    epsilon = math.log((1 - p) / (1 - q)), math.log(q / p)
    for low, high in zip(*counts, strict=True):
        found = audit.epsilon_lower_bound(low, high, significance=0.2)
        wrong[0] += found > max(epsilon)
        found = audit.delta_lower_bound(low, high, 0.1, significance=0.2)
        wrong[1] += found > q - math.exp(0.1) * p
    limit = stats.binom.isf(1e-7, 2000, 0.2)
    assert all(0 < count < limit for count in wrong)


def test_nothing_is_found_where_nothing_is():
    rng = np.random.default_rng(2)
    same = rng.binomial(10, 0.4, (2, 5000))
    assert audit.epsilon_lower_bound(*same, significance=SIGNIFICANCE) == 0
    assert audit.delta_lower_bound(*same, 0.1, significance=SIGNIFICANCE) == 0
    never = np.zeros(10, int)
    assert audit.epsilon_lower_bound(never, never) == 0
    assert audit.delta_lower_bound(never, never, 0.0) == 0
    assert audit.epsilon_lower_bound(never, never + 1, 0.999) == 0


@pytest.mark.parametrize("counts", [[], [[1, 2]], [0.5, 1.0], 3, None])
def test_bad_counts_raise(counts):
    with pytest.raises(ValueError, match="counts"):
        audit.epsilon_lower_bound(counts, np.zeros(3, int))


def test_other_bad_arguments_raise():
    good = np.zeros(3, int)
    for value in (math.nan, -0.1, 1.5, None):
        with pytest.raises(ValueError, match="delta"):
            audit.epsilon_lower_bound(good, good, value)
        with pytest.raises(ValueError, match="significance"):
            audit.epsilon_lower_bound(good, good, significance=value)
    with pytest.raises(ValueError, match="epsilon"):
        audit.delta_lower_bound(good, good, -1.0)
    for name in ("num_trials", "num_steps"):
        with pytest.raises(ValueError, match=name):
            audit.accept_counts(
                jax.random.key(0),
                KERNELS["Barker"],
                LOW,
                jnp.zeros(1),
                **{"num_trials": 1, name: 0},
            )


def test_the_adversary_sets_the_ratio():
    for found, ratio in zip(attack(KERNELS["Barker"]), (-BOUND, BOUND), strict=True):
        exact = math.exp(acceptance.barker().log_accept(ratio))
        # 6 standard deviations.
        assert abs(found.mean() / STEPS - exact) < 3 / math.sqrt(TRIALS * STEPS)
