"""What to check of draws before they are believed, and what to change if they fail.

Chains have to have mixed. Draws that follow from a few releases have no chain to mix;
theirs are the checks of what was released. All numbers are released or public.
"""

import math
from typing import NamedTuple

import numpy as np

from dpjax.fit import score_draws, simulated_draws
from dpjax.fit.noises import MIN_RESOLUTION

__all__ = ["Check", "of_chains", "of_fit"]

MAX_R_HAT = 1.05
"""Bound on the R-hat of chains that have mixed; 1.01 of Vehtari et al. (2021, section
4) is for chains as long as one likes."""

MIN_ESS = 400
"""Least effective sample size; Vehtari et al. (2021, section 4)."""

MAX_POSITION_ERROR = 1.0
"""The largest position error that is not warned of, in posterior standard deviations.
At 1, noise moves the draws as much as chance in the records does."""

MAX_SHARE = 0.5
"""The largest share of the draws' variance that may come from noise, or from the prior,
without a warning."""


MAX_CLIPPED = 0.9
"""The largest share of clipped records that is not warned of. Fits allow for what
clipping loses, and clip many records on purpose."""


class Check(NamedTuple):
    """One check.

    name
        What was checked.
    value
        What was found, as text.
    is_fine
        Whether that is as it should be.
    advice
        What is wrong if it is not, and what to change.
    """

    name: str
    value: str
    is_fine: bool
    advice: str

    def __str__(self):
        rest = "as it should be" if self.is_fine else self.advice
        return f"{self.name}: {self.value}; {rest}"


def of_chains(
    table, acceptance_rate: np.ndarray | None, num_fits: int = 0
) -> list[Check]:
    """The checks of chains, or of variational fits and their draws.

    Parameters
    ----------
    table
        Their summary, with R-hat and effective sample sizes if there are draws enough.
    acceptance_rate
        As in `dpjax.runner.Run`.
    num_fits
        Number of fits, if every chain is the draws of one. R-hat does not show by how
        much clipping moved a fit, which `dpjax.numpyro.l2_clip_norm` keeps small.
    """
    found = []
    if "r_hat" in table:
        worst = float(np.nanmax([1.0, *table["r_hat"]]))
        least = float(np.nanmin([math.inf, *table["ess_bulk"], *table["ess_tail"]]))
        names = ["mixing", "steadiness of the fit, wherever clipping moved it"]
        name = names[num_fits] if num_fits < 2 else "agreement of the fits"
        advice = _of_fits(worst) if num_fits else _of_mixing(worst)
        found.append(
            Check(
                name,
                f"R-hat up to {worst:.2f}, effective sample sizes from {least:.0f}",
                worst <= MAX_R_HAT and least >= MIN_ESS,
                advice,
            )
        )
    if acceptance_rate is not None:
        rate = float(np.mean(acceptance_rate))
        text = "the chains do not move: take shorter steps"
        found.append(Check("acceptance rate", f"{rate:.3f}", rate > 0, text))
    return found


def _of_mixing(r_hat: float) -> str:
    problem = (
        "the chains have not mixed, so the spread of the draws is not the posterior's"
        if r_hat > MAX_R_HAT
        else f"the draws are worth fewer than {MIN_ESS} independent ones"
    )
    return (
        f"{problem}: take fewer chains, which leaves more steps to each, or steps "
        "about as long as the posterior is wide (inverse_mass_matrix=, "
        "dpjax.adaptation), or a larger budget"
    )


def _of_fits(r_hat: float) -> str:
    if r_hat <= MAX_R_HAT:
        return (
            f"the draws are worth fewer than {MIN_ESS} independent ones: take a "
            "smaller thinning, or more steps"
        )
    return (
        "the fits, or the halves of one, differ by more than their width, by noise or "
        "because they have not converged, so none of them is the posterior: take one "
        "fit (num_chains=1), which leaves it the whole budget, more steps with shorter "
        "ones at the end (a schedule, or a larger warmup_fraction), or "
        "dpjax.noise_aware, whose draws allow for the noise"
    )


def of_fit(known: score_draws.Known | simulated_draws.Known) -> list[Check]:
    """The checks of draws from a fit.

    Parameters
    ----------
    known
        The `known` of a `dpjax.runner.Fit`.
    """
    more = "more records, a larger epsilon or fewer parameters make it smaller"
    fit = known.fit_check
    is_robust = isinstance(known, score_draws.Known) and known.is_robust
    found = [
        Check(
            "position error",
            f"noise and clipping move the centre by {known.position_error:.2g} "
            "posterior sds",
            known.position_error <= MAX_POSITION_ERROR,
            f"the draws allow for it, as far as the fit is near the posterior; {more}",
        )
    ]
    if isinstance(known, score_draws.Known):
        most = f" ({known.most})" * bool(known.most)
        found += [
            Check(
                "width due to noise",
                f"{known.noise:.0%} of the variance{most}",
                known.noise <= MAX_SHARE,
                f"the draws say more of the noise than of the records; {more}",
            ),
            Check(
                "width due to the prior",
                f"{known.prior:.0%} of the variance",
                known.prior <= MAX_SHARE,
                "the draws say mostly what the prior says; more records say more",
            ),
            Check(
                "curvature over its noise",
                f"{known.resolution:.3g}",
                known.resolution >= MIN_RESOLUTION,
                "how much the records say in each direction is hidden by noise, so "
                f"the draws may be as wide as the prior; {more}",
            ),
            Check(
                "place of the scores",
                "near where they lead" if known.is_near else "far from where they lead",
                known.is_near,
                "the draws may be off by much more than their width; more records, a "
                "larger epsilon or a prior that is nearer to the answer bring the fit "
                "there",
            ),
        ]
    else:
        kind = "independent draws" if known.are_independent else "states of NUTS"
        advice = (
            "the records leave some direction undetermined, or the posterior is too "
            "curved for independent draws; successive states are correlated"
        )
        found.append(Check("kind of draws", kind, known.are_independent, advice))
    return [
        *found,
        Check(
            "records clipped",
            f"about {known.clipped:.0%}",
            known.clipped <= MAX_CLIPPED,
            "clipping loses most of what the records say: a likelihood with lighter "
            "tails would lose less",
        ),
        Check(
            "variation of the records over the model's",
            f"{fit.ratio:.2f} (standard error {fit.error:.2g})",
            fit.holds or is_robust,
            "the model does not fit the records: change its likelihood, or take "
            "robust=True of dpjax.numpyro.sample",
        ),
    ]
