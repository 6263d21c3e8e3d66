"""Whether a chain has its temperature, from what it released."""

import math

import jax
import numpy as np

__all__ = ["excess_temperature"]


def excess_temperature(gradients, noise_sd) -> tuple[float, float]:
    """How much the samples heated a chain: their variance over that of the noise.

    The temperature is 1 + this, about, times the nominal one. Reads a run's
    ``infos.gradient`` and ``infos.noise_sd`` and nothing else, so it is free.

    Parameters
    ----------
    gradients
        Noisy gradients of the steps that a run kept, a pytree of ``(chains, draws,
        ...)``, of steps after one another: what the gradient changes between them, a
        share of eta kappa after one step on a curvature of N kappa, counts as heat.
    noise_sd
        ``(chains, draws)``.

    Returns
    -------
    The excess, and its standard error where components are independent.

    Raises
    ------
    ValueError
        If there is only one draw.

    Notes
    -----
    From half the mean square of successive differences [von Neumann 1941], over the
    noise's variance, minus one.
    """
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(gradients)]
    flat = np.concatenate([leaf.reshape(*leaf.shape[:2], -1) for leaf in leaves], -1)
    if flat.shape[1] < 2:
        raise ValueError("differences of successive gradients need at least two draws")
    variance = np.asarray(noise_sd, np.float64) ** 2
    expected = variance[:, 1:] + variance[:, :-1]
    ratios = np.diff(flat, axis=1) ** 2 / expected[..., None]
    # Differences that share a gradient are correlated: (1 + 2 / 4) times the variance.
    return float(ratios.mean() - 1), math.sqrt(3 / ratios.size)
