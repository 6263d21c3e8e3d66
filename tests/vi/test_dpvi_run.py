"""DPVI in `dpjax.run`: its trace, its draws, its bill, and a run that was killed."""

import dataclasses
import functools
from typing import Any

import arviz
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest

import dpjax
from dpjax import guides, privacy
from dpjax.numpyro import posterior as posterior_of
from dpjax.runner import ledger as ledgers
from dpjax.runner import loop

OPTIMIZER = optax.adam(0.05)
ALGORITHM = functools.partial(
    dpjax.dpvi,
    optimizer=OPTIMIZER,
    guide=guides.MeanField(2),
    l2_clip_norm=3.0,
    noise_multiplier=30.0,
    sampling_prob=0.25,
)
BUDGET = dpjax.Budget(4.0, 1e-5)
CHAINS = 3


def logprior(position):
    return -0.5 * jnp.dot(position, position) / 4


def loglikelihood(position, record):
    return -0.5 * jnp.sum((record - position) ** 2)


@pytest.fixture
def posterior():
    data = np.random.default_rng(0).normal(np.array([1.0, -1.0]), size=(400, 2))
    return dpjax.Posterior(logprior, loglikelihood, jnp.asarray(data))


def go(posterior, num_steps=60, **changes):
    options = dict(
        algorithm_fn=ALGORITHM,
        initial_position=jnp.zeros((CHAINS, 2)),
        num_chains=CHAINS,
        budget=BUDGET,
        warmup_fraction=0.0,
        verbose=False,
    )
    return dpjax.run(
        posterior=posterior,
        num_steps=num_steps,
        **options | changes,
        unsafe_key=jax.random.key(1),
    )


@pytest.mark.thorough
def test_trace_is_what_the_optimiser_did(posterior):
    run = go(posterior)
    parameters, gradient, _ = run.infos
    shapes = {"location": (CHAINS, 60, 2), "rho": (CHAINS, 60, 2)}
    assert jax.tree.map(np.shape, parameters) == shapes
    for chain in range(CHAINS):
        start = guides.MeanField(2).init(jnp.zeros(2))
        memory = OPTIMIZER.init(start)
        for t in range(60):
            row = jax.tree.map(lambda leaf, c=chain, t=t: leaf[c, t], parameters)
            jax.tree.map(
                lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6),
                row,
                start,
            )
            loss = jax.tree.map(lambda leaf, c=chain, t=t: -leaf[c, t], gradient)
            updates, memory = OPTIMIZER.update(loss, memory, row)
            start = optax.apply_updates(row, updates)
    assert run.acceptance_rate is None
    assert not np.array_equal(gradient["rho"][0], gradient["rho"][1])


@pytest.mark.thorough
def test_draws_are_from_the_guide_at_the_mean_parameters(posterior):
    run = go(posterior, 400, warmup_fraction=0.5, thinning=2)
    assert run.positions.shape == (CHAINS, 100, 2)
    assert run.infos.parameters["rho"].shape == (CHAINS, 100, 2)
    fit = jax.tree.map(lambda leaf: leaf.mean(axis=1), run.infos.parameters)
    scale = np.log1p(np.exp(fit["rho"]))
    scaled = (run.positions - fit["location"][:, None]) / scale[:, None]
    # 300 normals a component: six standard errors, 8e-9 each.
    assert np.all(abs(scaled.mean(axis=(0, 1))) < 6 / 300**0.5)
    assert np.all(abs(scaled.var(axis=(0, 1)) - 1) < 6 * (2 / 300) ** 0.5)
    # Two components of float32 are equal by chance, but not both of two draws.
    draws = run.positions.reshape(-1, 2)
    assert len(np.unique(draws, axis=0)) == len(draws)


def test_bill_and_ledger(posterior, tmp_path):
    path = tmp_path / "ledger"
    run = go(posterior, ledger=path)
    events = ALGORITHM(posterior).privacy(60 * CHAINS)
    assert ledgers.read(path, "REPLACE_ONE").runs == [events]
    assert run.statement.epsilon == privacy.epsilon(events, 1e-5) <= 4.0
    with pytest.raises(privacy.BudgetError, match="would spend"):
        go(posterior, 100_000)
    longest = go(posterior, None, budget=dpjax.Budget(1.0, 1e-5))
    steps = longest.statement.num_steps
    (event, count), *_ = ALGORITHM(posterior).privacy(CHAINS)
    assert privacy.epsilon([(event, count * steps)], 1e-5) <= 1.0
    assert privacy.epsilon([(event, count * (steps + 1))], 1e-5) > 1.0


@pytest.mark.thorough
@pytest.mark.parametrize("killed_at", [0, 5])
def test_a_killed_run_goes_on_as_if_it_had_not_been(
    posterior, tmp_path, monkeypatch, killed_at
):
    files = dict(ledger=tmp_path / "ledger", checkpoint=tmp_path / "checkpoint")
    whole = go(posterior, thinning=3)
    advance, calls = loop.advance, []

    def killed(*arguments):
        if len(calls) == killed_at:
            raise KeyboardInterrupt
        calls.append(1)
        return advance(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "advance", killed)
        with pytest.raises(KeyboardInterrupt):
            go(posterior, thinning=3, **files)
    charged = files["ledger"].read_bytes()
    # Once it has ended, it gives its draws again.
    for run in [go(posterior, thinning=3, **files) for _ in range(2)]:
        for one, other in ((run.positions, whole.positions), (run.infos, whole.infos)):
            jax.tree.map(np.testing.assert_array_equal, one, other)
    assert files["ledger"].read_bytes() == charged


def test_arviz_holds_draws_and_infos(posterior, tmp_path):
    run = go(posterior)
    run.save(tmp_path / "draws.nc")
    stored = arviz.from_netcdf(tmp_path / "draws.nc")
    assert set(stored.groups()) == {"posterior", "sample_stats"}
    assert stored.attrs["epsilon"] == run.statement.epsilon
    assert list(run.summary_of(*run.components())["r_hat"].notna()) == [True, True]


@pytest.mark.thorough
def test_numpyro_models_are_fitted_in_unconstrained_space():
    def model(x, y):
        slope = numpyro.sample("slope", dist.Normal(0, 5))
        sd = numpyro.sample("sd", dist.HalfNormal(2))
        with numpyro.plate("records", len(x)):
            numpyro.sample("y", dist.Normal(slope * x, sd), obs=y)

    rng = np.random.default_rng(3)
    x = rng.normal(size=4000)
    y = 2.0 * x + 0.5 * rng.normal(size=4000)
    data = {"x": jnp.asarray(x), "y": jnp.asarray(y)}
    posterior = posterior_of(model, data, plate="records")
    algorithm = functools.partial(
        ALGORITHM, guide=guides.FullRank(2), l2_clip_norm=10.0
    )
    run = go(
        posterior,
        600,
        algorithm_fn=algorithm,
        num_chains=1,
        initial_position={"slope": jnp.zeros(1), "sd": jnp.zeros(1)},
        warmup_fraction=0.5,
        budget=dpjax.Budget(8.0, 1e-5),
    )
    # The noise on the mean of 300 gradients, of sd 70, is 1 % of the information of
    # 8000 or more: the rest is for clipping and the optimiser.
    assert abs(run.positions["slope"].mean() - 2.0) < 0.1
    assert np.all(run.positions["sd"] > 0)
    assert abs(run.positions["sd"].mean() - 0.5) < 0.1


@dataclasses.dataclass(frozen=True)
class Publishing(guides.MeanField):
    """A guide whose draws are a record that it holds."""

    record: Any = None

    def sample(self, rng_key, parameters, num_samples):
        return jnp.broadcast_to(self.record, (num_samples, 2))

    __hash__ = object.__hash__


def test_a_guide_whose_draws_are_records_is_refused(posterior):
    row = np.asarray(posterior.data)[7]
    stored, dtype = row.tobytes(), row.dtype

    def from_bytes(posterior):
        record = jnp.array(np.frombuffer(stored, dtype))
        return ALGORITHM(posterior, guide=Publishing(2, record=record))

    with pytest.raises(ValueError, match=r"^sample holds"):
        go(posterior, algorithm_fn=from_bytes)
    guide = Publishing(2, record=jnp.array(row))
    for algorithm_fn in (
        lambda each: ALGORITHM(each, guide=guide),
        functools.partial(ALGORITHM, guide=guide),
    ):
        with pytest.raises(ValueError, match="makes the algorithm holds 'record'"):
            go(posterior, algorithm_fn=algorithm_fn)


def test_a_guide_that_reads_the_data_is_refused(posterior):
    def of_records(posterior):
        guide = Publishing(2, record=posterior.data[0])
        return ALGORITHM(posterior, guide=guide)

    with pytest.raises(TypeError, match="may not read the records"):
        go(posterior, algorithm_fn=of_records)
