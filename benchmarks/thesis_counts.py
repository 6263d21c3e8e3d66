"""Steps that the accountants of Raisa (2021) allow, by the thesis's own formulas.

They are what the thesis's chains ran, and what `dpjax.privacy` is compared with. The
budget is that of one chain, delta = 0.1/n, under substitution.

- ``tight``, ``zcdp``: Gaussian compositions (penalty, HMC) of total rho.
- ``rdp``: e(alpha) of Wang et al. 2019 for batches without replacement, with the
  conversion eps = k e(alpha) + log(1/delta) / (alpha - 1). For minibatch penalty the
  thesis's code ends the sum at alpha - 1, so that its counts are too large:
  ``rdp-corrected`` ends it at alpha.
- ``fourier``: PLDs of the pair (1-q) N(0, tau) + q N(+-1, tau), one sign each. Valid
  for batches without replacement, and not tight.
"""

import math

import numpy as np
from scipy import optimize, special

from dpjax import privacy

__all__ = ["BATCHES", "RELEASES", "thesis_count"]

RELEASES = {
    "easy-2d": {"dpps": 0.1, "dppa": 0.1, "hmc": (0.1, 0.4, 10)},
    "easy-10d": {"dpps": 0.1, "dppa": 0.1, "hmc": (0.05, 0.2, 10)},
    "tempered-2d": {"dpps": 0.2, "dppa": 0.2, "hmc": (0.2, 0.6, 10)},
    "tempered-10d": {"dpps": 0.18, "dppa": 0.1, "hmc": (0.08, 0.2, 10)},
    "gauss-30d": {"dpps": 0.06, "dppa": 0.2, "hmc": (0.05, 0.1, 5)},
    "hard-2d": {"dpps": 0.2, "dppa": 0.1, "hmc": (0.15, 0.25, 5)},
    "hard-gauss-2d": {"dpps": 0.07, "dppa": 0.1, "hmc": (0.05, 0.2, 8)},
    "circle": {"dpps": 4.0, "dppa": 4.0, "hmc": (0.6, 1.9, 40)},
}
"""tau of the penalty method; tau, tau_g and leapfrog steps of HMC (table 5.2)."""

BATCHES = {
    "easy-2d": {"mdpps": (0.7, 1000), "mdppa": (0.7, 1000), "barker": (None, 1300)},
    "easy-10d": {"mdpps": (0.6, 1000), "mdppa": (0.5, 1000), "barker": (None, 2600)},
    "tempered-2d": {"mdpps": (1.5, 1000), "mdppa": (2.0, 1000), "barker": (None, 1300)},
    "tempered-10d": {
        "mdpps": (0.7, 1200),
        "mdppa": (0.8, 1200),
        "barker": (None, 2600),
    },
}
"""tau (a variance) and batch size of the minibatch methods (table 5.3)."""

RECORDS = {"easy-2d": 100_000, "tempered-2d": 100_000, "circle": 100_000}
RECORDS |= {"hard-2d": 150_000}


def thesis_count(model: str, algorithm: str, epsilon: float, accountant: str) -> int:
    """Steps of one chain.

    Parameters
    ----------
    model
        Key of the thesis's code, such as ``"easy-2d"``.
    algorithm
        ``"dpps"``, ``"dppa"``, ``"hmc"``, ``"mdpps"``, ``"mdppa"`` or ``"barker"``.
    epsilon
        Budget of the chain, nats.
    accountant
        One of the module docstring.

    Raises
    ------
    KeyError
        If the thesis has no such row.
    """
    num_records = RECORDS.get(model, 200_000)
    delta = 0.1 / num_records
    if accountant in ("tight", "zcdp"):
        total = _total_rho(epsilon, delta, accountant)
        return math.floor(total / _step_rho(RELEASES[model][algorithm], num_records))
    tau, batch_size = BATCHES[model][algorithm]
    q = batch_size / num_records
    if accountant == "fourier":
        event = privacy.PoissonGaussianRelease(
            math.sqrt(tau), q, privacy.NeighboringRelation.REPLACE_ONE
        )
        return privacy.max_steps(
            [(event, 1)], epsilon=epsilon, delta=delta, method="pld"
        )
    if algorithm == "barker":
        orders = np.arange(3, -(-batch_size // 5))
        curve = [_amplified(a, q, _barker_rdp(batch_size), a) for a in orders]
    else:
        orders = np.arange(2, 200)
        short = {"rdp": 1, "rdp-corrected": 0}[accountant]
        curve = [_amplified(a, q, lambda j: j / (2 * tau), a - short) for a in orders]
    counts = (epsilon + math.log(delta) / (orders - 1)) / np.array(curve)
    return max(0, math.floor(counts.max()))


def _step_rho(release, num_records: int) -> float:
    if isinstance(release, float):
        return 1 / (2 * release**2 * num_records)
    tau, tau_gradient, leapfrog_steps = release
    gradients = (leapfrog_steps + 1) / (2 * tau_gradient**2 * num_records)
    return 1 / (2 * tau**2 * num_records) + gradients


def _total_rho(epsilon: float, delta: float, accountant: str) -> float:
    plain = (math.sqrt(epsilon - math.log(delta)) - math.sqrt(-math.log(delta))) ** 2
    if accountant == "zcdp":
        return plain

    def excess(rho):
        root = 2 * math.sqrt(rho)
        upper = special.erfc((epsilon - rho) / root)
        lower = math.exp(epsilon) * special.erfc((epsilon + rho) / root)
        return (upper - lower) / 2 - delta

    return optimize.brentq(excess, plain, 4 * plain, xtol=1e-15, rtol=1e-13)


def _barker_rdp(batch_size: int):
    """Theorem 3.3, per order."""

    def curve(order):
        room = batch_size - 5 * order
        return (
            5 / (2 * batch_size)
            + np.log(2 * batch_size / room) / (2 * (order - 1))
            + 2 * order / room
        )

    return curve


def _amplified(order: int, q: float, curve, last: int) -> float:
    """Theorem 3.5: e(alpha), with the sum over j = 3..`last`."""
    j = np.arange(3, last + 1)
    log_choose = (
        special.gammaln(order + 1)
        - special.gammaln(j + 1)
        - special.gammaln(order - j + 1)
    )
    second = min(4 * math.expm1(curve(2)), 2 * math.exp(curve(2)))
    terms = np.log(2) + j * math.log(q) + log_choose + (j - 1) * curve(j)
    first = math.log1p(q**2 * order * (order - 1) / 2 * second)
    return special.logsumexp(np.append(first, terms)) / (order - 1)
