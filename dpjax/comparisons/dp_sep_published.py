"""DP-SEP as published, with the epsilon that is certified for it.

The notation is that of `dpjax.ep.shared_site`; C is the clip norm and g the damping. An
epoch visits the records one after another, in a fresh order. A visit matches the site
of the record at the cavity theta - theta_f, clips the site, which then has the
sensitivity 2 C, and moves:

    theta~ = theta + (g/n) (clip(site) + N(0, (noise_multiplier C)^2 I) - theta_f),
    theta_f <- clip((floor(theta~) - theta_0) / n),    theta <- theta_0 + n theta_f.

Three things are not as the paper says:

- A visit moves theta_f by g/n^2 of its difference, while stochastic EP moves it by 1/n.
  So theta_f goes 1 - e^(-g T / n) of its way in T epochs. Means look right early, as
  they are ratios of two quantities that both move slowly. Standard deviations stay far
  too wide.
- The sensitivity is given as 2 g C / n. This is 2 C times the step size g / n, and the
  signal is multiplied by the same step size. So the ratio of noise to signal is the
  same as with 2 C.
- The order is a permutation, but its privacy is computed as for subsampling with fresh
  draws. Without a theorem for permutations, each record enters one Gaussian release in
  an epoch. So T epochs are charged here as T Gaussian releases.

Reference: Vinaroz and Park 2022, Differentially private stochastic expectation
propagation, Algorithm 3, with one joint clip norm for h and L.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from dp_accounting import NeighboringRelation

from dpjax.algorithm import Algorithm, Sampler, Transition
from dpjax.ep.gaussians import Family
from dpjax.ep.shared_site import SharedSite, SharedSiteInfo, SharedSiteState, init
from dpjax.posterior import Posterior
from dpjax.privacy.validate import check_replaced
from dpjax.random import chacha
from dpjax.random.batches import Sample
from dpjax.release import exact_sums, gaussian, vector_sums
from dpjax.release.gaussian_sum import GaussianSum

__all__ = ["as_top_level_api", "dp_sep_published", "init"]


def as_top_level_api(
    posterior: Posterior,
    match: Callable,
    *,
    family: Family,
    l2_clip_norm: float,
    noise_multiplier: float,
    damping: float = 1.0,
) -> Algorithm:
    """Algorithm 3 of Vinaroz and Park (2022); a step is an epoch.

    Parameters
    ----------
    posterior, match, family
        As in `dpjax.dp_sep`.
    l2_clip_norm
        C, the bound on the norm of one record's site and of theta_f.
    noise_multiplier
        Standard deviation of the noise on a clipped site, divided by C. The paper
        divides by 2 C, the sensitivity of the site under substitution. Zero is not
        private.
    damping
        g in (0, 1].

    Raises
    ------
    ValueError
        If a parameter is out of range or the prior is not Gaussian; from ``init``, if
        the position does not have the family's shape; from ``privacy``, if the
        neighbouring relation is not REPLACE_ONE.

    Notes
    -----
    *Formal guarantees.* An epoch releases the clipped site of every record, each with
    Gaussian noise. Substituting one record changes one of these releases. The others
    are the same functions of earlier releases. State and info are public.
    """
    gaussian_sum = GaussianSum(l2_clip_norm, noise_multiplier)
    if not 0 < damping <= 1:
        raise ValueError(f"damping must be in (0, 1], got {damping}")
    model = SharedSite(posterior, family, match)
    num_records = model.num_records
    unit = l2_clip_norm / exact_sums.VECTOR_GRID
    count = gaussian.WORDS_PER_COORDINATE * family.size
    row = -(-count // 16) * 16

    def release(words, index, theta):
        one = Sample(index[None], jnp.ones(1, bool))
        total = vector_sums.vector_sum(
            posterior, model.site_fn(theta), l2_clip_norm, one
        )
        if noise_multiplier > 0:
            return gaussian.add_noise(words, total, unit, noise_multiplier)
        with jax.enable_x64(True):
            return total * unit

    def visit(key, theta, index, place):
        words = chacha.expand(key, place * row, row)[:count]
        site = release(words, index, theta).astype(theta.dtype)
        difference = site - model.factor(theta)
        theta = model.step(theta, difference, damping / num_records**2)
        factor = model.factor(theta)
        norm = jnp.linalg.norm(factor)
        shrink = jnp.minimum(1, l2_clip_norm / jnp.maximum(norm, 1e-30))
        return model.prior + num_records * shrink * factor

    def move(words, state, memory):
        key = words[8:]
        order = jnp.argsort(chacha.expand(words[:8], 0, num_records))

        def body(theta, item):
            return jnp.asarray(visit(key, theta, *item), theta.dtype), None

        places = jnp.arange(num_records, dtype=jnp.uint32)
        theta, _ = jax.lax.scan(body, state.position, (order, places))
        moved = SharedSiteState(theta, state.num_steps + 1)
        return moved, SharedSiteInfo(theta), memory

    def privacy(num_steps, neighboring_relation=NeighboringRelation.REPLACE_ONE):
        what = "an order of n records is"
        relation = check_replaced("neighboring_relation", neighboring_relation, what)
        return [(gaussian_sum.event(family.size, relation), num_steps)]

    transition = Transition(
        num_words=lambda state: 16,
        move=move,
        stay=lambda state: SharedSiteInfo(state.position),
        num_disjoint=num_records,
    )

    def start(position, rng_key=None):
        return init(position, posterior, family)

    return Algorithm.of(start, transition, privacy, family.sample)


dp_sep_published = Sampler.of(as_top_level_api, init)
"""DP-SEP as published: see `as_top_level_api`."""
