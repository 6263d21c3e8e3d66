"""The kernels in BlackJAX's hands: names, transformations, compilations, dtypes."""

import functools
import inspect

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax import proposals
from dpjax.mcmc import metropolis_hastings
from dpjax.posterior import Posterior
from dpjax.release import clip_bounds
from tests.tiers import tiered

MINIBATCH = dict(clip_bound=0.5, expected_batch_size=30.0)
SETTINGS = {
    "barker": dict(clip_bound=0.5, laziness=0.8),
    "penalty": dict(clip_bound=0.5, test_noise_multiplier=0.5),
    "fast_mh": dict(MINIBATCH, laziness=0.8),
    "tuna": MINIBATCH,
    "fast_mh_published": dict(MINIBATCH, max_batch_size=80.0, epsilon=20.0, delta=1e-3),
}
NAMES = [*SETTINGS]
FEW = ["barker", "penalty", "fast_mh"]


def logprior(position):
    return -0.5 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(position)) / 16


def loglikelihood(position, record):
    return -0.5 * jnp.sum((record - position) ** 2)


def make(name, posterior, step_size=0.25, **changes):
    return getattr(dpjax, name)(posterior, step_size, **{**SETTINGS[name], **changes})


@pytest.fixture
def posterior(dyadic_data):
    return Posterior(logprior, loglikelihood, dyadic_data(40, 2))


@pytest.mark.parametrize("name", NAMES)
def test_three_layers(name, posterior):
    sampler = getattr(dpjax, name)
    assert sampler.__doc__ == sampler.as_top_level_api.__doc__  # What help() shows.
    state = sampler.init(jnp.zeros(2), posterior, rng_key=None)
    kernel = sampler.build_kernel()
    settings = SETTINGS[name]
    key = jax.random.key(0)
    proposal = inspect.signature(sampler.as_top_level_api).parameters["proposal"]
    one = kernel(key, state, posterior, 0.25, proposal=proposal.default, **settings)
    algorithm = make(name, posterior)
    jax.tree.map(
        np.testing.assert_array_equal,
        one,
        algorithm.step(jax.random.clone(key), algorithm.init(jnp.zeros(2))),
    )
    parameters = inspect.signature(sampler.as_top_level_api).parameters
    assert list(parameters)[:3] == ["posterior", "step_size", "inverse_mass_matrix"]
    for parameter in list(parameters.values())[3:]:
        assert parameter.kind is inspect.Parameter.KEYWORD_ONLY


@pytest.mark.parametrize("call", ["top level", "init", "kernel"])
def test_wrong_arguments_are_refused_in_the_name_of_the_public_function(
    call, posterior
):
    sampler = dpjax.sgld if call == "init" else dpjax.barker
    message = "sgld() missing 1 required positional argument: 'step_size'"
    with pytest.raises(TypeError) as refusal:
        if call == "init":
            sampler.init(jnp.zeros(2), posterior)
        else:
            message = "barker() missing 1 required keyword-only argument: 'clip_bound'"
            kernel = sampler.build_kernel()
            make = (
                functools.partial(kernel, None, None) if call == "kernel" else sampler
            )
            make(posterior, 0.1)
    assert f"dpjax.{message}" in str(refusal.value)


def test_a_mistyped_parameter_is_named(posterior):
    with pytest.raises(TypeError, match=r"dpjax\.barker.*unexpected.*'stepsize'"):
        dpjax.barker(posterior, stepsize=0.1, clip_bound=0.1)


def test_the_metric_may_be_passed_by_position_as_in_blackjax(posterior):
    metric, settings = np.array([[2.0, 0.5], [0.5, 1.0]]), SETTINGS["barker"]
    keyword = dpjax.barker(posterior, 0.25, inverse_mass_matrix=metric, **settings)
    states = [
        algorithm.step(jax.random.key(0), algorithm.init(jnp.zeros(2)))
        for algorithm in (dpjax.barker(posterior, 0.25, metric, **settings), keyword)
    ]
    jax.tree.map(np.testing.assert_array_equal, *states)


def test_states_and_infos_hold_public_values_only():
    # A new field is a new release: think before changing this test.
    assert metropolis_hastings.MHState._fields == ("position", "walk")
    assert metropolis_hastings.MHInfo._fields == ("acceptance_rate", "is_accepted")


@pytest.mark.parametrize("name", NAMES)
def test_info_is_the_bit(name, posterior):
    algorithm = make(name, posterior)
    keys = jax.random.split(jax.random.key(1), 200)
    state = algorithm.init(jnp.zeros(2))
    states, info = jax.jit(jax.vmap(lambda key: algorithm.step(key, state)))(keys)
    assert info.is_accepted.dtype == bool
    assert info.acceptance_rate.dtype == jnp.result_type(float)
    np.testing.assert_array_equal(info.acceptance_rate, info.is_accepted)
    moved = np.any(np.asarray(states.position) != 0, axis=1)
    np.testing.assert_array_equal(moved, info.is_accepted)
    assert 0.02 < moved.mean() < 0.98


@pytest.mark.parametrize("name", tiered(NAMES, FEW))
def test_blackjax_runs_it(name, posterior):
    algorithm = make(name, posterior)
    final, (states, infos) = blackjax.util.run_inference_algorithm(
        rng_key=jax.random.key(2),
        inference_algorithm=algorithm,
        num_steps=50,
        initial_position=jnp.zeros(2),
    )
    assert states.position.shape == (50, 2) and infos.is_accepted.shape == (50,)
    np.testing.assert_array_equal(final.position, states.position[-1])
    assert len(np.unique(states.position[:, 0])) > 3


@pytest.mark.parametrize("name", tiered(NAMES, FEW))
def test_vmap_and_jit_change_nothing(name, posterior):
    algorithm = make(name, posterior)
    positions = jnp.linspace(-1, 1, 8).reshape(4, 2)
    keys = jax.random.split(jax.random.key(3), 4)
    states = jax.vmap(algorithm.init)(positions)
    together = jax.jit(jax.vmap(algorithm.step))(jax.random.clone(keys), states)
    compiled = jax.jit(algorithm.step)
    for i in range(4):
        state = algorithm.init(positions[i])
        alone = compiled(jax.random.clone(keys)[i], state)
        jax.tree.map(
            lambda a, b, i=i: np.testing.assert_allclose(a[i], b, rtol=1e-6),
            together,
            alone,
        )


@pytest.mark.parametrize("name", NAMES)
def test_one_compilation_for_new_data_of_equal_shape(name, dyadic_data):
    traces = []
    # The capacity of a minibatch depends on the clip bound.
    is_traced = "expected_batch_size" not in SETTINGS[name]

    @jax.jit
    def step(key, state, posterior, clip_bound):
        traces.append(name)
        changes = dict(clip_bound=clip_bound) if is_traced else {}
        return make(name, posterior, **changes).step(key, state)

    results = []
    for seed in (0, 1, 2):
        posterior = Posterior(logprior, loglikelihood, dyadic_data(40, 2, seed))
        state = metropolis_hastings.init(jnp.zeros(2))
        key = jax.random.key(4)
        results.append(step(key, state, posterior, 0.1 * (seed + 1)))
    assert traces == [name]
    posterior = Posterior(logprior, loglikelihood, dyadic_data(41, 2))
    jax.eval_shape(step, jax.random.key(4), state, posterior, 0.1)
    assert len(traces) == 2


@pytest.mark.parametrize("name", NAMES)
def test_data_are_no_constants_of_the_program(name, dyadic_data):
    data = dyadic_data(5000, 2)
    text = (
        jax.jit(lambda key, p: make(name, p).step(key, p_init(p)))
        .lower(jax.random.key(0), Posterior(logprior, loglikelihood, data))
        .as_text()
    )
    assert len(text) < 200_000 and "5000x2" in text


def p_init(posterior):
    return metropolis_hastings.init(jnp.zeros(2))


@pytest.mark.parametrize("name", tiered(NAMES, FEW))
@pytest.mark.parametrize("enabled", [False, True])
def test_dtypes_follow_the_user(name, enabled):
    with jax.enable_x64(enabled):
        data = jnp.ones((10, 2), jnp.result_type(float))
        algorithm = make(name, Posterior(logprior, loglikelihood, data))
        state = algorithm.init(jnp.zeros(2))
        new, info = jax.jit(algorithm.step)(jax.random.key(5), state)
        dtype = jnp.float64 if enabled else jnp.float32
        assert new.position.dtype == info.acceptance_rate.dtype == dtype
        assert jax.config.jax_enable_x64 is enabled


@pytest.mark.parametrize("name", tiered(NAMES, FEW))
def test_pytree_positions(name):
    def tree_loglikelihood(position, record):
        return -((record - position["a"][0] * position["b"]) ** 2)

    posterior = Posterior(logprior, tree_loglikelihood, jnp.linspace(0, 1, 20))
    algorithm = make(name, posterior)
    state = algorithm.init({"a": [0.5, 1.0], "b": 0.25})
    state, _ = jax.lax.scan(
        lambda state, key: algorithm.step(key, state),
        algorithm.init({"a": jnp.array([0.5, 1.0]), "b": jnp.asarray(0.25)}),
        jax.random.split(jax.random.key(6), 30),
    )
    assert jax.tree.map(jnp.shape, state.position) == {"a": (2,), "b": ()}


def test_a_flat_prior_may_be_a_number(posterior):
    flat = Posterior(lambda position: 0.0, loglikelihood, posterior.data)
    algorithm = make("barker", flat)
    algorithm.step(jax.random.key(0), algorithm.init(jnp.zeros(2)))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, clip_bounds.Lipschitz(-1.0)])
def test_bad_clip_bounds_raise(name, bad, posterior):
    with pytest.raises(ValueError, match="clip_bound"):
        make(name, posterior, clip_bound=bad)


@pytest.mark.parametrize("name", ["barker", "fast_mh"])
def test_a_number_of_numpy_is_a_clip_bound(name, posterior):
    found = make(name, posterior, clip_bound=np.float32(0.5)).privacy(1)
    assert found == make(name, posterior, clip_bound=0.5).privacy(1)


def test_other_bad_arguments_raise(posterior):
    for bad in (-1.0, np.inf, np.nan):
        with pytest.raises(ValueError, match="test_noise_multiplier"):
            make("penalty", posterior, test_noise_multiplier=bad)
    for bad in (0.0, 1.5, np.nan):
        with pytest.raises(ValueError, match="laziness"):
            make("barker", posterior, laziness=bad)
    with pytest.raises(TypeError, match="Posterior"):
        dpjax.barker(lambda position: 0.0, 0.1, clip_bound=1.0)
    with pytest.raises(ValueError, match="constant length"):
        make("barker", posterior, clip_bound=clip_bounds.Lipschitz(1.0),
             proposal=proposals.gaussian)  # fmt: skip
