"""A record that is not finite changes nothing; claims about added ones are refused."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dpjax
from dpjax import fisher
from dpjax.ep import sites
from dpjax.ep.gaussians import Diagonal
from dpjax.models.probit import probit_regression
from dpjax.privacy import NeighboringRelation as Relation
from dpjax.release import gaussian
from dpjax.release.exact_sums import VECTOR_GRID
from tests.release import test_taint
from tests.tiers import tiered

NOMINAL = 60
DATA = np.random.default_rng(0).normal(size=(65, 2)).astype(np.float32)
LABELS = np.ones(65, np.float32)
PUBLISHED = dict(
    optimizer=optax.sgd(0.01),
    guide=dpjax.guides.MeanField(2),
    l2_clip_norm=1.0,
    noise_multiplier=1.0,
    aligned=False,
    published=True,
)
SEP = dict(
    match=sites.probit, family=Diagonal((2,)), l2_clip_norm=0.1, noise_multiplier=1.0
)
KERNELS = test_taint.KERNELS | {
    "dpvi, published": (dpjax.dpvi, PUBLISHED),
    "dp_sep, recentred": (
        dpjax.dp_sep,
        dict(SEP, recentre=True, preconditioner=0.3, least_precision=2.0),
    ),
}
WITH_NOMINAL = [
    "sgld", "sghmc", "sgnht", "dpvi, published", "dp_sep", "dp_sep, recentred", "dp_em",
]  # fmt: skip
REFUSED = ("minibatch", "fast_mh", "tuna", "dp_sep_published")


def neighbours(name, extra):
    """Posteriors of 64 records and of the same with one more."""
    records = DATA.copy()
    records[-1] = extra

    def posterior(size):
        if "sep" in name:
            return probit_regression(
                jnp.asarray(records[:size]), jnp.asarray(LABELS[:size])
            )
        return dpjax.Posterior(
            test_taint.logprior, test_taint.loglikelihood, jnp.asarray(records[:size])
        )

    return posterior(64), posterior(65)


def start(name):
    rng = np.random.default_rng(1)
    return jnp.asarray(rng.normal(size=(3, 2) if name == "dp_em" else 2), jnp.float32)


def kernel(name, **changes):
    """The kernel on all records: a sample's words are laid out by their number."""
    function, options = KERNELS[name]
    options = dict(options)
    if "sampling_prob" in options:
        options["sampling_prob"] = 1.0
    return functools.partial(function, **options | changes)


def public(algorithm, position, num_steps=3):
    """All that a run shows: cost, states, infos and fitted draws, at fixed words."""
    state, states = algorithm.init(position), []
    transition = algorithm.transition
    memory = transition.recall(state)
    for i in range(num_steps):
        words = jax.random.bits(
            jax.random.key(i), (transition.num_words(state),), jnp.uint32
        )
        state, info, memory = transition.move(words, state, memory)
        states.append((state, info, transition.stay(state)))
    draws = None
    if algorithm.sample is not None:
        draws = algorithm.sample(jax.random.key(0), info.parameters, 5)
    return states, draws, transition.laziness, transition.num_warmup


def same(one, other):
    leaves, others = jax.tree.leaves(one), jax.tree.leaves(other)
    return len(leaves) == len(others) and all(map(np.array_equal, leaves, others))


@pytest.mark.parametrize("name", KERNELS)
def test_claims_about_another_number_of_records_are_refused(name):
    """XLA may round what it computes from a record otherwise if there is one more."""
    algorithm = kernel(name)(neighbours(name, 0.0)[0])
    assert algorithm.privacy(1, Relation.REPLACE_ONE)
    with pytest.raises(ValueError, match="REPLACE_ONE"):
        algorithm.privacy(1, Relation.ADD_OR_REMOVE_ONE)
    if not name.startswith(REFUSED):
        assert algorithm.privacy(1, Relation.REPLACE_SPECIAL)


@pytest.mark.parametrize(
    "name",
    tiered(
        [name for name in KERNELS if not name.startswith(REFUSED)],
        ["barker"],
    ),
)
def test_a_record_without_effect_changes_nothing(name):
    """The contribution of a record that is not finite is zero."""
    changes = dict(nominal_num_records=NOMINAL) if name in WITH_NOMINAL else {}
    few, more = map(kernel(name, **changes), neighbours(name, np.nan))
    relation = Relation.REPLACE_SPECIAL
    assert few.privacy(7, relation) == more.privacy(7, relation)
    position = start(name)
    assert same(public(few, position), public(more, position))


@pytest.mark.parametrize("name", tiered(WITH_NOMINAL, ["sgld"]))
def test_under_substitution_the_number_is_that_of_the_records(name):
    posterior, _ = neighbours(name, 0.0)
    position = start(name)
    plain, given, guessed = (
        kernel(name, **changes)(posterior)
        for changes in (
            {},
            dict(nominal_num_records=64),
            dict(nominal_num_records=NOMINAL),
        )
    )
    assert plain.privacy(7) == given.privacy(7)
    assert same(public(plain, position), public(given, position))
    assert not same(public(plain, position), public(guessed, position))
    for wrong in (0, 1.5, -3):
        with pytest.raises(ValueError, match="nominal_num_records"):
            kernel(name, nominal_num_records=wrong)(posterior)


@pytest.mark.parametrize("name", tiered(WITH_NOMINAL, ["sgld"]))
def test_an_added_record_moves_a_sum_by_one_clip_norm_at_most(name, monkeypatch):
    sums = []

    def kept(words, integers, *rest):
        sums.append(np.asarray(integers))
        return add_noise(words, integers, *rest)

    add_noise = gaussian.add_noise
    monkeypatch.setattr(gaussian, "add_noise", kept)
    largest = 0.0
    for extra in (1e6, [-1e6, 3.0], [0.1, -0.2]):
        posteriors = neighbours(name, extra)
        few, more = (
            kernel(name, nominal_num_records=NOMINAL)(one) for one in posteriors
        )
        state = few.init(start(name))
        for i in range(3):
            words = jax.random.bits(
                jax.random.key(i), (few.transition.num_words(state),), jnp.uint32
            )
            more.transition.move(words, state, None)
            state, _, _ = few.transition.move(words, state, None)
            more_sum, few_sum = sums[-2:]
            largest = max(largest, np.linalg.norm(more_sum - few_sum) / VECTOR_GRID)
    assert 0.1 < largest <= 1.0


def test_a_metric_may_be_of_a_nominal_number():
    def simulate(rng_key, position):
        return position + jax.random.normal(rng_key, (2,))

    few, more = (
        fisher.fisher_information(one, simulate, nominal_num_records=NOMINAL)
        for one in neighbours("barker", 0.0)
    )
    position = start("barker")
    np.testing.assert_array_equal(few(position), more(position))
    own = fisher.fisher_information(neighbours("barker", 0.0)[0], simulate)
    np.testing.assert_allclose(own(position) / few(position), 64 / NOMINAL, rtol=1e-5)
