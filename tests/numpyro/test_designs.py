"""Examples that are unlike the data, and what few records tell of."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import dpjax

NUM_RECORDS = 30_000


@pytest.fixture(autouse=True)
def rank_promotion():
    with jax.numpy_rank_promotion("allow"):
        yield


def counts(x, y):
    b = numpyro.sample("b", dist.Normal(0, 2).expand([4]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("obs", dist.Poisson(jnp.exp(b[0] + x @ b[1:])), obs=y)


def covariates(seed, size, kind):
    """A skewed one, one that is rarely not zero, and a normal one."""
    rng = np.random.default_rng(seed)
    skewed = {
        "alike": rng.exponential(1, size),
        "heavy": np.exp(rng.normal(size=size)),
    }[kind]
    rare = rng.random(size) < (0.01 if kind == "alike" else 0.5)
    return np.stack([skewed, rare, rng.normal(size=size)], axis=1)


def mode_and_sds(x, y):
    """Of the exact posterior, by Newton's method."""
    x = np.concatenate([np.ones((len(x), 1)), x], axis=1)
    b = np.zeros(x.shape[1])
    for _ in range(50):
        rate = np.exp(x @ b)
        precision = (x.T * rate) @ x + np.eye(len(b)) / 4
        b = b + np.linalg.solve(precision, x.T @ (y - rate) - b / 4)
    return b, np.sqrt(np.diag(np.linalg.inv(precision)))


def fit(target):
    return dpjax.numpyro.sample(
        target,
        budget=dpjax.Budget(1.0, 1e-6),
        verbose=False,
        unsafe_key=jax.random.key(0),
    )


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:curvature over its noise")
@pytest.mark.parametrize("kind", ["alike", "heavy"])
def test_draws_are_not_sure_of_what_is_wrong(kind):
    """The centre of the draws is off by less than 7 of their standard deviations.

    If these say what noise and chance do, the chance of a false alarm is below 1e-10.
    Where the slope of clipped scores was taken to change as the information does, rare
    effects were off by 7 to 15.
    """
    x = covariates(31, NUM_RECORDS, "alike")
    rate = np.exp(-1 + x @ [0.3, 1.0, -0.5])
    y = np.random.default_rng(32).poisson(rate).astype(float)
    target = dpjax.numpyro.posterior(
        counts, dict(x=x, y=y), plate="data", example=dict(x=covariates(9, 1000, kind))
    )
    exact, exact_sd = mode_and_sds(x, y)
    result = fit(target)
    draws = result.positions["b"].reshape(-1, 4)
    apart, sd = np.abs(draws.mean(0) - exact), draws.std(0)
    assert np.all(apart < 7 * sd)
    # With another example, noise may hide whether any record is a rare one.
    assert kind != "alike" or np.all(sd < 15 * exact_sd)
    assert kind != "alike" or result.known.noisiest == "b[2]"
    assert result.known.most_noise > 0.2


def without_group(model, num_groups, absent):
    """A posterior of counts in groups, all but one of them, and of all in the example.

    The absent group is the first or the last one.
    """
    rng = np.random.default_rng(5)
    first = 1 if absent == 0 else 0
    group = rng.integers(first, first + num_groups - 1, NUM_RECORDS)
    y = rng.poisson(np.exp(0.3 * rng.normal(size=num_groups))[group]).astype(float)
    example = dict(group=np.arange(10 * num_groups) % num_groups)
    return dpjax.numpyro.posterior(
        model, dict(group=group, y=y), plate="data", example=example
    )


def assert_priors(draws, prior_sd):
    """Draws are about as wide as the prior.

    In 52 fits with other keys their sds were .44 to 1.0 of the prior's. If the slope is
    taken to be known they are .11 to .24 of it, with means up to eleven sds away.
    """
    assert 0.3 * prior_sd < draws.std() < 1.2 * prior_sd


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:curvature over its noise")
def test_a_group_that_only_the_example_has_keeps_its_prior():
    def model(group, y):
        with numpyro.plate("groups", 6):
            u = numpyro.sample("u", dist.Normal(0, 1))
        with numpyro.plate("data", group.shape[0]):
            numpyro.sample("obs", dist.Poisson(jnp.exp(u[group])), obs=y)

    target = without_group(model, 6, absent=5)
    draws = fit(target).positions["u"].reshape(-1, 6)
    assert_priors(draws[:, -1], 1.0)
    # Of the others, exact sds are .013 to .018.
    assert np.all(draws[:, :-1].std(0) < 0.03)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:curvature over its noise")
def test_a_level_that_only_the_example_has_keeps_what_the_prior_says():
    """Without records of the first level, effects of the others have no reference."""

    def model(group, y):
        b = numpyro.sample("b", dist.Normal(0, 1).expand([6]).to_event(1))
        effects = jnp.concatenate([jnp.zeros(1), b[1:]])
        with numpyro.plate("data", group.shape[0]):
            numpyro.sample("obs", dist.Poisson(jnp.exp(b[0] + effects[group])), obs=y)

    target = without_group(model, 6, absent=0)
    draws = fit(target).positions["b"].reshape(-1, 6)
    known = draws[:, :1] + draws[:, 1:]
    assert np.all(known.std(0) < 0.05)
    # Given these sums, the reference is normal about a sixth of their sum.
    assert_priors(draws[:, 0] - known.sum(1) / 6, 6**-0.5)
