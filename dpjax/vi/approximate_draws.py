"""The paper's back ends for the model of a trace: NUTS, and Laplace's approximation.

`exact_draws` needs neither. NUTS is its check; Laplace, the normal about the mode of
the log density of (phi*, u, r), is what users of the paper's code have. That code adds
log sig(softplus(u)) to the log density once a step, though its prior is on u, and
leaves r where it started, at zero: ``published_laplace`` does the same.
"""

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
        model = _arrays(model)

        def log_density(position):
            optimum, u, r = _unscaled(model, position)
            return jnp.sum(log_joint(model, optimum, u, r, jnp))

        @jax.jit
        def chain(rng_key):
            warmup_key, sample_key = jax.random.split(rng_key)
            adaptation = blackjax.window_adaptation(blackjax.nuts, log_density)
            start = jnp.zeros((2, *model.slope.shape))
            start = (start, jnp.where(model.sampling_error_sd > 0, 1.0, 0.0))
            (state, parameters), _ = adaptation.run(warmup_key, start, WARMUP)
            step = blackjax.nuts(log_density, **parameters).step

            def one(state, key):
                state, _ = step(key, state)
                return state, _unscaled(model, state.position)[:2]

            keys = jax.random.split(sample_key, num_samples)
            return jax.lax.scan(one, state, keys)[1]

        return [np.asarray(leaf.T) for leaf in chain(rng_key)]


def laplace(
    model: TraceModel,
    rng: np.random.Generator,
    num_samples: int,
    is_published: bool = False,
):
    """phi* and u from the normal approximation, both ``(count, num_samples)``."""
    with jax.enable_x64(True):
        model = _arrays(model)
        if is_published:
            model = model._replace(
                sampling_error_sd=jnp.zeros_like(model.sampling_error_sd)
            )

        def log_density(model, point):
            optimum, u, r = point
            value = log_joint(model, optimum, u, r, jnp)
            if is_published:
                value += model.num_steps * jax.nn.log_sigmoid(jax.nn.softplus(u))
            return value

        def profile(scaled):
            u, r = _unscaled_pair(model, scaled)
            optimum, _ = conditional(model, u, r, jnp)
            return -jnp.sum(log_density(model, (optimum, u, r)))

        mode = _unscaled_pair(model, _minimum(profile, model))
        point = jnp.stack([conditional(model, *mode, jnp)[0], *mode], axis=-1)

        def precision(fields, point):
            one = TraceModel(model.num_steps, *fields)
            return -jax.hessian(lambda point: log_density(one, point))(point)

        precision = np.array(jax.vmap(precision)(tuple(model[1:]), point))
        point, has_error = np.asarray(point), np.asarray(model.sampling_error_sd > 0)
    # Where r is left out, it stays zero.
    precision[~has_error, 2, :], precision[~has_error, :, 2] = 0.0, 0.0
    precision[~has_error, 2, 2] = 1.0
    root = np.linalg.cholesky(np.linalg.inv(precision))
    normals = rng.standard_normal((len(point), 3, num_samples))
    found = point[..., None] + root @ normals
    return found[:, 0], found[:, 1]


def _minimum(function, model):
    """By Adam with decaying steps, from the regression's estimate."""
    optimizer = optax.adam(optax.cosine_decay_schedule(STEP_SIZE, ADAM_STEPS))
    start = jnp.zeros_like(model.slope), jnp.ones_like(model.slope)

    def step(carry, _):
        point, memory = carry
        updates, memory = optimizer.update(jax.grad(function)(point), memory)
        return (optax.apply_updates(point, updates), memory), None

    @jax.jit
    def descend(start):
        carry = start, optimizer.init(start)
        return jax.lax.scan(step, carry, length=ADAM_STEPS)[0][0]

    return descend(start)


def _unscaled_pair(model, scaled):
    u, r = scaled
    return model.slope + model.slope_sd * u, model.sampling_error_sd * r


def _unscaled(model, position):
    (optimum, u), r = position
    optimum = model.optimum_mean + model.optimum_sd * optimum
    return optimum, *_unscaled_pair(model, (u, r))


def _arrays(model):
    return TraceModel(
        model.num_steps, *(jnp.asarray(field, jnp.float64) for field in model[1:])
    )
