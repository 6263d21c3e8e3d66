"""DP HMC: the posterior stays whatever the noise, and the events are what is done."""

import importlib

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import NeighboringRelation as Relation
from scipy import stats

import dpjax
from dpjax import acceptance, privacy, proposals
from dpjax.models import thesis_model
from dpjax.posterior import Posterior
from dpjax.random import batches, variates
from dpjax.release import clip_bounds, exact_sums, gaussian
from dpjax.release.gaussian_sum import GaussianSum

hmc = importlib.import_module("dpjax.mcmc.hmc")

FALSE_ALARM = 1e-8
"""Of one test of exactness, whose p-values are a few dozen: below 1e-6 in all."""
# No record of these posteriors has a log ratio above the clip bounds.
OFF = dict(
    num_integration_steps=3,
    l2_clip_norm=np.inf,
    noise_multiplier=0.0,
    clip_bound=np.inf,
)
NOISY = dict(
    num_integration_steps=3,
    l2_clip_norm=3.0,
    noise_multiplier=4.0,
    clip_bound=30.0,
)
CORRELATED = np.array([[1.0, 0.8], [0.8, 1.0]]) / 100
CASES = {
    "off": ("gaussian", 0.06, OFF),
    "off, dense metric": ("gaussian", 0.6, OFF | dict(inverse_mass_matrix=CORRELATED)),
    "off, metropolis": (
        "gaussian",
        0.07,
        OFF | dict(test_noise_multiplier=0.0, jitter=0.5),
    ),
    "off, diagonal metric": (
        "gaussian",
        0.5,
        OFF | dict(inverse_mass_matrix=np.array([0.004, 0.009])),
    ),
    "off, banana": ("banana", 0.04, OFF),
    "noisy, banana": ("banana", 0.03, NOISY),
    "noisy": ("gaussian", 0.06, NOISY),
    "noisy, dense metric": (
        "gaussian",
        0.5,
        NOISY
        | dict(
            inverse_mass_matrix=CORRELATED,
            l2_clip_norm=0.15,
            sampling_prob=0.3,
            jitter=0.3,
        ),
    ),
    "noisy, penalty": (
        "gaussian",
        0.05,
        NOISY | dict(test_noise_multiplier=1.2 / 60, sampling_prob=0.5),
    ),
    "noisy, Lipschitz penalty": (
        "gaussian",
        0.05,
        NOISY | dict(test_noise_multiplier=0.05, clip_bound=dpjax.Lipschitz(60.0)),
    ),
}


def advance(target, step_size, settings, num_steps=8):
    @jax.jit
    def run(posterior, draws):
        algorithm = dpjax.hmc(posterior, step_size, **settings)
        states, info = jax.lax.scan(
            lambda states, keys: jax.vmap(algorithm.step)(keys, states),
            jax.vmap(algorithm.init)(draws),
            jax.random.split(jax.random.key(11), (num_steps, len(draws))),
        )
        return states.position, info.acceptance_rate.mean()

    positions, rate = run(target.posterior, target.draws)
    return np.asarray(positions, np.float64), float(rate)


def smallest_pvalue(target, positions):
    return min(stats.kstest(u, "uniform").pvalue for u in target.uniforms(positions))


@pytest.mark.thorough
@pytest.mark.parametrize("case", CASES)
def test_keeps_the_posterior(make_target, case):
    model, step_size, settings = CASES[case]
    target = make_target(model)
    positions, rate = advance(target, step_size, settings)
    start = np.asarray(target.draws, np.float64)
    moved = np.any(positions != start, axis=1)
    assert np.mean(moved) > 0.6 and 0.1 < rate < 0.95
    assert smallest_pvalue(target, positions) > FALSE_ALARM


def conjugate(size=40):
    """A normal posterior of a normal prior and likelihood; its mean and sd."""
    data = jnp.linspace(-1, 3, size)
    posterior = Posterior(
        lambda position: -8.0 * position**2,
        lambda position, record: -2.0 * (record - position) ** 2 / 32,
        data,
    )
    precision = 16.0 + size / 8
    return posterior, float(data.sum()) / 8 / precision, precision**-0.5


SAMPLED = {
    "rate .3": dict(sampling_prob=0.3, noise_multiplier=0.0),
    "rate .3, noise": dict(sampling_prob=0.3, noise_multiplier=2.0),
    "rate .1, heavy noise": dict(sampling_prob=0.1, noise_multiplier=1.0),
    "all, noise": dict(noise_multiplier=6.0),
}


@pytest.mark.thorough
@pytest.mark.parametrize("case", SAMPLED)
def test_sampled_gradients_keep_a_normal(case):
    # Neither the sample nor the noise of gradients moves the stationary distribution.
    posterior, mean, sd = conjugate()
    settings = dict(num_integration_steps=4, l2_clip_norm=1.0, clip_bound=10.0)
    algorithm = dpjax.hmc(posterior, 0.1, **settings, **SAMPLED[case])
    first, second = jax.random.split(jax.random.key(3))
    states = algorithm.init(mean + sd * jax.random.normal(first, (10_000,)))

    @jax.jit
    def run(states, keys):
        def step(states, keys):
            return jax.vmap(algorithm.step)(keys, states)

        return jax.lax.scan(step, states, keys)

    keys = jax.random.split(second, (8, 10_000))
    states, info = run(states, keys)
    scaled = (np.asarray(states.position, np.float64) - mean) / sd
    assert 0.05 < float(info.acceptance_rate.mean()) < 0.6
    assert stats.kstest(scaled, "norm").pvalue > FALSE_ALARM
    # Six standard errors of a mean and a variance: 2e-9 each.
    assert abs(scaled.mean()) < 6 / 10_000**0.5
    assert abs(scaled.var() - 1) < 6 * (2 / 10_000) ** 0.5


def one_step_with(monkeypatch, change):
    """Let `change` alter the proposal before the accept test."""
    propose = hmc._leapfrog

    def wrong(*arguments):
        leapfrog = propose(*arguments)

        def altered(words, position, walk, step_size):
            move = leapfrog.propose(words, position, walk, step_size)
            return change(move)

        return leapfrog._replace(propose=altered)

    monkeypatch.setattr(hmc, "_leapfrog", wrong)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "change",
    [
        lambda move: move._replace(log_ratio=0.0 * move.log_ratio),
        lambda move: move._replace(log_ratio=-move.log_ratio),
    ],
)
def test_wrong_kinetic_energies_are_detected(monkeypatch, make_target, change):
    one_step_with(monkeypatch, change)
    target = make_target("gaussian")
    positions, _ = advance(target, 0.06, NOISY)
    assert smallest_pvalue(target, positions) < FALSE_ALARM


@pytest.mark.thorough
@pytest.mark.parametrize(
    "inverse_mass_matrix",
    [
        pytest.param(None, marks=pytest.mark.thorough),
        pytest.param(np.array([0.5, 2.0]), marks=pytest.mark.thorough),
        CORRELATED * 100,
    ],
)
def test_the_path_is_that_of_blackjax(make_target, inverse_mass_matrix):
    posterior = make_target("banana").posterior
    settings = OFF | dict(num_integration_steps=7)
    algorithm = dpjax.hmc(
        posterior, 0.02, **settings, inverse_mass_matrix=inverse_mass_matrix
    )
    start = jnp.array([0.3, -0.2])
    words = jax.random.bits(
        jax.random.key(5), (algorithm.transition.num_words(algorithm.init(start)),)
    )[2:]
    z = variates.normal(words[:2])
    metric = np.ones(2) if inverse_mass_matrix is None else inverse_mass_matrix
    root = proposals.square_root(metric).astype(start.dtype)
    # p = W^-T z has the covariance of the mass matrix.
    dense = jnp.diag(root) if root.ndim == 1 else root
    momentum = jnp.linalg.solve(dense.T, z)
    kinetic = blackjax.mcmc.metrics.default_metric(jnp.asarray(metric, start.dtype))
    integrate = blackjax.mcmc.integrators.velocity_verlet(
        posterior, kinetic.kinetic_energy
    )
    state = blackjax.mcmc.integrators.IntegratorState(
        start, momentum, *jax.value_and_grad(posterior)(start)
    )
    final = state
    for _ in range(7):
        final = integrate(final, 0.02)

    leapfrog = hmc._leapfrog(posterior, None, 7, inverse_mass_matrix, 0.0)
    move = leapfrog.propose(words, start, (), 0.02)
    digits = 10.0 ** -(11 if start.dtype == jnp.float64 else 4)
    assert np.linalg.norm(final.position - start) > 0.05
    np.testing.assert_allclose(move.position, final.position, atol=digits)
    lost = kinetic.kinetic_energy(momentum) - kinetic.kinetic_energy(final.momentum)
    np.testing.assert_allclose(move.log_ratio, lost, atol=30 * digits)


def linear(position, record):
    return jnp.dot(position, record)


def no_prior(position):
    return jnp.zeros((), position.dtype)


@pytest.fixture
def released(monkeypatch):
    """Arguments of every `gaussian.add_noise`, outside `jit`."""
    calls = []
    release = gaussian.add_noise

    def spy(words, integers, unit, noise_multiplier):
        value = release(words, integers, unit, noise_multiplier)
        calls.append((integers, unit, noise_multiplier))
        return value

    monkeypatch.setattr(gaussian, "add_noise", spy)
    return calls


@pytest.mark.thorough
@pytest.mark.parametrize("sampling_prob", [1.0, 0.5])
def test_charges_the_noise_that_is_added(released, sampling_prob):
    clip_norm, multiplier = 0.75, 1.5
    data = jnp.zeros((30, 2)).at[4].set(1e9)
    release = GaussianSum(clip_norm, 2 * multiplier, sampling_prob)
    num_words = release.num_words(2, 30)
    words = jax.random.bits(jax.random.key(6), (4000, num_words), jnp.uint32)
    position = jnp.zeros(2)
    for calm in (data, data.at[4].set(0.0), data.at[4].multiply(-1)):
        hmc._released_gradient(
            Posterior(no_prior, linear, calm), position, None, words[0], release
        )
    (loud, unit, charged), (quiet, *_), (reverse, *_) = released
    assert charged == 2 * multiplier and unit == clip_norm / exact_sums.VECTOR_GRID
    if sampling_prob == 1:
        assert np.linalg.norm(loud - reverse) == pytest.approx(
            2 * exact_sums.VECTOR_GRID, 1e-4
        )
    assert np.linalg.norm(loud - quiet) <= exact_sums.VECTOR_GRID

    def of_zeros(words):
        empty = Posterior(no_prior, linear, jnp.zeros((3, 2)))
        return hmc._released_gradient(empty, position, None, words, release)

    draws = np.asarray(jax.jit(jax.vmap(of_zeros))(words), np.float64) * sampling_prob
    sd = 2 * multiplier * clip_norm
    # The lattice adds less than (sd / 16)^2 / 12; 8000 draws, six standard errors.
    assert draws.std() == pytest.approx(sd, rel=6 / 16_000**0.5)
    algorithm = dpjax.hmc(
        Posterior(no_prior, linear, data),
        0.1,
        num_integration_steps=4,
        l2_clip_norm=clip_norm,
        noise_multiplier=2 * multiplier,
        clip_bound=0.5,
        inverse_mass_matrix=np.ones(2),
        sampling_prob=sampling_prob,
    )
    failure, relative = 2 * gaussian.FAILURE_PROB, 2 * gaussian.RELATIVE_ERROR
    for relation, factor in (
        (Relation.REPLACE_ONE, 2.0),
        (Relation.REPLACE_SPECIAL, 1.0),
    ):
        sensitivity = clip_bounds.log_ratio_sensitivity(0.5, relation)
        bit = privacy.AcceptBit(acceptance.barker(), sensitivity)
        one_record = sd / clip_norm
        if sampling_prob == 1:
            gradient = privacy.GaussianRelease(one_record / factor, failure, relative)
        else:
            gradient = privacy.PoissonGaussianRelease(
                one_record,
                sampling_prob,
                relation,
                failure + batches.FAILURE_PROB,
                relative,
            )
        assert algorithm.privacy(7, relation) == [(bit, 7), (gradient, 35)]


THESIS = {
    "easy-2d": (0.1, 0.4, 10, 2.0, 1.0, {1: 33, 4: 416}),
    "easy-10d": (0.05, 0.2, 10, 2.5, 3.0, {1: 15, 6: 403}),
    "gauss-30d": (0.05, 0.1, 5, 2.5, 6.0, {2: 37, 4: 133}),
    "hard-2d": (0.15, 0.25, 5, 5.0, 2.8, {1: 57, 4: 726}),
}


@pytest.mark.parametrize("key", THESIS)
def test_events_are_the_thesiss(key):
    tau, tau_g, leapfrog_steps, ratio_clip, clip_norm, counts = THESIS[key]
    model = thesis_model(key)
    n = model.num_records
    posterior = Posterior(no_prior, linear, jnp.zeros((n, 1)), model.tempering)
    algorithm = dpjax.hmc(
        posterior,
        0.1,
        num_integration_steps=leapfrog_steps,
        l2_clip_norm=clip_norm,
        noise_multiplier=2 * tau_g * n**0.5,
        clip_bound=dpjax.Lipschitz(ratio_clip),
        test_noise_multiplier=tau * n**0.5,
        inverse_mass_matrix=np.ones(model.dim),
    )
    events = algorithm.privacy(1)
    rho = sum(count / (2 * event.noise_multiplier**2) for event, count in events)
    expected = 1 / (2 * tau**2 * n) + (leapfrog_steps + 1) / (2 * tau_g**2 * n)
    # The log ratio rounds by less than 1e-6 of its sensitivity.
    assert expected < rho < expected * (1 + 1e-6)
    for epsilon, count in counts.items():
        budget = dict(epsilon=epsilon, delta=model.delta)
        assert privacy.max_steps(events, **budget) == count


def test_what_leaves_is_public_and_replays(dyadic_data):
    data = dyadic_data(60, 2)
    posterior = Posterior(
        lambda position: -0.5 * sum(jnp.sum(p**2) for p in position.values()),
        lambda position, record: (
            -((record[0] - position["a"]) ** 2) / 8 + record[1] * position["b"][0]
        ),
        data,
    )
    algorithm = dpjax.hmc(posterior, 0.1, **NOISY, sampling_prob=0.4, jitter=0.2)
    state = algorithm.init({"a": 0.5, "b": [0.25, 1.0]})
    assert state._fields == ("position", "walk") and state.walk == ()
    state = algorithm.init({"a": jnp.asarray(0.5), "b": jnp.array([0.25, 1.0])})
    step = jax.jit(algorithm.step)
    new, info = step(jax.random.key(7), state)
    assert info._fields == ("acceptance_rate", "is_accepted")
    assert jax.tree.map(jnp.shape, new.position) == {"a": (), "b": (2,)}
    shuffled = dpjax.hmc(
        Posterior(posterior.logprior_fn, posterior.loglikelihood_fn, data[::-1]),
        0.1,
        **NOISY,
        jitter=0.2,
    )
    whole = dpjax.hmc(posterior, 0.1, **NOISY, jitter=0.2)
    for one, other in ((algorithm, algorithm), (whole, shuffled)):
        # The order of the records cannot be seen, and a replay repeats every bit.
        jax.tree.map(
            np.testing.assert_array_equal,
            jax.jit(one.step)(jax.random.key(8), state),
            jax.jit(other.step)(jax.random.key(8), state),
        )


@pytest.mark.parametrize(
    ("message", "change"),
    [
        ("num_integration_steps", dict(num_integration_steps=0)),
        ("num_integration_steps", dict(num_integration_steps=2.0)),
        ("l2_clip_norm", dict(l2_clip_norm=0.0)),
        ("l2_clip_norm", dict(l2_clip_norm=np.nan)),
        ("infinite", dict(l2_clip_norm=np.inf)),
        ("noise_multiplier", dict(noise_multiplier=-1.0)),
        ("noise_multiplier", dict(noise_multiplier=np.inf)),
        ("test_noise_multiplier", dict(test_noise_multiplier=-1.0)),
        ("test_noise_multiplier", dict(test_noise_multiplier=np.nan)),
        ("sampling_prob", dict(sampling_prob=0.0)),
        ("sampling_prob", dict(sampling_prob=1.5)),
        ("jitter", dict(jitter=1.0)),
        ("Lipschitz", dict(clip_bound=dpjax.Lipschitz(1.0))),
        ("clip_bound", dict(clip_bound=0.0)),
        ("inverse_mass", dict(inverse_mass_matrix=np.array([1.0, -1.0]))),
    ],
)
def test_bad_arguments_raise(message, change):
    posterior = Posterior(no_prior, linear, jnp.zeros((3, 2)))
    with pytest.raises(ValueError, match=message):
        dpjax.hmc(posterior, 0.1, **NOISY | change)


@pytest.mark.parametrize(
    "change", [dict(noise_multiplier=0.0), dict(test_noise_multiplier=0.0)]
)
def test_without_noise_nothing_can_be_charged(change):
    posterior = Posterior(no_prior, linear, jnp.zeros((3, 2)))
    with pytest.raises(ValueError, match="not private"):
        dpjax.hmc(posterior, 0.1, **NOISY | change).privacy(1)


def test_too_many_components_raise():
    posterior = Posterior(no_prior, linear, jnp.zeros((3, 101)))
    algorithm = dpjax.hmc(posterior, 0.1, **NOISY)
    with pytest.raises(ValueError, match="101 components"):
        algorithm.transition.num_words(algorithm.init(jnp.zeros(101)))
    stated = dpjax.hmc(posterior, 0.1, **NOISY, inverse_mass_matrix=np.ones(101))
    assert stated.transition.num_words(algorithm.init(jnp.zeros(101))) == 104 + 4 * 311
