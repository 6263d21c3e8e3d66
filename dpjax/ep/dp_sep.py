"""DP-SEP: stochastic expectation propagation on noisy sums of clipped differences.

All records share one site (`shared_site`). Every record enters the sample of step k
with probability q, independently of the others. The step releases D and moves theta:

    D = sum over the sample of clip(w d_i) + N(0, (noise_multiplier C)^2 I),
    theta <- theta + rho_k D / (w q).

Here d_i = site_i - theta_f at the cavity of the public theta, w are public weights, and
C bounds the joint norm of all components. To clip blocks of components one by one would
need more noise.

The step sizes rho_k = min(1/2, 2/(k + 2)) average the noise of all K steps. The noise
that is left in theta has an sd of about 1.15 noise_multiplier C / (q sqrt K), times the
factor by which the fixed point amplifies noise. With constant step sizes one takes the
mean of the states that a run keeps.

The eigenvalues of L are raised to a floor, which is post-processing. Noise of sd s in h
moves a mean by s/L. If the data say little about it, this is far beyond the prior. A
floor near s acts like a prior of that precision, and keeps the mean near zero. With
`recentre` the floor acts about the mean before the step, and slows the mean down
instead.

Reference: Vinaroz and Park 2022 (DP-SEP). Their Algorithm 3, in
`dpjax.comparisons.dp_sep_published`, moves by 1/n of this step.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from dp_accounting import NeighboringRelation
from jax.core import Tracer

from dpjax.algorithm import Algorithm, Sampler, Transition
from dpjax.ep.gaussians import Family
from dpjax.ep.shared_site import SharedSite, SharedSiteInfo, SharedSiteState, init
from dpjax.posterior import Posterior
from dpjax.privacy.validate import check_positive
from dpjax.release.gaussian_sum import GaussianSum

__all__ = ["as_top_level_api", "averaging", "dp_sep", "init"]


def averaging(num_steps):
    """The step size rho_k of a step before which k = `num_steps` steps were made.

    With these step sizes theta averages the released sums, with growing weights.
    """
    return jnp.minimum(0.5, 2 / (num_steps + 2))


def as_top_level_api(
    posterior: Posterior,
    match: Callable,
    *,
    family: Family,
    l2_clip_norm: float,
    noise_multiplier: float,
    sampling_prob: float = 1.0,
    schedule: Callable = averaging,
    init_scale: float = 1.0,
    least_precision: float | None = None,
    recentre: bool = False,
    preconditioner: Any = 1.0,
    nominal_num_records: int | None = None,
) -> Algorithm:
    """Differentially private stochastic expectation propagation.

    Parameters
    ----------
    posterior
        The posterior to approximate, with its data. Its prior must be Gaussian.
    match
        The function that computes sites of its likelihood, from `dpjax.ep.sites`.
    family
        Family of the approximation q, from `dpjax.ep.gaussians`, with the shape of a
        position.
    l2_clip_norm
        C, the bound on the norm of w times one record's difference in natural
        parameters.
    noise_multiplier
        Sd of the noise on a sum of clipped differences over `l2_clip_norm`, as in
        DP-SGD. `privacy.calibrate` finds the one that spends a budget. Zero is not
        private.
    sampling_prob
        The probability that a record enters the sample of a step, rounded up to a
        multiple of 2^-32.
    schedule
        ``k -> rho_k``, where k is the number of steps made before. The sites of a
        network overshoot together, so networks need steps of about 1/100.
    init_scale
        Standard deviation of the approximation at the start over that of the prior, in
        (0, 1]. For a network it should be small: at a wide approximation, its sites are
        far from those at the posterior.
    least_precision
        Floor on the eigenvalues of L. It is at least half of the smallest eigenvalue of
        the prior's precision, which is the default.
    recentre
        Whether the precision that the floor adds is centred at the mean before the
        step, and not at zero. It then slows means down instead of drawing them to zero,
        and a floor of hundreds allows larger steps. With few records it is better to
        draw means to zero.
    preconditioner
        w, a positive number, or one for every component of theta, ``(size,)``. It must
        be public. Components on which all records agree can bear more noise. A small w
        for these components leaves more of C to the others.
    nominal_num_records
        n of the formulas. None is the number of records. If n is 1 % too large, the
        records count 1 % more in the approximation than in the posterior.

    Raises
    ------
    ValueError
        If a parameter is out of range, the prior is not Gaussian, or the likelihood is
        tempered. The algorithm's `init` raises it if the position does not have the
        family's shape.

    Notes
    -----
    *Formal guarantees.* A step releases one sum of vectors clipped to `l2_clip_norm`
    over a Poisson sample of the records, with Gaussian noise. State and info are
    functions of the released sums and are public.
    """
    release = GaussianSum(l2_clip_norm, noise_multiplier, sampling_prob)
    model = SharedSite(
        posterior, family, match, least_precision, recentre, nominal_num_records
    )
    # In a run the arrays of a kernel are traced, and cannot be checked. They were
    # checked when the caller of the run built the kernel.
    if not isinstance(preconditioner, Tracer):
        shape = np.shape(preconditioner)
        if shape not in ((), (family.size,)):
            raise ValueError(
                f"preconditioner must be a number or of shape ({family.size},), got "
                f"{shape}"
            )
        check_positive(preconditioner=preconditioner)

    def move(words, state, memory):
        theta, num_steps = state
        difference = model.difference_fn(theta)
        scale = jnp.broadcast_to(jnp.asarray(preconditioner, theta.dtype), theta.shape)

        noisy = release(words, posterior, lambda record: scale * difference(record))
        total = 1 / release.sampling_prob * noisy / scale
        theta = model.step(theta, total / model.num_records, schedule(num_steps))
        return SharedSiteState(theta, num_steps + 1), SharedSiteInfo(theta), memory

    def privacy(num_steps, neighboring_relation=NeighboringRelation.REPLACE_ONE):
        return [(release.event(family.size, neighboring_relation), num_steps)]

    transition = Transition(
        num_words=lambda state: release.num_words(family.size, posterior.num_records),
        move=move,
        stay=lambda state: SharedSiteInfo(state.position),
    )

    def start(position, rng_key=None):
        return init(position, posterior, family, init_scale=init_scale)

    return Algorithm.of(start, transition, privacy, family.sample)


dp_sep = Sampler.of(as_top_level_api, init)
"""Differentially private stochastic EP: see `as_top_level_api`."""
