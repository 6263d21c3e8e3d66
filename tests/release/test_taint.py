"""Records leave a run through releases only: every kernel, and mutants that leak."""

import collections
import concurrent.futures
import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.experimental.buffer_callback import buffer_callback

import dpjax
from dpjax import adaptation, proposals
from dpjax.algorithm import Sampler
from dpjax.ep import sites
from dpjax.ep.gaussians import Diagonal, Full
from dpjax.models.probit import probit_regression
from dpjax.release import accept_bit, gaussian, log_ratios, taint
from dpjax.release.gaussian_sum import GaussianSum
from dpjax.release.sealed import opened
from dpjax.runner.check import check_start
from dpjax.runner.program import (
    charged_releases,
    check_algorithm,
    initial,
    num_words_of,
    trace,
)
from tests.tiers import tiered

DATA = jnp.asarray(np.random.default_rng(0).normal(size=(64, 2)), jnp.float32)
POSITIONS = jnp.zeros((3, 2))


def logprior(position):
    return -0.5 * jnp.sum(position**2)


def loglikelihood(position, record):
    return -0.5 * jnp.sum((record - position) ** 2)


def mixture_loglikelihood(means, record):
    return jax.nn.logsumexp(jax.vmap(loglikelihood, (0, None))(means, record))


POSTERIOR = dpjax.Posterior(logprior, loglikelihood, DATA)
PROBIT = probit_regression(DATA, jnp.ones(64))

BIT = dict(step_size=0.1, clip_bound=0.1)
POISSON = dict(BIT, expected_batch_size=4.0)
CLIP = dict(l2_clip_norm=1.0, sampling_prob=0.5)
SGD = dict(CLIP, step_size=1e-3, dim=2)
HMC = dict(BIT, num_integration_steps=2, l2_clip_norm=1.0, noise_multiplier=18.0)
SEP = dict(match=sites.probit, family=Diagonal((2,)))
KERNELS = {
    "barker": (dpjax.barker, dict(BIT, laziness=0.5)),
    "penalty": (dpjax.penalty, dict(BIT, test_noise_multiplier=2.0)),
    "guided walk": (
        dpjax.penalty,
        dict(BIT, test_noise_multiplier=2.0, proposal=proposals.guided_walk),
    ),
    "adapted": (
        adaptation.adapted,
        dict(sampler=dpjax.barker, num_warmup=20, clip_bound=0.1),
    ),
    "hmc": (dpjax.hmc, HMC),
    "hmc, sampled": (
        dpjax.hmc,
        dict(HMC, sampling_prob=0.5, test_noise_multiplier=2.0),
    ),
    "minibatch_barker": (dpjax.minibatch_barker, dict(step_size=0.1, batch_size=16)),
    "minibatch_penalty": (
        dpjax.minibatch_penalty,
        dict(BIT, test_noise_multiplier=2.0, batch_size=16),
    ),
    "fast_mh": (dpjax.fast_mh, POISSON),
    "fast_mh_published": (
        dpjax.fast_mh_published,
        dict(POISSON, max_batch_size=40.0, epsilon=1.0, delta=1e-3),
    ),
    "tuna": (dpjax.tuna, POISSON),
    "sgld": (dpjax.sgld, SGD),
    "sghmc": (dpjax.sghmc, dict(SGD, friction=1.0, noise_multiplier=1.0)),
    "sgnht": (dpjax.sgnht, dict(SGD, friction=1.0, noise_multiplier=1.0)),
    "dpvi": (
        dpjax.dpvi,
        dict(
            CLIP,
            optimizer=optax.adam(0.1),
            guide=dpjax.guides.MeanField(2),
            noise_multiplier=1.0,
        ),
    ),
    "dp_sep": (dpjax.dp_sep, SEP | dict(CLIP, noise_multiplier=1.0)),
    "dp_sep_published": (
        dpjax.dp_sep_published,
        SEP | dict(l2_clip_norm=1.0, noise_multiplier=2.0),
    ),
    "dp_em": (
        dpjax.dp_em,
        dict(
            family=Full((3, 2)), component_sd=1.0, record_norm=2.0, noise_multiplier=1.0
        ),
    ),
}


def kernel(name):
    function, options = KERNELS[name]
    return functools.partial(function, **options)


def check(algorithm_fn, posterior=POSTERIOR, positions=POSITIONS):
    check_algorithm(algorithm_fn, posterior, positions)


@pytest.mark.parametrize("name", KERNELS)
def test_nothing_but_releases_leaves(name):
    posterior = PROBIT if "sep" in name else POSTERIOR
    positions = POSITIONS
    if name == "dp_em":
        posterior = dpjax.Posterior(logprior, mixture_loglikelihood, DATA)
        positions = jnp.zeros((3, 3, 2))
    algorithm = kernel(name)(posterior)
    check_start(kernel(name), algorithm, posterior, positions)
    chains, _ = initial(algorithm.transition, jax.vmap(algorithm.init)(positions))
    program = trace(
        kernel(name),
        posterior,
        chains,
        num_words_of(algorithm.transition, chains),
        chunk_size=1,
        is_private=True,
        num_releases=charged_releases(algorithm, algorithm.privacy(1)),
        outline_fn=lambda algorithm: algorithm.privacy(1),
    )
    assert program.outline == algorithm.privacy(1)


def test_every_kernel_is_checked():
    exported = {getattr(dpjax, name) for name in dpjax.__all__}
    samplers = {one for one in exported if isinstance(one, Sampler)}
    assert samplers <= {function for function, _ in KERNELS.values()}


@pytest.mark.parametrize(
    "name",
    tiered(KERNELS, ["barker", "hmc, sampled", "fast_mh", "sgld", "dpvi", "dp_sep"]),
)
def test_a_kernel_without_marks_is_refused(name, monkeypatch):
    jax.clear_caches()
    for module in (accept_bit, gaussian):
        monkeypatch.setattr(module, "released", lambda value: value)
    with pytest.raises(ValueError, match="by more than the kernel releases"):
        test_nothing_but_releases_leaves(name)
    jax.clear_caches()


def leaky(**changes):
    """Barker with parts of its transition replaced."""

    def algorithm_fn(posterior):
        algorithm = kernel("barker")(posterior)
        changed = {
            name: functools.partial(function, posterior, algorithm.transition)
            for name, function in changes.items()
        }
        transition = algorithm.transition._replace(**changed)
        return algorithm._replace(transition=transition)

    return algorithm_fn


def state_reads(posterior, inner, words, state, memory):
    state, info, memory = inner.move(words, state, memory)
    position = state.position + 1e-9 * opened(posterior)[0]
    return state._replace(position=position), info, memory


def bit_reads(posterior, inner, words, state, memory):
    state, info, memory = inner.move(words, state, memory)
    reads = jax.lax.cond(opened(posterior)[0, 0] > 0, lambda: True, lambda: False)
    return state, info._replace(is_accepted=info.is_accepted & reads), memory


def loop_reads(posterior, inner, words, state, memory):
    state, info, memory = inner.move(words, state, memory)
    last = jnp.sum(opened(posterior) > 0)
    count = jax.lax.while_loop(lambda i: i < last, lambda i: i + 1, 0)
    return state._replace(position=state.position * count), info, memory


def step_after_next(posterior, inner, words, state, memory):
    """What one step remembers, and only the next tells."""
    position = state.position + memory
    state, info, _ = inner.move(words, state, None)
    return state._replace(position=position), info, opened(posterior)[0]


def reads_nothing(posterior, inner, state):
    return jnp.zeros(2, posterior.data.dtype)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (dict(move=state_reads), "draws, state.position"),
        (dict(move=bit_reads), "bits"),
        (dict(move=loop_reads), "draws, state.position"),
        (dict(move=step_after_next, recall=reads_nothing), "draws, state.position"),
    ],
)
def test_leaks_are_named(changes, named):
    with pytest.raises(ValueError, match=f"^{named}"):
        check(leaky(**changes))


def centred_records(posterior):
    data = posterior.data - jnp.mean(posterior.data, axis=0, keepdims=True)
    return kernel("barker")(dataclasses.replace(posterior, data=data))


def twice(posterior):
    data = jnp.concatenate([posterior.data, posterior.data])
    return kernel("barker")(dataclasses.replace(posterior, data=data))


def proposal_ratio(posterior):
    def propose(*arguments):
        move = proposals.gaussian.propose(*arguments)
        return move._replace(log_ratio=jnp.mean(posterior.data * 30))

    changed = proposals.gaussian._replace(propose=propose)
    return kernel("barker")(posterior, proposal=changed)


def clip_range(posterior):
    def bounds(position, proposed):
        return jnp.sum(posterior.data[:2] - 0.1), jnp.sum(posterior.data[:2] + 0.1)

    return kernel("fast_mh")(posterior, clip_bound=dpjax.Range(bounds, 1.0))


@pytest.mark.parametrize(
    "algorithm_fn",
    [centred_records, twice, proposal_ratio, clip_range],
)
def test_a_function_that_makes_an_algorithm_reads_no_records(algorithm_fn):
    """Through releases, too, as what it makes of records is not bounded there."""
    with pytest.raises(TypeError, match="may not read the records"):
        check(algorithm_fn)


def warmed_up(posterior):
    inner = kernel("barker")(posterior)
    state, _ = inner.step(jax.random.key(0), inner.init(jnp.zeros(2)))
    return kernel("barker")(posterior, step_size=1.0 + jnp.sum(state.position**2))


def log_likelihoods_as_data(posterior):
    def first_of(position, record):
        return record[0]

    other = dataclasses.replace(posterior, loglikelihood_fn=first_of)
    inner = kernel("barker")(other)
    values = inner.transition.recall(inner.init(jnp.zeros(2)))
    return kernel("barker")(posterior, step_size=1.0 + jnp.sum(values**2))


@pytest.mark.parametrize("algorithm_fn", [warmed_up, log_likelihoods_as_data])
def test_a_function_that_makes_an_algorithm_releases_nothing(algorithm_fn, monkeypatch):
    monkeypatch.setattr(log_ratios, "MIN_REMEMBERED_SIZE", 1)
    with pytest.raises(ValueError, match="which would not be charged"):
        check(algorithm_fn)


def reading(read):
    """Barker, whose proposal reads records for the accept test, by another kernel."""

    def algorithm_fn(posterior):
        inner = kernel("barker")(posterior)

        def propose(words, position, walk, step_size):
            move = proposals.gaussian.propose(words, position, walk, step_size)
            read_too = read(posterior, inner, inner.init(jnp.zeros(2)))
            return move._replace(log_ratio=read_too.astype(position.dtype))

        proposal = proposals.gaussian._replace(propose=propose)
        return kernel("barker")(posterior, proposal=proposal)

    return algorithm_fn


def a_step(posterior, inner, state):
    state, _ = inner.step(jax.random.key(0), state)
    return state.position[0]


def a_sum(posterior, inner, state):
    words = jnp.zeros(6, jnp.uint32)
    return 1e4 * GaussianSum(1.0, 0.0)(words, posterior, jnp.sign)[0]


def a_memory(posterior, inner, state):
    inner.transition.recall(state)
    return jnp.zeros(())


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (a_step, "makes 2 releases and is charged for 1"),
        (a_sum, "makes 2 sums of records and is charged for 1"),
        (a_memory, "reads the memory of a kernel"),
    ],
)
def test_what_a_sampler_is_given_reads_no_records(read, message, monkeypatch):
    monkeypatch.setattr(log_ratios, "MIN_REMEMBERED_SIZE", 1)
    with pytest.raises(ValueError, match=message):
        check(reading(read))


@pytest.mark.parametrize("read", [a_sum, a_memory])
def test_a_function_of_one_record_reads_no_others(read, monkeypatch):
    """Not even where the posterior is passed on to its own functions."""
    monkeypatch.setattr(log_ratios, "MIN_REMEMBERED_SIZE", 1)
    given = []

    def of_all(position, record):
        others = 0.0
        # From the third algorithm on, which is that of the steps.
        if len(given) > 2:
            posterior, inner = given[-1]
            others = read(posterior, inner, inner.init(jnp.zeros(2)))
        return loglikelihood(position, record + others)

    def algorithm_fn(posterior):
        given.append((posterior, kernel("barker")(posterior)))
        return given[-1][1]

    with pytest.raises(ValueError, match="may read its own record only"):
        check(algorithm_fn, dpjax.Posterior(logprior, of_all, DATA))


@pytest.mark.parametrize("name", ["loglikelihood_fn", "logprior_fn"])
def test_an_algorithm_samples_with_the_functions_that_were_searched(name):
    """Only the functions of the run's posterior are searched for records."""

    def algorithm_fn(posterior):
        changed = {name: functools.partial(getattr(posterior, name))}
        return kernel("barker")(dataclasses.replace(posterior, **changed))

    with pytest.raises(ValueError, match="with other functions"):
        check(algorithm_fn)


def test_a_likelihood_that_reads_all_records_is_not_sampled():
    def algorithm_fn(posterior):
        def of_all(position, record):
            return position[0] * jnp.sign(posterior.data[0, 0])

        return kernel("barker")(dataclasses.replace(posterior, loglikelihood_fn=of_all))

    with pytest.raises(ValueError, match="with other functions"):
        check(algorithm_fn)


def test_a_prior_makes_no_steps():
    """It would be moved to what the records say."""
    given = []

    def prior(position):
        if given:
            inner = given[-1]
            state, _ = inner.step(jax.random.key(0), inner.init(jnp.zeros(2)))
            position = position - state.position
        return logprior(position)

    def algorithm_fn(posterior):
        given.append(kernel("barker")(posterior))
        return given[-1]

    with pytest.raises(ValueError, match="may not read the records"):
        check(algorithm_fn, dpjax.Posterior(prior, loglikelihood, DATA))


@pytest.mark.parametrize("name", ["barker", "adapted", "hmc"])
def test_a_kernel_reads_its_memory_once(name, monkeypatch):
    monkeypatch.setattr(log_ratios, "MIN_REMEMBERED_SIZE", 1)
    test_nothing_but_releases_leaves(name)


def test_a_thread_opens_no_seals():
    def algorithm_fn(posterior):
        inner = kernel("barker")(posterior)
        with concurrent.futures.ThreadPoolExecutor(1) as threads:
            found = threads.submit(a_memory, posterior, inner, inner.init(jnp.zeros(2)))
            return kernel("barker")(posterior, step_size=1.0 + found.result())

    with pytest.raises(ValueError, match="may not read the records"):
        check(algorithm_fn)


def test_arguments_hold_no_records_in_any_container():
    records = np.asarray(DATA, float)

    def bounds(position, proposed):
        return records.min(), records.max()

    algorithm_fn = functools.partial(
        kernel("fast_mh"), clip_bound=dpjax.Range(bounds, 1.0)
    )
    with pytest.raises(ValueError, match="'records', which"):
        check(algorithm_fn)
    for container in (collections.deque, types.MappingProxyType, dict.values):
        entries = [*records.T]
        if container is not collections.deque:
            entries = dict(enumerate(entries))
        held = container(entries)

        def propose(*arguments, held=held):
            return held

        proposal = proposals.gaussian._replace(propose=propose)
        with pytest.raises(ValueError, match="makes the algorithm holds"):
            check(functools.partial(kernel("barker"), proposal=proposal))


def test_what_a_function_keeps_from_its_first_call_is_no_record():
    """The first calls ask for the cost and the start, and are traced in no loop."""
    kept = []

    def algorithm_fn(posterior):
        if not kept:
            kept.append(posterior.data.mean())
        return kernel("barker")(posterior, step_size=1.0 + abs(kept[0]))

    with pytest.raises(AttributeError, match="may not read the records"):
        check(algorithm_fn)


def test_an_algorithm_samples_the_posterior_that_it_is_given():
    other = dataclasses.replace(POSTERIOR, data=jnp.ones((64, 2)))
    with pytest.raises(ValueError, match="samples other records"):
        check(lambda posterior: kernel("barker")(other))


def test_records_that_were_sealed_for_another_run_are_refused():
    """They would be constants of the program, which this run's records are not."""
    kept = []

    def keep(posterior):
        kept.append(posterior)
        return kernel("barker")(posterior)

    check(keep)
    other = dpjax.Posterior(logprior, loglikelihood, DATA + 1.0)
    for posterior in kept:
        with pytest.raises(ValueError, match="samples other records"):
            check(lambda _, old=posterior: kernel("barker")(old), other)


def test_a_start_that_reads_records_is_refused():
    def algorithm_fn(posterior):
        algorithm = kernel("barker")(posterior)

        def init(position, rng_key=None):
            return algorithm.init(position + jnp.mean(opened(posterior), axis=0))

        return algorithm._replace(init=init)

    with pytest.raises(ValueError, match="may not read the records"):
        check(algorithm_fn)


@pytest.mark.parametrize("data", [DATA, np.asarray(DATA).copy()], ids=["jax", "numpy"])
def test_functions_that_close_over_the_records_are_refused(data):
    def centred(position):
        return logprior(position - jnp.mean(data[:, :], axis=0))

    def widened(position):
        return position * jnp.dot(data.T, jnp.ones(64))

    posterior = dpjax.Posterior(logprior, loglikelihood, data)
    for name, function in dict(logprior_fn=centred, constrain_fn=widened).items():
        wrong = dataclasses.replace(posterior, **{name: function})
        with pytest.raises(ValueError, match=f"^{name}"):
            check(kernel("barker"), wrong)


def printed(position, record):
    jax.debug.print("{}", position[0])
    return loglikelihood(position, record)


def fetched(position, record):
    shape = jax.ShapeDtypeStruct((), position.dtype)
    other = jax.pure_callback(lambda: np.zeros((), shape.dtype), shape)
    return loglikelihood(position, record) + other


def buffered(position, record):
    def copy(context, out, value):
        np.asarray(out)[...] = np.asarray(value)

    shape = jax.ShapeDtypeStruct((), position.dtype)
    other = buffer_callback(copy, shape, vmap_method="broadcast_all")
    return loglikelihood(position, record) + other(position[0])


@pytest.mark.parametrize("function", [printed, fetched, buffered])
def test_callbacks_are_refused_whatever_they_see(function):
    with pytest.raises(ValueError, match=r"print|callback"):
        check(
            kernel("barker"), dataclasses.replace(POSTERIOR, loglikelihood_fn=function)
        )


def decomposed(position, record):
    """LAPACK prints where its fast method meets an infinite number."""
    values = jnp.linalg.svd(record[0] * jnp.eye(30), compute_uv=False)
    return loglikelihood(position, record) + values[0]


def iterated(position, record):
    """XLA goes on with all records until the last one has converged."""
    chance = jax.scipy.special.betainc(1.7, 2.3, jax.nn.sigmoid(record[0]))
    return loglikelihood(position, record) + chance


def written(position, record):
    """What is written does not come out of the operation that writes."""
    box = jax.new_ref(jnp.zeros((), record.dtype))
    box[...] = record[0]
    return loglikelihood(position, record) + box[...]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (decomposed, "LAPACK prints"),
        (iterated, "until the slowest"),
        (written, "mutable array"),
    ],
)
def test_operations_that_are_not_for_records_are_refused(function, message):
    target = dataclasses.replace(POSTERIOR, loglikelihood_fn=function)
    with pytest.raises(ValueError, match=message):
        check(kernel("barker"), target)


def test_incomplete_beta_functions_of_parameters_are_no_matter():
    def function(position, record):
        chance = jax.scipy.special.betainc(1.7, 2.3, jax.nn.sigmoid(position[0]))
        return loglikelihood(position, record) + chance

    target = dataclasses.replace(POSTERIOR, loglikelihood_fn=function)
    check(kernel("barker"), target)


def test_run_checks_before_it_charges(tmp_path):
    ledger = tmp_path / "ledger.json"
    run = functools.partial(
        dpjax.run,
        leaky(move=state_reads),
        POSTERIOR,
        2,
        initial_position=POSITIONS,
        num_chains=3,
        verbose=False,
    )
    with pytest.raises(ValueError, match=r"state\.position"):
        run(budget=dpjax.Budget(1.0, 1e-6), ledger=ledger)
    assert not ledger.exists()
    run(budget=None)


def follow(function, *inputs):
    program = jax.make_jaxpr(function)(*(jnp.ones(3) for _ in inputs))
    return taint.tainted(program, list(inputs))


def test_flow_through_programs():
    def both(x, y):
        return x + 1, x * y, taint.released(taint.summed(y)), jnp.zeros(3)

    for inner in (both, jax.jit(both)):
        assert follow(inner, False, True) == [False, True, False, False]
    assert follow(jax.vmap(both), False, True) == [False, True, False, False]
    assert all(follow(jax.checkpoint(lambda x, y: x * y), False, True))
    assert follow(lambda x: checkpoint_name(x, "another"), True) == [True]


def test_raw_values_reach_no_release():
    def of_sums(x):
        return taint.released(2 * taint.summed(x))

    def beside_sums(x):
        return taint.released(x + taint.summed(x))

    assert follow(of_sums, True) == [False]
    assert follow(beside_sums, False) == [False]
    for function in (beside_sums, jax.jit(beside_sums), jax.vmap(beside_sums)):
        with pytest.raises(ValueError, match="other than through sums"):
            follow(function, True)


def test_releases_are_counted():
    def one(x):
        return taint.released(x)

    def branched(x):
        return jax.lax.cond(x[0] > 0, lambda: one(one(x)), lambda: x)

    def count(function):
        return taint.num_marks(jax.make_jaxpr(function)(jnp.ones(3)))[taint.RELEASED]

    assert count(jax.jit(one)) == count(jax.vmap(one)) == 1
    assert count(lambda x: jax.lax.map(jax.vmap(one), jnp.ones((4, 5, 6)))) == 4
    assert count(branched) == 2
    assert count(lambda x: jax.lax.while_loop(lambda x: x[0] > 0, one, x)) == 1


def test_flow_through_loops():
    def shift(carry, row):
        _, second, third = carry
        return (second, third, third), row

    def scanned(x, y):
        return jax.lax.scan(shift, (x, x, y), jnp.ones(4))

    assert follow(scanned, False, True) == [True, True, True, False]
    assert follow(scanned, True, False) == [True, True, False, False]

    def counted(x, y):
        return jax.lax.while_loop(
            lambda c: c[0][0] < 5, lambda c: (c[0] + 1, 2 * c[1]), (x, y)
        )

    assert follow(counted, True, False) == [True, True]
    assert follow(counted, False, True) == [False, True]

    def branched(x, y):
        return jax.lax.cond(x[0] > 0, lambda: (y, 1.0), lambda: (y + 1, 2.0))

    assert follow(branched, True, False) == [True, True]
    assert follow(branched, False, True) == [True, False]
