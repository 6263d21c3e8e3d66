"""Log-likelihood ratios estimated from Poisson counts of the records.

With e_i the tempered log ratio of record i less a public centre m, |e_i| <= H, and H
and k > 0 public, record i is counted s_i times,

    s_i ~ Poisson(a_i),    a_i = k + (H - e_i) / 2,    b_i = k + (H + e_i) / 2,

and the sum over records of e_i is estimated by that of s_i log(b_i / a_i). For the
reverse move every e_i changes its sign, so a_i and b_i exchange places. Then the same
counts have the chance

    prod_i Poisson(s_i; b_i) / Poisson(s_i; a_i)
        = prod_i exp(a_i - b_i) (b_i / a_i)^s_i = exp(estimate - sum_i e_i),

times that of the move itself. The likelihood cancels, so accepting with any balanced
function of n m plus the estimate keeps the posterior exactly. Records arrive Poisson(r)
times, r >= k + H, and an arrival is counted with chance a_i / r: only the records that
arrive are read.

Clipped e_i are rounded to multiples of 2^-31 r, so that a_i / r is a multiple of 2^-32
and one word decides exactly. Weights are rounded towards zero, to a unit in which sums
are exact and do not depend on order; the accounting allows smaller weights, not larger.

References: Zhang, Cooper and De Sa 2020 (TunaMH, m = 0); the centre is this project's.
"""

import math

import jax
import jax.numpy as jnp

from dpjax.posterior import Posterior
from dpjax.random.batches import Arrivals
from dpjax.release import on_disk
from dpjax.release.log_ratios import loglikelihoods
from dpjax.release.sealed import opened
from dpjax.release.taint import summed

__all__ = ["poisson_log_ratio", "thinning"]


def poisson_log_ratio(
    posterior: Posterior,
    drawn: Arrivals,
    rate: float,
    position,
    proposed,
    centre,
    half_range,
    base_rate: float,
) -> jax.Array:
    """Estimate of the tempered sum of log p(x | proposed) - log p(x | position) - m.

    Parameters
    ----------
    drawn, rate
        Of `batches.arrivals`, and the r that they were drawn with.
    position, proposed
        The public positions compared.
    centre, half_range
        m and H in nats, tempered, public float64 scalars; H at most r - k.
    base_rate
        k, the least rate at which a record is counted: a_i and b_i are in [k, k + H].

    Returns
    -------
    The sum of the weights of the records counted, nats, a float64 scalar.

    Notes
    -----
    *Formal guarantees.* Replacing a record changes one of the independent terms
    s log(b / a) of a sum that is exact: see `privacy.PoissonAcceptBit`, with bound H
    and odds 1 + H / k. Nothing is released here.
    """
    batch = on_disk.rows(opened(posterior), drawn.indices)
    new = loglikelihoods(posterior, proposed, batch)
    ratio = new - loglikelihoods(posterior, position, batch)
    with jax.enable_x64(True):
        ratio = posterior.tempering * ratio.astype(jnp.float64) - centre
        threshold, weight = thinning(ratio, half_range, base_rate, rate)
        is_counted = drawn.is_drawn & (drawn.coins < threshold)
        # No weight exceeds log(r / k): sums in this unit stay below 2^53.
        largest = ratio.size * math.log(rate / base_rate)
        unit = 2.0 ** (math.frexp(largest)[1] - 53)
        cells = jnp.trunc(jnp.where(is_counted, weight, 0.0) / unit)
        return summed(jnp.sum(cells) * unit)


def thinning(ratio, half_range, base_rate, rate) -> tuple[jax.Array, jax.Array]:
    """Chances to be counted, and weights; call it under `jax.enable_x64(True)`.

    Parameters
    ----------
    ratio
        Log ratios about the centre, float64 ``(m,)``; they are clipped to
        ``half_range`` and one that is not finite becomes zero.
    half_range, base_rate, rate
        H, k and r, positive scalars with k + H <= r.

    Returns
    -------
    2^32 a / r, float64 integers, and log(b / a), nats, both ``(m,)``.
    """
    cells_per_nat = 2.0**31 / rate
    # Rounded down, so that neither k, H nor the odds 1 + H / k can be exceeded.
    base = jnp.floor(2 * base_rate * cells_per_nat)
    largest = jnp.floor(base * (half_range / (2 * base_rate)))
    middle = base + largest
    cells = jnp.clip(jnp.round(ratio * cells_per_nat), -largest, largest)
    cells = jnp.where(jnp.isfinite(ratio), cells, 0.0)
    return middle - cells, jnp.log((middle + cells) / (middle - cells))
