"""Step sizes of SGLD that papers claim to be private, and where the claims fail.

They are for comparison only; `step_size.max_step_size` gives a sound step size. All are
for Langevin noise of variance eta / N (`step_size.langevin_noise` at temperature 1/2).
In the symbols of the papers, N is the number of records, q the sampling probability, L
the clip norm, T the number of steps, eta the step size, and sigma the standard
deviation of the noise in units of the clip norm.

Theorems 3 and 4 of Li et al. 2019 rest on the moments bound of Abadi et al. 2016, Lemma
3, by which alpha(lambda) is about q^2 lambda^2 / sigma^2. That lemma needs sigma >= 1,
q < 1 / (16 sigma), and orders lambda <= sigma^2 log(1 / (q sigma)). It holds for adding
or removing a record, while the paper defines neighbours by replacing one.

The printed side conditions of the theorems, eta_t <= N / L^2 and eta_t > q^2 N / (256
L^2), are not those of the lemma, because the proof drops a factor q^2 from sigma_t^2 =
q^2 N / (eta_t L^2). The proof also leaves out the condition on the order lambda, which
here is 2 log(1/delta) / epsilon. This module checks the conditions of the lemma. If one
of them is broken the step size may be unsafe, and in the paper's own examples it is.
Under REPLACE_ONE it is unsafe even if all conditions hold.

References: Li, Chen, Liu and Carin 2019, section 3.1 and appendices A and D; Wang,
Fienberg and Smola 2015, Theorem 2.
"""

import math
from typing import NamedTuple

import numpy as np

from dpjax.privacy.step_size import langevin_noise

__all__ = ["PublishedStepSize", "li_theorem_3", "li_theorem_4", "wang"]


class PublishedStepSize(NamedTuple):
    """A claimed bound on the step size.

    step_size
        The largest eta that the paper claims to be private. If step sizes decrease, it
        is that of the first step.
    broken_conditions
        Conditions that the proof needs and that do not hold at this step size, as text.
        It is empty if all of them hold.
    """

    step_size: float
    broken_conditions: tuple[str, ...]


def li_theorem_3(
    num_steps: int, *, l2_clip_norm: float, constant: float = 6.0, **setting
) -> PublishedStepSize:
    """Theorem 3 of Li et al., for step sizes eta t^(-1/3) that decrease.

    It claims eta = epsilon^2 N / (c^2 L^2 T^(2/3) log(1/delta)).

    Parameters
    ----------
    num_steps, l2_clip_norm
        As in `step_size.max_step_size`.
    constant
        c^2. The proof gives 6. The step size .103 of the paper's example belongs to
        c^2 = .908. No accountant can give less than 1.24, so this step size is unsafe
        in every setting.
    **setting
        `num_records`, `sampling_prob`, `epsilon` and `delta`, as in
        `step_size.max_step_size`.

    Notes
    -----
    Let N = 50000, T = 10000, L = 1 and delta = 1e-5. Under ADD_OR_REMOVE_ONE the step
    size is larger than a sound one from epsilon = .5 on at q = .001, and from
    epsilon = 1.7 on at q = N^(-1/2).
    """
    scale = constant * l2_clip_norm**2 * num_steps ** (2 / 3)
    factors = np.array([1.0, num_steps ** (-1 / 3)])
    return _li(scale, factors, l2_clip_norm=l2_clip_norm, **setting)


def li_theorem_4(
    num_steps: int, *, l2_clip_norm: float, constant: float = 4.0, **setting
) -> PublishedStepSize:
    """Theorem 4 of Li et al., for a constant step size.

    It claims eta = epsilon^2 N / (c^2 L^2 T log(1/delta)). The parameters are those of
    `li_theorem_3`; here the proof gives c^2 = 4.

    Notes
    -----
    In the setting of the notes of `li_theorem_3`, the step size is larger than a sound
    one from epsilon = 1 on under ADD_OR_REMOVE_ONE at q = .001, and from epsilon = .5
    on under REPLACE_ONE at q = N^(-1/2).
    """
    scale = constant * l2_clip_norm**2 * num_steps
    return _li(scale, np.ones(1), l2_clip_norm=l2_clip_norm, **setting)


def wang(
    num_steps: int,
    *,
    num_records: int,
    l2_clip_norm: float,
    epsilon: float,
    delta: float,
) -> PublishedStepSize:
    """Theorem 2 of Wang et al., for a constant step size.

    It claims eta = epsilon^2 N / (128 L^2 T log(2.5 T / delta) log(2 / delta)). The
    proof is by advanced composition. The step size is sound, and some thousand times
    smaller than it needs to be. Li et al. compare their step sizes with 1.54e-6, which
    has log(T / delta) in place of log(2.5 T / delta).

    Parameters
    ----------
    num_steps, num_records, l2_clip_norm, epsilon, delta
        As in `step_size.max_step_size`.
    """
    logs = math.log(2.5 * num_steps / delta) * math.log(2 / delta)
    step_size = epsilon**2 * num_records / (128 * l2_clip_norm**2 * num_steps * logs)
    return PublishedStepSize(step_size, ())


def _li(scale, factors, *, num_records, sampling_prob, l2_clip_norm, epsilon, delta):
    """The step size epsilon^2 N / (scale log(1/delta)), and its broken conditions.

    `factors` times the step size are those of the first and the last step, between
    which the conditions of the lemma are checked.
    """
    step_size = epsilon**2 * num_records / (scale * math.log(1 / delta))
    noise = langevin_noise(
        step_size * factors,
        num_records=num_records,
        sampling_prob=sampling_prob,
        l2_clip_norm=l2_clip_norm,
        temperature=0.5,
    )
    broken = []
    if noise[0] < 1:
        broken.append(f"sigma >= 1, but sigma is {noise[0]:.3g}")
    if sampling_prob >= 1 / (16 * noise[-1]):
        broken.append(
            f"q < 1 / (16 sigma), but q is {sampling_prob:.3g} at sigma {noise[-1]:.3g}"
        )
    order = 2 * math.log(1 / delta) / epsilon
    largest = np.min(noise**2 * np.log(1 / (sampling_prob * noise)))
    if order > largest:
        broken.append(
            f"lambda <= sigma^2 log(1 / (q sigma)), but lambda is {order:.3g} and the "
            f"most is {largest:.3g}"
        )
    return PublishedStepSize(step_size, tuple(broken))
