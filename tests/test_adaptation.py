"""Adaptation reads released values, finds the metric, and is charged as sampling."""

import functools

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from blackjax.adaptation.window_adaptation import build_schedule

import dpjax
from dpjax import adaptation, privacy, proposals
from dpjax.models import correlated_gaussian
from dpjax.release import accept_bit
from dpjax.runner import ledger, loop
from tests.tiers import tiered

N, CHAINS = 200, 32
COVARIANCE = ((1.0, 0.99), (0.99, 1.0))
CLIP = 3 / N**0.5
BUDGET = dpjax.Budget(20.0, 1e-4)


def records(seed=0):
    normal = np.random.default_rng(seed).normal(size=(N, 2))
    return jnp.asarray(normal @ np.linalg.cholesky(COVARIANCE).T, float)


@pytest.fixture(scope="module")
def posterior():
    return correlated_gaussian(records(), covariance=COVARIANCE)


ROOT = np.linalg.cholesky(np.asarray(COVARIANCE) / N)
"""Cholesky factor of the posterior covariance, but for a relative 1e-6 of the prior."""

DENSE = dict(sampler=dpjax.barker, is_mass_matrix_diagonal=False, clip_bound=CLIP)


def over_chains(function, *arguments):
    # JAX's checker of key reuse mistakes a scan over keys split inside a vmap for it.
    with jax.debug_key_reuse(False):
        return jax.jit(jax.vmap(function))(*arguments)


def tune(posterior, num_steps, chains=CHAINS, seed=0, **changes):
    """Results and history of `window_adaptation` for chains started at zero."""
    warmup = adaptation.window_adaptation(posterior=posterior, **{**DENSE, **changes})

    def one(key):
        results, history = warmup.run(key, jnp.zeros(2), num_steps)
        tuned = [results.parameters[k] for k in ("step_size", "inverse_mass_matrix")]
        return results.state, tuned, history

    return over_chains(one, jax.random.split(jax.random.key(seed), chains))


def condition(metric):
    """Condition of the posterior covariance in units of the metric, for every chain."""
    return [np.linalg.cond(ROOT.T @ np.linalg.inv(m) @ ROOT) for m in metric]


@pytest.fixture(scope="module")
def tuned(posterior):
    return tune(posterior, 1000)


@pytest.mark.thorough
def test_the_metric_becomes_the_posterior_covariance(tuned):
    """The condition number falls from 199. Over 60 seeds the median of the chains was
    1.46 with a standard deviation of .07. The bound is 10 standard deviations away, so
    the test fails by chance with less than 1e-6.
    """
    found = condition(np.asarray(tuned[1][1], float))
    assert np.linalg.cond(COVARIANCE) > 198
    assert np.median(found) < 2.2


@pytest.mark.thorough
def test_the_target_is_reached(posterior, tuned):
    """The frozen parameters give it. Over 60 seeds the mean rate was .399 with a
    standard deviation of .0067. The bound is 7 standard deviations away, so the test
    fails by chance with less than 1e-11.
    """
    state, (step_size, metric), _ = tuned

    def one(key, position, step_size, metric):
        algorithm = dpjax.barker(
            posterior, step_size, clip_bound=CLIP, inverse_mass_matrix=metric
        )
        keys = jax.random.split(key, 300)
        start = algorithm.init(position)
        step = algorithm.step
        return jax.lax.scan(lambda s, key: step(key, s), start, keys)[1].is_accepted

    keys = jax.random.split(jax.random.key(5), CHAINS)
    bits = over_chains(one, keys, state.position, step_size, metric)
    assert abs(float(np.mean(bits)) - 0.4) < 0.05


@pytest.mark.thorough
def test_an_adapted_run_mixes(posterior):
    """Squared errors of the chains' means along the long axis, in posterior variances,
    with steps of the same acceptance rate. Means over 30 seeds were .60 in the
    identity metric and .016 with adaptation; 32 errors are chi-square, so that each
    bound fails by chance below 1e-6.
    """
    options = dict(
        initial_position=np.zeros((CHAINS, 2)),
        num_chains=CHAINS,
        num_steps=3000,
        budget=None,
        verbose=False,
    )
    plain = functools.partial(dpjax.barker, step_size=0.01, clip_bound=CLIP)
    learner = functools.partial(adaptation.adapted, num_warmup=1000, **DENSE)
    centre = np.asarray(posterior.data, float).mean(0)
    axis = np.array([1.0, 1.0]) / (2 * 1.99 / N) ** 0.5
    errors = []
    for algorithm_fn in (plain, learner):
        run = dpjax.run(
            algorithm_fn, posterior, **options, unsafe_key=jax.random.key(3)
        )
        assert 0.3 < run.acceptance_rate.mean() < 0.45
        errors.append(np.mean(((run.positions.mean(1) - centre) @ axis) ** 2))
    assert errors[0] > 0.1 and errors[1] < 0.05


def replay(history, laziness, target):
    """What a chain learns, computed from its released positions and bits."""
    positions = np.asarray(history.state.position, float)
    bits = np.asarray(history.info.is_accepted, float)
    schedule = np.asarray(build_schedule(len(bits)))
    step_size, metric, window = 1.0, np.eye(2), []
    for t, (slow, window_end) in enumerate(schedule):
        step_size *= np.exp((bits[t] - laziness * target) / (1 + laziness * t) ** 0.5)
        window += [positions[t]] if slow else []
        if window_end:
            shrunk = len(window) * np.cov(np.transpose(window))
            shrunk = (shrunk + 5 * step_size**2 / 2 * metric) / (len(window) + 5)
            step_size *= np.trace(np.linalg.inv(shrunk) @ metric / 2) ** 0.5
            metric, window = shrunk, []
    return step_size, metric


@pytest.mark.parametrize("laziness", [1.0, 0.3])
def test_what_is_tuned_is_a_function_of_what_is_released(posterior, x64, laziness):
    """Released states and bits are enough to tune, so the lazy coins stay secret."""
    _, (step_size, metric), history = tune(
        posterior, 400, chains=2, laziness=laziness, target_acceptance_rate=0.35
    )
    for chain in range(2):
        one = jax.tree.map(lambda leaf, chain=chain: leaf[chain], history)
        expected = replay(one, laziness, 0.35)
        tolerance = 1e-9 if x64 else 2e-2
        np.testing.assert_allclose(step_size[chain], expected[0], rtol=tolerance)
        np.testing.assert_allclose(metric[chain], expected[1], rtol=tolerance)
        assert np.mean(one.info.is_accepted) < laziness


@pytest.mark.parametrize("laziness", [1.0, 0.3])
def test_equal_bits_tune_equally_whatever_the_data(monkeypatch, laziness):
    """Two data sets without a common record, whose bits are made equal by force."""
    monkeypatch.setattr(accept_bit, "draw", lambda words, *_: words[0] % 5 < 2)
    found = []
    for data in (records(), 5.0 + 3.0 * records(1)):
        target = correlated_gaussian(data, covariance=COVARIANCE)
        found.append(tune(target, 120, chains=2, laziness=laziness))
    jax.tree.map(np.testing.assert_array_equal, *found)
    assert len(np.unique(found[0][2].adaptation_state.step_size)) > 200


@pytest.mark.thorough
def test_blackjax_s_results(posterior):
    key, position = jax.random.key(0), jnp.zeros(2)
    ours, history = adaptation.window_adaptation(
        dpjax.barker, posterior, clip_bound=CLIP
    ).run(key, position, 25)
    theirs, their_history = blackjax.window_adaptation(
        blackjax.hmc, posterior, num_integration_steps=2
    ).run(jax.random.clone(key), position, 25)
    assert type(ours) is type(theirs) and type(history) is type(their_history)
    added = {"clip_bound"}, {"num_integration_steps"}
    assert ours.parameters.keys() - added[0] == theirs.parameters.keys() - added[1]
    for name in ("step_size", "inverse_mass_matrix"):
        assert ours.parameters[name].shape == theirs.parameters[name].shape
    sampler = dpjax.barker(posterior, **ours.parameters)
    state, _ = sampler.step(jax.random.key(1), ours.state)
    assert state.position.shape == (2,)
    np.testing.assert_array_equal(history.state.position[-1], ours.state.position)


@pytest.mark.thorough
def test_warmup_is_the_adapted_chain_and_then_it_is_frozen(posterior):
    algorithm = adaptation.adapted(posterior, num_warmup=60, **DENSE)
    keys = jax.random.split(jax.random.key(2), 60)
    state = algorithm.init(jnp.zeros(2))
    step = jax.jit(algorithm.step)
    for key in keys:
        state, _ = step(key, state)
    warmup = adaptation.window_adaptation(posterior=posterior, **DENSE)
    results, _ = warmup.run(jax.random.key(2), jnp.zeros(2), 60)
    for name in ("step_size", "inverse_mass_matrix"):
        np.testing.assert_allclose(
            results.parameters[name], getattr(state.adaptation, name), rtol=1e-5
        )
    learned = state.adaptation
    for key in jax.random.split(jax.random.key(4), 10):
        state, _ = step(key, state)
    jax.tree.map(np.testing.assert_array_equal, learned, state.adaptation)


def test_one_call_charges_warmup_and_sampling(posterior, tmp_path):
    settings = dict(clip_bound=CLIP, laziness=0.5)
    learner = functools.partial(
        adaptation.adapted, sampler=dpjax.barker, num_warmup=10, **settings
    )
    options = dict(
        initial_position=np.zeros((2, 2)), num_chains=2, budget=BUDGET, verbose=False
    )
    path = tmp_path / "ledger"
    run = dpjax.run(
        learner, posterior, 30, ledger=path, **options, unsafe_key=jax.random.key(0)
    )
    events = dpjax.barker(posterior, 1.0, **settings).privacy(2 * 30)
    assert run.statement.epsilon == privacy.epsilon(events, BUDGET.delta)
    assert ledger.read(path, "REPLACE_ONE").runs == [events]
    assert run.positions.shape == (2, 15, 2)


def test_draws_of_a_chain_that_tunes_are_refused_before_they_are_paid(
    posterior, tmp_path
):
    learner = functools.partial(adaptation.adapted, num_warmup=16, **DENSE)
    options = dict(initial_position=np.zeros((2, 2)), num_chains=2, verbose=False)
    path = tmp_path / "ledger"
    with pytest.raises(ValueError, match=r"first 16 steps tune .* of 30 only 15 are"):
        dpjax.run(learner, posterior, 30, ledger=path, budget=BUDGET, **options)
    assert not path.exists()


@pytest.mark.thorough
def test_a_killed_adapted_run_goes_on(posterior, tmp_path, monkeypatch):
    learner = functools.partial(adaptation.adapted, num_warmup=20, **DENSE)
    options = dict(
        num_steps=40,
        initial_position=np.zeros((2, 2)),
        num_chains=2,
        budget=None,
        verbose=False,
    )
    whole = dpjax.run(learner, posterior, **options, unsafe_key=jax.random.key(0))
    advance, calls = loop.advance, []

    def killed(*arguments):
        if len(calls) == 8:
            raise KeyboardInterrupt
        calls.append(1)
        return advance(*arguments)

    options["checkpoint"] = tmp_path / "checkpoint"
    with monkeypatch.context() as patch:
        patch.setattr(loop, "advance", killed)
        with pytest.raises(KeyboardInterrupt):
            dpjax.run(learner, posterior, **options, unsafe_key=jax.random.key(0))
    resumed = dpjax.run(learner, posterior, **options, unsafe_key=jax.random.key(0))
    np.testing.assert_array_equal(resumed.positions, whole.positions)


OTHERS = {
    "penalty": dict(clip_bound=0.05, test_noise_multiplier=10.0),
    "penalty per distance": dict(
        clip_bound=dpjax.Lipschitz(1.0), test_noise_multiplier=5.0
    ),
    "hmc": dict(
        clip_bound=CLIP,
        num_integration_steps=3,
        l2_clip_norm=0.5,
        noise_multiplier=0.4,
    ),
    "minibatch_penalty": dict(
        clip_bound=0.05, test_noise_multiplier=0.5, batch_size=50
    ),
    "minibatch_barker": dict(batch_size=50),
}


@pytest.mark.parametrize(
    "name", tiered(OTHERS, ["penalty per distance", "minibatch_barker"])
)
def test_every_sampler_adapts_at_no_cost(posterior, name):
    sampler, settings = getattr(dpjax, name.split()[0]), OTHERS[name]
    algorithm = adaptation.adapted(
        posterior,
        sampler,
        num_warmup=30,
        initial_inverse_mass_matrix=np.full(2, 1 / N),
        initial_step_size=0.1,
        target_acceptance_rate=0.2,
        **settings,
    )
    plain = sampler(posterior, 0.5, inverse_mass_matrix=np.full(2, 1 / N), **settings)
    assert algorithm.privacy(7) == plain.privacy(7)
    final, (states, infos) = blackjax.util.run_inference_algorithm(
        rng_key=jax.random.key(0),
        inference_algorithm=algorithm,
        num_steps=40,
        initial_position=jnp.zeros(2),
    )
    assert 1 < np.sum(infos.is_accepted) < 39
    assert np.all(np.isfinite(states.adaptation.inverse_mass_matrix))
    assert not np.allclose(final.adaptation.inverse_mass_matrix, 1 / N)


def test_positions_may_be_pytrees(posterior):
    def logprior(position):
        return -0.5 * (position["a"] ** 2 + position["b"][0] ** 2)

    def loglikelihood(position, record):
        return -0.5 * (record[0] - position["a"] - position["b"][0]) ** 2

    target = dpjax.Posterior(logprior, loglikelihood, posterior.data)
    start = {"a": jnp.zeros(()), "b": jnp.zeros(1)}
    warmup = adaptation.window_adaptation(posterior=target, **DENSE)
    results, _ = warmup.run(jax.random.key(0), start, 25)
    assert jax.tree.map(jnp.shape, results.state.position) == {"a": (), "b": (1,)}
    assert results.parameters["inverse_mass_matrix"].shape == (2, 2)


def looser_in_a_metric(posterior, step_size, inverse_mass_matrix, clip_bound):
    if inverse_mass_matrix is not None:
        clip_bound = 10 * clip_bound
    return dpjax.barker(
        posterior, step_size, inverse_mass_matrix, clip_bound=clip_bound
    )


AT_LEAST_3 = proposals.fixed_length._replace(
    longest=lambda step_size: (
        max(step_size, 3.0)
        if isinstance(step_size, float)
        else jnp.maximum(step_size, 3.0)
    )
)
"""The lengths of its moves differ above 3 only, where tuning may lead."""


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(num_warmup=0), "num_warmup"),
        (dict(num_warmup=2.5), "num_warmup"),
        (dict(target_acceptance_rate=1.0), "target_acceptance_rate"),
        (dict(initial_step_size=-1.0), "step_size must be positive"),
        (dict(initial_inverse_mass_matrix=-np.eye(2)), "positive definite"),
        (dict(initial_inverse_mass_matrix=np.ones(2)), r"shape \(2, 2\)"),
        (dict(clip_bound=dpjax.Lipschitz(1.0)), "cost of a step would change"),
        (
            dict(clip_bound=dpjax.Lipschitz(1.0), proposal=AT_LEAST_3),
            "cost of a step would change",
        ),
        (dict(sampler=looser_in_a_metric), "makes steps of another cost"),
        (dict(target_acceptance_rate=0.5), "rate of 0.5; four fifths"),
        (
            dict(sampler=dpjax.penalty, test_noise_multiplier=1 / CLIP),
            "rate of 0.317; four fifths",
        ),
        (
            dict(
                sampler=dpjax.penalty,
                test_noise_multiplier=1.0,
                clip_bound=dpjax.Lipschitz(1.0),
                proposal=proposals.fixed_length,
            ),
            "cost of a step would change",
        ),
    ],
)
def test_refusals_come_before_the_data_are_read(posterior, changes, message):
    records = jax.ShapeDtypeStruct((N, 2), jnp.result_type(float))
    target = correlated_gaussian(records, covariance=COVARIANCE)
    algorithm = functools.partial(
        adaptation.adapted, **{**DENSE, "num_warmup": 10, **changes}
    )
    with pytest.raises(ValueError, match=message):
        dpjax.run(
            algorithm,
            target,
            initial_position=np.zeros((2, 2)),
            num_chains=2,
            budget=BUDGET,
            verbose=False,
        )
