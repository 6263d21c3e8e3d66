"""Functions of a posterior that hold records, wherever they keep them, are refused."""

import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.experimental.ode import odeint

import dpjax
from dpjax import proposals
from dpjax.release.captured import (
    Records,
    captured,
    check_example,
    check_simulation,
)
from dpjax.release.on_disk import canonical
from dpjax.runner.program import check_algorithm
from tests.tiers import tiered

X = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
LONG = np.random.default_rng(2).normal(size=(64, 3))
LABELS = np.random.default_rng(1).integers(0, 2, 64).astype(np.int32)
POSITIONS = jnp.zeros((2, 3))


def logprior(position):
    return -0.5 * jnp.sum(position**2)


def loglikelihood(position, record):
    return -0.5 * jnp.sum((record["x"] - position) ** 2) * record["label"]


def posterior(data=X, **functions):
    functions = dict(logprior_fn=logprior, loglikelihood_fn=loglikelihood) | functions
    return dpjax.Posterior(data=dict(x=data, label=LABELS), **functions)


def check(target):
    algorithm_fn = functools.partial(dpjax.barker, step_size=0.1, clip_bound=0.1)
    positions = POSITIONS
    if target.example:
        positions = dict(theta=positions)
    check_algorithm(algorithm_fn, target, positions)


def numpyro_model(x, label):
    theta = numpyro.sample("theta", dist.Normal(0, 1).expand([3]).to_event(1))
    with numpyro.plate("people", len(x)):
        numpyro.sample("label", dist.Bernoulli(logits=x @ theta), obs=label)


def centred(centre):
    """A likelihood that reads records which `centre` holds."""

    def function(position, record):
        return loglikelihood(position + jnp.asarray(centre()), record)

    return function


def by_closure(held):
    return centred(lambda: held.mean(0))


def by_default(held):
    return centred(lambda held=held: held.mean(0))


def by_keyword(held):
    return centred(lambda *, held=held: held.mean(0))


def by_partial(held):
    return functools.partial(lambda held, *args: by_closure(held)(*args), held)


def by_attribute(held):
    def function(position, record):
        return loglikelihood(position + function.held.mean(0), record)

    function.held = held
    return function


def by_bound_method(held):
    return Callable(held).method


def by_callable(held):
    return Callable(held)


def by_class(held):
    return type("Mine", (Callable,), dict(held=held, __init__=lambda self: None))()


def by_slots(held):
    return Slotted(held)


def by_container(held):
    return centred(lambda kept=dict(all=[held]): kept["all"][0].mean(0))


def by_namespace(held):
    kept = types.SimpleNamespace(x=held)
    return centred(lambda: kept.x.mean(0))


def by_module(held):
    module = types.ModuleType("notebook")
    module.held = held
    scope = dict(notebook=module)
    exec("def centre(): return notebook.held.mean(0)", scope)
    return centred(scope["centre"])


def by_posterior(held):
    kept = posterior(held)
    return centred(lambda: kept.data["x"].mean(0))


def by_constant(held):
    # NumPy's memory is not found in what JAX made of it.
    copy = jnp.array(held)
    return centred(lambda: jnp.mean(copy, 0))


def by_jit(held):
    return jax.jit(by_closure(held))


def by_scan(held):
    copy = jnp.array(held)

    def function(position, record):
        def body(total, row):
            return total + row, None

        total, _ = jax.lax.scan(body, position, copy)
        return loglikelihood(total, record)

    return function


class Callable:
    def __init__(self, held):
        self.held = held

    def method(self, position, record):
        return loglikelihood(position + self.held.mean(0), record)

    __call__ = method


class Slotted:
    __slots__ = ("held",)
    __init__, __call__ = Callable.__init__, Callable.__call__


HIDDEN = [
    by_closure, by_default, by_keyword, by_partial, by_attribute, by_bound_method,
    by_callable, by_class, by_slots, by_container, by_namespace, by_module,
    by_posterior, by_constant, by_jit, by_scan,
]  # fmt: skip


@pytest.mark.parametrize("hide", HIDDEN, ids=lambda hide: hide.__name__)
def test_a_likelihood_that_holds_the_records_is_refused(hide):
    with pytest.raises(ValueError, match=r"^loglikelihood_fn holds"):
        check(posterior(loglikelihood_fn=hide(X)))


def test_a_global_is_found():
    scope = dict(everyone=X, loglikelihood=loglikelihood)
    source = "def f(position, record):\n"
    source += "    return loglikelihood(position + everyone.mean(0), record)"
    exec(source, scope)
    with pytest.raises(ValueError, match="'everyone', which is an array of the data"):
        check(posterior(loglikelihood_fn=scope["f"]))


SHUFFLED = np.random.default_rng(2).permutation(X)
COPIES = {
    "the array": (X, "is an array of the data"),
    "a view": (X[::2], "is an array of the data"),
    "a copy": (X.copy(), "holds entries of the data"),
    "a column": (X[:, 1].copy(), "holds entries of the data"),
    "summaries of each record": (X.sum(1), "has one entry for each of the records"),
    "some records": (SHUFFLED[:9], "holds entries of the data"),
    "one record": (X[5].copy(), "holds entries of the data"),
    "in double precision": (X[5].astype(np.float64), "holds entries of the data"),
    "one cell": (X[5, 1].copy(), "holds entries of the data"),
    "a Python number": (float(X[5, 1]), "holds entries of the data"),
    "some labels": (LABELS[10:30].astype(float), "holds entries of the data"),
    "a list": (X.ravel().tolist(), "holds entries of the data"),
}


def why_secret(records, value):
    return dict(records.secrets([("", value)])).get("", "")


@pytest.mark.parametrize("name", COPIES)
def test_records_are_told_by_identity_shape_and_content(name):
    value, why = COPIES[name]
    assert why_secret(Records(posterior()), value) == why
    assert why_secret(Records(posterior(public=[value])), value) == ""


def test_a_number_of_the_data_that_became_a_literal_is_found():
    cell = float(X[5, 1])
    program = jax.make_jaxpr(lambda position: position * cell)(POSITIONS[0])
    assert not program.consts

    def function(position, record):
        return loglikelihood(position * hidden(), record)

    hidden = iter([cell] * 100).__next__
    with pytest.raises(ValueError, match=r"a constant of shape \(\)"):
        check(posterior(loglikelihood_fn=function))


def test_public_constants_are_none_of_the_records():
    public = [np.zeros((3, 3)), np.eye(8), 0.5, np.log(2 * np.pi), np.arange(20), "x"]
    public += [1e-320, 1.7e308, np.float32(3e-45), np.nan]
    records = Records(posterior(np.round(X, 1)))
    assert records.secrets([("", value) for value in public]) == []
    assert why_secret(records, 0.1) == ""


def test_many_records_hold_public_numbers_by_chance():
    """A single float32 number is among two million by chance, a pair in a row is not.

    Chance of a false alarm of this test: 300 pairs x 2e6 places x 2^-44 < 1e-4 before
    the seeds were fixed; with them it is a constant.
    """
    drawn = np.random.default_rng(3)
    data = drawn.normal(size=(10**6, 2)).astype(np.float32)
    target = dpjax.Posterior(logprior, loglikelihood, data)
    numbers = [("", value) for value in drawn.normal(size=300).astype(np.float32)]
    pairs = [("", value) for value in drawn.normal(size=(300, 2)).astype(np.float32)]
    records = Records(target)
    assert records.secrets(numbers + pairs) == []
    assert why_secret(records, data[12345].copy()) == "holds entries of the data"


def test_what_is_named_as_public_may_be_held():
    grid = np.linspace(0, 1, 64)

    def function(position, record):
        return loglikelihood(position + jnp.interp(0.5, grid, grid), record)

    with pytest.raises(ValueError, match=r"'grid'.*public="):
        check(posterior(loglikelihood_fn=function))
    check(posterior(loglikelihood_fn=function, public=grid))


def test_a_constrain_fn_that_publishes_a_copy_is_refused():
    copy = jnp.array(X[:5])
    target = posterior(constrain_fn=lambda position: dict(theta=position, x=copy))
    with pytest.raises(ValueError, match=r"^constrain_fn holds .* no record"):
        check(target)
    prior = posterior(logprior_fn=lambda position: logprior(position - copy[0]))
    with pytest.raises(ValueError, match=r"^logprior_fn holds"):
        check(prior)


@pytest.mark.usefixtures("simplified_constants")
@pytest.mark.parametrize(
    "simplified_constants",
    [False, True],
    ids=["constants", "literals"],
    indirect=True,
)
@pytest.mark.parametrize("field", ["position", "log_ratio"])
@pytest.mark.parametrize(
    "data, held",
    [(X, X), (LONG, LONG.astype(np.float32)), (X, LABELS)],
    ids=["same", "rounded", "labels"],
)
def test_a_proposal_that_holds_a_copy_is_refused(data, held, field):
    """Also where only the chance of acceptance depends on it, and if it is rounded."""
    held = np.array(jnp.array(held))
    # In bytes, which are not searched, so that the array is a constant of the program.
    stored, dtype = held.tobytes(), held.dtype

    def propose(*arguments):
        copy = jnp.array(np.frombuffer(stored, dtype))
        move = proposals.gaussian.propose(*arguments)
        return move._replace(**{field: getattr(move, field) + copy[0]})

    proposal = proposals.gaussian._replace(propose=propose)

    def algorithm_fn(target):
        return dpjax.barker(target, 0.1, clip_bound=0.1, proposal=proposal)

    with pytest.raises(ValueError, match=r"holds an array .* entries of the data"):
        check_algorithm(algorithm_fn, posterior(data), POSITIONS)


def test_a_step_size_that_is_computed_from_the_data_is_refused():
    def algorithm_fn(target):
        return dpjax.barker(target, 0.1 * X.std(), clip_bound=0.1)

    with pytest.raises(ValueError, match="algorithm holds 'X', which is an array of"):
        check_algorithm(algorithm_fn, posterior(), POSITIONS)


def test_chains_that_start_at_records_are_refused():
    algorithm_fn = functools.partial(dpjax.barker, step_size=0.1, clip_bound=0.1)
    with pytest.raises(ValueError, match=r"^a chain starts at an initial_position"):
        check_algorithm(algorithm_fn, posterior(), POSITIONS.at[1].set(X[7]))
    starts = jnp.array([[0.0, 1.0, 0.5], X.mean(0)])
    check_algorithm(algorithm_fn, posterior(), starts)


@pytest.mark.parametrize(
    "metric",
    [jnp.arange(1.0, 65.0), jnp.repeat(jnp.array([1.0, 2.0]), 32)],
    ids=["a range", "a step"],
)
def test_as_many_parameters_as_records_are_none_of_them(metric):
    """A metric may have as many entries as there are records, and sorted data holds it.

    The data are a column and, after it, the metric itself.
    """
    data = jnp.concatenate([X[:, 0], metric])
    target = dpjax.Posterior(
        logprior, lambda position, record: position[0] * record, data
    )
    algorithm_fn = functools.partial(
        dpjax.barker, step_size=0.1, inverse_mass_matrix=metric, clip_bound=0.1
    )
    check_algorithm(algorithm_fn, target, jnp.zeros((2, 64)))


def test_functions_that_call_other_code_are_refused():
    """It may read records, also where nothing is released, as by a plan."""

    def called(function):
        def calls(*arguments):
            mean = jax.pure_callback(
                lambda: X.mean(), jax.ShapeDtypeStruct((), X.dtype)
            )
            return function(*arguments) + mean

        return calls

    def draw(rng_key):
        return jax.random.normal(rng_key, (3,))

    def simulate(rng_key, position):
        return dict(x=position + draw(rng_key), label=jnp.int32(1))

    for name, function in dict(logprior_fn=logprior, constrain_fn=jnp.exp).items():
        place = r"pure_callback, .* at .*test_captured\.py:\d+:\d+ \(.*\.calls\)"
        with pytest.raises(ValueError, match=place):
            check(posterior(**{name: called(function)}))
    with pytest.raises(ValueError, match="pure_callback, which may see records"):
        dpjax.plan_sample(
            posterior(), simulate, called(draw), budget=dpjax.Budget(1.0, 1e-6)
        )


def test_simulators_that_hold_records_are_refused():
    def simulate(rng_key, position, held=0.0):
        noise = jax.random.normal(rng_key, (3,))
        return dict(x=position + noise + jnp.asarray(held).mean(), label=jnp.int32(1))

    def prior(rng_key, held=0.0):
        return jax.random.normal(rng_key, (3,)) + jnp.asarray(held).mean()

    def with_records(function):
        return functools.partial(function, held=X[:9].copy())

    check_simulation(posterior(), simulate, prior)
    with pytest.raises(ValueError, match=r"^simulate_fn holds 'held', which holds"):
        check_simulation(posterior(), with_records(simulate), prior)
    with pytest.raises(ValueError, match=r"^prior_sample_fn holds 'held'"):
        dpjax.sample(
            posterior(),
            simulate,
            with_records(prior),
            budget=dpjax.Budget(1.0, 1e-6),
        )


def test_examples_that_are_records_are_refused():
    """A single number of an example may be in the data, such as an age."""
    made_up = np.random.default_rng(4).normal(size=(20, 3))
    made_up[:3] = X[:3]

    def target(x):
        data = dict(x=X, label=LABELS)
        return dpjax.numpyro.posterior(
            numpyro_model, data, plate="people", example=dict(x=x.tolist())
        )

    check_example(target(made_up))
    refused = pytest.raises(ValueError, match=r"^example\['x'\] holds entries of the")
    with refused:
        dpjax.numpyro.sample(target(X[10:20]), budget=dpjax.Budget(1.0, 1e-6))
    with refused:
        check(target(X[10:20]))


@pytest.mark.parametrize("num_rows", tiered([30, 1000], [30]))
def test_examples_of_whole_numbers_that_are_records_are_refused(num_rows):
    """Whoever takes rows of the data as an example may have shuffled them."""
    rng = np.random.default_rng(5)

    def records(num_records):
        x = rng.integers([20, 40, 0], [90, 130, 2], size=(num_records, 3))
        return dict(x=x.astype(float), label=rng.integers(2, size=num_records))

    def check_of(data, example):
        check_example(
            dpjax.numpyro.posterior(
                numpyro_model, data, plate="people", example=example
            )
        )

    data = records(3000)
    rows = rng.choice(3000, size=num_rows)
    for float_type in np.float32, np.float64:
        copied = dict(x=data["x"][rows].astype(float_type), label=data["label"][rows])
        with pytest.raises(
            ValueError, match=r"^all records of the example are records"
        ):
            check_of(data, copied)
    check_of(data, records(num_rows))
    # Of indicators, any data hold all combinations.
    few = {k: v % 2 for k, v in data.items()}
    check_of(few, {k: v[rows] for k, v in few.items()})
    # A public design, with outcomes that were made up.
    check_of(data, copied | dict(label=rng.integers(2, size=num_rows)))


def test_a_run_is_refused_before_it_is_charged(tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    with pytest.raises(ValueError, match="loglikelihood_fn holds 'held'"):
        dpjax.run(
            functools.partial(dpjax.barker, step_size=0.1, clip_bound=0.1),
            posterior(loglikelihood_fn=by_closure(X)),
            2,
            initial_position=POSITIONS,
            num_chains=2,
            budget=dpjax.Budget(1.0, 1e-6),
            ledger=ledger,
            verbose=False,
        )
    assert not ledger.exists()


def test_names_of_what_a_function_holds():
    scale, count = 2.5, 7

    def function(position, *, shift=X):
        return position * scale + count + jnp.sum(shift)

    assert {name for name, _ in captured(function)} == {"scale", "count", "shift"}


def test_numbers_that_a_library_chose_are_not_the_users():
    """Tolerances are defaults of JAX's solver; the rate is a number of the user's."""
    rate = 0.5

    def function(position):
        times = jnp.array([0.0, 1.0])
        return odeint(lambda x, _: -rate * x, position, times)[1]

    assert {name for name, _ in captured(function)} == {"rate"}


def test_arithmetic_on_records_raises_nothing():
    """Whoever has NumPy raise its errors would learn which records have some."""
    records = X.astype(np.float64)
    records[3] = 1e-310, 1e300, -np.inf
    target = dpjax.numpyro.posterior(
        numpyro_model,
        dict(x=records, label=LABELS),
        plate="people",
        example=dict(x=LONG, label=LABELS),
    )
    with np.errstate(all="raise"):
        assert canonical(records, np.float32).dtype == np.float32
        assert Records(target).secrets([("held", records[:9].copy())])
        check_example(target)


def test_other_posteriors_pass():
    check(posterior())
    check(dataclasses.replace(posterior(), constrain_fn=jnp.exp))
