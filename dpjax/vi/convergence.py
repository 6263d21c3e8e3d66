"""How much of a trace of DPVI is linear, and so near enough to the optimum.

`noise_aware` takes the released gradients for linear in the released parameters. Far
from the optimum they are not: the curvature changes, clipping bends them, and other
components still move. Then the residuals e_t of the regression of g_t on phi_t drift,
and their means over B equal stretches of m steps differ by more than the noise says. If
the trace is linear,

    sum over stretches of m (mean e_t)^2 / var e_t

is in each component about chi-squared with B - 1 degrees of freedom, or less, as the
regression takes up some of it; so is the sum over all P components, with P (B - 1). The
longest end of the trace that passes is kept, without the first fifth: a drift that the
noise hides passes, and may still move the optimum by its sd. All this was released, so
it is free.

If the rate times the curvature is below about 5 / n, the trace has not turned back from
where the noise took it, and fails more often than the level says: as it should.
"""

import warnings

import jax
import numpy as np
from scipy.stats import chi2

__all__ = ["num_warmup", "p_values"]

CANDIDATES = [part / 10 for part in range(2, 10)]
"""Shares of the trace that are left out."""


def p_values(infos, *, num_blocks: int = 10) -> np.ndarray:
    """Chance of residuals that drift as much or more, if the trace is linear.

    Parameters
    ----------
    infos
        `Run.infos` of `dpvi` with ``aligned=False``.
    num_blocks
        B.

    Returns
    -------
    Array
        ``(num_chains,)``.

    Raises
    ------
    ValueError
        If there are fewer than three steps a block.
    """
    parameters, gradients = _flat(infos.parameters), _flat(infos.gradient)
    num_chains, num_steps, size = parameters.shape
    length = num_steps // num_blocks
    if length < 3:
        raise ValueError(
            f"{num_steps} steps are too few for {num_blocks} blocks: three a block are "
            "needed"
        )
    x, g = (array[:, -num_blocks * length :] for array in (parameters, gradients))
    x, g = (array - array.mean(axis=1, keepdims=True) for array in (x, g))
    slope = np.sum(x * g, axis=1, keepdims=True) / np.sum(x**2, axis=1, keepdims=True)
    errors = g - slope * x
    variance = np.sum(errors**2, axis=1) / (num_blocks * length - 2)
    means = errors.reshape(num_chains, num_blocks, length, size).mean(axis=2)
    drift = length * np.sum(means**2, axis=1) / variance
    return chi2.sf(drift.sum(axis=-1), size * (num_blocks - 1))


def num_warmup(infos, *, level: float = 1e-3, num_blocks: int = 10) -> int:
    """First steps to leave out, so that the rest of every chain is linear.

    Parameters
    ----------
    infos
        `Run.infos` of `dpvi` with ``aligned=False``, from the first step on.
    level
        The least of `p_values` that passes.
    num_blocks
        As in `p_values`.

    Returns
    -------
    A multiple of a tenth of the steps, two at least. If not even the last tenth passes,
    it is all but that, with a warning.

    Raises
    ------
    ValueError
        As `p_values`.
    """
    num_steps = jax.tree.leaves(infos.parameters)[0].shape[1]
    for share in CANDIDATES:
        first = round(share * num_steps)
        rest = jax.tree.map(lambda leaf, first=first: leaf[:, first:], infos)
        if np.all(p_values(rest, num_blocks=num_blocks) >= level):
            return first
    warnings.warn(
        "gradients are not linear in the parameters anywhere in this trace, so its "
        "optimum is not known: take more steps, or smaller ones at the end",
        stacklevel=2,
    )
    return first


def _flat(tree) -> np.ndarray:
    """Leaves side by side, ``(num_chains, num_steps, size)`` float64."""
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(tree)]
    return np.concatenate([leaf.reshape(*leaf.shape[:2], -1) for leaf in leaves], -1)
