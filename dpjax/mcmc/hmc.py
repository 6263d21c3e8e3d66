"""DP HMC: Hamiltonian Monte Carlo on noisy clipped gradients, exact by its accept test.

A step starts at the position theta_0 and moves a vector z, where theta = theta_0 + W z
and W W^T is the inverse mass matrix. In the coordinates z all masses are one, and clip
norms have the units of the metric. From z = 0 and a momentum p ~ N(0, I), a step makes
L leapfrog steps of size h,

    p <- p + h/2 G(z),    z <- z + h p,    p <- p + h/2 G(z),
    G(z) = T/q (sum over the sample of clip(grad l_i) + noise) + grad log prior.

Here l_i is the log-likelihood of record i, T the tempering, and all gradients are with
respect to z. Each of the L + 1 points of the path has a new Poisson sample of rate q
and new noise. Two leapfrog steps that meet at a point share its gradient. The accept
bit is drawn with the log ratio

    l = (|p_0|^2 - |p_L|^2)/2 + T sum_i clip(l_i(theta_L) - l_i(theta_0))
        + log prior(theta_L) - log prior(theta_0).

Noise, sampling and clipping of the gradients do not change the stationary distribution.
To see this, fix the random draws (sample and noise) of the L + 1 points. Then each
update is a shear, so the path preserves volume. It leads from (z_L, -p_L) back to
(0, -p_0) if the draws are used in reverse order. Both orders are equally likely, so on
average over them the proposal is symmetric. An acceptance function that is balanced in
l then keeps the posterior, if no log ratio is clipped.

Reference: Raisa 2021 (thesis), chapter 4.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree

from dpjax import acceptance, proposals
from dpjax.algorithm import Algorithm, Sampler
from dpjax.mcmc import metropolis_hastings as mh
from dpjax.posterior import Posterior
from dpjax.privacy import AcceptBit
from dpjax.privacy.validate import check_count
from dpjax.proposals import Move, Proposal
from dpjax.random import variates
from dpjax.release import clip_bounds
from dpjax.release.gaussian import WORDS_PER_COORDINATE
from dpjax.release.gaussian_sum import GaussianSum
from dpjax.release.gradient_parts import Outer, gradient_parts, whole

__all__ = ["as_top_level_api", "hmc"]

KEY_WORDS = 8
"""The least number of uniform uint32 words that each gradient reserves for its sample,
even if all records enter. A sample with a large `sampling_prob` takes as many words, so
that runs with and without sampling use the same words for their noise."""

MAX_DIMENSION_WITHOUT_METRIC = 100
"""The most components that a position may have if there is no inverse mass matrix. The
numerical error of so many components is charged then, because only the matrix says how
many there are."""


def _released_gradient(posterior, position, root, words, release):
    """G of the module docstring at `position`, with W = `root`, a vector ``(d,)``.

    Notes
    -----
    *Formal guarantees.* The result is post-processing of one release of the
    `GaussianSum` named `release`. If `release` is None, the result is the plain
    gradient of the log posterior, which is not private.
    """
    flat, unravel = ravel_pytree(position)

    def contribution(record):
        parts = gradient_parts(posterior.loglikelihood_fn, position, record)
        return _pull_back(root, parts)

    def public(density):
        gradient = jax.grad(lambda vector: density(unravel(vector)))(flat)
        return ravel_pytree(_pull_back(root, [gradient]))[0]

    if release is None:
        return public(posterior)
    width = release.num_words(flat.size, posterior.num_records)
    noisy, _ = ravel_pytree(release(words[-width:], posterior, contribution))
    scale = posterior.tempering / release.sampling_prob
    return scale * noisy + public(posterior.logprior_fn)


def _pull_back(root, parts):
    """W^T g, in parts, for a gradient g in parts (`gradient_parts`).

    `root` is W: None for the identity, ``(d,)`` for a diagonal matrix, or ``(d, d)``.
    """
    if root is None:
        return parts
    if root.ndim == 1:
        starts = np.cumsum([0, *(whole(part).size for part in parts[:-1])])
        return [_scale(root[i:], g) for i, g in zip(starts, parts, strict=True)]
    parts = [whole(part) for part in parts]
    if max(part.size for part in parts) > 1:
        gradient = jnp.concatenate(parts)
        return [jnp.matmul(root.T, gradient, precision="highest")]
    return [sum(w * g for w, g in zip(column, parts, strict=True)) for column in root.T]


def _scale(factors, part):
    """The components of one part of a gradient, each multiplied by its factor.

    `factors` may be longer than the part; the first factors count.
    """
    if isinstance(part, Outer) and part.weights.size == 1:
        direction = part.direction
        factors = factors[: direction.size].reshape(direction.shape)
        return part._replace(direction=factors * direction)
    vector = whole(part)
    return factors[: vector.size] * vector


def _charged_dimension(inverse_mass_matrix) -> int:
    if inverse_mass_matrix is None:
        return MAX_DIMENSION_WITHOUT_METRIC
    return len(inverse_mass_matrix)


def _leapfrog(
    posterior, release, num_integration_steps, inverse_mass_matrix, jitter
) -> Proposal:
    """The noisy leapfrog path as a proposal.

    The log ratio of its move is the loss of kinetic energy, (|p_0|^2 - |p_L|^2) / 2,
    and the distance of its move is the length of z_L.
    """
    points = num_integration_steps + 1
    sample_words = KEY_WORDS
    if release is not None:
        sample_words = max(KEY_WORDS, release.num_words(0, posterior.num_records))

    def num_words(dim):
        charged = _charged_dimension(inverse_mass_matrix)
        if dim > charged:
            raise ValueError(
                f"the position has {dim} components, more than the {charged} whose "
                "numerical error is charged: pass an inverse_mass_matrix of that size, "
                "such as ones"
            )
        return dim + 1 + points * (sample_words + WORDS_PER_COORDINATE * dim)

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
            gradient = _released_gradient(posterior, at(z), root, words, release)
            p = p + kick * length * gradient
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
    inverse_mass_matrix=None,
    *,
    num_integration_steps: int,
    l2_clip_norm: float,
    noise_multiplier: float,
    clip_bound,
    test_noise_multiplier: float | None = None,
    sampling_prob: float = 1.0,
    jitter: float = 0.0,
) -> Algorithm:
    """DP HMC (thesis, Algorithm 4), by default with Barker's accept bit.

    Parameters
    ----------
    posterior
        The posterior to sample, with its data.
    step_size
        h, a scalar in the units of the position, or of the metric if there is one.
    num_integration_steps
        L, the number of leapfrog steps. A step of the chain releases L + 1 gradients.
    l2_clip_norm
        Bound on the Euclidean norm of one record's gradient with respect to z. Infinity
        takes the gradient of all records without clipping, which is not private.
    noise_multiplier
        Standard deviation of the noise on a sum of clipped gradients, divided by
        `l2_clip_norm`, as in DP-SGD. It is 2 tau_g sqrt(n) in the thesis. Zero is not
        private.
    clip_bound
        Bound in nats on the log ratio of one record: a number, or `Lipschitz` for a
        bound proportional to the length of z. `Lipschitz` needs a
        `test_noise_multiplier`.
    test_noise_multiplier
        None accepts by Barker's rule, without noise. A number accepts by the penalty
        method. It is the standard deviation of the accept test's noise, divided by the
        sensitivity of the log ratio under substitution, which is two tempered clip
        bounds. It is tau sqrt(n) in the thesis. Zero gives Metropolis's rule, which is
        not private.
    inverse_mass_matrix
        W W^T, ``(d,)`` or ``(d, d)``, as in `proposals.in_metric`. If it is the
        posterior covariance, one record's gradient has a norm of about sqrt(d / n).
        None is the identity matrix. A position may then have up to
        `MAX_DIMENSION_WITHOUT_METRIC` components, and so many are charged for rounding;
        with a matrix, d are charged.
    sampling_prob
        q, the probability that a record enters a gradient, rounded up to a multiple of
        2^-32. A gradient reads only the records that enter it.
    jitter
        Number in [0, 1). Every step of the chain draws its leapfrog step size uniformly
        from ``step_size * (1 +- jitter)``.

    Raises
    ------
    ValueError
        If a parameter is out of range, or the sensitivity would have no bound. A step
        also raises it if the position has more components than are charged, and
        `privacy` if gradients are not clipped or there is no noise.

    Notes
    -----
    *Formal guarantees.* A step releases L + 1 noisy sums of clipped gradients and one
    accept bit. Each sum is a Gaussian release, of a Poisson sample of the records if
    q < 1. The bit reads all records and is charged as in `dpjax.barker` or
    `dpjax.penalty`.
    """
    num_integration_steps = check_count("num_integration_steps", num_integration_steps)
    if l2_clip_norm == math.inf and (noise_multiplier or sampling_prob < 1):
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
    family = "barker"
    if not is_barker:
        family, test_noise_multiplier = mh.penalty_family(test_noise_multiplier)
    proposals.check_metric(inverse_mass_matrix)
    release = None
    if l2_clip_norm != math.inf:
        release = GaussianSum(l2_clip_norm, noise_multiplier, sampling_prob)
    leapfrog = _leapfrog(
        posterior, release, num_integration_steps, inverse_mass_matrix, jitter
    )

    def noise_sd(bound):
        if is_barker:
            return 0.0
        return mh.penalty_noise_sd(posterior, test_noise_multiplier, bound)

    transition = mh.transition(
        posterior, step_size, leapfrog, clip_bound, family, noise_sd
    )

    def events(relation):
        if release is None:
            raise ValueError("Hamiltonian Monte Carlo without clipping is not private")
        if is_barker:
            bound = posterior.tempering * clip_bound.at(None)
            sensitivity = clip_bounds.log_ratio_sensitivity(bound, relation)
            bit = AcceptBit(acceptance.barker(), sensitivity)
        else:
            bit = mh.penalty_event(
                posterior, test_noise_multiplier, clip_bound, None, relation
            )
        gradient = release.event(_charged_dimension(inverse_mass_matrix), relation)
        return [(bit, 1), (gradient, num_integration_steps + 1)]

    return mh.algorithm(transition, leapfrog, events)


hmc = Sampler.of(as_top_level_api, mh.init)
"""DP Hamiltonian Monte Carlo: see `as_top_level_api`."""
