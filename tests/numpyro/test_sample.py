"""Nothing to tune: the start that is found, the clip bound, the draws and the cost."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import dpjax
from dpjax import privacy
from dpjax.numpyro import MCMCKernel, posterior, sample
from dpjax.numpyro.sample import METHODS
from dpjax.runner import ledger as ledgers
from dpjax.runner import loop

NUM_RECORDS = 4000


@pytest.fixture(autouse=True)
def rank_promotion():
    with jax.numpy_rank_promotion("allow"):
        yield


def counts(x, y):
    b = numpyro.sample("b", dist.Normal(jnp.zeros(3), 2).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("obs", dist.Poisson(jnp.exp(x @ b)), obs=y)


def made_up(seed, size, b=(1.0, 0.5, -0.5)):
    rng = np.random.default_rng(seed)
    x = np.concatenate([np.ones((size, 1)), rng.uniform(-1, 1, (size, 2))], axis=1)
    return dict(x=x, y=rng.poisson(np.exp(x @ b)).astype(float))


@functools.cache
def target():
    data = made_up(0, NUM_RECORDS)
    return posterior(counts, data, plate="data", example=made_up(1, 500))


@functools.cache
def reference():
    """Mode and inverse curvature, by Newton's method: the moments to 0.03 sds."""
    x, y = (np.asarray(target().data[name], float) for name in ("x", "y"))
    b = np.zeros(3)
    for _ in range(50):
        rate = np.exp(x @ b)
        precision = (x.T * rate) @ x + np.eye(3) / 4
        b = b + np.linalg.solve(precision, x.T @ (y - rate) - b / 4)
    return b, np.linalg.inv(precision)


def go(tmp_path, method, **options):
    return sample(
        target(),
        budget=dpjax.Budget(8.0, 1e-6),
        method=method,
        ledger=tmp_path / "ledger.jsonl",
        checkpoint=tmp_path / "checkpoint",
        verbose=False,
        unsafe_key=jax.random.key(2),
        **options,
    )


def distances(draws):
    """Of mean and sd from the posterior's, in its sds and as a log ratio."""
    mean, covariance = reference()
    sd = np.sqrt(np.diag(covariance))
    draws = draws.reshape(-1, 3)
    return np.abs(draws.mean(0) - mean) / sd, np.abs(np.log(draws.std(0) / sd))


@pytest.mark.thorough
def test_a_fit_draws_from_the_posterior_and_spends_the_budget(tmp_path):
    result = go(tmp_path, "fit")
    assert result.positions["b"].shape == (4, 1000, 3)
    # Noise moves a component by a fifth of an sd; six of these have a chance of 1e-8.
    apart, ratio = distances(result.positions["b"])
    assert result.known.position_error < 0.25
    assert np.all(apart < 1.5) and np.all(ratio < np.log(1.2))
    known = result.known
    assert known.num_directions == 3 and known.records > 0.9
    assert known.records + known.prior + known.noise == pytest.approx(1)
    assert 7.92 < result.statement.epsilon <= 8.0
    assert list(result.summary()) == ["mean", "sd", "hdi_3%", "hdi_97%"]
    # A plan foretells the width and the noise. The squares of three standard normal
    # numbers add up to more than 31 with a chance below 1e-6.
    plan = dpjax.numpyro.plan(
        target(),
        budget=dpjax.Budget(8.0, 1e-6),
        guess={"b": np.array([1.0, 0.5, -0.5])},
        epsilons=(),
    ).columns
    np.testing.assert_allclose(ratio, np.log(plan["width"]), atol=0.1)
    noise = np.sqrt(np.mean(plan["noise"] ** 2))
    np.testing.assert_allclose(known.position_error, noise, rtol=0.25)
    assert np.sum((apart / plan["noise"]) ** 2) < 31
    # What was paid is not paid again, and gives the same draws.
    ledger = (tmp_path / "ledger.jsonl").read_text()
    again = go(tmp_path, "fit")
    np.testing.assert_array_equal(again.positions["b"], result.positions["b"])
    assert (tmp_path / "ledger.jsonl").read_text() == ledger


@pytest.mark.thorough
def test_a_walk_goes_on_from_a_fit_and_spends_the_budget(tmp_path, monkeypatch):
    """Also if the call is killed on the way: what was paid is not paid again."""
    ledger = tmp_path / "ledger.jsonl"
    advance, calls = loop.advance, itertools.count()

    def killed(*arguments):
        if next(calls) == 10:
            raise KeyboardInterrupt
        return advance(*arguments)

    options = dict(num_chains=2, num_draws=600)
    monkeypatch.setattr(loop, "advance", killed)
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path, "walk", **options)
    # The line of each run, and the one that begins the file.
    paid = len(ledger.read_text().splitlines())
    result = go(tmp_path, "walk", **options)
    assert len(ledger.read_text().splitlines()) == paid
    calls = itertools.repeat(10)
    again = go(tmp_path, "walk", **options).positions
    jax.tree.map(np.testing.assert_array_equal, again, result.positions)
    # Twenty effective draws and more have standard errors of 0.22 and 0.16.
    apart, ratio = distances(result.positions["b"])
    assert np.all(apart < 1.3) and np.all(ratio < np.log(2.2))
    statement = result.statement
    # Of the 12,000 asked for, as far as shares of epsilon add up like squares.
    assert statement.num_steps > 5000
    # The filter promises the budget, whatever the walk comes to.
    assert statement.epsilon == statement.epsilon_per_chain == 8.0
    assert statement.accountant == "privacy filter"
    rule, runs, _ = ledgers.read(ledger, "REPLACE_ONE")
    assert 7.9 < rule.epsilon(runs, 1e-6) <= 8.0


def test_a_method_that_is_unknown_is_refused():
    with pytest.raises(ValueError, match="one of fit, walk"):
        sample(target(), budget=dpjax.Budget(1.0, 1e-6), method="nuts")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["num_draws", "num_chains"])
@pytest.mark.parametrize("number", [0, 10.5])
def test_numbers_are_checked_before_anything_is_spent(method, name, number, tmp_path):
    ledger, budget = tmp_path / "ledger", dpjax.Budget(1.0, 1e-6)
    options = {"budget": budget, "method": method, name: number}
    for function, more in ((sample, dict(ledger=ledger)), (dpjax.numpyro.plan, {})):
        with pytest.raises(ValueError, match=name):
            function(target(), **options, **more)
    assert not ledger.exists()


def test_a_kernel_charges_what_was_spent_before():
    spent = [(privacy.GaussianRelease(20.0), 40)]
    walk = functools.partial(dpjax.barker, step_size=0.1, clip_bound=0.02)
    budget = dpjax.Budget(2.0, 1e-6)
    kernel = MCMCKernel(walk, target(), budget=budget, spent=spent)
    assert 1.9 < kernel.statement.epsilon <= 2.0
    one_more = walk(target()).privacy(kernel.max_steps + 1)
    rule = privacy.AdaptiveRule.renyi(spent, budget)
    assert rule.epsilon([spent, one_more], 1e-6) > 2.0


def test_a_walk_refuses_a_number_that_it_would_not_use():
    with pytest.raises(ValueError, match="leave out nominal_num_records"):
        sample(
            target(),
            budget=dpjax.Budget(1.0, 1e-6),
            method="walk",
            nominal_num_records=1000,
        )


def test_a_walk_refuses_widths_that_it_would_not_have():
    budget = dpjax.Budget(1.0, 1e-6)
    with pytest.raises(ValueError, match="leave out robust=True"):
        sample(target(), budget=budget, method="walk", robust=True)


@pytest.mark.parametrize("budget", [1.0, dict(epsilon=1.0), None])
def test_what_is_no_budget_is_refused(budget):
    with pytest.raises(TypeError, match=r"budget must be a dpjax\.Budget"):
        sample(target(), budget=budget)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:the model captured")
def test_a_second_call_compiles_next_to_nothing(compilations):
    """What is left are the units of the draws, and single operations.

    Among these are operations on constants, which belong to a trace, and each call
    traces what it runs.
    """

    def go(seed):
        def model(x, y):
            counts(x, y)

        example, records = made_up(1, 500), made_up(seed, 200)
        target = posterior(model, records, plate="data", example=example)
        budget = dpjax.Budget(50.0, 1e-6)
        sample(target, budget=budget, num_draws=100, verbose=False)

    go(2)
    first = len(compilations)
    go(3)
    assert first > 40
    assert len(compilations) - first < 20
    assert "jit(loop)" not in compilations[first:]


@pytest.mark.thorough
def test_walks_of_products_are_refused_before_anything_is_spent(tmp_path):
    def model(group, y):
        mean = numpyro.sample("mean", dist.Normal(0, 1))
        scale = numpyro.sample("scale", dist.HalfNormal(1))
        with numpyro.plate("groups", 3):
            z = numpyro.sample("z", dist.Normal(0, 1))
        with numpyro.plate("data", len(y)):
            law = dist.Normal(mean + scale * z[group], 1)
            numpyro.sample("obs", law, obs=y)

    data = dict(group=np.arange(3000) % 3, y=np.zeros(3000))
    example = dict(group=np.arange(30) % 3)
    target = posterior(model, data, plate="data", example=example)
    ledger = tmp_path / "ledger.jsonl"
    message = "read products of latents, such as scale"
    options: dict = dict(budget=dpjax.Budget(1.0, 1e-6), method="walk")
    with pytest.raises(ValueError, match=message):
        dpjax.numpyro.sample(target, ledger=ledger, **options)
    with pytest.raises(ValueError, match=message):
        dpjax.numpyro.plan(target, **options)
    assert not ledger.exists()
