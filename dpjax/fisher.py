"""Expected Fisher information: a metric of the model that reads no data, and its paths.

A step delta changes one record's log-likelihood by about sqrt(delta' F delta), F the
information of one record, so steps measured in G = T n F (T the tempering) need a clip
bound of a few ``h / sqrt(T n)`` for steps of h posterior standard deviations, whatever
the scales, the correlations and the dimension. F is an expectation over records drawn
from the *model* at a public position, never over the data, so it costs no privacy.

Where G hardly changes over the posterior, its inverse at one public position is an
``inverse_mass_matrix``. Where it does, `geodesic` walks along its geodesics.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import cho_solve, solve_triangular

from dpjax.posterior import Posterior
from dpjax.proposals import Move, Proposal
from dpjax.random.variates import normal

__all__ = ["Information", "geodesic", "information"]

SPREAD = 0.1
"""Standard deviation of the logarithm of a geodesic step's length. A fixed length would
be missed by the error of the integrator on the way back."""

LARGEST_UNROLLED = 16
"""Unknowns of a system that is solved in as many lines of code."""

NEWTON_STEPS, CLOSURE = 4, 1e-6
"""Iterations of the midpoint equation, and how far in step lengths the way back may end
from the start before the proposal is given up."""


@dataclass(frozen=True)
class Information:
    """``position -> (d, d)``: the information of all records; see `information`."""

    loglikelihood_fn: Callable[[Any, Any], jax.Array]
    simulate_fn: Callable[[jax.Array, Any], Any]
    num_records: int
    tempering: float
    prior_precision: float
    num_simulated: int
    seed: int

    def __call__(self, position) -> jax.Array:
        flat, unravel = ravel_pytree(position)

        def score(rng_key):
            record = jax.lax.stop_gradient(self.simulate_fn(rng_key, position))
            return jax.grad(lambda x: self.loglikelihood_fn(unravel(x), record))(flat)

        keys = jax.random.split(jax.random.key(self.seed), self.num_simulated)
        scores = jax.vmap(score)(keys)
        product = jnp.matmul(scores.T, scores, precision="highest")
        weight = self.tempering * self.num_records / self.num_simulated
        return weight * product + self.prior_precision * jnp.eye(flat.size)


def information(
    posterior: Posterior,
    simulate_fn: Callable[[jax.Array, Any], Any],
    *,
    prior_precision: float = 0.0,
    num_simulated: int = 1000,
    seed: int = 0,
) -> Information:
    """Fisher information of the model, from records simulated by it.

    Parameters
    ----------
    posterior
        Its log-likelihood, tempering and number of records are used, not its data.
    simulate_fn
        ``(rng_key, position) -> record``: one record of the model, with regressors
        from a public range or design. It must not read the data.
    prior_precision
        Added to the diagonal; positive where records alone may not inform a direction.
    num_simulated
        Records simulated, a few times the number of parameters or more. The error
        this makes leaves chains exact: the same records are drawn at every position.
    seed
        Of their randomness.

    Returns
    -------
    ``position -> (d, d)`` over the flattened position, for `geodesic`; its
    inverse at one public position is an ``inverse_mass_matrix``.

    Raises
    ------
    ValueError
        If `num_simulated` is not positive or `prior_precision` is negative.

    Notes
    -----
    *Formal guarantees.* No data are read: the result depends on the data set through
    its number of records only, which substitution of a record does not change.
    """
    if not (isinstance(num_simulated, int) and num_simulated >= 1):
        raise ValueError(f"num_simulated must be a positive integer, {num_simulated=}")
    if not prior_precision >= 0:
        raise ValueError(f"prior_precision must not be negative, {prior_precision=}")
    return Information(
        posterior.loglikelihood_fn,
        simulate_fn,
        posterior.num_records,
        posterior.tempering,
        prior_precision,
        num_simulated,
        seed,
    )


def geodesic(information_fn: Callable[[Any], jax.Array]) -> Proposal:
    """Random walk along geodesics of the metric G = `information_fn`.

    A uniform direction, and a length within about a tenth of ``step_size`` in units of
    G: of one posterior standard deviation where G is the Fisher information.

    Parameters
    ----------
    information_fn
        ``position -> (d, d)``, public, differentiable and positive definite. Any such
        function leaves chains exact.

    Notes
    -----
    One step of the implicit midpoint rule for K = p' G(theta)^-1 p / 2 over unit time,
    from p of length r in G^-1: a symplectic and reversible map, which on a flat metric
    in curved coordinates, such as a banana's, is the geodesic itself. With lengths of
    density g, p has density g(r) r^(1-d) |G|^(-1/2) up to a constant, whose ratio at
    the two ends is the proposal ratio. A proposal whose way back does not lead to the
    start is given up: it is rejected with certainty, whatever the data. The walk that
    Girolami and Calderhead (2011, section 5) take by explicit Euler steps; the check
    is that of Zappa, Holmes-Cerf and Goodman (2018).
    """

    def propose(words, position, walk, step_size):
        with jax.enable_x64(True):
            wide = jax.tree.map(lambda x: x.astype(jnp.float64), position)
            flat, unravel = ravel_pytree(wide)

            def metric(theta):
                return information_fn(unravel(theta))

            numbers = normal(words, flat.dtype)
            length = step_size * jnp.exp(SPREAD * numbers[0])
            direction = numbers[1:] / jnp.linalg.norm(numbers[1:])
            root = jnp.linalg.cholesky(metric(flat))
            momentum = length * root @ direction
            end, turned = _walk(metric, flat, root, momentum)
            root_there = jnp.linalg.cholesky(metric(end))
            back, returned = _walk(metric, end, root_there, -turned)
            error = jnp.concatenate(
                [
                    root.T @ (back - flat),
                    solve_triangular(root, returned + momentum, lower=True),
                ]
            )
            length_there = jnp.linalg.norm(
                solve_triangular(root_there, turned, lower=True)
            )
            forward = _log_density(length, root, step_size)
            backward = _log_density(length_there, root_there, step_size)
            closed = jnp.linalg.norm(error) <= CLOSURE * step_size
            usable = closed & jnp.isfinite(backward - forward)
            proposed = unravel(jnp.where(usable, end, flat))
            log_ratio = jnp.where(usable, backward - forward, -jnp.inf)
        narrow = jax.tree.map(
            lambda new, old: new.astype(old.dtype), proposed, position
        )
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
    """Of a momentum of this length in the metric, at its place, up to a constant."""
    deviation = jnp.log(length / step_size) / SPREAD
    log_volume = len(root) * jnp.log(length) + jnp.sum(jnp.log(jnp.diag(root)))
    return -0.5 * deviation**2 - log_volume


def _momenta(information_fn, theta, velocity):
    """Momenta at either end of the step from theta to theta + velocity."""

    def lagrangian(middle, velocity):
        return velocity @ information_fn(middle) @ velocity / 2

    middle = theta + velocity / 2
    force, momentum = jax.grad(lagrangian, (0, 1))(middle, velocity)
    return momentum - force / 2, momentum + force / 2


def _walk(information_fn, theta, root, momentum):
    """Position and momentum after unit time, by Newton's method for the velocity."""

    def residual(velocity):
        return _momenta(information_fn, theta, velocity)[0] - momentum

    def newton(_, velocity):
        slope = jax.jacfwd(residual)(velocity)
        return velocity - _solve(slope, residual(velocity))

    straight = cho_solve((root, True), momentum)
    velocity = jax.lax.fori_loop(0, NEWTON_STEPS, newton, straight)
    return theta + velocity, _momenta(information_fn, theta, velocity)[1]


def _solve(matrix, vector):
    """Solution of a small system, by elimination without pivots.

    XLA calls LAPACK for `jnp.linalg.solve`, which takes ten times as long.
    """
    if len(vector) > LARGEST_UNROLLED:
        return jnp.linalg.solve(matrix, vector)
    rows = jnp.concatenate([matrix, vector[:, None]], axis=1)
    for k in range(len(vector)):
        row = rows[k] / rows[k, k]
        rows = (rows - jnp.outer(rows[:, k], row)).at[k].set(row)
    return rows[:, -1]
