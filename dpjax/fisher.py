"""Expected Fisher information, which reads no data, and steps in its metric.

A step delta changes one record's log-likelihood by about sqrt(delta' F delta), with F
the Fisher information of one record. Let T be the tempering, n the number of records
and G = T n F. A step of length h in the metric G moves by about h posterior standard
deviations. It therefore needs a clip bound of a few h / sqrt(T n) nats, whatever the
scales, the correlations and the dimension of the parameters. F is an expectation over
records drawn from the *model* at a public position, never over the data, so it costs no
privacy.

Where G hardly changes over the posterior, its inverse at one public position is a good
``inverse_mass_matrix``. Where it does change, `geodesic` proposes steps along the
geodesics of G.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import cho_solve, solve_triangular

from dpjax.posterior import Posterior
from dpjax.privacy.validate import check_count
from dpjax.proposals import Move, Proposal
from dpjax.random.variates import normal
from dpjax.release.nominal import nominal_size

__all__ = [
    "fisher_information",
    "geodesic",
    "inverse_fisher_information",
    "simulated_scores",
]

LOG_LENGTH_SD = 0.1
"""Standard deviation of the logarithm of a geodesic step's length. If all steps had the
same length, the reverse step would miss the start by the error of the integrator."""

MAX_UNROLLED_DIM = 16
"""Largest number of equations in a linear system whose elimination is unrolled."""

NEWTON_STEPS = 4
"""Number of Newton iterations for the implicit midpoint equation."""

MAX_RETURN_ERROR = 1e-6
"""The most by which the reverse step may miss the start, in units of ``step_size``. If
it misses by more, the proposal is rejected."""


def fisher_information(
    posterior: Posterior,
    simulate_fn: Callable[[jax.Array, Any], Any],
    *,
    prior_precision: float = 0.0,
    num_simulated: int = 1000,
    seed: int = 0,
    nominal_num_records: int | None = None,
) -> Callable[[Any], jax.Array]:
    """Expected Fisher information of all records, estimated from simulated records.

    Parameters
    ----------
    posterior
        The posterior. Its log-likelihood, its tempering and its number of records are
        used, but not its data.
    simulate_fn
        ``(rng_key, position) -> record``: draws one record of the model at the
        position, with regressors from a public range or design. It must not read the
        data. `geodesic` differentiates it with respect to the position.
    prior_precision
        Number that is added to the diagonal. It must be positive if the records alone
        leave a direction undetermined.
    num_simulated
        Number of records to simulate, at least a few times the number of parameters.
        The same random numbers are used at every position. So the result is a smooth
        function of the position, and its simulation error leaves chains exact.
    seed
        Seed of the simulated records.
    nominal_num_records
        Number of records whose information is computed. None is the number of records
        of the data.

    Returns
    -------
    Callable
        ``position -> (d, d)``, with respect to the flattened position, for `geodesic`
        and `inverse_fisher_information`.

    Raises
    ------
    ValueError
        If a number of records is not positive or `prior_precision` is negative.

    Notes
    -----
    *Formal guarantees.* No data are read. The result depends on the data set through
    its number of records alone, or not at all if `nominal_num_records` is given.
    """
    if not prior_precision >= 0:
        raise ValueError(f"prior_precision must not be negative, got {prior_precision}")
    num_records = nominal_size(posterior, nominal_num_records)
    scores_fn = simulated_scores(posterior, simulate_fn, num_simulated, seed)
    weight = posterior.tempering * num_records / num_simulated

    def of_all_records(position):
        scores = scores_fn(position)
        product = jnp.matmul(scores.T, scores, precision="highest")
        return weight * product + prior_precision * jnp.eye(len(product))

    return of_all_records


def simulated_scores(
    posterior: Posterior,
    simulate_fn: Callable[[jax.Array, Any], Any],
    num_simulated: int = 1000,
    seed: int = 0,
) -> Callable[[Any], jax.Array]:
    """``position -> (num_simulated, d)``: the scores of records simulated there.

    The arguments and the records are those of `fisher_information`.
    """
    num_simulated = check_count("num_simulated", num_simulated)
    loglikelihood_fn = posterior.loglikelihood_fn
    # If the user's process has x64 off, JAX cannot lower random numbers of 64 bits.
    dtype = jnp.result_type(float)

    def simulated(position):
        narrow = jax.tree.map(lambda leaf: leaf.astype(dtype), position)
        with jax.enable_x64(dtype == jnp.float64):
            keys = jax.random.split(jax.random.key(seed), num_simulated)
            return jax.vmap(simulate_fn, (0, None))(keys, narrow)

    def scores(position):
        flat, unravel = ravel_pytree(position)

        def score(record):
            return jax.grad(lambda x: loglikelihood_fn(unravel(x), record))(flat)

        return jax.vmap(score)(simulated(position))

    return scores


def inverse_fisher_information(
    fisher_information: Callable[[Any], jax.Array], position
) -> np.ndarray:
    """Inverse of the information at one public position, an ``inverse_mass_matrix``.

    Parameters
    ----------
    fisher_information
        ``position -> (d, d)``.
    position
        The position, a pytree.

    Returns
    -------
    np.ndarray
        Shape ``(d, d)``, float64: approximately the posterior covariance of the
        flattened position.
    """
    with jax.enable_x64(True):
        information = jax.jit(lambda at: fisher_information(at))(position)
        inverse = np.linalg.inv(np.asarray(information, np.float64))
    return (inverse + inverse.T) / 2


def geodesic(fisher_information: Callable[[Any], jax.Array]) -> Proposal:
    """Random walk along geodesics of the metric G = `fisher_information`.

    The direction of a step is uniform with respect to G. The length of a step in G
    varies by about a tenth around ``step_size``. If G is the Fisher information, a step
    of length one moves by about one posterior standard deviation.

    Parameters
    ----------
    fisher_information
        ``position -> (d, d)``, public, differentiable and positive definite. Chains
        stay exact with any such function.

    Notes
    -----
    A proposal is one step of the implicit midpoint rule over unit time, for the
    Hamiltonian K = p' G(theta)^-1 p / 2. The step begins with a momentum p whose length
    in G^-1 is r. The map is symplectic and reversible. If G is a flat metric in curved
    coordinates, as it is for the banana, the step is the geodesic itself. If r has the
    density g, then p has the density g(r) r^(1-d) |G|^(-1/2) up to a constant, and the
    ratio of these densities at the two ends is the proposal ratio. If the reverse step
    does not lead back to the start, the proposal is rejected with certainty, whatever
    the data.

    Girolami and Calderhead (2011, section 5) take explicit Euler steps for the same
    walk. The check of the way back is that of Zappa, Holmes-Cerf and Goodman (2018).
    """

    def propose(words, position, walk, step_size):
        with jax.enable_x64(True):
            wide = jax.tree.map(lambda x: x.astype(jnp.float64), position)
            flat, unravel = ravel_pytree(wide)

            def metric(theta):
                return fisher_information(unravel(theta))

            numbers = normal(words, flat.dtype)
            length = step_size * jnp.exp(LOG_LENGTH_SD * numbers[0])
            direction = numbers[1:] / jnp.linalg.norm(numbers[1:])
            root = jnp.linalg.cholesky(metric(flat))
            momentum = length * root @ direction
            end, turned = _walk(metric, flat, root, momentum)
            root_there = jnp.linalg.cholesky(metric(end))
            back, returned = _walk(metric, end, root_there, -turned)
            residue = solve_triangular(root, returned + momentum, lower=True)
            error = jnp.concatenate([root.T @ (back - flat), residue])
            whitened = solve_triangular(root_there, turned, lower=True)
            length_there = jnp.linalg.norm(whitened)
            forward = _log_density(length, root, step_size)
            backward = _log_density(length_there, root_there, step_size)
            closed = jnp.linalg.norm(error) <= MAX_RETURN_ERROR * step_size
            usable = closed & jnp.isfinite(backward - forward)
            proposed = unravel(jnp.where(usable, end, flat))
            log_ratio = jnp.where(usable, backward - forward, -jnp.inf)
        narrow = jax.tree.map(lambda x, y: x.astype(y.dtype), proposed, position)
        dtype = jnp.result_type(float)
        return Move(narrow, length.astype(dtype), walk, walk, log_ratio.astype(dtype))

    return Proposal(
        init=lambda position: (),
        num_words=lambda dim: dim + 1,
        propose=propose,
        longest=lambda step_size: None,
        has_metric=True,
    )


def _log_density(length, root, step_size):
    """Log density of a momentum, up to a constant.

    Parameters
    ----------
    length
        Length r of the momentum in G^-1.
    root
        Lower Cholesky factor of G at the momentum's position.
    step_size
        Median of r.
    """
    deviation = jnp.log(length / step_size) / LOG_LENGTH_SD
    log_volume = len(root) * jnp.log(length) + jnp.sum(jnp.log(jnp.diag(root)))
    return -0.5 * deviation**2 - log_volume


def _momenta(metric, theta, velocity):
    """Momenta at the two ends of the midpoint step from theta to theta + velocity."""

    def lagrangian(middle, velocity):
        return velocity @ metric(middle) @ velocity / 2

    middle = theta + velocity / 2
    force, momentum = jax.grad(lagrangian, (0, 1))(middle, velocity)
    return momentum - force / 2, momentum + force / 2


def _walk(metric, theta, root, momentum) -> tuple[jax.Array, jax.Array]:
    """Position and momentum after one midpoint step over unit time.

    Newton's method finds the velocity whose momentum at theta is `momentum`. `root` is
    the Cholesky factor of the metric at theta.
    """

    def residual(velocity):
        return _momenta(metric, theta, velocity)[0] - momentum

    def newton(_, velocity):
        slope = jax.jacfwd(residual)(velocity)
        return velocity - _solve(slope, residual(velocity))

    straight = cho_solve((root, True), momentum)
    velocity = jax.lax.fori_loop(0, NEWTON_STEPS, newton, straight)
    return theta + velocity, _momenta(metric, theta, velocity)[1]


def _solve(matrix, vector):
    """Solution of a linear system; a small one is solved by elimination without pivots.

    For a small system this takes a tenth of the time of `jnp.linalg.solve`, for which
    XLA calls LAPACK.
    """
    if len(vector) > MAX_UNROLLED_DIM:
        return jnp.linalg.solve(matrix, vector)
    rows = jnp.concatenate([matrix, vector[:, None]], axis=1)
    for k in range(len(vector)):
        row = rows[k] / rows[k, k]
        rows = (rows - jnp.outer(rows[:, k], row)).at[k].set(row)
    return rows[:, -1]
