"""The temperature of a chain, estimated from the gradients that it released."""

import math

import jax
import numpy as np

__all__ = ["excess_temperature"]


def excess_temperature(gradients, noise_sd) -> tuple[float, float]:
    """Variance that subsampling adds to the gradients, over the variance of the noise.

    The chain's temperature is about one plus this number times the nominal temperature.

    Parameters
    ----------
    gradients
        ``infos.gradient`` of a run: the noisy gradients, a pytree with leaves of shape
        ``(chains, draws, ...)``. The draws must be successive steps. Any change of the
        exact gradient from one draw to the next is counted as variance too. One step
        of size eta changes it by a share of eta kappa, if the curvature is N kappa.
    noise_sd
        ``infos.noise_sd`` of the run, ``(chains, draws)``.

    Returns
    -------
    excess
        The ratio of the variances.
    standard_error
        Standard error of `excess`, if the components are independent.

    Raises
    ------
    ValueError
        If there is only one draw.

    Notes
    -----
    The variance is estimated by half the mean square of successive differences (von
    Neumann 1941).

    *Formal guarantees.* Only released values are read, so the result costs no privacy.
    """
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(gradients)]
    flat = np.concatenate([leaf.reshape(*leaf.shape[:2], -1) for leaf in leaves], -1)
    if flat.shape[1] < 2:
        raise ValueError("differences of successive gradients need at least two draws")
    variance = np.asarray(noise_sd, np.float64) ** 2
    expected = variance[:, 1:] + variance[:, :-1]
    ratios = np.diff(flat, axis=1) ** 2 / expected[..., None]
    # Successive differences share a gradient, so their correlation is -1/2 and that of
    # their squares 1/4. The variance of the mean square is (1 + 2 / 4) times 2 / size.
    return float(ratios.mean() - 1), math.sqrt(3 / ratios.size)
