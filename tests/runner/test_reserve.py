"""Runs planned as a whole cost what they cost together, and no more than planned."""

import functools
from concurrent.futures import ThreadPoolExecutor

import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax import privacy
from dpjax.cli import spending
from dpjax.privacy.gaussian.convolution import connect_dots, convolve
from dpjax.runner import ledger as ledgers
from dpjax.runner import loop
from dpjax.runner.hashes import digest
from dpjax.runner.run import total_epsilon

BUDGET = dpjax.Budget(3.0, 1e-5)
WALK = functools.partial(dpjax.barker, step_size=0.1, clip_bound=0.05)
NOISY = functools.partial(
    dpjax.sgld, step_size=0.3, dim=2, l2_clip_norm=1.0, sampling_prob=1.0
)
JOBS = [(WALK, 40, 2), (NOISY, 30, 1), (WALK, 20, 3)]


def logprior(theta):
    return -0.5 * jnp.sum(theta**2) / 100


def loglikelihood(theta, record):
    return -0.5 * jnp.sum((record - theta) ** 2)


@pytest.fixture(scope="module")
def posterior():
    data = 1.0 + np.random.default_rng(0).normal(size=(400, 2))
    return dpjax.Posterior(logprior, loglikelihood, data)


@pytest.fixture
def path(posterior, tmp_path):
    path = tmp_path / "ledger.jsonl"
    dpjax.reserve(JOBS, posterior, budget=BUDGET, ledger=path)
    return path


def go(posterior, path, algorithm_fn, num_steps, num_chains, budget=BUDGET):
    return dpjax.run(
        algorithm_fn,
        posterior,
        num_steps,
        initial_position=jnp.ones((num_chains, 2)),
        num_chains=num_chains,
        budget=budget,
        ledger=path,
        verbose=False,
    )


def cost(posterior, algorithm_fn, num_steps, num_chains):
    one_chain = algorithm_fn(posterior).privacy(num_steps, BUDGET.neighboring_relation)
    return [(event, num_chains * count) for event, count in one_chain]


def spent(path):
    rule, runs, _ = ledgers.read(path, "REPLACE_ONE")
    return rule.epsilon(runs, BUDGET.delta)


def charge(posterior, path, events, budget):
    """What a run of these events writes."""

    def approve(spent):
        if total_epsilon(spent, events, budget.delta) > budget.epsilon:
            raise privacy.BudgetError

    return ledgers.reserve(
        path,
        events,
        "REPLACE_ONE",
        approve,
        rule=privacy.AdaptiveRule(2.0, 0.0),
        data_fn=lambda: digest(posterior.data),
        nonce_fn=lambda state: f"{state}0a",
    )


def test_a_plan_costs_what_its_events_cost_together(posterior, tmp_path):
    path = tmp_path / "ledger.jsonl"
    plan = dpjax.reserve(JOBS, posterior, budget=BUDGET, ledger=path)
    runs = [cost(posterior, *job) for job in JOBS]
    together = [pair for run in runs for pair in run]
    assert plan.epsilon == privacy.epsilon(together, BUDGET.delta) == spent(path)
    one_by_one = privacy.AdaptiveRule.of(runs[0], BUDGET).epsilon(runs, BUDGET.delta)
    assert plan.epsilon < 0.95 * one_by_one
    said = f"epsilon = {plan.epsilon:.4g} at delta = 1e-05 (replace one record)"
    assert said in str(plan) and f"140 x {runs[0][0][0]}" in str(plan)


def test_planned_runs_come_in_any_order_and_are_not_charged_again(posterior, path):
    before = spent(path)
    run = go(posterior, path, NOISY, 30, 1)
    alone = cost(posterior, NOISY, 30, 1)
    assert run.statement.epsilon == privacy.epsilon(alone, BUDGET.delta)
    # Of 140 bits each of 50 chains may have 2.
    last = go(posterior, path, WALK, None, 50).statement
    assert last.num_steps == 2 and spent(path) == before
    (event, _), *_ = cost(posterior, WALK, 1, 1)
    shown = spending([path], BUDGET.delta)
    assert "2 runs" in shown and f"(plan)  140 x {event}" in shown
    assert f"left of the plan: 40 x {event}\nspent so far" in shown
    assert f"epsilon = {before:.4g} at" in shown


def test_runs_beyond_a_plan_are_charged_or_refused(posterior, path):
    before = spent(path)
    barely = dpjax.Budget(before * 1.0001, BUDGET.delta)
    with pytest.raises(privacy.BudgetError, match="earlier runs in"):
        go(posterior, path, WALK, 141, 1, barely)
    charge(posterior, path, cost(posterior, WALK, 140, 1), barely)
    with pytest.raises(privacy.BudgetError, match="earlier runs in"):
        go(posterior, path, WALK, 1, 1, barely)
    # Another clip bound is another kind of event.
    louder = functools.partial(WALK, clip_bound=0.06)
    with pytest.raises(privacy.BudgetError, match="earlier runs in"):
        go(posterior, path, louder, 1, 1, barely)
    # A larger budget pays for what is beyond, by the filter.
    larger = dpjax.Budget(6.0, BUDGET.delta)
    charge(posterior, path, cost(posterior, NOISY, 35, 1), larger)
    rule, runs, left = ledgers.read(path, "REPLACE_ONE")
    plan = cost(posterior, WALK, 140, 1) + cost(posterior, NOISY, 30, 1)
    assert runs == [plan, cost(posterior, NOISY, 5, 1)] and not left
    assert spent(path) == rule.epsilon(runs, BUDGET.delta) > before


def test_a_killed_run_keeps_what_it_took(posterior, path, monkeypatch):
    def killed(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(loop, "advance", killed)
        with pytest.raises(KeyboardInterrupt):
            go(posterior, path, NOISY, 20, 1)
    assert go(posterior, path, NOISY, None, 1).statement.num_steps == 10


def test_racing_runs_take_no_event_twice(posterior, path):
    """Of eight that want 40 of the 140 bits at once, three get them."""
    barely = dpjax.Budget(spent(path) * 1.0001, BUDGET.delta)
    events = cost(posterior, WALK, 40, 1)

    def charged(_):
        try:
            charge(posterior, path, events, barely)
        except privacy.BudgetError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(charged, range(8))) == 3
    _, runs, left = ledgers.read(path, "REPLACE_ONE")
    assert len(runs) == 1 and sorted(left.values()) == [20, 30]


def test_a_plan_is_the_first_line_of_a_ledger(posterior, path, tmp_path):
    before = path.read_bytes()
    with pytest.raises(ledgers.LedgerError, match="before the first run"):
        dpjax.reserve(JOBS, posterior, budget=BUDGET, ledger=path)
    assert path.read_bytes() == before
    poor = dpjax.Budget(0.5, 1e-5)
    with pytest.raises(privacy.BudgetError, match=r"of 0\.5 at delta .* together"):
        dpjax.reserve(JOBS, posterior, budget=poor, ledger=tmp_path / "new")
    assert not (tmp_path / "new").exists()
    other = dpjax.Posterior(logprior, loglikelihood, posterior.data + 1)
    with pytest.raises(ledgers.LedgerError, match="other data"):
        go(other, path, WALK, 1, 1)


def test_no_order_of_planned_events_beats_the_accountant():
    """The best adaptive order and log ratios of three kinds of bits, by recursion."""
    rates = [0.5, 0.9, 1.6]
    kinds = [privacy.AcceptBit(dpjax.acceptance.barker(), d) for d in rates]
    ratios = np.linspace(-2.0, 2.0, 5)
    low = 1 / (1 + np.exp(-ratios[:, None]))
    high = 1 / (1 + np.exp(-ratios[:, None] - np.array(rates)))

    @functools.cache
    def best(left, weight):
        found = [max(0.0, 1.0 - weight)]
        for kind in np.flatnonzero(left):
            after = tuple(np.subtract(left, np.arange(3) == kind))
            pairs = np.stack([low[:, 0], high[:, kind]])
            for p, q in np.concatenate([pairs, pairs[::-1]], axis=1).T:
                moved, stayed = (
                    round(weight * q / p, 12),
                    round(weight * (1 - q) / (1 - p), 12),
                )
                found.append(p * best(after, moved) + (1 - p) * best(after, stayed))
        return max(found)

    def profile(rate, interval=0.01):
        """Of the pair that dominates a bit [`bits.renyi.one_bit_delta`]."""
        top = round(rate / interval)
        roots = np.exp(interval * np.arange(-top, top + 1) / 2)
        deltas = (np.exp(rate / 2) - roots) ** 2 / np.expm1(rate)
        return connect_dots(deltas, interval, -top)

    product = convolve([(profile(rate), 1) for rate in rates], 0.01)
    losses = 0.01 * (product.lower + np.arange(product.probabilities.size))
    for epsilon in (0.0, 0.5, 1.5):
        found = best((1, 1, 1), float(np.exp(epsilon)))
        charged = privacy.delta([(kind, 1) for kind in kinds], epsilon)
        bound = product.probabilities @ np.maximum(0, -np.expm1(epsilon - losses))
        assert 0.75 * bound < found <= bound
        assert found < charged
