"""DP-SGLD: stochastic gradient Langevin dynamics, whose own noise protects the records.

    theta <- theta + eta G + N(0, 2 K eta / N)

G is the gradient of `noisy_gradient`; the code adds the noise to G instead of adding it
afterwards. With h = eta / N the step is

    theta <- theta + h grad log posterior + N(0, 2 K h),

Langevin dynamics at the temperature K. For a posterior of curvature N kappa and exact
gradients the chain has the variance

    2 K / (N kappa (2 - eta kappa)),

so eta kappa must stay well below 2. The paper draws N(0, eta / N), which is K = 1/2.
That samples the squared posterior, whose variances are half as large. The paper also
has the signs of both gradients wrong.

The random choice of the sample heats the chain as well (see `noisy_gradient`). If v is
the mean square of one record's gradient in a direction, sampling at the temperature K
needs eta v <= .2 K q, without tempering.

The temperature determines the noise, so more privacy means a smaller step size.
`dpjax.privacy.max_step_size` finds the largest one that a budget pays for.

Reference: Li, Chen, Liu and Carin 2019, Algorithm 1; Welling and Teh 2011, whose step
size is 2 eta / N.
"""

import optax

from dpjax.algorithm import Algorithm, Sampler
from dpjax.posterior import Posterior
from dpjax.privacy.validate import check_positive_number
from dpjax.sgmcmc import noisy_gradient
from dpjax.sgmcmc.noisy_gradient import Scales

__all__ = ["as_top_level_api", "sgld"]


def as_top_level_api(
    posterior: Posterior,
    step_size,
    *,
    dim: int,
    l2_clip_norm: float,
    sampling_prob: float,
    temperature: float = 1.0,
    nominal_num_records: int | None = None,
) -> Algorithm:
    """Differentially private stochastic gradient Langevin dynamics.

    Parameters
    ----------
    posterior
        The posterior to sample, with its data.
    step_size
        eta, which multiplies the gradient of ``log posterior / N``: a number, or a
        schedule ``count -> eta`` such as those of optax.
    dim
        Number of components of the position.
    l2_clip_norm
        C, the bound on the Euclidean norm of the gradient of one record's
        log-likelihood. The gradient of the prior is not clipped.
    sampling_prob
        q, the chance that a record enters a gradient, rounded up to a multiple of
        2^-32.
    temperature
        K: the chain samples the posterior to the power 1 / K.
    nominal_num_records
        N. If it is None, N is the number of records. Half the N has the effect of twice
        the step size, and the chain samples the same posterior.

    Raises
    ------
    ValueError
        If a parameter is out of range. A step also raises it if the position does not
        have `dim` components, and `privacy` if records are added or removed.

    Notes
    -----
    *Formal guarantees.* A step makes one Poisson sampled Gaussian release. Its noise
    multiplier is (q / (T C)) sqrt(2 K N / eta), where T is the tempering. Position and
    info are post-processing of it.
    """
    temperature = check_positive_number("temperature", temperature)
    scales = Scales(
        posterior, step_size, l2_clip_norm, sampling_prob, nominal_num_records
    )

    def noise_sd(step_size):
        return (2 * temperature * step_size / scales.num_records) ** 0.5

    optimizer = optax.scale_by_learning_rate(step_size)
    return noisy_gradient.algorithm(scales, optimizer, noise_sd, dim)


sgld = Sampler.of(as_top_level_api)
"""Differentially private stochastic gradient Langevin dynamics."""
