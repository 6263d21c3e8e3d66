"""DPVI: the right gradient, the right fit without privacy, and no more than it says."""

import importlib
import inspect

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from dp_accounting import NeighboringRelation as Relation
from jax.flatten_util import ravel_pytree

import dpjax
from dpjax import privacy
from dpjax.posterior import Posterior
from dpjax.random import batches, variates
from dpjax.release.exact_sums import GRID
from dpjax.release.gaussian_sum import GaussianSum
from dpjax.vi.guides import FullRank, LowRank, MeanField
from tests.tiers import tiered

dpvi = importlib.import_module("dpjax.vi.dpvi")

GUIDES = [MeanField(2), LowRank(2, rank=1), FullRank(2)]
OPTIMIZER = optax.adam(0.05)
NOISY = dict(guide=MeanField(2), l2_clip_norm=1.5, noise_multiplier=3.0)
PLAIN = dict(l2_clip_norm=np.inf, noise_multiplier=0.0)


def logprior(position):
    return -0.5 * jnp.dot(position, position) / 4


def loglikelihood(position, record):
    """Normal, correlated; a third number adds what no gradient sees."""
    error = record[:2] - position
    square = error[0] ** 2 - 1.2 * error[0] * error[1] + error[1] ** 2
    return -0.5 * square / (1 - 0.6**2) + record[2]


def records(size=40, seed=0):
    data = np.random.default_rng(seed).normal(
        np.array([1.0, -0.5, 0.0]), size=(size, 3)
    )
    return jnp.asarray(data, jnp.result_type(float))


def target(data=None, tempering=1.0):
    data = records() if data is None else data
    return Posterior(logprior, loglikelihood, data, tempering)


def make(posterior, optimizer=OPTIMIZER, **changes):
    return dpjax.dpvi(posterior, optimizer, **{**NOISY, **changes})


def scattered(guide, optimizer=OPTIMIZER, seed=1):
    """A state away from the start."""
    state = dpvi.init(jnp.zeros(2), target(), optimizer, guide=guide)
    flat, unravel = ravel_pytree(state.position)
    shift = 0.3 * np.random.default_rng(seed).normal(size=flat.shape)
    return state._replace(position=unravel(flat + jnp.asarray(shift, flat.dtype)))


def words_for(algorithm, state, seed=2):
    width = algorithm.transition.num_words(state)
    words = np.random.default_rng(seed).integers(0, 2**32, width, np.uint32)
    return jnp.asarray(words)


@jax.jit(static_argnames=("guide", "num_samples"))
def elbo_gradient(parameters, posterior, words, guide, num_samples):
    """From the definition, with the draws of the step."""
    normals = variates.normal(words[: num_samples * guide.num_normals])

    def elbo(parameters):
        rows = normals.reshape(num_samples, -1)
        draws = [guide.transform(parameters, row) for row in rows]
        return sum(map(posterior, draws)) / num_samples + guide.entropy(parameters)

    return jax.grad(elbo)(parameters)


@pytest.mark.parametrize("guide", tiered(GUIDES, GUIDES[1:2]))
@pytest.mark.parametrize("aligned", [True, False])
def test_unclipped_gradient_is_that_of_the_elbo(guide, aligned):
    posterior = target(tempering=0.5)
    options = dict(guide=guide, num_samples=2, aligned=aligned)
    # No gradient of these records is longer.
    algorithm = make(posterior, l2_clip_norm=64.0, noise_multiplier=0.0, **options)
    state = scattered(guide)
    words = words_for(algorithm, state)
    exact = elbo_gradient(state.position, posterior, words, guide, 2)
    flat = ravel_pytree(exact)[0]
    assert np.max(abs(flat)) > 10
    released = jax.jit(algorithm.transition.move)(words, state, None)[1].gradient
    # Half a cell of each record and draw, by a map with entries below 4.
    tolerance = 0.5 * 40 * 2 * 4 * 64.0 / GRID
    assert np.max(abs(ravel_pytree(released)[0] - flat)) < tolerance
    plain = make(posterior, **PLAIN, **options).transition.move
    released = jax.jit(plain)(words[: 2 * guide.num_normals], state, None)[1].gradient
    np.testing.assert_allclose(ravel_pytree(released)[0], flat, rtol=1e-3, atol=1e-3)


@pytest.mark.thorough
@pytest.mark.parametrize("guide", GUIDES)
def test_antithetic_draws_leave_the_gradient_at_the_location(guide):
    """That of a quadratic, whatever the draws; their mean does not reach the scales."""
    posterior, state = target(), scattered(guide)
    algorithm = make(posterior, guide=guide, num_samples=4, antithetic=True, **PLAIN)
    assert algorithm.transition.num_words(state) == 2 * guide.num_normals
    words = words_for(algorithm, state)
    _, info, _ = jax.jit(algorithm.transition.move)(words, state, None)
    exact = jax.grad(posterior)(state.position["location"])
    np.testing.assert_allclose(info.gradient["location"], exact, rtol=1e-4)
    # A likelihood without curvature tells nothing of the scales.
    flat = Posterior(
        logprior, lambda position, record: record @ position, records()[:, :2]
    )
    release = dict(l2_clip_norm=64.0, noise_multiplier=0.0, aligned=False)
    found = []
    for data in (flat, Posterior(logprior, lambda position, record: 0.0, flat.data)):
        algorithm = make(data, guide=guide, num_samples=4, antithetic=True, **release)
        words = words_for(algorithm, state)
        found.append(jax.jit(algorithm.transition.move)(words, state, None)[1].gradient)
    np.testing.assert_allclose(found[0]["rho"], found[1]["rho"], atol=1e-3)


@pytest.mark.parametrize("sampling_prob", [1.0, 0.3])
def test_aligned_scale_gradient_follows_from_the_noisy_location_gradient(sampling_prob):
    # Prediger et al. and the entropy, whatever clipping, sampling and noise did.
    algorithm = make(target(), sampling_prob=sampling_prob)
    state = scattered(MeanField(2))
    words = words_for(algorithm, state)
    _, info, _ = jax.jit(algorithm.transition.move)(words, state, None)
    rho, normals = state.position["rho"], variates.normal(words[:2])
    slope, scale = jax.nn.sigmoid(rho), jax.nn.softplus(rho)
    expected = slope * normals * info.gradient["location"] + slope / scale
    np.testing.assert_allclose(info.gradient["rho"], expected, rtol=1e-4)


def exact_normal(posterior):
    """Mean and precision of the conjugate posterior."""
    weight = len(posterior.data) * np.linalg.inv([[1.0, 0.6], [0.6, 1.0]])
    precision = weight + np.eye(2) / 4
    mean = np.asarray(posterior.data, np.float64)[:, :2].mean(axis=0)
    return np.linalg.solve(precision, weight @ mean), precision


@pytest.mark.parametrize("guide", tiered(GUIDES, GUIDES[2:]))
def test_without_privacy_the_conjugate_posterior_is_recovered(guide):
    posterior = target()
    mean, precision = exact_normal(posterior)
    optimizer = optax.adam(optax.cosine_decay_schedule(0.03, 1500, 0.01))
    run = dpjax.run(
        lambda posterior: make(
            posterior, optimizer, guide=guide, num_samples=4, **PLAIN
        ),
        posterior,
        1500,
        initial_position=jnp.zeros((1, 2)),
        num_chains=1,
        budget=None,
        warmup_fraction=0.8,
        verbose=False,
        unsafe_key=jax.random.key(0),
    )
    fit = jax.tree.map(lambda leaf: jnp.mean(leaf, (0, 1)), run.infos.parameters)
    root = jax.jacobian(guide.transform, 1)(fit, jnp.zeros(guide.num_normals))
    covariance = np.asarray(root @ root.T, np.float64)
    expected = np.linalg.inv(precision)
    if isinstance(guide, MeanField):
        # Independent components match the conditional variances.
        expected = np.diag(1 / np.diag(precision))
    sd = np.sqrt(np.diag(expected))
    print(
        np.max(abs(fit["location"] - mean) / sd),
        np.max(abs(covariance - expected) / np.outer(sd, sd)),
    )
    assert np.max(abs(fit["location"] - mean) / sd) < 0.1
    assert np.max(abs(covariance - expected) / np.outer(sd, sd)) < 0.15


@pytest.mark.parametrize("aligned", tiered([True, False], [True]))
def test_measured_noise_is_the_noise_charged(aligned):
    silent = Posterior(
        lambda position: 0.0, lambda position, record: 0.0, jnp.zeros((1000, 1))
    )
    guide = MeanField(2)
    options = dict(aligned=aligned, sampling_prob=0.25, num_samples=2)
    algorithm = make(silent, guide=guide, **options)
    state = algorithm.init(jnp.zeros(2))
    keys = jax.random.split(jax.random.key(4), 4000)
    _, info = jax.jit(jax.vmap(algorithm.step, (0, None)))(keys, state)
    ((event, count),) = algorithm.privacy(1, Relation.REPLACE_SPECIAL)
    assert count == 1 and event.sampling_prob == 0.25
    sd = event.noise_multiplier * NOISY["l2_clip_norm"] / 0.25
    # The location's gradient is the sum of the noise on that of the two draws.
    location = np.asarray(info.gradient["location"]) / sd / (2**0.5 if aligned else 1)
    # Six standard errors of a variance: 3e-9.
    assert abs(np.var(location) - 1) < 6 * (2 / location.size) ** 0.5 + 1 / 3000
    if aligned:
        assert info.noise_sd is None
    else:
        np.testing.assert_allclose(info.noise_sd["rho"], sd, rtol=1e-6)


@pytest.mark.parametrize("relation", [Relation.REPLACE_ONE, Relation.REPLACE_SPECIAL])
@pytest.mark.parametrize(
    ("changes", "size"),
    [
        (dict(num_samples=3), 6),
        (dict(aligned=False), 4),
        (dict(aligned=False, guide=FullRank(2)), 5),
        (dict(guide=LowRank(2, rank=1)), 2),
    ],
)
def test_events_are_those_of_what_is_released(relation, changes, size):
    algorithm = make(target(), sampling_prob=0.5, **changes)
    release = GaussianSum(1.5, 3.0, 0.5)
    assert algorithm.privacy(7, relation) == [(release.event(size, relation), 7)]
    state = algorithm.init(jnp.zeros(2))
    guide = changes.get("guide", NOISY["guide"])
    normals = changes.get("num_samples", 1) * guide.num_normals
    sample = batches.num_poisson_words(0.5, 40)
    assert algorithm.transition.num_words(state) == normals + sample + 3 * size


def test_states_and_infos_hold_public_values_only():
    # A new field is a new release: think before changing this test.
    assert dpvi.DPVIState._fields == ("position", "optimizer_state")
    assert dpvi.DPVIInfo._fields == ("parameters", "gradient", "noise_sd")


@pytest.mark.parametrize("aligned", [True, False])
def test_data_of_equal_released_sums_cannot_be_told_apart(aligned):
    """Other ELBOs, orders of records and forms of a record that adds nothing."""
    data = records()
    neighbours = [
        data.at[:, 2].add(5.0),
        data[::-1],
        data.at[0].set(jnp.nan),
        data.at[0].set(jnp.inf),
    ]
    state = scattered(MeanField(2))
    step = jax.jit(
        lambda posterior, words: make(posterior, aligned=aligned).transition.move(
            words, state, None
        )
    )
    words = words_for(make(target(data), aligned=aligned), state)
    outputs = [step(target(other), words) for other in (data, *neighbours)]
    for one, other in ((0, 1), (0, 2), (3, 4)):
        jax.tree.map(np.testing.assert_array_equal, outputs[one], outputs[other])
    differs = jax.tree.leaves(outputs[0][1].gradient)[0]
    assert np.any(differs != jax.tree.leaves(outputs[3][1].gradient)[0])


def test_three_layers():
    assert dpjax.dpvi.init is dpvi.init
    posterior = target()
    algorithm = make(posterior)
    key = jax.random.key(0)
    state = algorithm.init(jnp.zeros(2))
    one = dpjax.dpvi.build_kernel()(key, state, posterior, OPTIMIZER, **NOISY)
    other = algorithm.step(jax.random.clone(key), state)
    jax.tree.map(np.testing.assert_array_equal, one, other)
    parameters = inspect.signature(dpvi.as_top_level_api).parameters.values()
    assert all(p.kind is p.KEYWORD_ONLY for p in list(parameters)[2:])


def test_blackjax_runs_it():
    algorithm = make(target(), sampling_prob=0.5)
    final, (states, infos) = blackjax.util.run_inference_algorithm(
        rng_key=jax.random.key(2),
        inference_algorithm=algorithm,
        num_steps=20,
        initial_position=jnp.zeros(2),
    )
    jax.tree.map(
        np.testing.assert_array_equal,
        jax.tree.map(lambda leaf: leaf[:-1], states.position),
        jax.tree.map(lambda leaf: leaf[1:], infos.parameters),
    )
    draws = algorithm.sample(jax.random.key(3), final.position, 7)
    assert draws.shape == (7, 2) and np.all(np.isfinite(draws))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(l2_clip_norm=0.0), "l2_clip_norm"),
        (dict(l2_clip_norm=np.inf), "without noise"),
        (dict(**PLAIN, sampling_prob=0.5), "without noise"),
        (dict(noise_multiplier=-1.0), "noise_multiplier"),
        (dict(sampling_prob=0.0), "sampling_prob"),
        (dict(num_samples=0), "num_samples"),
        (dict(num_samples=1.0), "num_samples"),
        (dict(num_samples=3, antithetic=True), "even"),
        (dict(aligned=False, preconditioner={"rho": 0.0}), "preconditioner"),
        (dict(preconditioner={"location": 1.0, "rho": 2.0}), "aligned=False"),
        (dict(published=True), "aligned=False"),
    ],
)
def test_bad_arguments_raise(changes, message):
    with pytest.raises(ValueError, match=message):
        make(target(), **changes)


@pytest.mark.parametrize("changes", [PLAIN, dict(noise_multiplier=0.0)])
def test_nothing_is_charged_for_what_is_not_private(changes):
    with pytest.raises(ValueError, match="not private"):
        make(target(), **changes).privacy(1)


def test_noise_is_calibrated_to_a_budget():
    def step_events(noise_multiplier):
        return make(
            target(), noise_multiplier=noise_multiplier, sampling_prob=0.1
        ).privacy(2)

    found = privacy.calibrate(
        step_events, num_steps=500, epsilon=1.0, delta=1e-5, bracket=(0.5, 1e3)
    )
    spent = privacy.epsilon([(event, 500 * n) for event, n in step_events(found)], 1e-5)
    assert 0.999 < spent <= 1.0


@pytest.mark.parametrize("published", [False, True])
def test_preconditioned_gradient_is_divided_by_its_weights(published):
    # Where nothing is clipped, neither weights nor places of the prior matter.
    options = dict(aligned=False, num_samples=2, l2_clip_norm=64.0)
    options |= dict(noise_multiplier=0.0, published=published)
    weights = {"location": np.array([1.0, 0.5]), "rho": 4.0}
    algorithm = make(target(tempering=0.5), preconditioner=weights, **options)
    state = scattered(MeanField(2))
    words = words_for(algorithm, state)
    released = jax.jit(algorithm.transition.move)(words, state, None)[1].gradient
    exact = elbo_gradient(state.position, target(tempering=0.5), words, MeanField(2), 2)
    # Half a cell of each record, over the least weight.
    tolerance = 0.5 * 40 * 0.5 * 64.0 / GRID / 0.5
    found = ravel_pytree(released)[0] - ravel_pytree(exact)[0]
    assert np.max(abs(found)) < tolerance


@pytest.mark.parametrize("published", [False, True])
def test_weighted_records_are_clipped_with_the_prior_if_published(published):
    posterior, clip, weight = target(), 0.4, 3.0
    weights = {"location": 1.0, "rho": weight}
    algorithm = make(
        posterior,
        aligned=False,
        noise_multiplier=0.0,
        l2_clip_norm=clip,
        preconditioner=weights,
        published=published,
    )
    state = scattered(MeanField(2))
    words = words_for(algorithm, state)
    released = jax.jit(algorithm.transition.move)(words, state, None)[1].gradient
    normals, guide = variates.normal(words[:2]), MeanField(2)

    def public(parameters):
        prior = logprior(guide.transform(parameters, normals))
        return prior + guide.entropy(parameters)

    def of_record(parameters, record):
        value = loglikelihood(guide.transform(parameters, normals), record)
        return value + public(parameters) / 40 if published else value

    gradients = jax.vmap(jax.grad(of_record), (None, 0))(state.position, posterior.data)
    rows = np.concatenate([gradients["location"], weight * gradients["rho"]], axis=1)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    assert np.mean(norms > clip) > 0.5
    expected = np.sum(rows * np.minimum(1, clip / norms), axis=0)
    expected = expected / [1, 1, weight, weight]
    if not published:
        expected = expected + ravel_pytree(jax.grad(public)(state.position))[0]
    found = ravel_pytree(released)[0] - expected
    assert np.max(abs(found)) < 40 * 2 * clip / GRID


def test_noise_of_every_component_is_told():
    silent = Posterior(
        lambda position: 0.0, lambda position, record: 0.0, jnp.zeros((50, 1))
    )
    weights = {"location": 2.0, "rho": np.array([8.0, 0.5])}
    algorithm = make(silent, aligned=False, sampling_prob=0.25, preconditioner=weights)
    state = algorithm.init(jnp.zeros(2))
    keys = jax.random.split(jax.random.key(4), 4000)
    _, info = jax.jit(jax.vmap(algorithm.step, (0, None)))(keys, state)
    entropy = jax.grad(MeanField(2).entropy)(state.position)
    for part in ("location", "rho"):
        noisy = (info.gradient[part] - entropy[part][None]) / info.noise_sd[part]
        # Six standard errors of a variance: 3e-9.
        assert np.all(abs(np.var(noisy, axis=0) - 1) < 6 * (2 / 4000) ** 0.5 + 1 / 3000)
    sd = NOISY["noise_multiplier"] * NOISY["l2_clip_norm"] / 0.25
    np.testing.assert_allclose(info.noise_sd["rho"][0], sd / weights["rho"], rtol=1e-6)


def test_preconditioner_must_fit_the_parameters():
    weights = {"location": 1.0, "rho": np.ones(3)}
    with pytest.raises(ValueError):
        make(target(), aligned=False, preconditioner=weights).init(jnp.zeros(2))
    with pytest.raises(ValueError):
        make(target(), aligned=False, preconditioner={"location": 1.0}).init(
            jnp.zeros(2)
        )
