"""Nothing to tune: the start that is found, the clip bound, the draws and the cost."""

import dataclasses
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
from dpjax.numpyro import (
    MCMCKernel,
    clip_per_step,
    fisher_information,
    posterior,
    sample,
    scoring,
)
from dpjax.numpyro.curvature import Corrected, curvature
from dpjax.runner import ledger as ledgers
from dpjax.runner import loop

NUM_RECORDS = 4000
FAR = {"b": jnp.array([-1.0, 1.5, 1.5])}


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
    # What the first record asks for at FAR is the opposite of what a large count does.
    data["x"][0], data["y"][0] = 1.0, 0.0
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


@functools.cache
def information():
    return fisher_information(target())


def scores(noise_multiplier):
    return functools.partial(
        scoring,
        fisher_information=information(),
        noise_multiplier=noise_multiplier,
        rate=0.5,
        largest_move=np.full(3, 0.5),
    )


@pytest.mark.thorough
def test_scoring_reaches_the_bulk_from_far_away():
    mean, covariance = reference()
    found = dpjax.run(
        scores(30.0),
        target(),
        40,
        initial_position=jax.tree.map(lambda leaf: leaf[None], FAR),
        num_chains=1,
        budget=None,
        verbose=False,
        unsafe_key=jax.random.key(1),
    )

    def distance(position):
        return np.sqrt((position - mean) @ np.linalg.solve(covariance, position - mean))

    assert distance(np.asarray(FAR["b"])) > 100
    # Noise of 2.5 sds a step and component leaves the mean of 20 steps 0.55 sds off in
    # each, and 6 in all have a chance far below 1e-6.
    assert distance(found.positions["b"][0].mean(0)) < 6
    assert found.infos.gradient.shape == (1, 20, 3)


@pytest.mark.thorough
def test_clipping_does_not_move_the_estimate_of_scoring():
    """Rare counts: each is long and clipped, most records are short and are not."""
    truth, size = np.array([-4.0, 0.5, -0.5]), 20_000
    data = made_up(3, size, truth)
    rare = posterior(counts, data, plate="data", example=made_up(4, 500))
    kernel = scores(0.01)(rare)
    state = kernel.init({"b": jnp.asarray(truth)})
    _, info = jax.jit(kernel.step)(jax.random.key(5), state)
    # In posterior sds; a variance of at most 2 in each of three components exceeds 9
    # in norm with a chance of 1e-8. Clipped gradients alone are 20 off.
    assert np.linalg.norm(info.gradient) < 9


def bent(data, noise_multiplier):
    other = dataclasses.replace(target(), data=data)
    kernel = curvature(other, information(), noise_multiplier=noise_multiplier)
    state = kernel.init({"b": jnp.asarray(reference()[0])})
    return kernel, jax.jit(kernel.step)(jax.random.key(5), state)[1].correction


@pytest.mark.thorough
def test_curvature_sees_a_design_unlike_the_public_one():
    b = reference()[0]
    x = np.asarray(target().data["x"], float) * [1.0, 0.5, 0.3]
    data = dict(x=jnp.asarray(x), y=target().data["y"])
    _, correction = bent(data, 0.01)
    corrected = Corrected(information(), jnp.eye(3)).again(correction)
    exact = (x.T * np.exp(x @ b)) @ x + np.eye(3) / 4
    found = np.asarray(corrected({"b": jnp.asarray(b)}), float)
    np.testing.assert_allclose(
        np.linalg.eigvals(np.linalg.solve(exact, found)), 1, 0.01
    )


@pytest.mark.thorough
def test_curvature_leaves_alone_what_noise_explains():
    kernel = curvature(target(), information(), noise_multiplier=100.0)
    state = kernel.init({"b": jnp.asarray(reference()[0])})
    keys = jax.random.split(jax.random.key(6), 40)
    found = jax.jit(jax.vmap(kernel.step, (0, None)))(keys, state)[1].correction
    # Noise exceeds its bound with a chance of 0.03: in 10 of 40 below 1e-7.
    assert np.sum(np.all(np.isclose(found, np.eye(3), atol=1e-6), axis=(1, 2))) > 30


@pytest.mark.thorough
def test_curvature_costs_what_it_releases():
    x = target().data["x"]
    (kernel, first), (_, second) = (
        bent({**target().data, "x": x.at[0].set(value)}, 0.01) for value in (0.0, 9.0)
    )
    ((event, count),) = kernel.privacy(3)
    assert count == 3 and isinstance(event, privacy.GaussianRelease)
    assert event.noise_multiplier == 0.005
    # A record without a Hessian in place of one that is clipped.
    clip_norm = 6.0 * 3 / NUM_RECORDS
    moved = np.linalg.norm(np.asarray(first - second, float))
    assert moved == pytest.approx(clip_norm, rel=0.02)


@pytest.mark.thorough
def test_scoring_costs_what_it_releases():
    more = target().data["y"].at[0].set(1000.0)
    other = dataclasses.replace(target(), data={**target().data, "y": more})
    ((event, count),) = scores(0.01)(target()).privacy(7)
    assert count == 7 and isinstance(event, privacy.GaussianRelease)
    assert event.noise_multiplier == 0.005
    # The noise of one key is the same, and clipped sums differ by two clip norms; the
    # lattice that releases lie on adds a little.

    @jax.jit
    def gradient(data):
        kernel = scores(0.01)(data)
        return kernel.step(jax.random.key(5), kernel.init(FAR))[1].gradient

    first, second = gradient(target()), gradient(other)
    clip_norm = 3.0 * np.sqrt(3 / NUM_RECORDS)
    moved = np.linalg.norm(np.asarray(first - second, float))
    assert moved == pytest.approx(2 * clip_norm, rel=0.01)


def test_the_clip_bound_follows_the_models_tails_and_reads_no_data():
    """The .999 quantile of |normal| is 3.29, and the mean's sd is 1 / sqrt(n)."""

    def normal(x):
        mean = numpyro.sample("mean", dist.Normal(0, 10))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("obs", dist.Normal(mean, 1), obs=x)

    flat = posterior(normal, dict(x=np.full(2500, np.nan)), plate="data")
    found = clip_per_step(flat, {"mean": jnp.zeros(())}, np.array([[1 / 2500]]))
    # The quantile of 20,000 has a standard error of 0.07.
    assert found * 50 == pytest.approx(3.29, abs=0.4)


@pytest.mark.thorough
def test_draws_are_the_posteriors_and_spend_the_budget(tmp_path, monkeypatch):
    """Also if the call is killed while it tunes: what was paid is not paid again."""
    ledger = tmp_path / "ledger.jsonl"
    advance, calls = loop.advance, itertools.count()

    def go():
        return sample(
            target(),
            budget=dpjax.Budget(8.0, 1e-6),
            num_chains=2,
            num_steps=12_000,
            ledger=ledger,
            checkpoint=tmp_path / "checkpoint",
            verbose=False,
            unsafe_key=jax.random.key(2),
        )

    def killed(*arguments):
        if next(calls) == 30:
            raise KeyboardInterrupt
        return advance(*arguments)

    monkeypatch.setattr(loop, "advance", killed)
    with pytest.raises(KeyboardInterrupt):
        go()
    assert len(ledger.read_text().splitlines()) == 3
    result = go()
    # Of seven runs each was charged once, and none makes another step.
    assert len(ledger.read_text().splitlines()) == 7
    calls = itertools.repeat(30)
    jax.tree.map(np.testing.assert_array_equal, go().positions, result.positions)
    mean, covariance = reference()
    sd = np.sqrt(np.diag(covariance))
    draws = result.positions["b"]
    assert draws.shape[0] == 2
    # Twenty effective draws and more have standard errors of 0.22 and 0.16.
    draws = draws.reshape(-1, 3)
    assert np.abs((draws.mean(0) - mean) / sd).max() < 1.3
    assert np.all(np.abs(np.log(draws.std(0) / sd)) < np.log(2.2))
    statement = result.statement
    # Of the 12,000 asked for, as far as shares of epsilon add up like squares.
    assert statement.num_steps > 5000
    assert 7.9 < statement.epsilon <= 8.0
    assert statement.epsilon_per_chain < statement.epsilon
    assert "40 x Gaussian release" in statement.events
    assert "3 x Gaussian release" in statement.events
    rule, runs = ledgers.read(ledger, "REPLACE_ONE")
    assert rule.epsilon(runs, 1e-6) == pytest.approx(statement.epsilon)


def test_a_kernel_charges_what_was_spent_before():
    spent = [(privacy.GaussianRelease(20.0), 40)]
    walk = functools.partial(dpjax.barker, step_size=0.1, clip_bound=0.02)
    budget = dpjax.Budget(2.0, 1e-6)
    kernel = MCMCKernel(target(), walk, budget=budget, spent=spent)
    assert 1.9 < kernel.statement.epsilon <= 2.0
    one_more = walk(target()).privacy(kernel.max_steps + 1)
    rule = privacy.AdaptiveRule.renyi(spent, budget)
    assert rule.epsilon([spent, one_more], 1e-6) > 2.0


def test_a_private_number_of_records_is_refused():
    budget = dpjax.Budget(2.0, 1e-5, privacy.NeighboringRelation.ADD_OR_REMOVE_ONE)
    with pytest.raises(ValueError, match="use REPLACE_ONE"):
        sample(target(), budget=budget)
