"""A whole run is one compiled loop, on the device from one chunk to the next."""

import jax
import jax.numpy as jnp
import pytest

import dpjax
from dpjax.runner import loop
from dpjax.runner.layout import NUM_CHUNKS
from tests.release.test_taint import (
    DATA,
    POSITIONS,
    POSTERIOR,
    PROBIT,
    kernel,
    logprior,
    mixture_loglikelihood,
)
from tests.tiers import tiered

MIXTURE = dpjax.Posterior(logprior, mixture_loglikelihood, DATA)
TARGETS = {"dp_em": (MIXTURE, jnp.zeros((3, 3, 2)))} | {
    name: (PROBIT, POSITIONS) for name in ("dp_sep", "dp_sep_published")
}

# A kernel of each kind of state: walks, with and without samples, sums and sites.
LOOPS = ["barker", "adapted", "hmc", "fast_mh", "sgld", "dpvi", "dp_sep", "dp_em"]


@pytest.mark.parametrize("name", tiered(LOOPS, ["barker", "sgld"]))
def test_a_run_compiles_one_loop_for_all_chunks(name, monkeypatch, compilations):
    chunks = []

    def advance(program, *arguments):
        chunks.append((program, arguments))
        return program.advance(*arguments)

    monkeypatch.setattr(loop, "advance", advance)
    posterior, positions = TARGETS.get(name, (POSTERIOR, POSITIONS))
    dpjax.run(
        kernel(name),
        posterior,
        3 * NUM_CHUNKS,
        initial_position=positions,
        num_chains=3,
        budget=None,
        verbose=False,
        unsafe_key=jax.random.key(0),
    )
    assert len(chunks) > 2
    assert compilations.count("jit(loop)") == 1
    # Nothing but its arguments moves between the host and the device.
    last, arguments = chunks[-1]
    arguments = jax.device_put(arguments)
    last.advance(*arguments)
    with jax.transfer_guard("disallow"):
        last.advance(*arguments)
