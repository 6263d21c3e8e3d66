"""Chains of Hamiltonian Monte Carlo for a law that is close to N(0, I), in NumPy.

BlackJAX's kernel, with the log density of `dpjax.fit.slopes`, takes 12 seconds to
compile and about one to run. NumPy takes as long to run, and compiles nothing.
"""

from collections.abc import Callable

import numpy as np

__all__ = ["NUM_CHAINS", "chains"]

NUM_CHAINS, NUM_INTEGRATION_STEPS = 32, 6
"""Number of chains, and number of leapfrog steps between two draws of a chain."""

NUM_STARTS = 1024
"""Number of draws of N(0, I) among which the chains' starts are chosen."""

FIRST_STEP_SIZE, ACCEPTANCE = 0.1, 0.8
"""Size of the leapfrog steps of the first draw. After each draw of the warm-up, the
logarithm of the size changes by how far the chains' mean acceptance rate is above the
second number."""

NUM_WINDOWS, WINDOW = 5, 8
"""Number of windows of the warm-up, and number of draws of every chain in a window. The
draws of a window give the inverse mass matrix, which is diagonal, of the next one."""


@np.errstate(all="ignore")
def chains(
    rng: np.random.Generator, log_density: Callable, size: int, per_chain: int
) -> np.ndarray:
    """`per_chain` draws of each of `NUM_CHAINS` chains after a warm-up.

    The chains begin with draws of N(0, I), chosen with probabilities that are
    proportional to their importance weights. Otherwise a chain could begin near a mode
    of little probability, which it would not leave in the few steps that it makes. The
    warm-up estimates the variances of the law, and chooses the size of the leapfrog
    steps.

    Parameters
    ----------
    rng
        Source of the random numbers.
    log_density
        Given positions ``(chains, size)``, their log densities up to a constant,
        ``(chains,)``, and their gradients, ``(chains, size)``. Where a log density is
        NaN, the density is zero.
    size
        Number of coordinates.
    per_chain
        Number of draws of a chain.

    Returns
    -------
    Draws, ``(per_chain * NUM_CHAINS, size)``. Neighbours are of different chains.
    """

    def evaluated(positions):
        values, gradients = log_density(positions)
        return positions, np.where(np.isnan(values), -np.inf, values), gradients

    def moved(state, variances, step_size):
        """The chains' states after one draw each, and their acceptance rates."""
        # Trajectories of equal length could be periods of some coordinate.
        step = step_size * rng.uniform(0.6, 1.0)
        start, momenta = state, rng.normal(size=state[0].shape) / np.sqrt(variances)
        before = start[1] - momenta**2 @ variances / 2
        for _ in range(NUM_INTEGRATION_STEPS):
            momenta = momenta + step / 2 * state[2]
            state = evaluated(state[0] + step * variances * momenta)
            momenta = momenta + step / 2 * state[2]
        gain = state[1] - momenta**2 @ variances / 2 - before
        rates = np.exp(np.minimum(np.where(np.isnan(gain), -np.inf, gain), 0))
        is_kept = rng.uniform(size=NUM_CHAINS) >= rates
        for old, new in zip(start, state, strict=True):
            new[is_kept] = old[is_kept]
        return state, rates

    starts = rng.normal(size=(NUM_STARTS // NUM_CHAINS, NUM_CHAINS, size))
    values = np.concatenate([evaluated(some)[1] for some in starts])
    starts = starts.reshape(NUM_STARTS, size)
    log_weights = values + np.sum(starts**2, axis=1) / 2
    # The largest of these sums is that of a start with its probability.
    gumbel = rng.gumbel(size=(NUM_CHAINS, NUM_STARTS))
    state = evaluated(starts[np.argmax(log_weights + gumbel, axis=1)])
    variances, step_size, found = np.ones(size), FIRST_STEP_SIZE, []
    for _ in range(NUM_WINDOWS):
        window = []
        for _ in range(WINDOW):
            state, rates = moved(state, variances, step_size)
            step_size *= np.exp(np.mean(rates) - ACCEPTANCE)
            window.append(state[0])
        variances = np.var(window, axis=(0, 1))
    for _ in range(per_chain):
        state, _ = moved(state, variances, step_size)
        found.append(state[0])
    return np.concatenate(found)
