"""Maximum mean discrepancy with a Gaussian kernel.

The kernel is k(x, y) = exp(-||x - y||^2 / (2 sigma^2)). If both samples are iid draws
of one law, the unbiased estimate of MMD^2 has mean zero and can be negative.

References
----------
Gretton et al. (2012), A Kernel Two-Sample Test, JMLR 13, equation 3. Räisä (2021),
Differentially Private Metropolis-Hastings Algorithms, section 5.3: "the thesis" below.
"""

from functools import partial

import jax
import jax.numpy as jnp

__all__ = ["median_bandwidth", "mmd", "mmd_squared", "reference_bandwidth"]


def mmd(samples, reference, bandwidth) -> jax.Array:
    """sqrt(|MMD^2|) of the unbiased estimate of MMD^2, as the thesis reports it.

    Parameters and errors are those of `mmd_squared`. With 1000 reference draws, a
    sample of the same law has a score of about .02.
    """
    return jnp.sqrt(jnp.abs(mmd_squared(samples, reference, bandwidth)))


@partial(jax.jit, static_argnames="block_size")
def mmd_squared(samples, reference, bandwidth, *, block_size=256) -> jax.Array:
    """The unbiased estimate of MMD^2.

    Parameters
    ----------
    samples
        Draws, shape ``(num_draws, dim)``.
    reference
        Draws of the target, shape ``(num_reference, dim)``.
    bandwidth
        sigma, a scalar in the units of the draws.
    block_size
        Number of rows that are compared with all others at a time. The memory is
        ``block_size * max(num_draws, num_reference)`` numbers.

    Returns
    -------
    Array
        A scalar; NaN if any draw is not finite.

    Raises
    ------
    ValueError
        If the shapes disagree, a sample has fewer than two rows, or `block_size` is
        not positive.
    """
    _check_samples(samples, reference)
    if block_size < 1:
        raise ValueError(f"block_size must be positive, got {block_size}")
    # If the target is far from the origin, dividing by the bandwidth first would round
    # away small differences in float32.
    centre = jnp.mean(reference, axis=0)[None]
    samples = (samples - centre) / bandwidth
    reference = (reference - centre) / bandwidth
    return (
        _mean_off_diagonal(samples, block_size)
        + _mean_off_diagonal(reference, block_size)
        - 2 * jnp.mean(_kernel_row_means(samples, reference, block_size))
    )


def median_bandwidth(rng_key, samples, reference, num_pairs=500) -> jax.Array:
    """The thesis's bandwidth: the median distance of random pairs across samples.

    Each pair has a row of `samples` and a row of `reference`, drawn with replacement.
    The result depends on `samples`, so a chain far from the reference is measured with
    a wider kernel. `reference_bandwidth` does not depend on them, so scores with that
    bandwidth can be compared between chains.

    Parameters
    ----------
    rng_key
        A JAX key that the pairs are drawn from.
    samples, reference
        Shapes ``(num_draws, dim)`` and ``(num_reference, dim)``.
    num_pairs
        Number of pairs.

    Raises
    ------
    ValueError
        If the shapes disagree or a sample has fewer than two rows.
    """
    _check_samples(samples, reference)
    samples_key, reference_key = jax.random.split(rng_key)
    left = jax.random.choice(samples_key, samples, (num_pairs,))
    right = jax.random.choice(reference_key, reference, (num_pairs,))
    return jnp.median(jnp.linalg.norm(left - right, axis=1))


def reference_bandwidth(reference) -> jax.Array:
    """A fixed bandwidth: the median distance of disjoint pairs of the reference.

    Row i is paired with row i + m // 2. So nothing is random, and successive states of
    a Markov chain are not paired.

    Parameters
    ----------
    reference
        Shape ``(m, dim)``.

    Raises
    ------
    ValueError
        If `reference` is not ``(m >= 2, dim)``.
    """
    _check_samples(reference, reference)
    half = reference.shape[0] // 2
    distances = jnp.linalg.norm(reference[:half] - reference[half : 2 * half], axis=1)
    return jnp.median(distances)


def _check_samples(samples, reference):
    if samples.ndim != 2 or samples.shape[1:] != reference.shape[1:]:
        raise ValueError(
            "samples and reference must have shapes (num_draws, dim) and "
            f"(num_reference, dim), got {samples.shape} and {reference.shape}"
        )
    if min(samples.shape[0], reference.shape[0]) < 2:
        raise ValueError("samples and reference need at least two rows each")


def _mean_off_diagonal(points, block_size):
    num_points = points.shape[0]
    with_diagonal = jnp.mean(_kernel_row_means(points, points, block_size))
    return (num_points * with_diagonal - 1) / (num_points - 1)


def _kernel_row_means(left, right, block_size):
    """Means over `right` of k(x, .) with sigma = 1, one for every row x of `left`."""

    def add_component(squares, component):
        of_row, of_right = component
        return squares + (of_row - of_right) ** 2, None

    def row_mean(row):
        # Components are added up one at a time, so no (block, rows, dim) array is made
        # and no difference of large squares cancels.
        zeros = jnp.zeros_like(right[:, 0])
        squares, _ = jax.lax.scan(add_component, zeros, (row, right.T))
        return jnp.mean(jnp.exp(-0.5 * squares))

    return jax.lax.map(row_mean, left, batch_size=min(block_size, left.shape[0]))
