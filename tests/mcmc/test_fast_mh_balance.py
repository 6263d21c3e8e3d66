"""Detailed balance of exact minibatch kernels, by enumeration of a toy."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import dpjax
from dpjax import acceptance
from dpjax.mcmc import poisson_step
from dpjax.posterior import Posterior
from dpjax.proposals import Move, Proposal
from dpjax.random import batches
from dpjax.release import accept_bit, clip_bounds, poisson_log_ratios
from dpjax.release.clip_bounds import Lipschitz, Range
from tests.tiers import tiered

# Three records and three states: numbers with which no log ratio is rounded.
LOGLIKELIHOODS = np.array(
    [[0.0, 0.25, -0.25], [0.125, -0.125, 0.625], [0.5, 0.25, 0.125]]
)
LOG_PRIOR = np.array([0.0, 0.5, -0.25])
DISTANCE = np.array([[0.0, 0.5, 0.5], [0.5, 0.0, 1.0], [0.5, 1.0, 0.0]])
CENTRE = np.array([[0.0, 0.125, 0.0625], [-0.125, 0.0, -0.25], [-0.0625, 0.25, 0.0]])
TEMPERING = 0.5
LAMBDA = 1.5
MOST = 18
COUNTS = np.array(list(itertools.product(range(MOST + 1), repeat=3)))
"""How often each record is counted. Rates are at most 1: more has chance 1e-17."""
PAIRS = list(itertools.permutations(range(3), 2))


def lookup(table, *positions):
    table = jnp.asarray(table, positions[0].dtype)
    return table[tuple(position.astype(int) for position in positions)]


def toy_range(position, proposed):
    """Holds every record's log ratio, about a centre that is not zero."""
    centre = lookup(CENTRE, position, proposed)
    half = lookup(DISTANCE, position, proposed)
    return centre - half, centre + half


def toy_proposal(longest):
    """A proposal that moves to either of the other states."""

    def propose(words, position, walk, step_size):
        proposed = jnp.mod(position + 1 + words[0].astype(position.dtype), 3)
        return Move(proposed, lookup(DISTANCE, position, proposed), walk, walk)

    return Proposal(
        lambda position: (), lambda dim: 1, propose, lambda step_size: longest
    )


TOY = dict(step_size=1.0, expected_batch_size=LAMBDA, proposal=toy_proposal(1.0))
# Proposals over more than 1 are rejected; bounds of half a nat read all records.
PUBLISHED = dict(
    TOY,
    step_size=1 / float(stats.chi(1).isf(poisson_step.BEYOND_REACH_PROB)),
    clip_bound=Lipschitz(1.0),
    max_batch_size=2.5,
    delta=0.9,
    proposal=toy_proposal(None),
)
TOYS = {
    "tuna": functools.partial(dpjax.tuna, clip_bound=Lipschitz(1.0), **TOY),
    "fast_mh": functools.partial(dpjax.fast_mh, clip_bound=Lipschitz(1.0), **TOY),
    "one bound": functools.partial(dpjax.fast_mh, clip_bound=1.0, **TOY),
    "centred": functools.partial(
        dpjax.fast_mh, clip_bound=Range(toy_range, 1.0), **TOY
    ),
    "centred tuna": functools.partial(
        dpjax.tuna, clip_bound=Range(toy_range, 1.0), **TOY
    ),
    "free": functools.partial(dpjax.fast_mh_published, epsilon=100.0, **PUBLISHED),
    "noisy": functools.partial(dpjax.fast_mh_published, epsilon=0.9, **PUBLISHED),
}


def toy_posterior():
    return Posterior(
        lambda position: lookup(LOG_PRIOR, position),
        lambda position, record: record[position.astype(int)],
        jnp.asarray(LOGLIKELIHOODS, jnp.result_type(float)),
        TEMPERING,
    )


@pytest.fixture
def enumerate_moves(monkeypatch):
    """``(algorithm_fn, chance_fn) -> {(old, new): (weights, chances, rates)}``.

    The kernel's own step, with its arrivals replaced by what they could be counted as:
    the chance to accept, the chance of the counts and their Poisson rates.
    """
    rates = []

    def arrivals(words, rate, num_records):
        rates.append(rate)
        ends = jnp.cumsum(words[:3])
        slots = jnp.arange(3 * MOST)
        number = jnp.searchsorted(ends, slots, side="right")
        indices = jnp.minimum(number, 2).astype(jnp.uint32)
        coins = jnp.zeros(slots.shape, jnp.uint32)
        return batches.Arrivals(indices, slots < ends[2], coins)

    def count_rates(clip_bound, old, new):
        position = jnp.asarray(old, jnp.result_type(float))
        word = jnp.asarray([(new - old - 1) % 3], jnp.uint32)
        move = TOY["proposal"].propose(word, position, (), None)
        rate, base_rate = rates[-1], LAMBDA / 3
        bound = clip_bounds.of(clip_bound, has_centre=True)
        centre, half = poisson_step.centre_and_half_range(
            toy_posterior(), bound, position, move, rate - base_rate
        )
        ratio = TEMPERING * (LOGLIKELIHOODS[:, new] - LOGLIKELIHOODS[:, old])
        with jax.enable_x64(True):
            threshold, _ = poisson_log_ratios.thinning(
                jnp.asarray(ratio) - centre, half, base_rate, rate
            )
        return rate * np.asarray(threshold) / 2**32

    def moves(algorithm_fn, chance_fn=acceptance.probability):
        def draw(words, family, log_ratio, noise_sd=0.0):
            with jax.enable_x64(True):
                return chance_fn(family, log_ratio, noise_sd)

        monkeypatch.setattr(batches, "arrivals", arrivals)
        monkeypatch.setattr(accept_bit, "draw", draw)

        @jax.jit
        @functools.partial(jax.vmap, in_axes=(0, None))
        def chance(words, position):
            algorithm = algorithm_fn(toy_posterior())
            state = algorithm.init(position)
            return algorithm.transition.move(words, state, None)[1].is_accepted

        found = {}
        for old, new in PAIRS:
            words = np.zeros((len(COUNTS), 3 + batches.ARRIVAL_WORDS), np.uint32)
            words[:, 2], words[:, 3:6] = (new - old - 1) % 3, COUNTS
            position = jnp.asarray(old, jnp.result_type(float))
            chances = np.asarray(chance(words, position))
            count_rate = count_rates(algorithm_fn.keywords["clip_bound"], old, new)
            weights = stats.poisson.pmf(COUNTS, count_rate).prod(1)
            found[old, new] = weights, chances, count_rate
        return found

    return moves


def imbalance(moves):
    """Largest difference of the flows there and back, over the larger one."""
    density = np.exp(LOG_PRIOR + TEMPERING * LOGLIKELIHOODS.sum(0))
    flow = {
        pair: density[pair[0]] * weights @ chances
        for pair, (weights, chances, *_) in moves.items()
    }
    return max(1 - flow[i, j] / flow[j, i] for i, j in PAIRS)


@pytest.mark.parametrize("name", tiered(TOYS, ["tuna", "fast_mh", "centred", "noisy"]))
def test_detailed_balance(enumerate_moves, name):
    moves = enumerate_moves(TOYS[name])
    for weights, chances, _ in moves.values():
        assert weights.sum() == pytest.approx(1, abs=1e-14)
        assert chances.dtype == np.float64 and np.ptp(chances) < 1
    assert imbalance(moves) < 1e-12


def test_bounds_of_the_toys_decide_as_intended(enumerate_moves):
    moves = enumerate_moves(TOYS["free"])
    for pair, (_, chances, _) in moves.items():
        assert (np.ptp(chances) == 0) == (DISTANCE[pair] == 1) and chances.max() > 0


def without_centre(estimate):
    """The centre enters the thinning, but not the ratio."""

    def mutant(posterior, drawn, rate, position, proposed, centre, *others):
        found = estimate(posterior, drawn, rate, position, proposed, centre, *others)
        with jax.enable_x64(True):
            return found - posterior.num_records * centre

    return mutant


def of_plain_sums(estimate):
    """Every count stands for the record's log ratio."""

    def mutant(posterior, drawn, rate, position, proposed, centre, half, base_rate):
        found = estimate(
            posterior, drawn, rate, position, proposed, centre, half, base_rate
        )
        with jax.enable_x64(True):
            return found * (base_rate + half) / base_rate

    return mutant


@pytest.mark.parametrize("mutate", [without_centre, of_plain_sums])
def test_mutants_are_out_of_balance(monkeypatch, enumerate_moves, mutate):
    estimate = poisson_log_ratios.poisson_log_ratio
    monkeypatch.setattr(poisson_log_ratios, "poisson_log_ratio", mutate(estimate))
    assert imbalance(enumerate_moves(TOYS["centred"])) > 0.01


@pytest.mark.parametrize("max_batch_size", [2, 3, 4])
def test_branching_on_the_size_drawn_as_printed_is_out_of_balance(
    enumerate_moves, max_batch_size
):
    density = LOG_PRIOR + TEMPERING * LOGLIKELIHOODS.sum(0)
    moves = enumerate_moves(TOYS["tuna"])
    for (old, new), (weights, chances, rates) in moves.items():
        drawn = LAMBDA + 3 * TEMPERING * DISTANCE[old, new]
        left_out = stats.poisson(drawn - rates.sum())
        is_small = left_out.cdf(max_batch_size - 1 - COUNTS.sum(1))
        whole = min(1.0, np.exp(density[new] - density[old]))
        chances = is_small * chances + (1 - is_small) * whole
        moves[old, new] = weights, chances
    assert 0.02 < imbalance(moves) < 0.2


def test_subtraction_without_noise_as_printed_is_out_of_balance(enumerate_moves):
    def chance(family, log_ratio, noise_sd):
        return acceptance.probability("metropolis", log_ratio - 11.7)

    assert 0.2 < imbalance(enumerate_moves(TOYS["tuna"], chance)) < 0.84
