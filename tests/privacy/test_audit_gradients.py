"""Attacks on sums with noise: they tell no more than the accountant says.

The adversary's score is the log likelihood ratio of a release, as far as it can be read
from what a step leaves.
"""

import dataclasses
import functools
import importlib
import math

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dpjax
from dpjax.comparisons.dp_sep_published import dp_sep_published
from dpjax.comparisons.sgld_claims import li_theorem_4
from dpjax.ep.gaussians import Diagonal, Full
from dpjax.privacy import NeighboringRelation
from dpjax.random import batches, chacha
from dpjax.release import exact_sums, gaussian, vector_sums
from tests.attacks import (
    DELTA,
    Attack,
    check,
    claimed,
    data_sets,
    flat,
    found,
    linear,
)

sgld = importlib.import_module("dpjax.sgmcmc.sgld")

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("quickly_compiled")]
CLIP = 2.0
DIM = 2
"""Components of positions, of whose gradients the norm is clipped, not each."""


def ratio(number, sd, sampling_prob=1.0):
    """Log likelihood ratio of a signal of 1 or -1, if it is sampled, in noise."""
    up, down = (number - 0.5) / sd**2, (-number - 0.5) / sd**2
    if sampling_prob == 1:
        return up - down
    out, inside = math.log1p(-sampling_prob), math.log(sampling_prob)
    return jnp.logaddexp(out, inside + up) - jnp.logaddexp(out, inside + down)


def along(vector):
    """Its component in the direction in which all gradients point."""
    return jnp.sum(vector) / DIM**0.5


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
    return Attack(
        kernel,
        *data or data_sets(0.0),
        score,
        told,
        position=np.zeros(DIM),
        num_steps=num_steps,
    )


def langevin(kernel, law, **settings):
    """Attack on positions, which move by eta G / N; two records."""
    noise_multiplier, chance = law
    # The noise that friction asks for is the law's.
    friction = settings.get("friction", 1.0)
    step_size = 4 * friction * (chance / CLIP / noise_multiplier) ** 2

    def read(state, info):
        return along(state.position) * 2 / step_size

    return sums(kernel, law, read, step_size=step_size, dim=DIM, **settings)


def variational(law, data=None, num_steps=2, weight=1.0, **settings):
    return sums(
        dpjax.dpvi,
        law,
        lambda state, info: weight * along(info.gradient["location"]),
        data,
        num_steps,
        optimizer=optax.sgd(0.1),
        guide=dpjax.guides.MeanField(DIM, init_scale=0.01),
        noise_multiplier=law[0],
        **settings,
    )


PLAIN = dict(
    aligned=False,
    published=True,
    preconditioner={"location": 3.0, "rho": 1.0},
    weight=3.0,
)


def narrow(position):
    return -50.0 * jnp.sum(position**2)


def site(record, mean, covariance):
    """Says how much of the linear parameter a record asks for."""
    return record * jnp.ones_like(mean), jnp.zeros_like(covariance)


SITES = dict(match=site, family=Diagonal((DIM,)))
SEP = sums(
    dpjax.dp_sep,
    WHOLE,
    # Its first step has the size 1/2.
    lambda state, info: 4.0 * along(info.parameters[:DIM]) / 0.5,
    data_sets(0.0, prior=narrow),
    noise_multiplier=WHOLE[0],
    preconditioner=np.array([4.0, 4.0, 1.0, 1.0]),
    **SITES,
)
# A state has the noise of two sites, one of them the other record's.
SEP_PUBLISHED = Attack(
    functools.partial(
        dp_sep_published, l2_clip_norm=CLIP, noise_multiplier=2.0, damping=0.1, **SITES
    ),
    *data_sets(0.0, prior=narrow),
    lambda state, info: ratio(along(info.parameters[:DIM]) / 0.05 / CLIP, 8**0.5),
    dict(l2_clip_norm=CLIP / 3, noise_multiplier=6.0),
    position=np.zeros(DIM),
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


# No record's statistics are the opposite of another's: at most they are sqrt 6 apart,
# and 2 sqrt 3 is charged.
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
            noise_multiplier=noise_multiplier,
            sampling_prob=chance,
            **settings,
        ),
        *data_sets(0.0, prior=pull),
        lambda state, info: ratio(
            along(state.position) * chance / (2 * CLIP * 100.0**2),
            noise_multiplier / 2**0.5,
        ),
        dict(l2_clip_norm=CLIP / 3, noise_multiplier=3 * noise_multiplier),
        position=np.zeros(DIM),
        share=0.35,
    )


ATTACKS = {
    "sgld, sampled": langevin(dpjax.sgld, SAMPLED),
    "sghmc": langevin(dpjax.sghmc, WHOLE, friction=0.5),
    "sgnht, sampled": langevin(dpjax.sgnht, SAMPLED, friction=0.5),
    "dpvi": variational(WHOLE),
    "dpvi, plain, sampled": variational(SAMPLED, **PLAIN),
    "dp_sep": SEP,
    "dp_sep_published": SEP_PUBLISHED,
    "dp_em": EM,
    "hmc": hamiltonian((4.0, 1.0)),
    "hmc, sampled": hamiltonian((2.0, 0.5)),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_claims_survive(name):
    check(ATTACKS[name])


def test_a_small_sample_of_many_records():
    """Drawn as a number of records and a batch, not by a coin for every record."""
    num_records, chance = 320, 1 / 64
    assert batches.num_poisson_words(chance, num_records) > 8
    data = data_sets(*np.zeros(num_records - 1))
    check(variational((0.25, chance), data)._replace(share=0.2))


@pytest.mark.parametrize("name", ["sgld, sampled", "hmc"])
def test_claims_of_adding_a_record_survive(name):
    """A record of zeros is as good as none: it adds nothing, and N is public."""
    attack = ATTACKS[name]
    if name.startswith("sgld"):
        size = attack.low.num_records
        kernel = functools.partial(attack.kernel, nominal_num_records=size)
        attack = attack._replace(kernel=kernel)
    low = dataclasses.replace(attack.low, data=0 * attack.low.data)
    bound = found(attack._replace(low=low))
    claim = claimed(attack, NeighboringRelation.REPLACE_SPECIAL)
    assert 0.3 * claim < bound <= claim


def quiet(words, integers, unit, noise_multiplier, release=gaussian.add_noise):
    return release(words, integers, unit, noise_multiplier / 3)


def loose(vectors, kept, l2_clip_norm, *rest, clip=exact_sums.clip_to_grid):
    return [3 * cells for cells in clip(vectors, kept, 3 * l2_clip_norm, *rest)]


def everybody(key, start, count):
    return jnp.zeros(count, jnp.uint32)


@pytest.mark.parametrize(
    ("name", "module", "function", "wrong"),
    [
        ("hmc", gaussian, "add_noise", quiet),
        ("dpvi", vector_sums, "clip_to_grid", loose),
        ("sgnht, sampled", chacha, "expand", everybody),
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
        functools.partial(dpjax.sgld, temperature=0.5),
        (chance / CLIP * (2 / step_size) ** 0.5, chance),
        lambda state, info: along(info.gradient),
        num_steps=num_steps,
        step_size=step_size,
        dim=DIM,
    )
    assert 2 * epsilon < found(attack) <= claimed(attack)
