"""BlackJAX's samplers on a Posterior, to compare private samplers with.

None of this is private: use it on generated or public data.
"""

import functools
from typing import Any

import blackjax
import jax
import numpy as np

from dpjax.posterior import Posterior
from dpjax.runner.results import Run
from dpjax.runner.statement import PrivacyStatement

__all__ = ["hmc", "nuts", "rmh"]


def nuts(
    rng_key: jax.Array,
    posterior: Posterior,
    num_steps: int,
    *,
    initial_position: Any,
    num_warmup: int = 1000,
) -> Run:
    """Draws of the No-U-Turn sampler after Stan's window adaptation.

    Parameters
    ----------
    rng_key
        A JAX key.
    posterior
        What to sample, and the data.
    num_steps
        Draws kept of every chain.
    initial_position
        Pytree whose leaves have an entry for every chain along the leading axis.
    num_warmup
        Steps before the draws, in which every chain adapts on its own.

    Returns
    -------
    Run
        Its statement says that it is not private.
    """

    def start(posterior, position, rng_key):
        # The type of `run` in BlackJAX leaves its number of steps out.
        adaptation: Any = blackjax.window_adaptation(blackjax.nuts, posterior)
        (state, parameters), _ = adaptation.run(rng_key, position, num_warmup)
        return blackjax.nuts(posterior, **parameters), state

    return _run(rng_key, posterior, num_steps, initial_position, start)


def hmc(
    rng_key: jax.Array,
    posterior: Posterior,
    num_steps: int,
    *,
    initial_position: Any,
    step_size: float,
    num_integration_steps: int,
    inverse_mass_matrix,
) -> Run:
    """Draws of Hamiltonian Monte Carlo; arguments as in `nuts` and `dpjax.hmc`."""

    def start(posterior, position, rng_key):
        algorithm = blackjax.hmc(
            posterior, step_size, inverse_mass_matrix, num_integration_steps
        )
        return algorithm, algorithm.init(position, rng_key)

    return _run(rng_key, posterior, num_steps, initial_position, start)


def rmh(
    rng_key: jax.Array,
    posterior: Posterior,
    num_steps: int,
    *,
    initial_position: Any,
    step_size,
) -> Run:
    """Draws of random-walk Metropolis with N(0, step_size^2 I) jumps; see `nuts`."""

    def start(posterior, position, rng_key):
        jump = blackjax.mcmc.random_walk.normal(step_size)
        algorithm = blackjax.additive_step_random_walk(posterior, jump)
        return algorithm, algorithm.init(position, rng_key)

    return _run(rng_key, posterior, num_steps, initial_position, start)


def _run(rng_key, posterior, num_steps, initial_position, start) -> Run:
    """Run chains of what `start` makes of a posterior, a position and a key.

    `start` returns BlackJAX's algorithm and its first state.
    """

    # The data are an argument: as constants they would be compiled into the program.
    @jax.jit
    @functools.partial(jax.vmap, in_axes=(None, 0, 0))
    def sample(posterior, position, rng_key):
        start_key, step_key = jax.random.split(rng_key)
        algorithm, state = start(posterior, position, start_key)

        def step(state, rng_key):
            state, info = algorithm.step(rng_key, state)
            return state, (state.position, info.acceptance_rate)

        return jax.lax.scan(step, state, jax.random.split(step_key, num_steps))[1]

    num_chains = jax.tree.leaves(initial_position)[0].shape[0]
    keys = jax.random.split(rng_key, num_chains)
    positions, rates = sample(posterior, initial_position, keys)
    statement = PrivacyStatement.none(num_chains, num_steps)
    return Run(posterior.constrain(positions), np.asarray(rates), statement)
