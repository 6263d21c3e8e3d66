"""Fits of whole records that are refused, and one that is warned of."""

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
import pytest

import dpjax


def target(num_records):
    return target_of(jnp.zeros((num_records, 2)))


def target_of(records):
    return dpjax.Posterior(
        lambda theta: -0.5 * jnp.sum(theta**2) / 100,
        lambda theta, record: -0.5 * jnp.sum((record - theta) ** 2),
        records,
    )


def simulate(key, theta):
    return theta + jax.random.normal(key, (2,))


def prior(key):
    return 10 * jax.random.normal(key, (2,))


@pytest.mark.parametrize("num_records", [500, 2000])
def test_nothing_is_spent_on_draws_that_would_not_be_right(tmp_path, num_records):
    """At epsilon .3, such draws missed the truth more often than they said."""
    ledger, budget = tmp_path / "ledger.jsonl", dpjax.Budget(0.3, 1e-6)
    message = f"{num_records:,} records and 2 .*would not be right.*dpjax.plan_sample"
    with pytest.raises(dpjax.privacy.BudgetError, match=message):
        dpjax.sample(
            target(num_records),
            simulate,
            prior,
            budget=budget,
            ledger=ledger,
            verbose=False,
        )
    assert not ledger.exists()


def test_the_plan_says_so_and_what_would_do():
    options = dict(simulate_fn=simulate, prior_sample_fn=prior, epsilons=[4.0])
    found = dpjax.plan_sample(target(500), budget=dpjax.Budget(0.3, 1e-6), **options)
    (row,) = [line for line in str(found).splitlines() if "<- budget" in line]
    assert "refused" in row
    assert "not worth the budget" in str(found)
    (row,) = [line for line in str(found).splitlines() if line.startswith("        4")]
    assert "refused" not in row


def test_simulators_of_another_law_are_refused(tmp_path):
    def shifted(key, theta):
        return simulate(key, theta) + jnp.array([0.0, 0.2])

    ledger, budget = tmp_path / "ledger.jsonl", dpjax.Budget(4.0, 1e-6)
    for call, options in ((dpjax.sample, dict(ledger=ledger)), (dpjax.plan_sample, {})):
        with pytest.raises(ValueError, match=r"simulate_fn.*do not follow the likeli"):
            call(target(20_000), shifted, prior, budget=budget, **options)
    assert not ledger.exists()


def test_covariates_are_warned_of():
    """The law of x is that of simulate_fn, and not a matter of the likelihood."""

    def loglikelihood(theta, record):
        rate = jnp.exp(theta[0] + theta[1] * record["x"])
        return record["y"] * jnp.log(rate) - rate

    def simulate(key, theta):
        first, second = jax.random.split(key)
        x = jax.random.normal(first)
        y = jax.random.poisson(second, jnp.exp(theta[0] + theta[1] * x))
        return dict(x=x, y=y.astype(x.dtype))

    data = {name: jax.ShapeDtypeStruct((10**5,), jnp.float32) for name in "xy"}
    posterior = dpjax.Posterior(lambda theta: -jnp.sum(theta**2), loglikelihood, data)
    budget = dpjax.Budget(1.0, 1e-6)
    with pytest.warns(UserWarning, match=r"^the law of x in made-up records does not"):
        dpjax.plan_sample(posterior, simulate, prior, budget=budget, epsilons=())


@pytest.mark.thorough
def test_a_correlation_alone_is_not_taken_for_covariates():
    """Neither component has a law that depends on it."""

    def root(theta):
        correlation = jnp.tanh(theta[0])
        return jnp.array([[1.0, 0.0], [correlation, jnp.sqrt(1 - correlation**2)]])

    def loglikelihood(theta, record):
        zero = jnp.zeros(2)
        law = dist.MultivariateNormal(zero, scale_tril=root(theta))
        return law.log_prob(record)

    posterior = dpjax.Posterior(
        lambda theta: -jnp.sum(theta**2),
        loglikelihood,
        jax.ShapeDtypeStruct((10**5, 2), jnp.float32),
    )
    dpjax.plan_sample(
        posterior,
        lambda key, theta: root(theta) @ jax.random.normal(key, (2,)),
        lambda key: 0.5 * jax.random.normal(key, (1,)),
        budget=dpjax.Budget(1.0, 1e-6),
        epsilons=(),
    )


def test_what_is_said_does_not_depend_on_records_that_a_model_holds():
    """With a large record the made-up records would not follow the likelihood."""
    for largest in (0.0, 100.0):
        records = jax.random.normal(jax.random.key(0), (20_000, 2)).at[0].set(largest)
        held = records[:20]

        def loglikelihood(theta, record, held=held):
            return -0.5 * jnp.sum((record - theta - jnp.mean(held, axis=0)) ** 2)

        posterior = dpjax.Posterior(lambda theta: 0.0, loglikelihood, records)
        with pytest.raises(ValueError, match="loglikelihood_fn holds 'held'"):
            dpjax.sample(posterior, simulate, prior, budget=dpjax.Budget(4.0, 1e-6))


def test_too_many_draws_are_refused_before_the_fit_is_paid_for(tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    with pytest.raises(ValueError, match="too many for the memory"):
        dpjax.sample(
            target(5000),
            simulate,
            prior,
            budget=dpjax.Budget(4.0, 1e-6),
            num_draws=10**9,
            ledger=ledger,
            verbose=False,
        )
    assert not ledger.exists()


@pytest.mark.thorough
def test_a_model_that_does_not_fit_is_warned_of():
    records = 3 * jax.random.normal(jax.random.key(0), (5000, 2))
    with pytest.warns(UserWarning, match="variation of .*intervals are too short"):
        dpjax.sample(
            target_of(records),
            simulate,
            prior,
            budget=dpjax.Budget(4.0, 1e-6),
            verbose=False,
            unsafe_key=jax.random.key(1),
        )
