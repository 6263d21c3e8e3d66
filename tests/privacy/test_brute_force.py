"""No accountant claims less than what an adversary who fixes log ratios can attain.

Every step has the log ratio l on one data set and l + D on the other. Then accept bits
of a kind are as good as their number, which is binomial, and delta(epsilon) is a sum
over these numbers. A Gaussian release beside them turns each term into a closed form.
The adversary may do better, so the claim may be larger, never smaller. 5,000 claims.
"""

import numpy as np
import pytest
from scipy import special, stats

from dpjax import acceptance, privacy
from dpjax.privacy import composition
from dpjax.privacy.events import check_events

pytestmark = pytest.mark.thorough
NUM_CLAIMS = 5000
EPSILONS = 10


def accepts(event, log_ratio):
    """Chance that a bit accepts, by the definition of its family."""
    s, c = event.acceptance.noise_sd, event.acceptance.laziness
    if event.acceptance.family == "barker":
        return c * special.expit(log_ratio)
    if event.acceptance.family == "metropolis":
        return c * min(1.0, np.exp(log_ratio))
    upper = np.exp(log_ratio + special.log_ndtr(-log_ratio / s - s / 2))
    return c * (special.ndtr(log_ratio / s - s / 2) + upper)


def chances(event, log_ratio, shift):
    """Of accepting, on both data sets; on a batch the rest of it is as on the first."""
    if isinstance(event, privacy.FixedBatch):
        q = event.batch_size / event.num_records
        p, other = chances(event.event, log_ratio, shift)
        return p, (1 - q) * p + q * other
    return accepts(event, log_ratio), accepts(event, log_ratio + shift)


def attained(bits, mu, epsilons, rng):
    """delta(epsilon), ``(k,)``, of bits at random log ratios and a shift of mu."""
    log_p, log_q = np.zeros(1), np.zeros(1)
    for event, count in bits:
        inner = getattr(event, "event", event)
        shift = inner.sensitivity * rng.choice([-1, 1])
        p, q = chances(event, rng.normal(scale=2), shift)
        numbers = np.arange(count + 1)
        with np.errstate(divide="ignore"):
            of_p, of_q = (stats.binom.logpmf(numbers, count, x) for x in (p, q))
        log_p = np.add.outer(log_p, of_p).ravel()
        log_q = np.add.outer(log_q, of_q).ravel()
    p, q = np.exp(log_p)[:, None], np.exp(log_q)[:, None]
    if mu == 0:
        return np.sum((p - np.exp(epsilons) * q).clip(0), axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        left = epsilons - (np.log(p) - np.log(q))
        terms = p * special.ndtr(mu / 2 - left / mu) - np.exp(epsilons) * q * (
            special.ndtr(-mu / 2 - left / mu)
        )
    return np.nansum(np.where(p > 0, terms, 0.0), axis=0)


def random_bit(rng):
    laziness = float(rng.choice([1.0, 10 ** rng.uniform(-3, 0)]))
    family = rng.choice(["barker", "penalty", "metropolis"], p=[0.5, 0.4, 0.1])
    accept = {
        "barker": lambda: acceptance.barker(laziness),
        "penalty": lambda: acceptance.penalty(10 ** rng.uniform(-1, 1), laziness),
        "metropolis": acceptance.metropolis,
    }[family]()
    bit = privacy.AcceptBit(accept, float(10 ** rng.uniform(-2.5, 0.5)))
    if rng.random() < 0.3:
        num_records = int(rng.integers(2, 200))
        return privacy.FixedBatch(
            bit, int(rng.integers(1, num_records + 1)), num_records
        )
    return bit


def random_events(rng):
    """One or two kinds of bits, and often a Gaussian release, with its mu."""
    bits = [
        (random_bit(rng), int(rng.integers(1, 60))) for _ in range(rng.integers(1, 3))
    ]
    mu = float(rng.choice([0.0, 10 ** rng.uniform(-1, 0.5)]))
    return bits, mu


@pytest.mark.parametrize("part", range(4))
def test_claims_are_no_less_than_what_is_attained(part):
    rng = np.random.default_rng(part)
    num_claims = 0
    while num_claims < NUM_CLAIMS / 4:
        bits, mu = random_events(rng)
        events = check_events(
            bits + ([(privacy.GaussianRelease(1 / mu), 1)] if mu else [])
        )
        epsilons = np.sort(rng.uniform(0, 6, EPSILONS) * rng.uniform(0.02, 1))
        least = np.max([attained(bits, mu, epsilons, rng) for _ in range(8)], axis=0)
        for name, bound in composition.bounds(events, "best"):
            claims = np.array([bound.delta(epsilon) for epsilon in epsilons])
            assert np.all(claims >= least * (1 - 1e-9) - 1e-13), (
                name,
                events,
                epsilons,
            )
            num_claims += EPSILONS
