"""Scores with other observations have mean zero, and the information as variance."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.flatten_util import ravel_pytree
from numpyro import handlers

from dpjax.compiled import evaluated
from dpjax.fit.scores import NUM_REDRAWS
from dpjax.numpyro import fisher_information, posterior
from dpjax.numpyro.fisher import prior_mean
from dpjax.numpyro.nodes import conditional_scores, generated, kept_information
from dpjax.numpyro.score_model import score_model
from dpjax.release import taint
from dpjax.release.gaussian_sum import GaussianSum
from tests.tiers import tiered

ROWS, POSITIONS, DRAWS = 16, 4, 400
COVARIATES = np.random.default_rng(3).normal(size=ROWS)
exp = jnp.exp

# Coefficients of the models are numbers from outside.
pytestmark = pytest.mark.filterwarnings("ignore:the model captured")


@pytest.fixture(autouse=True)
def rank_promotion():
    """NumPyro's own code broadcasts arrays of different ranks."""
    with jax.numpy_rank_promotion("allow"):
        yield


def site(law, size, **data):
    """A model with one site, its data, and the options of `posterior`."""

    def model(x, y, **others):
        b = numpyro.sample("b", dist.Normal(0, 0.3).expand([size]).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("obs", law(b, x, **others), obs=y)

    return model, dict(x=COVARIATES, **data), {}


def observed(value, *shape):
    return np.full((ROWS, *shape), value)


COUNT, REAL, LABEL = (dict(y=observed(y)) for y in (3, 0.4, 1))


def line(b, x):
    return b[0] + b[1] * x


def logistic(x, y):
    b = numpyro.sample("b", dist.Normal(0, 0.3).expand([2]).to_event(1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("obs", dist.Bernoulli(logits=line(b, x)), obs=y)


def hurdle(x, any_visit, cost):
    b = numpyro.sample("b", dist.Normal(0, 0.3).expand([3]).to_event(1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("any", dist.Bernoulli(logits=line(b, x)), obs=any_visit)
        with handlers.mask(mask=any_visit == 1):
            numpyro.sample("cost", dist.LogNormal(b[2], 1.0), obs=cost)


def questionnaire(x, y):
    b = numpyro.sample("b", dist.Normal(0, 0.3).expand([3]).to_event(1))
    with numpyro.plate("data", len(x), dim=-2), numpyro.plate("items", 3):
        numpyro.sample("obs", dist.Bernoulli(logits=x[:, None] + b), obs=y)


def censored_weibull(x, time, event, limit):
    b = numpyro.sample("b", dist.Normal(0, 0.3).expand([3]).to_event(1))
    law = dist.Weibull(exp(line(b, x)), 1.5 * exp(b[2]))
    with numpyro.plate("data", len(x)):
        survival = -((time / law.scale) ** law.concentration)
        numpyro.factor("obs", jnp.where(event == 1, law.log_prob(time), survival))


def draw_censored(rng_key, latents, record):
    b = latents["b"]
    law = dist.Weibull(exp(line(b, record["x"])), 1.5 * exp(b[2]))
    time = law.sample(rng_key)
    event = (time <= record["limit"]).astype(jnp.int32)
    return {**record, "time": jnp.minimum(time, record["limit"]), "event": event}


def censored_nodes(latents, record):
    """Midpoints of 200 strata of the chance of an event, and the end of the study."""
    b = latents["b"]
    law = dist.Weibull(exp(line(b, record["x"])), 1.5 * exp(b[2]))
    chance = law.cdf(record["limit"])
    strata = chance * (jnp.arange(200) + 0.5) / 200
    time = law.scale * (-jnp.log1p(-strata)) ** (1 / law.concentration)
    time = jnp.append(time, record["limit"])
    event = (jnp.arange(201) < 200).astype(jnp.int32)
    weights = jnp.append(jnp.full(200, chance / 200), 1 - chance)
    repeated = {k: jnp.full(201, record[k]) for k in ("x", "limit")}
    return dict(time=time, event=event, **repeated), weights


def occupancy(b, x):
    """Five visits to a place that may be empty, which is then not seen at any."""
    is_empty = jnp.full(x.shape, jax.nn.sigmoid(b[0]))
    probs = jnp.stack([is_empty, 1 - is_empty], axis=-1)
    seen = dist.Binomial(5, logits=b[1] + b[2] * x)
    empty = dist.Binomial(5, probs=jnp.zeros(x.shape))
    return dist.MixtureGeneral(dist.Categorical(probs), [empty, seen])


CENSORED = dict(
    x=COVARIATES,
    time=observed(0.5),
    event=observed(1),
    limit=np.linspace(0.5, 2.0, ROWS),
)
# Number of nodes, and bounds on the weighted mean of the nodes, in their root mean
# squares: for one record, and for the mean over many. None: observations drawn anew.
EXACT, SMOOTH, LATTICE = (1e-5, 1e-5), (3e-3, 5e-4), (0.15, 5e-3)
SITES = {
    "bernoulli": ((logistic, dict(x=COVARIATES, **LABEL), {}), 2, EXACT),
    "trials from the data": (
        site(
            lambda b, x, n: dist.Binomial(n, logits=line(b, x)),
            2,
            n=np.arange(ROWS) + 3,
            **COUNT,
        ),
        32,
        EXACT,
    ),
    "categorical": (
        site(
            lambda b, x: dist.Categorical(
                logits=jnp.stack([b[0] * x, b[1] + x, b[2] * x], -1)
            ),
            3,
            **LABEL,
        ),
        3,
        EXACT,
    ),
    "ordinal": (
        site(
            lambda b, x: dist.OrderedLogistic(
                b[0] * x, jnp.stack([b[1], b[1] + exp(b[2])])
            ),
            3,
            **LABEL,
        ),
        3,
        EXACT,
    ),
    "poisson": (
        site(lambda b, x: dist.Poisson(5 * exp(line(b, x))), 2, **COUNT),
        32,
        LATTICE,
    ),
    "negative binomial": (
        site(
            lambda b, x: dist.NegativeBinomial2(1000 * exp(b[0]), 0.2 * exp(b[1])),
            2,
            **COUNT,
        ),
        32,
        LATTICE,
    ),
    "zero-inflated": (
        site(
            lambda b, x: dist.ZeroInflatedPoisson(
                jax.nn.sigmoid(b[0]), 1000 * exp(b[1] * x)
            ),
            2,
            **COUNT,
        ),
        33,
        LATTICE,
    ),
    "normal": (
        site(lambda b, x: dist.Normal(line(b, x), exp(b[2])), 3, **REAL),
        16,
        SMOOTH,
    ),
    "student": (
        site(
            lambda b, x: dist.StudentT(4 * exp(b[2]), line(b, x), exp(b[3])), 4, **REAL
        ),
        16,
        SMOOTH,
    ),
    "gamma": (
        site(lambda b, x: dist.Gamma(0.5 * exp(b[0]), exp(b[1])), 2, **REAL),
        16,
        SMOOTH,
    ),
    "beta": (
        site(lambda b, x: dist.Beta(0.7 * exp(line(b, x)), 3 * exp(b[2])), 3, **REAL),
        16,
        SMOOTH,
    ),
    "beta binomial": (
        site(
            lambda b, x: dist.BetaBinomial(exp(line(b, x)), 3 * exp(b[2]), 10),
            3,
            **COUNT,
        ),
        11,
        EXACT,
    ),
    "occupancy": (site(occupancy, 3, **COUNT), 6, EXACT),
    "mixture": (
        site(
            lambda b, x: dist.MixtureSameFamily(
                dist.Categorical(logits=jnp.stack([jnp.zeros(()), b[0]])),
                dist.Normal(b[1:3] + jnp.array([0.0, 3.0]), exp(b[3])),
            ),
            4,
            **REAL,
        ),
        32,
        SMOOTH,
    ),
    "masked": (
        site(
            lambda b, x, seen: dist.Normal(line(b, x), exp(b[2])).mask(seen),
            3,
            seen=np.arange(ROWS) % 2 == 0,
            **REAL,
        ),
        16,
        SMOOTH,
    ),
    "items": ((questionnaire, dict(x=COVARIATES, y=observed(1, 3)), {}), 8, EXACT),
    "vector": (
        site(
            lambda b, x: dist.MultivariateNormal(
                jnp.stack([line(b, x), b[2] * x], -1),
                jnp.array([[1.0, 0.5], [0.5, 1.0]]),
            ),
            3,
            y=observed(0.4, 2),
        ),
        NUM_REDRAWS + 1,
        None,
    ),
    "hurdle": (
        (hurdle, dict(x=COVARIATES, any_visit=observed(1), cost=observed(2.0)), {}),
        NUM_REDRAWS + 1,
        None,
    ),
    "censored": (
        (censored_weibull, CENSORED, dict(simulate_fn=draw_censored)),
        NUM_REDRAWS + 1,
        None,
    ),
    "censored nodes": (
        (censored_weibull, CENSORED, dict(score_nodes=censored_nodes)),
        201,
        (0.02, 0.02),
    ),
}
DEFAULT = ["hurdle"]


@pytest.mark.parametrize("name", ["censored", "censored nodes"])
def test_covariates_that_a_function_returns_are_not_generated(name):
    """A model that generates all arrays takes their law from the example."""
    assert generated(adapted(name).model) == {"time", "event"}


def regression_of_known_law(x, w, y):
    """The law of x is no latent's, and may be another one in the data."""
    b = numpyro.sample("b", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("x", dist.Normal(0, 1), obs=x)
        numpyro.factor("constant", -(w**2))
        numpyro.sample("y", dist.Normal(b[0] + b[1] * x, 0.1), obs=y)


def test_observations_that_no_latent_explains_are_covariates():
    data = dict(x=np.linspace(2, 3, 50), w=np.ones(50), y=np.zeros(50))
    found = posterior(regression_of_known_law, data, plate="data")
    assert found.model.observed == {"y": "y"} and generated(found.model) == {"y"}


def test_records_that_no_latent_explains_are_refused():
    def model(x):
        numpyro.sample("b", dist.Normal(0, 1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("x", dist.Normal(0, 1), obs=x)

    with pytest.raises(ValueError, match="say nothing about the latents"):
        posterior(model, dict(x=np.zeros(9)), plate="data")


@functools.cache
def adapted(name):
    model, data, options = SITES[name][0]
    return posterior(model, data, plate="data", example=data, **options)


def positions(target, count):
    rng = np.random.default_rng(5)
    return jax.tree.map(
        lambda s: jnp.asarray(0.3 * rng.normal(size=(count, *s.shape)), s.dtype),
        target.model.outline,
    )


@pytest.mark.parametrize("name", tiered(SITES, DEFAULT))
def test_scores_are_centred_and_vary_like_the_information(name):
    target, (_, count, bounds) = adapted(name), SITES[name]
    scores_fn = conditional_scores(target.model)

    def one(position, rng_key):
        first, second, third = jax.random.split(rng_key, 3)
        row = jax.random.randint(first, (), 0, ROWS)
        record = jax.tree.map(lambda leaf: leaf[row], target.model.example)
        record = target.model.observe_anew(second, position, record)
        found = scores_fn(position, record, third)
        slope = jax.grad(target.loglikelihood_fn)(position, record)
        score, nodes = found.gradients()
        moments = found.weights @ nodes, found.weights @ nodes**2
        return found.weights, score, ravel_pytree(slope)[0], *moments

    keys = jax.random.split(jax.random.key(6), (POSITIONS, DRAWS))
    many = jax.vmap(jax.vmap(one, (None, 0)))
    # The checker refuses NumPyro's sampler of binomial numbers.
    with jax.debug_key_reuse(False):
        found = evaluated(many, positions(target, POSITIONS), keys)
    weights, scores, slopes, means, squares = map(np.asarray, found)
    assert weights.shape[-1] == count
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)
    size = np.sqrt(squares.mean((0, 1)))
    atol = 1e-4 * size.max()
    np.testing.assert_allclose(scores, slopes, rtol=1e-3, atol=atol)
    if bounds is not None:
        alone, together = bounds
        assert np.abs(means / size).max() < alone
        assert np.abs(means.mean((0, 1)) / size).max() < together
    # 1600 independent records: a standard normal number is beyond 6 with 2e-9.
    for mean_zero in means, squares - scores**2:
        if bounds is None or mean_zero is not means:
            sums, sds = mean_zero.sum((0, 1)), mean_zero.std((0, 1))
            noise = np.sqrt(POSITIONS * DRAWS) * sds + 1e-12
            assert np.abs(sums / noise).max() < 6


@pytest.mark.thorough
def test_information_in_closed_form():
    """sum w h h^T of one record is that of a Bernoulli and of a Poisson observation."""
    for name, of_rate in ("bernoulli", 1.0), ("poisson", None):
        target = adapted(name)
        record = jax.tree.map(lambda leaf: leaf[1], target.model.example)
        position = {"b": jnp.array([0.1, -0.2])}
        scores_fn = conditional_scores(target.model)
        found = scores_fn(position, record, jax.random.key(0))
        row = np.array([1.0, record["x"]])
        logit = row @ [0.1, -0.2]
        size = 5 * np.exp(logit) if of_rate is None else 0.25 / np.cosh(logit / 2) ** 2
        _, nodes = found.gradients()
        matrix = (nodes.T * found.weights) @ nodes
        # The jitter of the nodes on counts is of this order.
        np.testing.assert_allclose(matrix, size * np.outer(row, row), rtol=0.02)


@pytest.mark.thorough
def test_redraws_keep_a_share_of_the_information():
    """Slope and variance of centred scores, over the variance of scores as they are."""
    target, num_records = adapted("vector"), 100_000
    position = {"b": jnp.array([0.1, -0.2, 0.3])}
    scores_fn = conditional_scores(target.model)
    record = jax.tree.map(lambda leaf: leaf[1], target.model.example)

    def one(rng_key):
        first, second = jax.random.split(rng_key)
        made_up = target.model.observe_anew(first, position, record)
        found = scores_fn(position, made_up, second)
        score, nodes = found.gradients()
        mean = found.weights @ nodes
        slope = found.weights @ (nodes - mean) ** 2
        return score**2, (score - mean) ** 2, slope

    keys = jax.random.split(jax.random.key(3), num_records)
    whole, variance, slope = np.mean(jax.jit(jax.vmap(one))(keys), axis=1)
    kept = kept_information(target.model)
    assert kept == NUM_REDRAWS / (NUM_REDRAWS + 1)
    assert kept_information(adapted("poisson").model) == 1
    # Six standard errors: of squares of normal numbers, sqrt(2 / 100,000).
    np.testing.assert_allclose(variance / whole, kept, atol=0.03)
    np.testing.assert_allclose(slope / whole, kept, atol=0.03)


@pytest.mark.thorough
def test_a_mask_hides_the_record():
    target = adapted("masked")
    record = jax.tree.map(lambda leaf: leaf[1], target.model.example)
    scores_fn = conditional_scores(target.model)
    found = scores_fn({"b": jnp.ones(3)}, record, jax.random.key(0))
    assert not np.any(found.observed) and not np.any(found.nodes)
    assert np.any(found.directions)


@pytest.mark.thorough
def test_scaled_sites_have_scaled_scores():
    def scaled(x, y):
        with handlers.scale(scale=0.5):
            logistic(x, y)

    data = dict(x=COVARIATES, y=observed(1))
    half = conditional_scores(posterior(scaled, data, plate="data", example=data).model)
    whole = conditional_scores(adapted("bernoulli").model)
    record, key = dict(x=jnp.array(0.7), y=jnp.array(1)), jax.random.key(0)
    position = {"b": jnp.array([0.3, -0.4])}
    half, whole = (f(position, record, key) for f in (half, whole))
    np.testing.assert_allclose(half.nodes, whole.nodes / 2, rtol=1e-6)
    np.testing.assert_allclose(half.weights, whole.weights, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "size"),
    tiered([("poisson", 1), ("masked", 2), ("mixture", 4)], [("poisson", 1)]),
)
def test_scores_have_as_few_numbers_as_the_law_or_the_position(name, size):
    target = adapted(name)
    record = jax.tree.map(lambda leaf: leaf[0], target.model.example)
    shapes = jax.eval_shape(
        conditional_scores(target.model),
        target.model.outline,
        record,
        jax.random.key(0),
    )
    assert shapes.observed.shape == (size,)
    assert shapes.nodes.shape[1] == size
    assert shapes.directions.shape == (size, target.model.dim)


@pytest.mark.parametrize("name", tiered(["poisson", "vector"], ["poisson"]))
def test_sums_of_contrasts_are_releases(name):
    """Keys are used once, nothing is traced twice, and the records do not leave."""
    target, traces, once = adapted(name), [], 0
    scores_fn = conditional_scores(target.model)
    release = GaussianSum(1.0, 1.0)
    size = release.num_words(target.model.dim, ROWS)

    @jax.jit
    def go(words, target, position, rng_key):
        def contrast(record, rng_key):
            traces.append(record)
            found = scores_fn(position, record, rng_key)
            observed, nodes = found.gradients()
            return found.weights @ jnp.clip(observed - nodes, -1, 1)

        return release(words, target, contrast, rng_key=rng_key)

    starts = positions(target, 2)
    for i in range(2):
        position = jax.tree.map(lambda leaf, i=i: leaf[i], starts)
        words = jax.random.bits(jax.random.key(i), (size,), jnp.uint32)
        found = go(words, target, position, jax.random.key(10 + i))
        assert np.all(np.isfinite(found))
        once = once or len(traces)
    assert len(traces) == once
    arguments = words, target, position, jax.random.key(0)
    program = jax.make_jaxpr(go)(*arguments)
    marks = jax.tree.map(lambda _: False, arguments)
    secret = jax.tree.map(lambda _: True, target.data)
    marks[1].__dict__["data"] = secret
    assert not any(taint.tainted(program, jax.tree.leaves(marks)))


@pytest.mark.thorough
def test_the_users_draws_give_a_metric():
    target = adapted("censored")
    information = fisher_information(target, num_simulated=50)
    start = jax.tree.map(lambda leaf: leaf[0], positions(target, 1))
    assert np.all(np.linalg.eigvalsh(information(start)) > 0)


def wrong_draws(rng_key, latents, record):
    return draw_censored(rng_key, jax.tree.map(lambda b: b + 1, latents), record)


def no_event(rng_key, latents, record):
    return {"time": draw_censored(rng_key, latents, record)["time"]}


def other_covariates(rng_key, latents, record):
    """A record that follows the model, but with a covariate from a public law."""
    x = jax.random.normal(jax.random.fold_in(rng_key, 1))
    return draw_censored(rng_key, latents, {**record, "x": x})


def light_nodes(latents, record):
    records, weights = censored_nodes(latents, record)
    return records, 0.9 * weights


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "'obs' observes a function of the data, or is a factor.*simulate_fn="),
        (dict(simulate_fn=wrong_draws), "drawn by simulate_fn do not follow"),
        (dict(simulate_fn=no_event), "simulate_fn must return the record"),
        (dict(simulate_fn=other_covariates), "changes 'x', which no latent explains"),
        (dict(score_nodes=light_nodes), "weights of score_nodes do not sum to one"),
        (
            dict(score_nodes=censored_nodes, simulate_fn=draw_censored),
            "do the same: pass one",
        ),
    ],
)
def test_draws_that_do_not_follow_the_model_are_refused(options, message):
    with pytest.raises(ValueError, match=f"(?s){message}"):
        target = posterior(
            censored_weibull, CENSORED, plate="data", example=CENSORED, **options
        )
        conditional_scores(target.model)


def test_functions_that_hold_records_are_refused():
    data = {**CENSORED, "limit": np.random.default_rng(8).uniform(1, 2, ROWS)}
    limit = data["limit"]

    def simulate(rng_key, latents, record):
        return draw_censored(rng_key, latents, {**record, "limit": limit[0]})

    with pytest.raises(ValueError, match="holds 'limit', which"):
        posterior(
            censored_weibull, data, plate="data", example=CENSORED, simulate_fn=simulate
        )


def reads_itself(x, y):
    b = numpyro.sample("b", dist.Normal(0, 1))
    with numpyro.plate("data", len(x)), handlers.mask(mask=y > 0):
        numpyro.sample("obs", dist.Normal(b * x, 1.0), obs=y)


def indicator_is_data(x, y):
    b = numpyro.sample("b", dist.Normal(0, 1))
    with numpyro.plate("data", len(x)):
        law = dist.RightCensoredDistribution(dist.Exponential(exp(b)), x > 0)
        numpyro.sample("obs", law, obs=y)


@pytest.mark.parametrize(
    ("model", "message"),
    tiered(
        CANNOT_BE_DRAWN := [
            (reads_itself, "'obs' reads what it or a later.*an array of its own"),
            (indicator_is_data, "drawn by the sites of the model do not.*simulate_fn="),
        ],
        CANNOT_BE_DRAWN[:1],
    ),
)
def test_sites_that_cannot_be_drawn_are_refused(model, message):
    data = dict(x=COVARIATES, y=observed(0.4))
    target = posterior(model, data, plate="data", example=data)
    with pytest.raises(ValueError, match=message):
        conditional_scores(target.model)


@pytest.mark.thorough
def test_covariates_in_large_units_are_named_as_the_cause():
    """Where numbers overflow is found in the posterior, or as a fit is made."""

    def rates(x, y):
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", len(x)):
            numpyro.sample("obs", dist.Poisson(jnp.exp(b * x)), obs=y)

    def scores(largest):
        years = np.linspace(0.0, largest, 20)
        example = dict(x=years, y=np.zeros(20))
        target = posterior(rates, example, plate="data", example=example)
        return conditional_scores(target.model)

    with jax.enable_x64(False):
        for largest in (200.0, 3000.0):
            with pytest.raises(ValueError, match="such as years in an exponential"):
                scores(largest)
        assert callable(scores(1.0))


@pytest.mark.thorough
def test_a_program_does_not_depend_on_the_order_of_numpyros_fields(monkeypatch):
    """That is the order of a set of strings, which differs between processes."""

    def text():
        def model(x, y):
            b = numpyro.sample("b", dist.Normal(0, 0.3).expand([4]).to_event(1))
            scale = exp(b[2])
            with numpyro.plate("data", len(x)):
                law = dist.StudentT(4 + exp(b[3]), line(b, x), scale)
                numpyro.sample("obs", law, obs=y)

        data = dict(x=COVARIATES, y=observed(0.5))
        target = posterior(model, data, plate="data", example=data)
        scores_fn = conditional_scores(target.model)
        record = jax.tree.map(lambda leaf: leaf[0], data)
        given = {"b": jnp.zeros(4)}, record, jax.random.key(0)
        return re.sub("0x[0-9a-f]+", "", str(jax.make_jaxpr(scores_fn)(*given)))

    one = text()
    gather = dist.Distribution.gather_pytree_data_fields.__func__
    for reordered in (sorted, lambda fields: sorted(fields, reverse=True)):
        monkeypatch.setattr(
            dist.Distribution,
            "gather_pytree_data_fields",
            classmethod(lambda cls, order=reordered: tuple(order(gather(cls)))),
        )
        assert text() == one


@pytest.mark.thorough
def test_a_narrow_prior_is_that_of_a_coefficient_of_large_units():
    """At 0.3 from zero the rates of these counts overflow, and their prior is 0.01."""

    def rates(x, y):
        b = numpyro.sample("b", dist.Normal(0.0, 0.01))
        with numpyro.plate("data", len(x)):
            numpyro.sample("obs", dist.Poisson(jnp.exp(b * x)), obs=y)

    with jax.enable_x64(False):
        example = dict(x=np.linspace(0.0, 200.0, 20), y=np.zeros(20))
        target = posterior(rates, example, plate="data", example=example)
        assert callable(conditional_scores(target.model))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("law", "is_wide"), [(dist.Normal, False), (dist.VonMises, True)]
)
def test_many_records_tell_nothing_of_a_direction_that_none_tells_of(law, is_wide):
    """An intercept and the effects of all groups may be moved against each other."""

    def model(group, y):
        b = numpyro.sample("b", dist.Normal(0, 1).expand([4]).to_event(1))
        with numpyro.plate("data", len(y)):
            numpyro.sample("obs", law(b[0] + b[1:][group], 1), obs=y)

    with jax.enable_x64(is_wide):
        data = dict(group=np.arange(999) % 3, y=np.zeros(999, np.float32))
        target = posterior(model, data, plate="data", example=data)
        information = score_model(target, 10**7).information(prior_mean(target.model))
    lengths = np.linalg.eigvalsh(np.asarray(information))
    assert abs(lengths[0]) < 1e-6
    assert lengths[1] > 1e5
