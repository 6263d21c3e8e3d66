"""Posteriors of NumPyro models: NumPyro's own density, and every refusal."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas
import pytest
from numpyro import handlers
from numpyro.contrib.control_flow import scan
from numpyro.infer.util import potential_energy
from numpyro.primitives import mutable

import dpjax
from dpjax.numpyro import posterior
from tests.numpyro_models import RECORDS, logistic, table
from tests.tiers import tiered

MODELS = table()
SUBSAMPLED = ("hierarchical", "subsampled")
rng = np.random.default_rng(1)
VECTOR, MATRIX = rng.normal(size=RECORDS), rng.normal(size=(RECORDS, 3))
BITS = rng.integers(0, 2, RECORDS)

# The size of a plate that is not read off an argument is a number from outside.
pytestmark = pytest.mark.filterwarnings("ignore:the model captured 'RECORDS'")


@pytest.fixture(autouse=True)
def rank_promotion():
    """NumPyro's own code broadcasts arrays of different ranks."""
    with jax.numpy_rank_promotion("allow"):
        yield


def adapted(name):
    model, data, options = MODELS[name]
    if name not in SUBSAMPLED:
        return posterior(model, data, plate="data", **options)
    with pytest.warns(UserWarning, match="subsample_size of plate 'data' is ignored"):
        return posterior(model, data, plate="data", **options)


@pytest.mark.thorough
@pytest.mark.parametrize("name", tiered(MODELS, [*MODELS][::2]))
@pytest.mark.filterwarnings("ignore:subsample_size does not match")
def test_the_density_is_numpyros_own(name):
    model, _, options = MODELS[name]
    target = adapted(name)
    if name in SUBSAMPLED:
        model = handlers.substitute(model, data={"data": jnp.arange(RECORDS)})

    @jax.jit
    def densities(target, position):
        arrays = {**target.data, **options.get("public", {})}
        return target(position), -potential_energy(model, (), arrays, position)

    shapes = target.model.outline
    for _ in range(3):
        position = jax.tree.map(lambda s: jnp.asarray(rng.normal(size=s.shape)), shapes)
        ours, theirs = densities(target, position)
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_records_enter_one_by_one():
    """A record's log-likelihood is that of the data set with that record alone."""
    target = adapted("logistic")
    position = {"b": jnp.array([0.5, -1.0, 2.0])}
    record = jax.tree.map(lambda leaf: leaf[7], target.data)
    logit = np.asarray(record["X"], float) @ [0.5, -1.0, 2.0]
    expected = float(record["y"]) * logit - np.logaddexp(0, logit)
    found = target.loglikelihood_fn(position, record)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_values_of_the_data_are_not_looked_at():
    data = dict(X=np.full((RECORDS, 3), np.nan), y=np.full(RECORDS, 7))
    target = posterior(logistic, data, plate="data")
    assert target.num_records == RECORDS


@pytest.mark.thorough
def test_draws_are_constrained_and_keep_what_reads_no_data():
    target = adapted("hierarchical")
    start = target.model.draw(jax.random.key(0))
    result = dpjax.run(
        lambda p: dpjax.barker(p, step_size=0.3, clip_bound=jnp.inf),
        target,
        60,
        initial_position=jax.tree.map(lambda leaf: jnp.stack([leaf] * 2), start),
        num_chains=2,
        budget=None,
        verbose=False,
        unsafe_key=jax.random.key(1),
    )
    draws = result.positions
    assert set(draws) == {"tau", "upper", "a", "sigma", "a0"}
    assert draws["a"].shape == (2, 30, 4)
    assert np.all(draws["tau"] > 0) and np.all(draws["sigma"] > 0)
    assert np.all((draws["upper"] > 0) & (draws["upper"] < 1 + draws["tau"]))
    np.testing.assert_array_equal(draws["a0"], draws["a"][..., 0])
    assert {"tau", "a[3]"} <= set(result.components()[0])
    assert result.to_arviz().groups() == ["posterior", "sample_stats"]


def test_other_data_take_the_place_of_these():
    target = adapted("logistic")
    other = dataclasses.replace(target, data=jax.tree.map(jnp.zeros_like, target.data))
    assert other.logprior_fn == target.logprior_fn
    assert jax.tree.structure(other) == jax.tree.structure(target)


def test_labels_may_be_floats():
    target = posterior(logistic, dict(X=MATRIX, y=BITS.astype(float)), plate="data")
    assert target.model.observed == {"obs": "y"}


def test_a_data_frame_is_the_arrays_of_its_columns():
    def line(x, y):
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("obs", dist.Normal(slope * x, 1.0), obs=y)

    frame = pandas.DataFrame({"x": VECTOR, "y": 2 * VECTOR})
    target = posterior(line, frame, plate="data")
    assert repr(target).startswith("ModelPosterior(one record: x: float")
    np.testing.assert_allclose(target.data["y"], 2 * VECTOR, rtol=1e-6)
    given = posterior(line, frame, plate="data", example=frame[:3]).model.example
    np.testing.assert_allclose(given["x"], VECTOR[:3], rtol=1e-6)
    with pytest.raises(TypeError, match="data must be a dict of arrays by the names"):
        posterior(line, (VECTOR, VECTOR), plate="data")
    with pytest.raises(ValueError, match=r"data\['y'\] .* an array of numbers"):
        posterior(line, frame.assign(y=frame["y"].astype(str)), plate="data")


@pytest.mark.parametrize(
    "values",
    [
        VECTOR.tolist(),
        tuple(VECTOR.tolist()),
        pandas.Series(np.arange(len(VECTOR)), dtype="Int64"),
        pandas.Series(VECTOR > 0, dtype="boolean"),
    ],
    ids=["list", "tuple", "integers", "flags"],
)
def test_data_whose_type_a_record_could_change_are_refused(values):
    """One missing value makes floats of integers, and the public design another one."""

    def line(x):
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("obs", dist.Normal(slope, 1.0), obs=x)

    with pytest.raises(ValueError, match=r"could change the type.*public list"):
        posterior(line, {"x": values}, plate="data")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_no_error_tells_of_a_number_that_is_not_finite(value):
    """JAX would raise one where it is asked to debug such numbers."""

    def centre(x):
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("obs", dist.Normal(mean, 1.0), obs=x)

    records = VECTOR.copy()
    records[1] = value
    barker = functools.partial(dpjax.barker, step_size=0.3, clip_bound=0.01)
    with jax.debug_nans(True), jax.debug_infs(True):
        target = posterior(centre, {"x": records}, plate="data")
        run = dpjax.batch(
            {"one": (barker, dpjax.Budget(1.0, 1e-5))},
            [target, target],
            2,
            initial_position={"mean": jnp.zeros(1)},
            num_chains=1,
            verbose=False,
        )
    assert np.all(np.isfinite(run.positions["one"]["mean"]))


def test_an_example_stands_for_records_outside_the_default_range():
    def compositions(x):
        a = numpyro.sample("a", dist.Gamma(2.0, 1.0).expand([3]).to_event(1))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("obs", dist.Pareto(2.0, a[0]), obs=x)

    with pytest.raises(ValueError, match=r"not finite\. Give example="):
        posterior(compositions, dict(x=VECTOR), plate="data", example=dict(x=[0, 0]))
    example = dict(x=[20.0, 30.0])
    posterior(compositions, dict(x=VECTOR), plate="data", example=example)
    with pytest.raises(ValueError, match="two or more records in the form of data"):
        posterior(compositions, dict(x=VECTOR), plate="data", example=dict(x=[2.0]))


def normal(x, **options):
    numpyro.sample("obs", dist.Normal(options.get("mean", 0.0), 1.0), obs=x)


def mean():
    return numpyro.sample("mean", dist.Normal(0, 1))


def no_plate(x):
    normal(x, mean=mean())


def local_latent(x):
    m = mean()
    with numpyro.plate("data", x.shape[0]):
        normal(x, mean=numpyro.sample("u", dist.Normal(m, 1)))


def local_discrete(x):
    m = mean()
    with numpyro.plate("data", x.shape[0]):
        k = numpyro.sample("k", dist.Bernoulli(0.5), infer={"enumerate": "parallel"})
        normal(x, mean=m * k)


def global_discrete(x):
    k = numpyro.sample("k", dist.Poisson(2.0))
    with numpyro.plate("data", x.shape[0]):
        normal(x, mean=mean() * k)


def constant_latent(x):
    m = numpyro.sample("m", dist.Delta(jnp.ones(2)).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        normal(x, mean=mean() * m[0])


def prior_of_data(x):
    m = numpyro.sample("m", dist.Normal(x.mean(), 1))
    with numpyro.plate("data", x.shape[0]):
        normal(x, mean=m)


def support_of_data(x):
    m = numpyro.sample("m", dist.Uniform(0, 2 + x.max()))
    with numpyro.plate("data", x.shape[0]):
        normal(x, mean=m)


def standardised(x):
    m = mean()
    scaled = (x - x.mean()) / (x.std() + 0.1)
    with numpyro.plate("data", x.shape[0]):
        normal(scaled, mean=m)


def autoregressive(x):
    m = mean()
    before = jnp.concatenate([jnp.zeros(1, x.dtype), x[:-1]])
    with numpyro.plate("data", x.shape[0]):
        normal(x, mean=m * before)


def chained(x):
    m = mean()

    def transition(before, now):
        numpyro.sample("obs", dist.Normal(m * before, 1), obs=now)
        return now, None

    with numpyro.plate("data", 1):
        pass
    scan(transition, jnp.zeros(()), x)


def chained_in_plate(x):
    m = mean()

    def transition(before, now):
        numpyro.sample("obs", dist.Normal(m * before, 1), obs=now)
        return now, None

    with numpyro.plate("data", x.shape[0]):
        scan(transition, jnp.zeros(()), x)


def observed_outside(x, z):
    m = mean()
    numpyro.sample("other", dist.Normal(m, 1).expand(z.shape), obs=z)
    with numpyro.plate("data", x.shape[0]):
        normal(x, mean=m)


def features_by_closure(y):
    b = numpyro.sample("b", dist.Normal(0, 1).expand([3]).to_event(1))
    with numpyro.plate("data", len(y)):
        numpyro.sample("obs", dist.Bernoulli(logits=MATRIX @ b), obs=y)


def all_by_closure(x):
    m = mean()
    with numpyro.plate("data", x.shape[0]):
        normal(VECTOR, mean=m)


def statistic_by_closure(x):
    m = numpyro.sample("m", dist.Normal(0, 2.5 * SPREAD))
    with numpyro.plate("data", x.shape[0]):
        normal(x, mean=m)


SPREAD = float(VECTOR.std())


def prior_counts(x):
    m = numpyro.sample("m", dist.Normal(0, x.shape[0] ** -0.5))
    with numpyro.plate("data", x.shape[0]):
        normal(x, mean=m)


def factor_outside(x):
    m = mean()
    numpyro.factor("extra", -jnp.sum((x - m) ** 2))
    with numpyro.plate("data", x.shape[0]):
        normal(x, mean=m)


def parameter(x):
    m = mean() + numpyro.param("shift", 0.0)
    with numpyro.plate("data", x.shape[0]):
        normal(x, mean=m)


def mutates(x):
    m = mean()
    mutable("count", {"value": 0.0})["value"] = m
    with numpyro.plate("data", x.shape[0]):
        normal(x, mean=m)


def random(x):
    m = mean() + jax.random.normal(numpyro.prng_key())
    with numpyro.plate("data", x.shape[0]):
        normal(x, mean=m)


def unobserved(x):
    m = mean()
    with numpyro.plate("data", x.shape[0]):
        normal(None, mean=m + x)


def improper(x):
    law = dist.ImproperUniform(dist.constraints.real, (), ())
    mean = numpyro.sample("mean", law)
    with numpyro.plate("data", len(x)):
        numpyro.sample("obs", dist.Normal(mean, 1.0), obs=x)


def branches(x):
    m = mean()
    with numpyro.plate("data", x.shape[0]):
        normal(x, mean=m if x.sum() > 0 else -m)


def leaves_jax(x):
    m = mean()
    with numpyro.plate("data", x.shape[0]):
        normal(x, mean=m + np.asarray(x))


def shifted_scale(x):
    transforms = dist.transforms.ExpTransform(), dist.transforms.AffineTransform(1, 2)
    law = dist.TransformedDistribution(dist.Normal(0, 1), [*transforms])
    sd = numpyro.sample("sd", law)
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("obs", dist.Normal(0, sd), obs=x)


def no_latent(x):
    with numpyro.plate("data", x.shape[0]):
        normal(x)


def empty_plate(x):
    m = mean()
    with numpyro.plate("data", x.shape[0]):
        pass
    normal(jnp.zeros(()), mean=m)


def other_argument(z):
    no_plate(z)


def by_spread(x):
    m = mean()
    with numpyro.plate("data", x.shape[0]):
        normal((x - x.mean()) / x.std(), mean=m)


def prints(x):
    m = mean()
    jax.debug.print("{}", x)
    with numpyro.plate("data", x.shape[0]):
        normal(x, mean=m)


KEPT = []


def keeps(x):
    m = mean()
    KEPT.append(x)
    with numpyro.plate("data", x.shape[0]):
        normal(x, mean=m)


REFUSED = {
    no_plate: (dict(x=VECTOR), "no plate 'data', nor any other.*theirs as plate"),
    local_latent: (dict(x=VECTOR), "latent 'u' is inside plate.*Marginalise it"),
    local_discrete: (dict(x=VECTOR), "latent 'k' is inside plate.*Marginalise it"),
    global_discrete: (dict(x=VECTOR), "latent 'k' is discrete.*Marginalise it"),
    constant_latent: (dict(x=VECTOR), "latent 'm' has a Delta law.*deterministic"),
    prior_of_data: (dict(x=VECTOR), "'m' is outside.*reads 'x'.*without the data"),
    support_of_data: (dict(x=VECTOR), "'m' is outside.*reads 'x'.*without the data"),
    standardised: (dict(x=VECTOR), "depends on other records.*public constants"),
    autoregressive: (dict(x=VECTOR), "depends on other records.*independent series"),
    chained: (dict(x=VECTOR), "link records, as a time series.*use jax.lax.scan"),
    chained_in_plate: (dict(x=VECTOR), "control flow in a plate.*use jax.lax.scan"),
    observed_outside: (dict(x=VECTOR, z=MATRIX), "'other' is outside.*into the plate"),
    features_by_closure: (dict(y=BITS), "other records reached.*name all the data"),
    all_by_closure: (dict(x=VECTOR), "reads none of 'x'.*name them in data"),
    prior_counts: (dict(x=VECTOR), "depends on their number.*as public"),
    factor_outside: (dict(x=VECTOR), "'extra' is outside.*factor into the plate"),
    parameter: (dict(x=VECTOR), "'shift': sites of numpyro.param.*give them a prior"),
    mutates: (dict(x=VECTOR), "mutable 'count'.*remove it"),
    random: (dict(x=VECTOR), "must not be random; remove"),
    unobserved: (dict(x=VECTOR), "'obs' is inside.*give it obs="),
    branches: (dict(x=VECTOR), "branches in Python.*use jnp.where"),
    improper: (dict(x=VECTOR), "nothing can be drawn.*prior that has draws"),
    leaves_jax: (dict(x=VECTOR), "takes out of JAX.*jax.numpy instead"),
    no_latent: (dict(x=VECTOR), "nothing to sample"),
    shifted_scale: (dict(x=VECTOR), "density of 'sd' is not finite.*needs domain="),
    empty_plate: (dict(x=VECTOR), "no site is inside plate.*move the observations"),
    other_argument: (dict(x=VECTOR), "cannot be called on one record"),
    by_spread: (dict(x=VECTOR), "not finite.*the spread of its argument"),
    prints: (dict(x=VECTOR), "makes a debug_print.*take prints and callbacks out"),
    keeps: (dict(x=VECTOR), "keeps what it was called with.*return values"),
}
CAPTURES = (features_by_closure, all_by_closure)


@pytest.mark.parametrize("model", REFUSED, ids=lambda model: model.__name__)
@pytest.mark.filterwarnings("ignore:the model captured")
def test_what_cannot_be_protected_is_refused(model):
    data, message = REFUSED[model]
    with pytest.raises(ValueError, match=message):
        posterior(model, data, plate="data")


def test_a_model_that_prints_is_refused_before_it_prints(capfd):
    with pytest.raises(ValueError, match="debug_print"):
        posterior(prints, dict(x=VECTOR), plate="data")
    assert capfd.readouterr().out == ""


def test_what_the_model_captured_is_named():
    with pytest.warns(UserWarning, match="captured 'SPREAD' .*treated as public"):
        posterior(statistic_by_closure, dict(x=VECTOR), plate="data")
    spread = VECTOR.std()

    def inside(x):
        def law():
            return dist.Normal(0, spread)

        m = numpyro.sample("m", law())
        with numpyro.plate("data", x.shape[0]):
            normal(x, mean=m)

    with pytest.warns(UserWarning, match="captured 'spread'") as found:
        posterior(inside, dict(x=VECTOR), plate="data")
    # It is this line of the user that the warning shows.
    assert found[0].filename == __file__


class Held:
    classes = 3

    def __init__(self, spread):
        self.spread = spread

    def __call__(self, x, sd=2.5):
        m = numpyro.sample("m", dist.Normal(0, self.spread + sd).expand([self.classes]))
        with numpyro.plate("data", x.shape[0]):
            normal(x, mean=m[0])


def test_defaults_and_attributes_of_a_model_are_named():
    model = Held(1.5)
    for function in (model, model.__call__, functools.partial(Held.__call__, model)):
        with pytest.warns(UserWarning, match="'classes', 'sd', 'spread' from outside"):
            posterior(function, dict(x=VECTOR), plate="data")


@pytest.mark.parametrize("copy", [VECTOR, VECTOR.copy(), jnp.asarray(VECTOR[:9])])
@pytest.mark.filterwarnings("ignore:the model captured")
def test_a_factor_outside_the_plate_that_holds_records_is_refused(copy):
    def model(x):
        m = numpyro.sample("m", dist.Normal(0, 1))
        numpyro.factor("rest", jnp.sum(dist.Normal(m, 1).log_prob(jnp.asarray(copy))))
        with numpyro.plate("data", x.shape[0]):
            normal(x, mean=m)

    with pytest.raises(ValueError, match="logprior_fn holds 'copy', which"):
        posterior(model, dict(x=VECTOR), plate="data")


def test_arguments_are_checked():
    data = dict(X=MATRIX, y=BITS)
    with pytest.raises(ValueError, match=r"'X'.*in data and in public"):
        posterior(logistic, data, plate="data", public=dict(X=MATRIX))
    with pytest.raises(ValueError, match="one entry per record"):
        posterior(logistic, dict(X=MATRIX, y=BITS[1:]), plate="data")
