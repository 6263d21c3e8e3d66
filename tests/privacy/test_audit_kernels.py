"""Attacks on every kernel: what it releases tells no more than its accountant says.

The data sets differ in one record, whose gradient, log ratio or site is far longer than
its clip bound and points the other way; what the others hold is known. The adversary's
score is the log likelihood ratio of a release or, of accept bits, their number, so that
the bounds are a good share of the claims. All have a significance of 1e-7, the chance
that an honest claim fails.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest

import dpjax
import dpjax.numpyro
from dpjax import (
    cipher,
    exact_sums,
    gradient_queries,
    minibatch,
    noise,
    privacy,
    proposals,
)
from dpjax.ep.dp_sep_published import dp_sep_published
from dpjax.ep.natural import Diagonal, Full
from dpjax.numpyro.curvature import curvature
from dpjax.privacy import NeighboringRelation, audit
from dpjax.privacy.published import li_theorem_4
from dpjax.sgmcmc import sgld

SIGNIFICANCE = 1e-7
DELTA = 1e-2
TRIALS = 20_000
FAR = 1e6
CLIP = 2.0
SCORES = np.linspace(-4, 4, 33)
"""Thresholds, in nats."""


@pytest.fixture(autouse=True, scope="module")
def quickly_compiled():
    """These programs take longer to optimise than to run."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


class Attack(NamedTuple):
    """A kernel, two data sets, and the score of a step.

    told
        Settings with the same noise and a third of the sensitivity: what an accountant
        hears whose kernel clips at three times what it says.
    share
        Of the claim, that the attack finds at least.
    """

    kernel: Callable
    low: Any
    high: Any
    score: Callable
    told: dict
    position: Any = np.zeros(1)
    num_steps: int = 2
    thresholds: Any = SCORES
    share: float = 0.45


def bound_of(counts):
    return audit.epsilon_lower_bound(*counts, DELTA, significance=SIGNIFICANCE)


def found(attack):
    """The bound on epsilon."""
    keys = jax.random.split(jax.random.key(7))
    scores = [
        audit.scores(
            key,
            attack.kernel,
            data,
            jax.tree.map(jnp.asarray, attack.position),
            attack.score,
            num_trials=TRIALS,
            num_steps=attack.num_steps,
        )
        for key, data in zip(keys, (attack.low, attack.high), strict=True)
    ]
    return bound_of([np.digitize(each, attack.thresholds) for each in scores])


def claimed(attack, relation=NeighboringRelation.REPLACE_ONE, **changes):
    kernel = functools.partial(attack.kernel, **changes)(attack.low)
    return privacy.epsilon(kernel.privacy(attack.num_steps, relation), DELTA)


def check(attack):
    bound, claim = found(attack), claimed(attack)
    assert attack.share * claim < bound <= claim
    if attack.told:
        assert bound > claimed(attack, **attack.told)


def flat(position):
    return 0.0 * jnp.sum(position)


def linear(position, record):
    return jnp.sum(position) * record


def data_sets(*others, loglikelihood=linear, prior=flat):
    """Posteriors whose first records are -FAR and FAR."""
    return [
        dpjax.Posterior(
            prior, loglikelihood, jnp.asarray([first, *others], jnp.float32)
        )
        for first in (-FAR, FAR)
    ]


def ratio(number, sd, sampling_prob=1.0):
    """Log likelihood ratio of a signal of 1 or -1, if it is sampled, in noise."""
    up, down = (number - 0.5) / sd**2, (-number - 0.5) / sd**2
    if sampling_prob == 1:
        return up - down
    out, inside = math.log1p(-sampling_prob), math.log(sampling_prob)
    return jnp.logaddexp(out, inside + up) - jnp.logaddexp(out, inside + down)


WHOLE, SAMPLED = (2.0, 1.0), (1.0, 0.25)
"""Noise of a sum of clipped vectors, in clip norms, and the chance of a record."""


def sums(kernel, law, read, data=None, num_steps=2, **settings):
    """Attack on noisy sums of clipped vectors, which `read` finds over the chance."""
    noise_multiplier, chance = law
    told = dict(l2_clip_norm=CLIP / 3)
    if "noise_multiplier" in settings:
        told["noise_multiplier"] = 3 * noise_multiplier
    settings |= dict(l2_clip_norm=CLIP, sampling_prob=chance)

    def score(state, info):
        return ratio(read(state, info) * chance / CLIP, noise_multiplier, chance)

    kernel = functools.partial(kernel, **settings)
    return Attack(kernel, *data or data_sets(0.0), score, told, num_steps=num_steps)


def langevin(kernel, law, **settings):
    """Attack on positions, which move by eta G / N; two records."""
    noise_multiplier, chance = law
    # The noise that friction asks for is the law's.
    friction = settings.get("friction", 1.0)
    step_size = 4 * friction * (chance / CLIP / noise_multiplier) ** 2

    def read(state, info):
        return state.position[0] * 2 / step_size

    return sums(kernel, law, read, step_size=step_size, dim=1, **settings)


def variational(law, data=None, num_steps=2, weight=1.0, **settings):
    return sums(
        dpjax.dpvi,
        law,
        lambda state, info: weight * info.gradient["location"][0],
        data,
        num_steps,
        optimizer=optax.sgd(0.1),
        guide=dpjax.guides.MeanField(1, init_scale=0.01),
        noise_multiplier=law[0],
        **settings,
    )


PLAIN = dict(
    aligned=False,
    published=True,
    preconditioner={"location": 3.0, "rho": 1.0},
    weight=3.0,
)


def prior_precision(position):
    return -50.0 * jnp.sum(position**2)


def site(record, mean, covariance):
    """Says how much of the linear parameter a record asks for."""
    return record * jnp.ones_like(mean), jnp.zeros_like(covariance)


SITES = dict(match=site, family=Diagonal((1,)))
SEP = sums(
    dpjax.dp_sep,
    SAMPLED,
    # Its first step has the size 1/2.
    lambda state, info: 4.0 * info.parameters[0] / 0.5,
    data_sets(0.0, prior=prior_precision),
    noise_multiplier=SAMPLED[0],
    preconditioner=np.array([4.0, 1.0]),
    **SITES,
)
# Of two sites with noise one is the other record's.
SEP_PUBLISHED = Attack(
    functools.partial(
        dp_sep_published, l2_clip_norm=CLIP, noise_multiplier=1.0, damping=0.1, **SITES
    ),
    *data_sets(0.0, prior=prior_precision),
    lambda state, info: ratio(info.parameters[0] / 0.05 / CLIP, 8**0.5),
    dict(l2_clip_norm=CLIP / 3, noise_multiplier=3.0),
    share=0.3,
)

HEAVY = 1000.0


def mixture_score(state, info):
    """Under a heavy prior the parameters are linear in the released statistics."""
    weights, means, covariances = info.parameters
    means, squares = means[:, 0], covariances[:, 0, 0]
    parts = means, squares + means**2, 2 * weights
    first, second, count = (HEAVY * part for part in parts)
    number = jnp.sum(first) + second[1] - second[0] + count[1] - count[0]
    return ratio(number / 3, 5**0.5)


# No statistic is the opposite of another: they are sqrt 6 apart, not 2 sqrt 3.
EM = Attack(
    functools.partial(
        dpjax.dp_em,
        family=Full((2, 1)),
        component_sd=0.25,
        record_norm=1.0,
        noise_multiplier=1.5,
        prior_strength=HEAVY,
    ),
    *(
        dpjax.Posterior(flat, linear, jnp.array([[first], [0.0]], jnp.float32))
        for first in (-1.0, 1.0)
    ),
    mixture_score,
    dict(noise_multiplier=4.5),
    position=np.array([[-1.0], [1.0]]),
    share=0.3,
)


def pull(position):
    """Accepts wherever the path goes; its gradient is zero."""
    return jnp.where(position[0] == 0, 0.0, 1e7)


def hamiltonian(law):
    """Attack on where long steps lead: to h^2 (G_1 + G_2); the third stays unseen."""
    noise_multiplier, chance = law
    settings = dict(num_integration_steps=2, step_size=100.0, clip_bound=1e-3)
    return Attack(
        functools.partial(
            dpjax.hmc,
            l2_clip_norm=CLIP,
            gradient_noise_multiplier=noise_multiplier / 2,
            sampling_prob=chance,
            **settings,
        ),
        *data_sets(0.0, prior=pull),
        lambda state, info: ratio(
            state.position[0] * chance / (2 * CLIP * 100.0**2),
            noise_multiplier / 2**0.5,
        ),
        dict(l2_clip_norm=CLIP / 3, gradient_noise_multiplier=1.5 * noise_multiplier),
        share=0.35,
    )


def elsewhere(position, record):
    """A log ratio wherever a proposal goes."""
    return jnp.where(position[0] == 0, 0.0, record)


def penalised(position):
    """Makes up for half the noise's variance, its sd being twice the distance."""
    return 2 * jnp.sum(jax.lax.stop_gradient(position) ** 2)


def lift(position):
    return jnp.where(position[0] == 0, 0.0, 18.0)


def bits(kernel, told, prior=flat, others=(0.0,), num_steps=4, share=0.3, **settings):
    """Attack on how many steps accept."""
    return Attack(
        functools.partial(kernel, step_size=1.0, **settings),
        *data_sets(*others, loglikelihood=elsewhere, prior=prior),
        lambda state, info: info.is_accepted,
        told,
        num_steps=num_steps,
        thresholds=np.arange(1, num_steps + 1),
        share=share,
    )


LENGTH = dict(clip_bound=dpjax.Lipschitz(1.0), noise_multiplier=1.0)
LENGTH_TOLD = dict(clip_bound=dpjax.Lipschitz(1 / 3), noise_multiplier=3.0)
# Gradients too small to matter.
SMALL = dict(
    num_integration_steps=1, l2_clip_norm=1e-6, gradient_noise_multiplier=100.0
)

ATTACKS = {
    "sgld, sampled": langevin(dpjax.sgld, SAMPLED),
    "sghmc": langevin(dpjax.sghmc, WHOLE, friction=0.5),
    "sgnht, sampled": langevin(dpjax.sgnht, SAMPLED, friction=0.5),
    "dpvi": variational(WHOLE),
    "dpvi, plain, sampled": variational(SAMPLED, **PLAIN),
    "dp_sep, sampled": SEP,
    "dp_sep_published": SEP_PUBLISHED,
    "dp_em": EM,
    "hmc": hamiltonian((4.0, 1.0)),
    "hmc, sampled": hamiltonian((2.0, 0.5)),
    "bit of hmc": bits(dpjax.hmc, dict(clip_bound=1 / 3), clip_bound=1.0, **SMALL),
    "penalty bit of hmc": bits(dpjax.hmc, LENGTH_TOLD, penalised, **LENGTH, **SMALL),
    "penalty, one component": bits(
        dpjax.penalty,
        LENGTH_TOLD,
        penalised,
        proposal=proposals.one_component,
        **LENGTH,
    ),
    "penalty, guided walk": bits(
        dpjax.penalty,
        LENGTH_TOLD,
        penalised,
        proposal=proposals.guided_walk,
        **LENGTH,
    ),
    "minibatch_penalty": bits(
        dpjax.minibatch_penalty,
        dict(clip_bound=1 / 3, noise_multiplier=4.5),
        lift,
        clip_bound=1.0,
        noise_multiplier=1.5,
        batch_size=1,
    ),
    # Charged by the Renyi divergence of a normal whose variance moves too, which half
    # of the records in the batch hardly lower: no attack on so few bits comes near.
    "minibatch_barker": bits(
        dpjax.minibatch_barker,
        {},
        others=(0.0,) * 7,
        share=0.03,
        batch_size=4,
    ),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_claims_survive(name):
    check(ATTACKS[name])


def test_a_small_sample_of_many_records():
    """Drawn as a number of records and a batch, not by a coin for every record."""
    num_records, chance = 320, 1 / 64
    assert minibatch.num_poisson_words(chance, num_records) > 8
    data = data_sets(*np.zeros(num_records - 1))
    check(variational((0.3, chance), data, num_steps=4)._replace(share=0.25))


def first_component(position, record):
    return position[0] * record[0]


def test_a_lazy_run():
    """Steps that a run draws ahead, and log-likelihoods that it remembers."""
    upwards = proposals.Proposal(
        init=lambda position: (),
        num_words=lambda dimension: 0,
        propose=lambda words, position, walk, step_size: proposals.Move(
            position + 1, 1.0, walk, walk
        ),
        longest=lambda step_size: 1.0,
    )
    kernel = functools.partial(
        dpjax.barker, step_size=1.0, clip_bound=1.0, laziness=0.5, proposal=upwards
    )
    counts, num_steps = [], 8
    for key, first in zip(
        jax.random.split(jax.random.key(7)), (-FAR, FAR), strict=True
    ):
        wide = jnp.zeros((2, 16), jnp.float32).at[0, 0].set(first)
        posterior = dpjax.Posterior(flat, first_component, wide)
        found = dpjax.run(
            key,
            kernel,
            posterior,
            num_steps,
            initial_position=jnp.zeros((TRIALS, 1)),
            num_chains=TRIALS,
            budget=None,
            warmup_fraction=0.0,
            verbose=False,
        )
        counts.append(found.positions[:, -1, 0].astype(int))
    claims = [
        privacy.epsilon(
            functools.partial(kernel, **told)(posterior).privacy(num_steps), DELTA
        )
        for told in ({}, dict(clip_bound=1 / 3))
    ]
    bound = bound_of(counts)
    assert max(0.45 * claims[0], claims[1]) < bound <= claims[0]


@pytest.fixture
def rank_promotion():
    with jax.numpy_rank_promotion("allow"):
        yield


def cauchy(x, y):
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    with numpyro.plate("records", len(y)):
        numpyro.sample("y", dist.Cauchy(x * slope, 1.0), obs=y)


def numpyro_attack(kernel, x, firsts, read):
    """Records are (x, 0), but for y of the first; their derivatives grow with x."""
    example = dict(x=np.linspace(-1, 1, 16), y=np.linspace(-1, 1, 16))
    data = [
        dict(x=jnp.asarray(x), y=jnp.zeros(x.size).at[0].set(first)) for first in firsts
    ]
    posterior = dpjax.numpyro.posterior(
        cauchy, data[0], plate="records", example=example
    )
    kernel = functools.partial(
        kernel,
        information_fn=lambda position: x.size * jnp.eye(1),
        noise_multiplier=2.0,
    )
    return Attack(
        kernel,
        *(dataclasses.replace(posterior, data=pair) for pair in data),
        lambda state, info: ratio(read(info), 2.0),
        dict(noise_multiplier=6.0),
        position={"slope": np.zeros(())},
    )


def test_scoring(rank_promotion):
    kernel = functools.partial(dpjax.numpyro.scoring, rate=0.5, largest_move=np.ones(1))
    clip_norm = 3 / 2**0.5
    x = np.array([FAR, 0.0], np.float32)
    check(
        numpyro_attack(
            kernel, x, (-1.0, 1.0), lambda info: info.gradient[0] / clip_norm
        )
    )


def test_curvature(rank_promotion):
    """The others' Hessians lift the matrix to where it is released as it is."""
    num_records = 20
    clip_norm = 6 / num_records
    others = clip_norm * (num_records - 1) + 1 / num_records
    x = np.full(num_records, 1000.0, np.float32)
    check(
        numpyro_attack(
            curvature,
            x,
            # The log density is convex there, and concave at zero.
            (1.7, 0.0),
            lambda info: (info.correction[0, 0] - others) / clip_norm,
        )
    )


@pytest.mark.parametrize("name", ["sgld, sampled", "hmc"])
def test_claims_of_adding_a_record_survive(name):
    """A record of zeros is as good as none: it adds nothing, and N is public."""
    attack = ATTACKS[name]
    low = dataclasses.replace(attack.low, data=0 * attack.low.data)
    bound = found(attack._replace(low=low))
    claim = claimed(attack, NeighboringRelation.ADD_OR_REMOVE_ONE)
    assert 0.3 * claim < bound <= claim


def quiet(words, integers, unit, noise_multiplier, release=noise.gaussian_release):
    return release(words, integers, unit, noise_multiplier / 3)


def loose(vectors, kept, l2_clip_norm, axis=0, clip=exact_sums.clip_to_grid):
    return [3 * cells for cells in clip(vectors, kept, 3 * l2_clip_norm, axis)]


def everybody(key, start, count):
    return jnp.zeros(count, jnp.uint32)


@pytest.mark.parametrize(
    ("name", "module", "function", "wrong"),
    [
        ("hmc", noise, "gaussian_release", quiet),
        ("dpvi", gradient_queries, "clip_to_grid", loose),
        ("sgnht, sampled", cipher, "expand", everybody),
    ],
)
def test_wrong_code_is_caught(monkeypatch, name, module, function, wrong):
    monkeypatch.setattr(module, function, wrong)
    attack = ATTACKS[name]
    # Another kernel to `jit`.
    attack = attack._replace(kernel=functools.partial(attack.kernel))
    assert found(attack) > claimed(attack)


def test_the_published_step_sizes_of_dp_sgld_are_refuted():
    """Theorem 4 of Li et al. 2019, where the conditions that it states hold."""
    num_steps, chance, epsilon = 4, 0.03, 1.0
    published = li_theorem_4(
        num_steps,
        num_records=2,
        sampling_prob=chance,
        l2_clip_norm=CLIP,
        epsilon=epsilon,
        delta=DELTA,
    )
    largest = 2 / CLIP**2
    step_size = published.step_size
    assert chance**2 * largest / 256 < step_size <= largest
    attack = sums(
        sgld.published,
        (chance / CLIP * (2 / step_size) ** 0.5, chance),
        lambda state, info: info.gradient[0],
        num_steps=num_steps,
        step_size=step_size,
        dim=1,
    )
    assert 3 * epsilon < found(attack) <= claimed(attack)
