"""BlackJAX's samplers on a Posterior, to compare private samplers with.

None of this is private: use it on generated or public data.
"""

import functools
from typing import Any

import blackjax
import jax
import numpy as np

from dpjax.compiled import lapack_in_one_thread
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
        Number of draws of every chain.
    initial_position
        Pytree with leaves ``(chains, ...)``: the start of every chain.
    num_warmup
        Number of steps before the draws, in which every chain adapts on its own.

    Returns
    -------
    Run
        Its statement says that it is not private.
    """

    def start(posterior, position, rng_key):
        # BlackJAX's type annotation of `run` leaves out its number of steps.
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
    """Draws of Hamiltonian Monte Carlo.

    The parameters are those of `nuts`, and the step size, the number of integration
    steps and the metric as in `dpjax.hmc`.
    """

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
    """Draws of random-walk Metropolis with N(0, step_size^2 I) jumps.

    The other parameters are those of `nuts`.
    """

    def start(posterior, position, rng_key):
        jump = blackjax.mcmc.random_walk.normal(step_size)
        algorithm = blackjax.additive_step_random_walk(posterior, jump)
        return algorithm, algorithm.init(position, rng_key)

    return _run(rng_key, posterior, num_steps, initial_position, start)


def _run(rng_key, posterior, num_steps, initial_position, start) -> Run:
    """Run one chain of a BlackJAX algorithm from every initial position.

    `start` is a function ``(posterior, position, rng_key) -> (algorithm, state)``. It
    returns BlackJAX's algorithm and the first state of a chain.
    """

    # The posterior is an argument, so that its data are not compiled into the program
    # as constants.
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
    with lapack_in_one_thread():
        found = jax.block_until_ready(sample(posterior, initial_position, keys))
    positions, rates = found
    statement = PrivacyStatement.none(num_chains, num_steps)
    return Run(posterior.constrain(positions), np.asarray(rates), statement)
