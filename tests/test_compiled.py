"""Programs of equal text are compiled once, and functions are traced in every call."""

import functools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import threadpoolctl

import dpjax.numpyro
from dpjax import compiled as module
from dpjax.compiled import compiled, evaluated, one_call, traced
from dpjax.numpyro.nodes import conditional_scores


def test_functions_of_one_text_share_a_program_until_they_change():
    scale = 2.0

    def call(x):
        return compiled(lambda x: {"scaled": scale * x}, x)

    x = jnp.arange(3.0)
    first = call(x)
    assert call(x + 1) is first
    np.testing.assert_array_equal(first(x)["scaled"], 2 * x)
    scale = 3.0
    np.testing.assert_array_equal(call(x)(x)["scaled"], 3 * x)


def test_functions_that_a_function_calls_are_traced_again():
    """JAX keeps their programs by the identity of the function."""
    scale = 2.0

    @jax.jit
    def scaled(x):
        return scale * x

    def call(x):
        return scaled(x)

    assert evaluated(call, 1.0) == 2
    scale = 3.0
    assert evaluated(call, 1.0) == 3


def test_programs_of_one_call_share_traces():
    traces = []

    @jax.jit
    def doubled(x):
        traces.append(x)
        return 2 * x

    def twice():
        return evaluated(lambda x: doubled(x), 1.0), evaluated(
            lambda x: -doubled(x), 1.0
        )

    assert one_call(twice)() == (2, -2) and len(traces) == 1
    assert one_call(twice)() == (2, -2) and len(traces) == 2
    assert twice() == (2, -2) and len(traces) == 4


@pytest.fixture
def optimised():
    """Programs are optimised as those of users, and not as little as in other tests."""
    before = jax.config.values["jax_disable_most_optimizations"]
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


def loglikelihoods(rows):
    return jax.vmap(lambda row: -0.5 * jnp.sum((row - 1) ** 2))(rows)


@pytest.mark.usefixtures("optimised")
@pytest.mark.skipif(jax.__version_info__ < (0, 11), reason="JAX 0.9 has no library")
@pytest.mark.parametrize(("length", "has_library"), [(3, False), (100, True)])
def test_short_sums_are_not_made_by_a_library(length, has_library):
    """A function of one record that adds up its entries was 18 times as fast."""
    program = compiled(loglikelihoods, jnp.ones((1000, length)))
    assert ("ynn" in program.as_text()) == has_library


def test_options_that_a_caller_gives_are_left_alone():
    given = {"xla_backend_optimization_level": 2}
    options = module.options_for(traced(loglikelihoods, jnp.ones((1000, 3))), given)
    assert options != given == {"xla_backend_optimization_level": 2}


def test_programs_that_call_python_are_not_mixed_up():
    """Their text names the object that is called by its place in memory."""
    one = jax.ShapeDtypeStruct((), jnp.float32)
    for number in range(8):

        def call(number=number):
            return jax.pure_callback(lambda: np.float32(number), one)

        assert evaluated(call) == number


@pytest.mark.usefixtures("simplified_constants")
def test_constants_that_are_not_in_the_text_are_not_mixed_up():
    for start in (0, 1):
        held = jnp.arange(start, start + 40)
        assert compiled(lambda x, held=held: x + held[0], 0)(0) == start


def test_results_of_other_trees_are_not_mixed_up():
    x = jnp.arange(3.0)
    for name in ("a", "b"):
        found = compiled(lambda x, name=name: {name: x}, x)(x)
        assert found.keys() == {name}


def test_arguments_that_are_not_used_are_not_mixed_up():
    for shape in ((2,), (3,)):
        unused = jnp.zeros(shape)
        assert compiled(lambda x, y: 2 * x, 1.0, unused)(1.0, unused) == 2


def test_old_programs_are_dropped(monkeypatch):
    monkeypatch.setattr(module, "MAX_PROGRAMS", 2)
    monkeypatch.setattr(module, "_programs", type(module._programs)())
    for size in (1, 2, 3, 2):
        compiled(jnp.sum, jax.ShapeDtypeStruct((size,), jnp.float32))
    assert len(module._programs) == 2


def test_functions_are_evaluated_as_one_program_within_a_trace_too(compilations):
    """Under `jax.ensure_compile_time_eval` alone, the draws would be several."""
    found = []

    def draws(scale):
        def fn(seed):
            key = jax.random.key(seed)
            return scale * jnp.sum(jax.random.normal(key, (3,)) + jnp.arange(3.0))

        return float(evaluated(fn, np.uint32(0)))

    @jax.jit
    def program(x):
        found.append(draws(1.5))
        return x

    program.trace(1.0)
    assert len(compilations) == 1
    assert found[0] == pytest.approx(draws(1.5)) and len(compilations) == 1
    assert found[0] == pytest.approx(draws(3.0) / 2) and len(compilations) == 2


def threads_of_lapack():
    found = threadpoolctl.ThreadpoolController().select(user_api="blas").info()
    return {library["num_threads"] for library in found}


def test_lapack_takes_one_thread():
    """It starts others for matrices of more than 32 rows, which spin."""
    found = []

    def sees(x):
        found.append(threads_of_lapack())
        return x

    def call(x):
        x = jnp.linalg.cholesky(x)
        return jax.pure_callback(sees, jax.typeof(x), x, vmap_method="sequential")

    x = jnp.eye(3)
    with threadpoolctl.threadpool_limits(2, "blas"):
        np.testing.assert_array_equal(compiled(call, x)(x), x)
        assert threads_of_lapack() == {2}
    assert found == [{1}]


SOLVES = """
import jax
import jax.numpy as jnp
from dpjax.compiled import compiled

def solves(matrices, vectors):
    def step(total, _):
        right = (jnp.sin(vectors + k + total) for k in range(6))
        found = (
            jax.scipy.linalg.solve_triangular((1 + k) * matrices, one, lower=True)
            for k, one in enumerate(right)
        )
        return total + 1e-9 * sum(map(jnp.sum, found)), None

    return jax.lax.scan(step, 0.0, length=10)[0]

matrices, vectors = jnp.tile(5 * jnp.eye(3), (64, 1, 1)), jnp.ones((64, 3, 2000))
print(compiled(solves, matrices, vectors)(matrices, vectors))
"""


@pytest.mark.thorough
def test_calls_of_lapack_do_not_wait_for_each_other():
    """With JAX 0.10 on two cores they waited for ever."""
    command = [sys.executable, "-c", SOLVES]
    assert float(subprocess.check_output(command, timeout=120)) > 0


def beta_binomial(x, y):
    b = numpyro.sample("b", dist.Normal(0, 2).expand([3]).to_event(1))
    size = numpyro.sample("size", dist.LogNormal(2, 1))
    chance = jax.nn.sigmoid(b[0] + x @ b[1:])
    with numpyro.plate("data", len(y)):
        law = dist.BetaBinomial(chance * size, (1 - chance) * size, total_count=10)
        numpyro.sample("obs", law, obs=y)


def compare():
    """Scores of a fit with those of JAX's own compilation."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 2)).astype(np.float32)
    y = rng.binomial(10, rng.beta(4, 4, 400))
    target = dpjax.numpyro.posterior(
        beta_binomial, dict(x=x, y=y), plate="data", example=dict(x=x)
    )
    scores_fn = conditional_scores(target.model)
    position = dict(b=jnp.array([0.3, 0.5, -0.4]), size=jnp.array(2.0))
    keys = jax.random.split(jax.random.key(0), 400)

    def scores(record, rng_key):
        return scores_fn(position, record, rng_key)

    of_all = jax.vmap(scores)
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-3),
        evaluated(of_all, target.data, keys),
        jax.jit(of_all)(target.data, keys),
    )


@pytest.mark.thorough
def test_scores_are_compiled_to_what_jax_computes():
    """With an older generator of loops in XLA, scores were 11 instead of 9.

    The tests of this process use that generator.
    """
    code = "from tests import test_compiled; test_compiled.compare()"
    environment = os.environ | {"XLA_FLAGS": "", "PYTHONPATH": os.getcwd()}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
