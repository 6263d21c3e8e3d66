"""Kernels of dpjax in NumPyro's MCMC: chain methods, budgets, secrets; metrics."""

import copy
import dataclasses
import functools
import os
import pickle
import subprocess
import sys

import arviz
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC

import dpjax
from dpjax import proposals
from dpjax.adaptation import adapted
from dpjax.fisher import inverse_fisher_information
from dpjax.numpyro import (
    MCMCKernel,
    fisher_information,
    initial_position,
    posterior,
)
from tests.numpyro_models import table
from tests.tiers import tiered

BUDGET = dpjax.Budget(2.0, 1e-5)
BARKER = functools.partial(dpjax.barker, step_size=0.1, clip_bound=0.02)


@pytest.fixture(autouse=True)
def rank_promotion():
    with jax.numpy_rank_promotion("allow"):
        yield


def normal(x):
    mean = numpyro.sample("mean", dist.Normal(0, 10))
    scale = numpyro.sample("scale", dist.LogNormal(0, 1))
    numpyro.deterministic("twice", 2 * mean)
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("obs", dist.Normal(mean, scale), obs=x)


@functools.cache
def target():
    x = 1.0 + np.random.default_rng(0).normal(size=2000)
    return posterior(normal, dict(x=x), plate="data")


def sampled(num_chains, method, bar=False, warmup=10, draws=30, kernel=None):
    kernel = kernel or MCMCKernel(
        BARKER, target(), budget=BUDGET, num_chains=num_chains
    )
    mcmc = MCMC(
        kernel,
        num_warmup=warmup,
        num_samples=draws,
        num_chains=num_chains,
        chain_method=method,
        progress_bar=bar,
    )
    mcmc.run(jax.random.key(3), extra_fields=("is_accepted", "num_steps"))
    return mcmc


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("num_chains", "method", "bar"),
    tiered(
        [
            (1, "sequential", True),
            (3, "vectorized", False),
            (3, jax.vmap, False),
        ],
        [(3, "vectorized", False)],
    ),
)
@pytest.mark.filterwarnings("ignore:Some donated buffers")
def test_chains_run_and_are_constrained(num_chains, method, bar, capsys):
    mcmc = sampled(num_chains, method, bar)
    draws = mcmc.get_samples(group_by_chain=True)
    assert set(draws) == {"mean", "scale", "twice"}
    assert draws["mean"].shape == (num_chains, 30)
    assert np.all(draws["scale"] > 0)
    np.testing.assert_array_equal(draws["twice"], 2 * draws["mean"])
    fields = mcmc.get_extra_fields(group_by_chain=True)
    np.testing.assert_array_equal(fields["num_steps"][:, -1], 40)
    moved = np.diff(draws["mean"], axis=1) != 0
    np.testing.assert_array_equal(moved, fields["is_accepted"][:, 1:])
    assert moved.any() and not moved.all()
    assert len(np.unique(draws["mean"][:, 0])) == num_chains
    mcmc.print_summary()
    printed = capsys.readouterr().out
    assert "scale" in printed and "twice" not in printed


@pytest.mark.thorough
def test_two_kernels_of_one_key_share_no_randomness():
    """Noise that two chains share is what they differ by without noise."""
    here = {"mean": jnp.zeros(()), "scale": jnp.zeros(())}

    def begun(data=None, position=here, num_warmup=0, **changes):
        algorithm_fn = functools.partial(BARKER, **dict(clip_bound=1.0) | changes)
        posterior = dataclasses.replace(target(), data=data or target().data)
        kernel = MCMCKernel(algorithm_fn, posterior, budget=BUDGET)
        state = kernel.init(jax.random.key(0), 0, position, (), {})
        sample = jax.jit(lambda state: kernel.sample(state, (), {}))
        for _ in range(num_warmup):
            state = sample(state)
        # As MCMC does for a run after a warm-up.
        state = state._replace(rng_key=jax.random.key(1))
        state = sample(state)
        return tuple(jax.random.key_data(state.rng_key).tolist())

    louder = begun(clip_bound=0.9)
    metric = begun(inverse_mass_matrix=np.array([1.0, 2.0]))
    other_metric = begun(inverse_mass_matrix=np.array([2.0, 1.0]))
    data = begun(data={"x": target().data["x"] + 1.0})
    start = begun(position={**here, "mean": jnp.ones(())})
    warmup = begun(num_warmup=1)
    assert begun() == begun()
    assert len({begun(), louder, metric, other_metric, data, start, warmup}) == 7


@pytest.mark.thorough
def test_chains_run_in_parallel_on_devices():
    code = (
        "import numpyro; numpyro.set_host_device_count(2)\n"
        "import numpy as np\n"
        "from tests.numpyro.test_kernel import sampled\n"
        "mcmc = sampled(2, 'parallel', bar=True)\n"
        "assert mcmc.get_samples(group_by_chain=True)['mean'].shape == (2, 30)\n"
        "try:\n"
        "    mcmc.run(mcmc.last_state.rng_key)\n"
        "except Exception as error:\n"
        "    assert 'divided among 2 chains' in str(error)\n"
        "else:\n"
        "    raise AssertionError\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr


def test_chains_stand_still_when_the_budget_is_spent():
    algorithm_fn = functools.partial(BARKER, clip_bound=0.06)
    kernel = MCMCKernel(algorithm_fn, target(), budget=BUDGET, num_chains=2)
    spent = [(e, 2 * n) for e, n in algorithm_fn(target()).privacy(kernel.max_steps)]
    assert kernel.statement.epsilon == dpjax.privacy.epsilon(spent, BUDGET.delta)
    one_more = [
        (e, 2 * n) for e, n in algorithm_fn(target()).privacy(kernel.max_steps + 1)
    ]
    assert kernel.statement.epsilon <= 2 < dpjax.privacy.epsilon(one_more, 1e-5)
    last = kernel.max_steps - 10
    assert last > 1
    mcmc = sampled(2, "vectorized", draws=kernel.max_steps, kernel=kernel)
    moved = np.diff(mcmc.get_samples(group_by_chain=True)["mean"], axis=1) != 0
    assert moved[:, : last - 1].any() and not moved[:, last - 1 :].any()
    fields = mcmc.get_extra_fields(group_by_chain=True)
    assert not fields["is_accepted"][:, last:].any()
    assert fields["num_steps"].max() == kernel.max_steps


@pytest.mark.thorough
def test_chains_resume_within_the_same_budget():
    mcmc = sampled(2, "vectorized")
    first = mcmc.get_samples(group_by_chain=True)["mean"]
    mcmc.post_warmup_state = mcmc.last_state
    mcmc.run(mcmc.post_warmup_state.rng_key, extra_fields=("num_steps",))
    fields = mcmc.get_extra_fields(group_by_chain=True)
    np.testing.assert_array_equal(fields["num_steps"][:, 0], 41)
    second = mcmc.get_samples(group_by_chain=True)["mean"]
    assert np.abs(second[:, 0] - first[:, -1]).max() <= 0.1
    mcmc.post_warmup_state = None
    with pytest.raises(dpjax.privacy.BudgetError, match="divided among 2 chains"):
        mcmc.run(jax.random.key(5))


@pytest.mark.thorough
def test_warmup_is_a_part_of_the_run():
    kernel = MCMCKernel(BARKER, target(), budget=BUDGET)
    mcmc = MCMC(kernel, num_warmup=10, num_samples=5, progress_bar=False)
    mcmc.warmup(jax.random.key(0), collect_warmup=True)
    assert mcmc.get_samples()["mean"].shape == (10,)
    mcmc.run(jax.random.key(1), extra_fields=("num_steps",))
    np.testing.assert_array_equal(mcmc.get_extra_fields()["num_steps"], range(11, 16))


@pytest.mark.filterwarnings("ignore:Some donated buffers")
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("num_chains", "method"), [(1, "sequential"), (2, "vectorized")]
)
def test_no_step_is_given_away_by_starting_again(num_chains, method):
    """From the state after the warm-up, again and again: all of it is counted."""
    kernel = MCMCKernel(BARKER, target(), budget=BUDGET, num_chains=num_chains)
    sizes = dict(num_warmup=10, num_samples=kernel.max_steps // 3)
    options = dict(num_chains=num_chains, chain_method=method, progress_bar=False)
    mcmc = MCMC(kernel, **sizes, **options)
    mcmc.warmup(jax.random.key(0))
    made = 10 * num_chains
    for seed in range(4):
        mcmc.run(jax.random.key(seed), extra_fields=("num_steps",))
        counts = mcmc.get_extra_fields(group_by_chain=True)["num_steps"]
        made += np.sum(counts[:, -1] - 10)
    # The warm-up and two runs lose less than a fiftieth of the steps each.
    assert 0.94 < made / (kernel.max_steps * num_chains) <= 1
    draws = mcmc.get_samples(group_by_chain=True)["mean"]
    assert np.all(draws == draws[:, :1])


CHANGES = {
    "kernel": lambda old, i: jax.tree.map(lambda leaf: leaf + 0.001 * i, old),
    "rng_key": lambda old, i: jax.random.key(i),
    "num_steps": lambda old, i: old * 0,
    "num_prepaid": lambda old, i: old + 5,
}


@pytest.mark.parametrize("name", tiered(CHANGES, ["kernel"]))
def test_no_step_is_given_away_by_changing_a_state(name):
    """A block is paid for by one state, and void for any other."""
    kernel = MCMCKernel(BARKER, target(), budget=BUDGET)
    sample = jax.jit(lambda state: kernel.sample(state, (), {}))
    state = sample(kernel.init(jax.random.key(0), 0, None, (), {}))
    block = 1 + state.num_prepaid
    assert block > 10
    made, keys = 1, []
    for i in range(1, 60):
        changed = CHANGES[name](getattr(state, name), i)
        before = dataclasses.replace(state, **{name: changed})
        after = sample(before)
        made += after.num_steps - before.num_steps
        keys.append(jax.random.key_data(after.rng_key).tobytes())
    assert made == -(-kernel.max_steps // block)
    assert len(set(keys[: made - 1])) == made - 1


def test_a_state_that_is_stepped_twice_makes_one_step():
    kernel = MCMCKernel(BARKER, target(), budget=BUDGET)
    sample = jax.jit(lambda state: kernel.sample(state, (), {}))
    state = sample(kernel.init(jax.random.key(0), 0, None, (), {}))
    first, second = sample(state), sample(state)
    assert first.num_prepaid == state.num_prepaid - 1
    jax.tree.map(np.testing.assert_array_equal, *map(_plain, (first, second)))
    # As MCMC begins.
    again = sample(state._replace(rng_key=state.rng_key))
    assert again.num_prepaid == state.num_prepaid


def _plain(state):
    return dataclasses.replace(state, rng_key=jax.random.key_data(state.rng_key))


def test_a_kernel_is_not_copied():
    kernel = MCMCKernel(BARKER, target(), budget=BUDGET)
    for copy_fn in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="private records"):
            copy_fn(kernel)


KERNELS = {
    "penalty": functools.partial(
        dpjax.penalty, step_size=0.1, clip_bound=0.02, test_noise_multiplier=20.0
    ),
    "hmc": functools.partial(
        dpjax.hmc,
        step_size=0.002,
        num_integration_steps=2,
        l2_clip_norm=1.0,
        clip_bound=0.02,
        noise_multiplier=100.0,
        test_noise_multiplier=20.0,
    ),
    "minibatch_penalty": functools.partial(
        dpjax.minibatch_penalty,
        step_size=0.02,
        clip_bound=0.02,
        test_noise_multiplier=8.0,
        batch_size=1000,
    ),
    "minibatch_barker": functools.partial(
        dpjax.minibatch_barker, step_size=0.01, batch_size=200
    ),
    "adapted": functools.partial(
        adapted,
        sampler=dpjax.barker,
        num_warmup=10,
        initial_step_size=0.05,
        clip_bound=0.02,
    ),
}


@pytest.mark.parametrize("name", tiered(KERNELS, ["barker"]))
def test_every_kernel_fits(name):
    kernel = MCMCKernel(KERNELS[name], target(), budget=BUDGET)
    draws = sampled(1, "sequential", kernel=kernel).get_samples()["mean"]
    assert len(np.unique(draws)) > 1


@pytest.mark.parametrize(
    ("arguments", "changes", "error", "message"),
    [
        ((target, BARKER), {}, TypeError, "a function of the posterior"),
        (("algorithm", target), {}, TypeError, "not the Algorithm"),
        ((BARKER, target), dict(budget=None), TypeError, "budget must be"),
        ((BARKER, target), dict(num_chains=0), ValueError, "num_chains"),
    ],
    ids=["swapped", "algorithm", "budget", "chains"],
)
def test_wrong_arguments_are_refused(arguments, changes, error, message):
    made = {target: target, "algorithm": lambda: BARKER(target())}
    arguments = [made[each]() if each in made else each for each in arguments]
    with pytest.raises(error, match=message):
        MCMCKernel(*arguments, **{"budget": BUDGET, **changes})


def test_what_is_not_paid_for_is_refused():
    with pytest.raises(dpjax.privacy.BudgetError, match="for one step of 2 chains"):
        MCMCKernel(
            functools.partial(BARKER, clip_bound=30.0),
            target(),
            budget=dpjax.Budget(0.1, 1e-6),
            num_chains=2,
        )
    kernel = MCMCKernel(BARKER, target(), budget=BUDGET)
    mcmc = MCMC(kernel, num_warmup=0, num_samples=5, progress_bar=False)
    with pytest.raises(ValueError, match="key alone"):
        mcmc.run(jax.random.key(0), np.zeros(3))
    for generator in ("rbg", "unsafe_rbg"):
        with pytest.raises(ValueError, match=f"generator '{generator}'"):
            mcmc.run(jax.random.key(0, impl=generator))
        kernel = MCMCKernel(BARKER, target(), budget=BUDGET)
        mcmc = MCMC(kernel, num_warmup=0, num_samples=5, progress_bar=False)
    tuned = MCMCKernel(KERNELS["adapted"], target(), budget=BUDGET)
    mcmc = MCMC(tuned, num_warmup=9, num_samples=5, progress_bar=False)
    with pytest.raises(ValueError, match="num_warmup of as many, got 9"):
        mcmc.run(jax.random.key(0))


@pytest.mark.parametrize("method", tiered(["sequential", "vectorized"], ["vectorized"]))
def test_a_prior_that_reads_records_is_refused(method):
    records = jax.tree.leaves(target().data)[0]

    def logprior(position):
        return target().logprior_fn(position) + jnp.sum(records)

    wrong = dataclasses.replace(target(), logprior_fn=logprior)
    kernel = MCMCKernel(BARKER, wrong, budget=BUDGET, num_chains=2)
    with pytest.raises(ValueError, match=r"^logprior_fn holds"):
        sampled(2, method, kernel=kernel)


def test_a_program_that_changes_later_runs_as_it_was_checked():
    """A second MCMC traces the kernel again, by when a variable may have changed."""
    longest, centre = 0.1, jnp.zeros(2)

    def propose(words, position, walk, step_size):
        return proposals.fixed_length.propose(words, position, walk, longest)

    def logprior(position):
        return -0.5 * jnp.sum((position - centre) ** 2)

    proposal = proposals.fixed_length._replace(
        propose=propose, longest=lambda step_size: longest
    )
    algorithm_fn = functools.partial(
        dpjax.barker, step_size=1.0, clip_bound=dpjax.Lipschitz(0.1), proposal=proposal
    )
    records = np.random.default_rng(0).normal(size=50)
    posterior = dpjax.Posterior(logprior, lambda z, x: x * z[0] / 1e6, records)
    kernel = MCMCKernel(algorithm_fn, posterior, budget=BUDGET)

    def lengths(num_samples, **run):
        mcmc = MCMC(kernel, num_warmup=0, num_samples=num_samples, progress_bar=False)
        mcmc.post_warmup_state = state
        mcmc.run(jax.random.key(1), **run)
        moves = np.diff(mcmc.get_samples(), axis=0)
        return mcmc.last_state, np.linalg.norm(moves, axis=1).max()

    state = None
    state, before = lengths(20, init_params=jnp.zeros(2))
    longest, centre = 10.0, 1e4 * jnp.asarray(records[:2])
    state, after = lengths(21)
    assert before == pytest.approx(0.1) and after == pytest.approx(0.1)
    another = MCMCKernel(algorithm_fn, posterior, budget=BUDGET)
    longest = 0.1
    mcmc = MCMC(another, num_warmup=0, num_samples=5, progress_bar=False)
    with pytest.raises(ValueError, match="no longer makes the algorithm"):
        mcmc.run(jax.random.key(1), init_params=jnp.zeros(2))


def test_samplers_without_accept_bits_are_refused():
    algorithm_fn = functools.partial(
        dpjax.sgld, step_size=1e-6, dim=2, l2_clip_norm=1.0, sampling_prob=0.1
    )
    kernel = MCMCKernel(algorithm_fn, target(), budget=BUDGET)
    with pytest.raises(ValueError, match="accept or reject"):
        sampled(1, "sequential", kernel=kernel)


def test_neither_arviz_nor_a_pickle_holds_the_data():
    mcmc = sampled(2, "vectorized")
    assert arviz.from_numpyro(mcmc).groups() == ["posterior", "sample_stats"]
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(mcmc)


def test_the_metric_is_the_posteriors_covariance_where_that_is_known():
    """Of n normal records: sd^2 / n for the mean, 1 / 2n for the log of the sd."""
    position = {"mean": jnp.array(1.0), "scale": jnp.array(0.5)}
    information = fisher_information(target(), num_simulated=20_000)
    found = inverse_fisher_information(information, position)
    expected = np.array([[np.exp(1.0), 0.0], [0.0, 0.5]]) / 2000
    # 20,000 draws give their variances to 2 per cent, one sd, at worst.
    scale = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
    np.testing.assert_allclose(found / scale, expected / scale, atol=0.1)


@pytest.mark.thorough
def test_the_metric_reads_no_data():
    model, data, options = table()["logistic"]
    rng = np.random.default_rng(0)
    example = dict(X=rng.normal(size=(50, 3)), y=np.zeros(50))
    first = posterior(model, data, plate="data", example=example)
    other = {name: 1 - values for name, values in data.items()}
    second = posterior(model, other, plate="data", example=example)
    start = jax.tree.map(lambda leaf: leaf[0], initial_position(first, 1))
    found, expected = (
        inverse_fisher_information(fisher_information(target), start)
        for target in (first, second)
    )
    np.testing.assert_array_equal(found, expected)
    unnamed = posterior(model, data, plate="data", **options)
    with pytest.raises(ValueError, match=r"does not generate \['X'\].*example="):
        fisher_information(unnamed)


@pytest.mark.thorough
def test_the_prior_enters_where_records_say_nothing():
    """A centred hierarchy without records: mean and effects of precision 1/25 and 1."""

    def centred(x):
        mean = numpyro.sample("mean", dist.Normal(0, 5))
        with numpyro.plate("groups", 2):
            effects = numpyro.sample("effects", dist.Normal(mean, 1))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("obs", dist.Normal(effects[0], 1), obs=x)

    target = posterior(centred, dict(x=np.zeros(1)), plate="data")
    information = fisher_information(target, num_simulated=20_000)
    start = jax.tree.map(lambda leaf: leaf[0], initial_position(target, 1, seed=1))
    found = information(start | {"mean": jnp.zeros(())})
    # Order: effects[0], effects[1], mean. 20,000 draws: 1 per cent, one sd.
    expected = [[2.0, 0.0, -1.0], [0.0, 1.0, -1.0], [-1.0, -1.0, 2.04]]
    np.testing.assert_allclose(found, expected, atol=0.1)


def test_factors_have_no_metric():
    def factored(x):
        mean = numpyro.sample("mean", dist.Normal(0, 5))
        with numpyro.plate("data", x.shape[0]):
            numpyro.factor("obs", -((x - mean) ** 2))

    target = posterior(factored, dict(x=np.zeros(5)), plate="data")
    with pytest.raises(ValueError, match="'obs' observes a function of the data"):
        fisher_information(target)
