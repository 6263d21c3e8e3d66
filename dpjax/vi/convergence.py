"""A test for the part of a trace of DPVI in which gradients are linear in phi.

`noise_aware` assumes that the released gradients are linear in the released parameters.
Far from the optimum they are not: the curvature changes, clipping bends the gradients,
and other components still move. Then the residuals e_t of the regression of g_t on
phi_t drift. To test for a drift, the n steps of a trace are cut into B blocks of m
steps. If the trace is linear, then in each component

    sum over blocks of m (mean e_t)^2 / var e_t

is about chi-squared with B - 1 degrees of freedom, or smaller because the regression
absorbs some of it. The sum over all P components is about chi-squared with P (B - 1)
degrees of freedom.

`num_warmup` finds the longest final part of the trace that passes this test. It always
leaves out the first fifth, because a drift that is hidden by the noise passes the test
and can still move the optimum by one sd. The test reads only what was released, so it
costs no privacy.

If the step size times the curvature is below about 5 / n, the trace has not yet come
back from where the noise took it. Such traces fail the test more often than its level
says, as they should.
"""

import jax
import numpy as np
from scipy.stats import chi2

from dpjax import caller
from dpjax.vi.trace_model import flat

__all__ = ["num_warmup", "p_values"]


def p_values(infos, *, num_blocks: int = 10) -> np.ndarray:
    """p-values of the test for a drift of the residuals, for each chain.

    A p-value is the probability that residuals drift as much or more if the gradients
    are linear in the parameters.

    Parameters
    ----------
    infos
        `Run.infos` of `dpvi` with ``aligned=False``.
    num_blocks
        B, the number of blocks that are compared.

    Returns
    -------
    Array
        The p-values, ``(num_chains,)``.

    Raises
    ------
    ValueError
        If a block has fewer than three steps.
    """
    parameters, gradients = flat(infos.parameters), flat(infos.gradient)
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
    """Number of first steps to leave out, so that the rest of every chain is linear.

    Parameters
    ----------
    infos
        `Run.infos` of `dpvi` with ``aligned=False``, from the first step on.
    level
        A chain passes if its p-value is at least this.
    num_blocks
        As in `p_values`.

    Returns
    -------
    A multiple of a tenth of the steps, at least two tenths. If not even the last tenth
    of the trace passes, the function warns and returns nine tenths.

    Raises
    ------
    ValueError
        As in `p_values`.
    """
    num_steps = jax.tree.leaves(infos.parameters)[0].shape[1]
    candidates = [round(part / 10 * num_steps) for part in range(2, 10)]
    for first in candidates:
        rest = jax.tree.map(lambda leaf, first=first: leaf[:, first:], infos)
        if np.all(p_values(rest, num_blocks=num_blocks) >= level):
            return first
    caller.warn(
        "gradients are not linear in the parameters anywhere in this trace, so its "
        "optimum is not known: take more steps, or smaller ones at the end"
    )
    return candidates[-1]
