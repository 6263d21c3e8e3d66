"""DP HMC: Hamiltonian Monte Carlo on noisy clipped gradients, exact by its accept test.

A step starts at theta_0 and moves z in theta = theta_0 + W z, where W W^T is the
inverse mass matrix. In z all masses are one, and clip norms have the units of the
metric. From z = 0 and p ~ N(0, I), each of L leapfrog steps is

    p <- p + h/2 G(z),    z <- z + h p,    p <- p + h/2 G(z),
    G(z) = T/q (sum over the sample of clip(grad l_i) + noise) + grad log prior,

with a new Poisson sample of rate q and new noise at each of the L + 1 points. Two
leapfrog steps that meet at a point share its gradient. The accept bit is drawn with the
log ratio

    l = (|p_0|^2 - |p_L|^2)/2 + T sum_i clip(l_i(theta_L) - l_i(theta_0)) + prior ratio.

Neither noise, nor sampling, nor clipping of gradients moves the stationary
distribution. Given the draws of the L + 1 points, each update is a shear, so the path
preserves volume, and it leads from (z_L, -p_L) back to (0, -p_0) if the draws come in
reverse order. Both orders are equally likely, so on average over them the proposal is
symmetric. An acceptance function that is balanced in l then keeps the posterior, if no
log ratio is clipped.

Reference: Raisa 2021 (thesis), chapter 4.
"""

import functools
import math

import jax
import jax.numpy as jnp
from dp_accounting import NeighboringRelation
from jax import lax
from jax.flatten_util import ravel_pytree

from dpjax import acceptance, proposals
from dpjax.algorithm import Algorithm, Sampler
from dpjax.mcmc import metropolis_hastings as mh
from dpjax.posterior import Posterior
from dpjax.privacy import AcceptBit, GaussianRelease, PoissonGaussianRelease
from dpjax.proposals import Move, Proposal
from dpjax.random import variates
from dpjax.release import clip_bounds, exact_sums, gaussian, vector_sums

__all__ = ["as_top_level_api", "hmc"]

KEY_WORDS = 8
"""Uniform words that decide the sample of one gradient."""

MAX_DIMENSION_WITHOUT_METRIC = 100
"""Most components of a position if no inverse mass matrix says how many there are. The
numerical error of so many components is charged then."""


def _released_gradient(
    posterior, position, root, words, l2_clip_norm, noise_multiplier, sampling_prob
):
    """G of the module docstring at `position`, with W = `root`.

    Notes
    -----
    *Formal guarantees.* With noise, what is returned is post-processing of one Poisson
    sampled Gaussian release of the clipped sum, whose noise has the standard deviation
    ``2 * noise_multiplier * l2_clip_norm``.
    """
    if math.isinf(l2_clip_norm):
        return _whiten(root, jax.grad(posterior)(position))
    total = vector_sums.gradient_sum(
        posterior,
        position,
        l2_clip_norm,
        root=root,
        sampling_prob=sampling_prob,
        words=words[:KEY_WORDS],
    )
    unit = l2_clip_norm / exact_sums.GRID
    if noise_multiplier > 0:
        total = gaussian.gaussian_release(
            words[KEY_WORDS:], total, unit, noise_multiplier
        )
    else:
        with jax.enable_x64(True):
            total = total * unit
    prior = _whiten(root, jax.grad(posterior.logprior_fn)(position))
    return posterior.tempering / sampling_prob * total.astype(prior.dtype) + prior


def _whiten(root, gradient):
    """W^T g, for a gradient that is public or belongs to a run without privacy."""
    flat, _ = ravel_pytree(gradient)
    if root is None:
        return flat
    return root * flat if root.ndim == 1 else jnp.matmul(root.T, flat)


def _charged_dimension(inverse_mass_matrix) -> int:
    if inverse_mass_matrix is None:
        return MAX_DIMENSION_WITHOUT_METRIC
    return len(inverse_mass_matrix)


def _leapfrog(
    posterior, gradient_fn, num_integration_steps, inverse_mass_matrix, jitter
) -> Proposal:
    """The noisy path as a proposal, whose log ratio is the kinetic energy lost.

    `gradient_fn` is `_released_gradient` with its last three arguments filled in.
    """
    points = num_integration_steps + 1

    def num_words(dim):
        charged = _charged_dimension(inverse_mass_matrix)
        if dim > charged:
            raise ValueError(
                f"the position has {dim} components, more than the {charged} whose "
                "numerical error is charged: pass an inverse_mass_matrix of that size, "
                "such as ones"
            )
        return dim + 1 + points * (KEY_WORDS + 2 * dim)

    def propose(words, position, walk, step_size):
        start, unravel = ravel_pytree(position)
        root = None
        if inverse_mass_matrix is not None:
            root = proposals.square_root(inverse_mass_matrix).astype(start.dtype)

        def at(z):
            jump = z if root is None else proposals.stretch(root, z)
            return unravel(start + jump)

        momentum_words, jitter_word, words = jnp.split(
            words, [start.size, start.size + 1]
        )
        momentum = variates.normal(momentum_words, start.dtype)
        uniform = jitter_word[0].astype(start.dtype) * 2.0**-31 - 1
        length = step_size * (1 + jitter * uniform)

        def kick_and_drift(carry, point):
            z, p = carry
            words, kick, drift = point
            p = p + kick * length * gradient_fn(posterior, at(z), root, words)
            return (z + drift * length * p, p), None

        ones = jnp.ones(points, start.dtype)
        kicks = ones.at[0].set(0.5).at[-1].set(0.5)
        rows = words.reshape(points, -1), kicks, ones.at[-1].set(0)
        first = (jnp.zeros_like(start), momentum)
        (z, p), _ = lax.scan(kick_and_drift, first, rows)
        kinetic = 0.5 * jnp.sum((momentum - p) * (momentum + p))
        return Move(at(z), jnp.linalg.norm(z), walk, walk, kinetic)

    return Proposal(lambda position: (), num_words, propose, lambda step_size: None)


def as_top_level_api(
    posterior: Posterior,
    step_size,
    *,
    num_integration_steps: int,
    l2_clip_norm: float,
    gradient_noise_multiplier: float,
    clip_bound,
    test_noise_multiplier: float | None = None,
    inverse_mass_matrix=None,
    sampling_prob: float = 1.0,
    jitter: float = 0.0,
) -> Algorithm:
    """DP HMC (thesis, Algorithm 4), by default with Barker's accept bit.

    Parameters
    ----------
    posterior
        What to sample, and the data.
    step_size
        h, a scalar in the units of the position, or of the metric if there is one.
    num_integration_steps
        L; a step releases L + 1 gradients.
    l2_clip_norm
        Bound on the norm of one record's gradient with respect to z. Infinity takes
        the gradient of all records without clipping, which is not private.
    gradient_noise_multiplier
        Sd of the noise on a sum of clipped gradients over its sensitivity under
        substitution, two clip norms; tau_g sqrt(n) in the thesis. Zero is not private.
    clip_bound
        Bound in nats on one record's log ratio: a number, or `Lipschitz` for a bound
        proportional to the length of z, which needs a `test_noise_multiplier`.
    test_noise_multiplier
        None accepts by Barker's rule, whose bit is charged as it is. A number accepts
        by the penalty method: the sd of the accept test's noise over the sensitivity of
        the log ratio under substitution, which is two tempered clip bounds; tau sqrt(n)
        in the thesis. Zero gives Metropolis's rule, which is not private.
    inverse_mass_matrix
        W W^T, ``(d,)`` or ``(d, d)``, as in `proposals.in_metric`. If it is the
        posterior covariance, one record's gradient has a norm of about sqrt(d / n).
        None is the identity, for positions of up to `MAX_DIMENSION_WITHOUT_METRIC`
        components. A matrix says how many there are, which lowers the charge for
        numerical error; that matters for large epsilon.
    sampling_prob
        q, the chance that a record enters a gradient, rounded up to a multiple of
        2^-32. The gradients of all records are evaluated whatever q is; a small q saves
        privacy, not time.
    jitter
        The step size of every step is uniform in ``step_size * (1 +- jitter)``.

    Raises
    ------
    ValueError
        If a parameter is out of range, or the sensitivity would have no bound; later,
        if the position has more components than `inverse_mass_matrix`.

    Notes
    -----
    *Formal guarantees.* A step releases L + 1 noisy sums of clipped gradients, each a
    (Poisson sampled) Gaussian release, and one accept bit, which reads all records and
    is charged as in `dpjax.barker` or `dpjax.penalty`.
    """
    if not (isinstance(num_integration_steps, int) and num_integration_steps >= 1):
        raise ValueError(
            "num_integration_steps must be a positive integer, got "
            f"{num_integration_steps}"
        )
    if not l2_clip_norm > 0:
        raise ValueError(f"l2_clip_norm must be positive, got {l2_clip_norm}")
    if not 0 <= gradient_noise_multiplier <= gaussian.LOUDEST:
        raise ValueError(
            f"gradient_noise_multiplier must be from 0 to {gaussian.LOUDEST:g}, got "
            f"{gradient_noise_multiplier}"
        )
    if not 0 < sampling_prob <= 1:
        raise ValueError(f"sampling_prob must be in (0, 1], got {sampling_prob}")
    if math.isinf(l2_clip_norm) and (gradient_noise_multiplier or sampling_prob < 1):
        raise ValueError(
            "an infinite l2_clip_norm takes the plain gradient, without noise and "
            "sampling"
        )
    if not 0 <= jitter < 1:
        raise ValueError(f"jitter must be in [0, 1), got {jitter}")
    clip_bound = clip_bounds.of(clip_bound)
    is_barker = test_noise_multiplier is None
    if is_barker and not clip_bound.is_constant:
        raise ValueError(
            "a Lipschitz clip bound needs a test_noise_multiplier: the distance moved "
            "varies, so the sensitivity of Barker's bit would have no bound"
        )
    family = "barker" if is_barker else mh.penalty_family(test_noise_multiplier)
    proposals.check_metric(inverse_mass_matrix)
    sampling_prob = math.ceil(sampling_prob * 2**32) / 2**32
    gradient_fn = functools.partial(
        _released_gradient,
        l2_clip_norm=l2_clip_norm,
        noise_multiplier=gradient_noise_multiplier,
        sampling_prob=sampling_prob,
    )
    leapfrog = _leapfrog(
        posterior, gradient_fn, num_integration_steps, inverse_mass_matrix, jitter
    )

    def noise_sd(bound):
        if is_barker:
            return 0.0
        return mh.penalty_noise_sd(posterior, test_noise_multiplier, bound)

    transition = mh.transition(
        posterior, step_size, leapfrog, clip_bound, family, noise_sd
    )

    def accept_event(relation):
        if not is_barker:
            return mh.penalty_event(
                posterior, test_noise_multiplier, clip_bound, None, relation
            )
        sensitivity = clip_bounds.sensitivity(clip_bound.at(None), relation)
        return AcceptBit(acceptance.barker(), posterior.tempering * sensitivity)

    def gradient_event(relation):
        over_one_record = 2.0 * gradient_noise_multiplier
        error = _charged_dimension(inverse_mass_matrix) * gaussian.TOTAL_VARIATION
        if sampling_prob == 1:
            multiplier = over_one_record / clip_bounds.sensitivity(1.0, relation)
            return GaussianRelease(multiplier, error)
        return PoissonGaussianRelease(over_one_record, sampling_prob, relation, error)

    def privacy(num_steps, neighboring_relation=NeighboringRelation.REPLACE_ONE):
        if gradient_noise_multiplier == 0:
            raise ValueError("without noise Hamiltonian Monte Carlo is not private")
        num_gradients = num_steps * (num_integration_steps + 1)
        return [
            (accept_event(neighboring_relation), num_steps),
            (gradient_event(neighboring_relation), num_gradients),
        ]

    return mh.algorithm(transition, leapfrog, privacy)


hmc = Sampler.of(as_top_level_api, mh.init)
"""DP Hamiltonian Monte Carlo: see `as_top_level_api`."""
