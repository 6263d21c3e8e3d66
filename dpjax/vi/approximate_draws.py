"""The paper's methods of drawing from the model of a trace: NUTS, and Laplace's.

They serve to check `exact_draws`, and for comparisons with the paper. Laplace's
approximation is a normal law at the mode of the log density of (phi*, u, r). The
paper's code differs from it in two ways, and so does `laplace` with ``is_published``.
First, it adds log sig(softplus(u)) to the log density once per step, although its prior
is on u. Second, it leaves r at zero, where it started.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpjax.nuts import nuts_chain
from dpjax.random.generator import generator
from dpjax.vi.trace_model import TraceModel, conditional, log_joint

__all__ = ["laplace", "nuts"]

WARMUP = 1000
"""Number of steps on which NUTS is tuned."""

ADAM_STEPS = 3000
STEP_SIZE = 0.1
"""Number of steps of Adam towards the mode; and its step size at the start, in units of
tau for u and of r_0 for r."""


def nuts(model: TraceModel, rng_key: jax.Array, num_samples: int):
    """Draws of phi* and u, both ``(count, num_samples)``.

    One chain of NUTS moves the parameters of all `count` components together.
    """
    with jax.enable_x64(True):
        optimum, u = _chain(model, rng_key, num_samples)
        return np.asarray(optimum).T, np.asarray(u).T


@functools.partial(jax.jit, static_argnums=2)
def _chain(model, rng_key, num_samples):
    def unscaled(position):
        optimum, u, r = position
        return (
            model.optimum_mean + model.optimum_sd * optimum,
            model.slope + model.slope_sd * u,
            model.sampling_error_sd * r,
        )

    def log_density(position):
        return jnp.sum(log_joint(model, *unscaled(position), jnp))

    zero = jnp.zeros_like(model.slope)
    start = zero, zero, jnp.where(model.sampling_error_sd > 0, 1.0, zero)
    keys = jax.random.split(rng_key)
    positions = nuts_chain(keys, log_density, start, WARMUP, num_samples)
    return jax.vmap(unscaled)(positions)[:2]


def laplace(
    model: TraceModel,
    rng_key: jax.Array,
    num_samples: int,
    is_published: bool = False,
):
    """Draws of phi* and u from the normal law, both ``(count, num_samples)``."""
    rng = generator(rng_key)
    if is_published:
        model = model._replace(sampling_error_sd=np.zeros_like(model.sampling_error_sd))
    with jax.enable_x64(True):
        mode, precision = map(np.array, _mode(model, is_published))
    # For components without a sampling error, r is fixed at zero. Its row of the
    # precision is replaced by that of an independent variable, whose draws are unused.
    without = model.sampling_error_sd == 0
    precision[without, 2, :], precision[without, :, 2] = 0.0, 0.0
    precision[without, 2, 2] = 1.0
    root = np.linalg.cholesky(np.linalg.inv(precision))
    normals = rng.standard_normal((len(mode), 3, num_samples))
    found = mode[..., None] + root @ normals
    return found[:, 0], found[:, 1]


@functools.partial(jax.jit, static_argnums=1)
def _mode(model, is_published):
    """The mode (phi*, u, r) and minus the Hessian there, for each component.

    Their shapes are ``(count, 3)`` and ``(count, 3, 3)``.
    """

    def log_density(model, point):
        optimum, u, r = point
        value = log_joint(model, optimum, u, r, jnp)
        if is_published:
            value += model.num_steps * jax.nn.log_sigmoid(jax.nn.softplus(u))
        return value

    def at(scaled):
        """The point with these u and r, and with the phi* of the highest density."""
        u = model.slope + model.slope_sd * scaled[0]
        r = model.sampling_error_sd * scaled[1]
        return conditional(model, u, r, jnp)[0], u, r

    def loss(scaled):
        return -jnp.sum(log_density(model, at(scaled)))

    optimizer = optax.adam(optax.cosine_decay_schedule(STEP_SIZE, ADAM_STEPS))

    def step(carry, _):
        scaled, memory = carry
        updates, memory = optimizer.update(jax.grad(loss)(scaled), memory)
        return (optax.apply_updates(scaled, updates), memory), None

    start = jnp.zeros_like(model.slope), jnp.ones_like(model.slope)
    carry = start, optimizer.init(start)
    (scaled, _), _ = jax.lax.scan(step, carry, length=ADAM_STEPS)
    mode = jnp.stack(at(scaled), axis=-1)
    return mode, -jax.vmap(jax.hessian(log_density, 1))(model, mode)
