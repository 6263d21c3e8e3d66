"""The bit of a secret batch: every law of a batch by enumeration, and what it saves."""

import itertools

import numpy as np
import pytest
from scipy import special, stats

from dpjax import acceptance, privacy
from dpjax.privacy import composition
from dpjax.privacy.bits import batch_renyi, renyi_cells
from dpjax.privacy.gaussian import conversions, subsampling

ORDERS = np.array([1.05, 1.5, 2.0, 8.0, 63.0, 512.0])
CLIP = 0.99
OFFSETS = np.linspace(-12, 12, 97)
"""Log prior ratios, nats."""


def renyi(first, second):
    """Divergences of bits ``(2, m)``, the larger of both orders, ``(orders, m)``."""
    found = []
    for log_p, log_q in itertools.permutations([np.log(first), np.log(second)]):
        for order in ORDERS:
            terms = order * log_p + (1 - order) * log_q
            found.append(special.logsumexp(terms, axis=0) / (order - 1))
    return np.array(found).reshape(2, ORDERS.size, -1).max(axis=0)


def barker_test(mean, mean_square, batch_size):
    """Chances of both outcomes at every offset, ``(..., 2, m)``, of records <= CLIP."""
    variance = mean_square - mean**2
    ratio = np.sqrt(batch_size) * mean[..., None] + OFFSETS
    points, chances = acceptance.TEST_CORRECTION
    noise = np.sqrt(2 - variance)[..., None, None]
    cut = (ratio[..., None] + points) / noise
    return np.stack([special.ndtr(cut) @ chances, special.ndtr(-cut) @ chances], -2)


def of_counts(chance_fn, size, num_records, plus):
    """Laws of the bit on two data sets whose other records are +1, `plus`, or -1.

    `chance_fn` maps how many of a batch are +1 to chances, ``(counts, 2, m)``.
    """
    share = size / num_records
    others = num_records - 1
    absent = stats.hypergeom.pmf(np.arange(size + 1), others, plus, size)
    present = stats.hypergeom.pmf(np.arange(size), others, plus, size - 1)
    chances = chance_fn(np.arange(size + 1))
    left = (1 - share) * np.tensordot(absent, chances, 1)
    return [
        left + share * np.tensordot(present, chances[k : size + k], 1) for k in (0, 1)
    ]


def excess(event, pairs):
    """Largest divergence of the pairs over the bound, ``(orders,)``."""
    worst = np.max([renyi(*pair).max(axis=1) for pair in pairs], axis=0)
    return worst / batch_renyi.rdp(event, ORDERS)


@pytest.mark.parametrize(("size", "num_records"), [(20, 40), (200, 400), (1000, 10**5)])
def test_barker_tests_by_hypergeometric_counts(size, num_records):
    def chance(count):
        mean = CLIP * (2 * count / size - 1)
        return barker_test(mean, np.full(mean.shape, CLIP**2), size)

    shares = np.linspace(0, 1, 13) if size < 1000 else [0.3, 0.5]
    plus = [round(share * (num_records - 1)) for share in shares]
    pairs = [of_counts(chance, size, num_records, count) for count in plus]
    event = privacy.FixedBatch(privacy.BarkerTest(size), size, num_records)
    found = excess(event, pairs)
    assert np.all(found <= 1 + 1e-9)
    # The bound takes the worst rest of a batch, and the rest of these batches varies.
    assert size < 200 or found[1] > 0.5


def test_barker_tests_by_all_batches():
    rng = np.random.default_rng(5)
    size, num_records = 5, 9
    batches = np.array(list(itertools.combinations(range(num_records), size)))
    pairs = []
    for _ in range(40):
        records = CLIP * np.clip(2 * rng.standard_normal((2, num_records)), -1, 1)
        records[1, 1:] = records[0, 1:]
        drawn = records[:, batches]
        chances = barker_test(drawn.mean(-1), (drawn**2).mean(-1), size)
        pairs.append(chances.mean(axis=1))
    event = privacy.FixedBatch(privacy.BarkerTest(size), size, num_records)
    assert np.all(excess(event, pairs) <= 1 + 1e-9)


BITS = [
    acceptance.barker(),
    acceptance.barker(0.3),
    acceptance.penalty(1.5),
    acceptance.penalty(0.6, 0.4),
]


@pytest.mark.parametrize("accept", BITS)
@pytest.mark.parametrize(("size", "num_records"), [(1, 2), (3, 50), (40, 60)])
@pytest.mark.parametrize("sensitivity", [0.05, 1.0])
def test_accept_bits_by_hypergeometric_counts(accept, size, num_records, sensitivity):
    def chance(count):
        ratio = sensitivity * (count - size / 2)[:, None] + OFFSETS
        c, a, b = accept.laziness, accept.log_accept(ratio), accept.log_reject(ratio)
        return np.stack([c * np.exp(a), (1 - c) + c * np.exp(b)], 1)

    bit = privacy.AcceptBit(accept, sensitivity)
    pairs = [
        of_counts(chance, size, num_records, count)
        for count in range(0, num_records, max(1, num_records // 12))
    ]
    found = excess(privacy.FixedBatch(bit, size, num_records), pairs)
    assert np.all(found <= 1 + 1e-9)
    if sensitivity < 1:
        assert found[1] > 0.95


@pytest.mark.parametrize("mutant", ["half the share", "half the spread"])
def test_the_enumeration_catches_mutants(mutant, monkeypatch):
    gap = renyi_cells.batch_gap

    def smaller(share, rise, fall):
        if mutant == "half the share":
            return gap(share / 2, rise, fall)
        return gap(share, rise / 2, fall / 2)

    monkeypatch.setattr(batch_renyi, "batch_gap", smaller)
    with pytest.raises(AssertionError):
        test_accept_bits_by_hypergeometric_counts(BITS[0], 3, 50, 0.05)
    with pytest.raises(AssertionError):
        test_barker_tests_by_hypergeometric_counts(200, 400)


@pytest.mark.parametrize(
    ("event", "steps", "before"),
    [
        (privacy.BarkerTest(1000), 260_000, 3640),
        (privacy.BarkerTest(10_000), 26_000, 120),
        (privacy.AcceptBit(acceptance.penalty(2.0), 1.0), 3100, 1425),
    ],
)
def test_a_batch_of_bits_allows_many_steps(event, steps, before):
    """n = 1e5, epsilon = 1, delta = 1e-6; and those of the amplified release."""
    size = getattr(event, "batch_size", 1000)
    batch = privacy.FixedBatch(event, size, 10**5)
    found = privacy.max_steps([(batch, 1)], epsilon=1.0, delta=1e-6)
    assert steps < found < 1.05 * steps
    assert found > 2 * before


def test_the_bound_is_tight_at_high_orders():
    """An order alone or among others, where q D is small and order times D is not."""
    orders = np.array([8.0, 128.0, 813.0])
    for event in (
        privacy.FixedBatch(privacy.AcceptBit(acceptance.barker(), 0.1), 100, 10**5),
        privacy.FixedBatch(privacy.AcceptBit(acceptance.barker(0.5), 0.1), 100, 10**5),
        privacy.FixedBatch(privacy.AcceptBit(acceptance.penalty(2.0), 0.2), 10, 10**5),
        privacy.FixedBatch(privacy.BarkerTest(1000), 1000, 10**5),
    ):
        allowed = orders[:2] if isinstance(event.event, privacy.BarkerTest) else orders
        alone = [batch_renyi.rdp(event, [order])[0] for order in allowed]
        np.testing.assert_allclose(batch_renyi.rdp(event, allowed), alone, rtol=1e-3)
        # Small divergences are in proportion to the order.
        assert np.all(alone / allowed <= 1.05 * alone[0] / allowed[0])


def test_the_smaller_of_two_bounds_is_charged():
    """The bit's bound is infinite where the batch is too small for the order."""
    orders = conversions.ORDERS
    for size in (4, 100, 10**4):
        test = privacy.BarkerTest(size)
        batch = privacy.FixedBatch(test, size, 10**5)
        charged = composition.renyi_curve(batch, orders)
        alone = batch_renyi.rdp(batch, orders)
        amplified = subsampling.fixed_batch_rdp(
            lambda orders, size=size: subsampling.barker_test_rdp(size, orders),
            size / 10**5,
            orders,
        )
        np.testing.assert_array_equal(charged, np.minimum(alone, amplified))
    assert np.isinf(batch_renyi.rdp(batch, [1e6])).all()
    metropolis = privacy.AcceptBit(acceptance.metropolis(), 0.1)
    assert np.isinf(batch_renyi.rdp(privacy.FixedBatch(metropolis, 1, 9), ORDERS)).all()
