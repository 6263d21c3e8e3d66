"""Records on disk give the results of records in memory, and are as well protected."""

import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest

import dpjax
import dpjax.numpyro
from dpjax.models import logistic_regression
from dpjax.release import log_ratios, on_disk, vector_sums
from dpjax.release.exact_sums import sum_over_records
from dpjax.release.on_disk import OnDisk, Reader
from dpjax.release.sealed import opened
from dpjax.runner import program
from dpjax.runner.checkpoint import CheckpointError
from dpjax.runner.hashes import digest
from dpjax.runner.ledger import LedgerError
from tests.tiers import tiered

NUM_RECORDS, DIM = 5000, 3
RECORDS = np.random.default_rng(0).normal(size=(NUM_RECORDS, DIM)).astype(np.float32)
STARTS = np.zeros((4, DIM), np.float32)
BUDGET = dpjax.Budget(300.0, 1e-6)
NUM_BLOCKS = 5
STEP = dict(step_size=0.01, clip_bound=0.02)
CLIP = dict(l2_clip_norm=1.0, sampling_prob=1.0)
SAMPLED = dict(CLIP, sampling_prob=0.02)
SGLD = dict(step_size=0.1, dim=DIM)
HMC = dict(STEP, num_integration_steps=2, l2_clip_norm=1.0, noise_multiplier=18.0)


def logprior(position):
    return -0.5 * jnp.sum(position**2)


def loglikelihood(position, record):
    return -0.5 * jnp.sum((record - position) ** 2)


def target(data):
    return dpjax.Posterior(logprior, loglikelihood, data)


KERNELS = {
    "barker": functools.partial(dpjax.barker, **STEP),
    "hmc": functools.partial(dpjax.hmc, **HMC),
    "sgld": functools.partial(dpjax.sgld, **SGLD, **CLIP),
    "sgld, sampled": functools.partial(dpjax.sgld, **SGLD, **SAMPLED),
    "penalty": functools.partial(dpjax.penalty, **STEP, test_noise_multiplier=2.0),
    "minibatch_barker": functools.partial(
        dpjax.minibatch_barker, step_size=0.1, batch_size=16
    ),
    "fast_mh": functools.partial(
        dpjax.fast_mh, step_size=1e-3, clip_bound=4e-3, expected_batch_size=400.0
    ),
    "dpvi": functools.partial(
        dpjax.dpvi,
        optimizer=optax.adam(0.1),
        guide=dpjax.guides.MeanField(DIM),
        noise_multiplier=1.0,
        **CLIP,
    ),
}


@pytest.fixture(autouse=True)
def few_records_in_memory(monkeypatch):
    monkeypatch.setattr(on_disk, "BLOCK_BYTES", RECORDS.nbytes // NUM_BLOCKS + 1)


@pytest.fixture
def stored(tmp_path):
    return saved(tmp_path / "records.npy", RECORDS)


def saved(path, array):
    np.save(path, array)
    return np.load(path, mmap_mode="r")


def run(kernel, data, budget=None, num_steps=8, **options):
    return dpjax.run(
        kernel,
        target(data),
        num_steps,
        initial_position=STARTS,
        num_chains=len(STARTS),
        budget=budget,
        warmup_fraction=0.0,
        verbose=False,
        unsafe_key=jax.random.key(0),
        **options,
    )


@pytest.mark.parametrize("name", tiered(KERNELS, ["barker", "sgld, sampled"]))
def test_draws_are_those_of_records_in_memory(name, stored):
    kernel = KERNELS[name]
    apart, together = (run(kernel, data) for data in (stored, RECORDS))
    assert np.std(together.positions) > 0 or together.infos is not None
    jax.tree.map(
        np.testing.assert_array_equal,
        (apart.positions, apart.infos),
        (together.positions, together.infos),
    )


@pytest.mark.parametrize(
    "stored_as",
    [
        lambda path: saved(path, RECORDS.astype(np.float64)),
        lambda path: saved(path, np.asfortranarray(RECORDS)),
        lambda path: saved(path, np.pad(RECORDS, ((7, 3), (1, 2))))[7:-3, 1:-2],
        lambda path: saved(path, np.repeat(RECORDS, 2, axis=0)[::-1])[::-2],
    ],
    ids=["64 bits", "columns", "a part", "backwards"],
)
def test_any_view_of_a_file_is_read(stored_as, tmp_path):
    view = stored_as(tmp_path / "records.npy")
    assert on_disk.is_any(view)
    assert digest(view) == digest(np.array(view))
    records = RECORDS.astype(jnp.zeros(()).dtype) if view.itemsize == 8 else RECORDS
    data, indices = OnDisk(view), np.array([[3, 4999], [0, 3]])
    np.testing.assert_array_equal(on_disk.rows(data, indices), records[indices])
    total = sum_over_records(
        lambda block, _, is_new: jnp.sum(
            jnp.where(is_new[:, None], block, 0) > 0, axis=0
        ),
        data,
        300,
        (DIM,),
        int,
    )
    np.testing.assert_array_equal(total, np.sum(RECORDS > 0, axis=0))


@pytest.mark.parametrize("stored_as", [lambda path, array: array, saved])
def test_no_warning_tells_of_a_number_that_is_out_of_range(stored_as, tmp_path):
    """NumPy would warn of it, and end a run that is charged if warnings are errors."""
    records = RECORDS.astype(np.float64)
    records[3] = 1e300
    with jax.enable_x64(False):
        found = run(
            KERNELS["barker"], stored_as(tmp_path / "records.npy", records), BUDGET
        )
    assert np.std(found.positions) > 0


def test_one_reading_of_a_block_serves_all_chains(stored, monkeypatch):
    read = mock.Mock(side_effect=Reader._block, autospec=True)
    monkeypatch.setattr(Reader, "_block", lambda *arguments: read(*arguments))
    run(KERNELS["barker"], dict(x=stored)["x"], num_steps=6)
    assert read.call_count == 6 * NUM_BLOCKS


def test_a_sample_reads_its_own_rows_only(stored, monkeypatch):
    sizes = []
    read = Reader._scattered

    def counted(self, indices):
        sizes.append(indices.size)
        return read(self, indices)

    monkeypatch.setattr(Reader, "_scattered", counted)
    run(KERNELS["sgld, sampled"], stored, num_steps=6)
    assert len(sizes) == 6
    # The capacity is above the mean, but far below all records.
    expected = len(STARTS) * SAMPLED["sampling_prob"] * NUM_RECORDS
    assert all(expected <= size <= 4 * expected for size in sizes)


@pytest.mark.thorough
def test_some_arrays_may_be_in_memory(stored):
    labels = (RECORDS[:, 0] > 0).astype(np.float32)
    apart, together = (
        dpjax.run(
            KERNELS["hmc"],
            logistic_regression(features, labels),
            4,
            initial_position=STARTS,
            num_chains=len(STARTS),
            budget=None,
            verbose=False,
            unsafe_key=jax.random.key(0),
        ).positions
        for features in (stored, RECORDS)
    )
    np.testing.assert_array_equal(apart, together)


def regression(x, y):
    weights = numpyro.sample("b", dist.Normal(jnp.zeros(2), 1).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("obs", dist.Normal(x @ weights, 1.0), obs=y)


@pytest.mark.thorough
def test_a_fit_of_a_numpyro_model_reads_from_disk(stored, monkeypatch):
    # The program differs, and the randomness of a charged run depends on it.
    monkeypatch.setattr(program, "_identity", lambda traced: "")
    # NumPyro promotes ranks.
    with jax.numpy_rank_promotion("allow"):
        apart, together = (
            dpjax.numpyro.sample(
                dpjax.numpyro.posterior(
                    regression,
                    dict(x=records[:, 1:], y=records[:, 0]),
                    plate="data",
                    example=dict(x=RECORDS[:100, 1:] + 1),
                ),
                budget=dpjax.Budget(3.0, 1e-6),
                verbose=False,
                unsafe_key=jax.random.key(0),
            )
            for records in (stored, RECORDS)
        )
    jax.tree.map(
        np.testing.assert_array_equal,
        (apart.positions, apart.released),
        (together.positions, together.released),
    )


def test_memory_does_not_grow_with_the_records(tmp_path):
    """A sparse file takes no room on the disk, and is not read here."""
    shape = 2**28, 10
    large = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, shape)

    @jax.jit
    def total(position, proposed):
        found, _ = log_ratios.log_ratio_sum(target(large), position, proposed, 0.1)
        vector = vector_sums.vector_sum(
            target(large),
            lambda record, key: (
                record - position + jax.random.normal(key, position.shape)
            ),
            1.0,
            rng_key=jax.random.key(0),
        )
        return found, vector

    positions = jax.ShapeDtypeStruct((20, 10), jnp.float32)
    compiled = jax.jit(jax.vmap(total)).lower(positions, positions).compile()
    memory = compiled.memory_analysis()
    assert memory.temp_size_in_bytes < 2**24


@pytest.mark.thorough
def test_a_ledger_and_a_checkpoint_know_the_records(stored, tmp_path):
    ledger, checkpoint = tmp_path / "ledger.jsonl", tmp_path / "run.npz"
    options = dict(budget=BUDGET, ledger=ledger)
    first = run(KERNELS["barker"], stored, checkpoint=checkpoint, **options)
    again = run(KERNELS["barker"], stored, checkpoint=checkpoint, **options)
    np.testing.assert_array_equal(first.positions, again.positions)
    # The same records in memory are the same data, and others are not.
    run(KERNELS["barker"], RECORDS, num_steps=1, **options)
    other = saved(tmp_path / "other.npy", RECORDS + 1)
    with pytest.raises(CheckpointError, match="data"):
        run(KERNELS["barker"], other, checkpoint=checkpoint, **options)
    with pytest.raises(LedgerError, match="data"):
        run(KERNELS["barker"], other, num_steps=1, **options)


def test_a_killed_run_goes_on(stored, tmp_path):
    kernel, options = KERNELS["barker"], dict(budget=BUDGET, num_steps=20)
    whole = run(kernel, stored, **options)
    path = tmp_path / "run.npz"
    with mock.patch(
        "dpjax.runner.signals.check", side_effect=[None, KeyboardInterrupt]
    ):
        with pytest.raises(KeyboardInterrupt):
            run(kernel, stored, checkpoint=path, **options)
    resumed = run(kernel, stored, checkpoint=path, **options)
    np.testing.assert_array_equal(whole.positions, resumed.positions)


def leaky(posterior):
    """Barker's walk, from a start that moves by what the first record says."""
    algorithm = KERNELS["barker"](posterior)

    def move(words, state, memory):
        state, info, memory = algorithm.transition.move(words, state, memory)
        first = on_disk.block(opened(posterior), 0, 1)[0]
        return state._replace(position=state.position + 1e-6 * first), info, memory

    return algorithm._replace(transition=algorithm.transition._replace(move=move))


def test_what_is_read_from_disk_is_secret(stored):
    with pytest.raises(ValueError, match=r"draws, state\.position would depend"):
        run(leaky, stored, BUDGET)


def test_callbacks_of_a_model_are_refused_still(stored):
    def calls_out(position, record):
        value = loglikelihood(position, record)
        shape = jax.ShapeDtypeStruct((), value.dtype)
        return jax.pure_callback(lambda x: x, shape, value, vmap_method="expand_dims")

    posterior = dpjax.Posterior(logprior, calls_out, stored)
    with pytest.raises(ValueError, match="makes a pure_callback"):
        program.check_algorithm(KERNELS["barker"], posterior, jnp.asarray(STARTS))


def test_functions_must_not_hold_records_on_disk(stored):
    held = stored[:100]
    posterior = dpjax.Posterior(
        logprior, lambda position, record: jnp.sum(position * held[0]), stored
    )
    with pytest.raises(ValueError, match="'held', which is an array of the data"):
        program.check_algorithm(KERNELS["barker"], posterior, jnp.asarray(STARTS))


def test_arrays_on_several_devices_and_on_disk_do_not_mix(stored):
    mesh = jax.sharding.Mesh(jax.devices()[:1], "data")
    spread = jax.device_put(RECORDS, jax.NamedSharding(mesh, jax.P("data")))
    posterior = dpjax.Posterior(
        logprior, lambda at, record: loglikelihood(at, record[0]), (stored, spread)
    )
    with pytest.raises(ValueError, match="one device reads"):
        program.check_algorithm(KERNELS["barker"], posterior, jnp.asarray(STARTS))
