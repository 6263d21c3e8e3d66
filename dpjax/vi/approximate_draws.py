"""The paper's back ends for the model of a trace: NUTS, and Laplace's approximation.

`exact_draws` needs neither. NUTS is its check; Laplace, the normal about the mode of
the log density of (phi*, u, r), is what users of the paper's code have. That code adds
log sig(softplus(u)) to the log density once a step, though its prior is on u, and
leaves r where it started, at zero: ``published_laplace`` does the same.
"""

import functools

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpjax.vi.trace_model import TraceModel, conditional, log_joint

__all__ = ["laplace", "nuts"]

WARMUP = 1000
ADAM_STEPS = 3000
STEP_SIZE = 0.1
"""Of Adam, in units of tau and r_0."""


def nuts(model: TraceModel, rng_key: jax.Array, num_samples: int):
    """phi* and u of one chain over all components, both ``(count, num_samples)``."""
    with jax.enable_x64(True):
        optimum, u = _chain(_arrays(model), rng_key, num_samples)
        return np.asarray(optimum).T, np.asarray(u).T


@functools.partial(jax.jit, static_argnums=2)
def _chain(model, rng_key, num_samples):
    def log_density(position):
        return jnp.sum(log_joint(model, *_unscaled(model, position), jnp))

    warmup_key, sample_key = jax.random.split(rng_key)
    zero = jnp.zeros_like(model.slope)
    start = zero, zero, jnp.where(model.sampling_error_sd > 0, 1.0, zero)
    adaptation = blackjax.window_adaptation(blackjax.nuts, log_density)
    (state, parameters), _ = adaptation.run(warmup_key, start, WARMUP)
    step = blackjax.nuts(log_density, **parameters).step

    def one(state, key):
        state, _ = step(key, state)
        return state, _unscaled(model, state.position)[:2]

    keys = jax.random.split(sample_key, num_samples)
    return jax.lax.scan(one, state, keys)[1]


def laplace(
    model: TraceModel,
    rng: np.random.Generator,
    num_samples: int,
    is_published: bool = False,
):
    """phi* and u from the normal approximation, both ``(count, num_samples)``."""
    if is_published:
        model = model._replace(sampling_error_sd=np.zeros_like(model.sampling_error_sd))
    with jax.enable_x64(True):
        mode, precision = map(np.array, _mode(_arrays(model), is_published))
    # Where r is left out, it stays zero.
    without = model.sampling_error_sd == 0
    precision[without, 2, :], precision[without, :, 2] = 0.0, 0.0
    precision[without, 2, 2] = 1.0
    root = np.linalg.cholesky(np.linalg.inv(precision))
    normals = rng.standard_normal((len(mode), 3, num_samples))
    found = mode[..., None] + root @ normals
    return found[:, 0], found[:, 1]


@functools.partial(jax.jit, static_argnums=1)
def _mode(model, is_published):
    """(phi*, u, r) of the highest density, and minus the second derivatives there."""

    def log_density(fields, point):
        optimum, u, r = point
        value = log_joint(TraceModel(*fields), optimum, u, r, jnp)
        if is_published:
            value += model.num_steps * jax.nn.log_sigmoid(jax.nn.softplus(u))
        return value

    def at(scaled):
        """The best phi* with these u and r."""
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
    axes = TraceModel(None, *[0] * (len(model) - 1))
    hessian = jax.vmap(jax.hessian(log_density, 1), (axes, 0))(model, mode)
    return mode, -hessian


def _unscaled(model, position):
    optimum, u, r = position
    return (
        model.optimum_mean + model.optimum_sd * optimum,
        model.slope + model.slope_sd * u,
        model.sampling_error_sd * r,
    )


def _arrays(model):
    return TraceModel(*(jnp.asarray(field, jnp.float64) for field in model))
