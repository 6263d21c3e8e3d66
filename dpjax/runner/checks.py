"""What to check of draws before they are believed, and what to change if they fail.

Chains have to have mixed. Draws that follow from a few releases have no chain to mix;
theirs are the checks of what was released. All numbers are released or public.
"""

import math
from typing import NamedTuple

import numpy as np

from dpjax.fit import score_draws, simulated_draws
from dpjax.fit.fit_check import FitCheck
from dpjax.fit.noises import MIN_RESOLUTION
from dpjax.privacy.shown import shown

__all__ = ["Check", "of_chains", "of_fit"]

MAX_R_HAT = 1.05
"""Bound on the R-hat of chains that have mixed. The bound 1.01 of Vehtari et al. (2021,
section 4) is for chains that can be made longer at no cost."""

MAX_R_HAT_OF_FIT = 1.1
"""Bound on the R-hat of the short chains that draw from what a fit released."""

MIN_ESS = 400
"""Least effective sample size; Vehtari et al. (2021, section 4)."""

MAX_POSITION_ERROR = 1.0
"""The largest position error that is not warned of, in posterior standard deviations.
At 1, noise moves the draws as much as chance in the records does."""

MAX_SHARE = 0.5
"""The largest share of the draws' variance that may come from noise, or from the prior,
without a warning."""

LOST_FACTOR = 10.0
"""If so many times as many records would resolve the slope, the reason may be that the
records were not read."""

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
    is_warned
        Whether a call that draws warns if it is not. Such draws may be off by much more
        than their width, or be as wide as the prior.
    """

    name: str
    value: str
    is_fine: bool
    advice: str
    is_warned: bool = False

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
        found += [
            Check(
                "width due to noise",
                f"{known.noise:.0%} of the variance{known.where_noise}",
                known.noise <= MAX_SHARE,
                f"the draws say more of the noise than of the records; {more}",
            ),
            Check(
                "width due to the prior",
                f"{known.prior:.0%} of the variance{known.where_prior}",
                known.prior <= MAX_SHARE,
                "the draws say mostly what the prior says; more records say more",
            ),
            Check(
                "curvature over its noise",
                f"{known.resolution:.3g}",
                known.resolution >= MIN_RESOLUTION,
                _hidden(known),
                is_warned=True,
            ),
            Check(
                "place of the scores",
                "near where they lead" if known.is_near else "far from where they lead",
                known.is_near,
                "between the two the records tell more or less of the latents, so that "
                "the draws may be off by much more than their width; more records, a "
                "larger epsilon, or a prior that is narrower and nearer to the answer "
                "bring the fit there",
                is_warned=True,
            ),
        ]
        if known.r_hat is not None:
            found.append(
                Check(
                    "agreement of the chains that draw",
                    f"R-hat {known.r_hat:.2f}",
                    known.r_hat <= MAX_R_HAT_OF_FIT,
                    "chains of NUTS draw from what the fit released, and differ: the "
                    "posterior may have modes apart from each other",
                    is_warned=True,
                )
            )
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
            _misfit(fit),
            is_warned=True,
        ),
    ]


def _hidden(known: score_draws.Known) -> str:
    factor = max(2.0, MIN_RESOLUTION / known.likely_resolution)
    lost = ""
    if factor >= LOST_FACTOR:
        lost = (
            ". Or the records hold hardly any numbers: `dpjax schema FILE "
            "--unsafe-check SCHEMA` finds rows that a schema could not read"
        )
    return (
        "the releases do not tell how much the records say in each of the "
        f"{known.num_directions} directions that the records were asked about: the "
        "noise of the slope is as large as the slope. The draws allow for slopes that "
        "noise may have hidden, so they are wide, in some directions perhaps as wide "
        "as the prior; but if the data are unlike example=, some may be too narrow. "
        f"About {shown(factor)} times as many records or as large "
        "an epsilon, a more informative prior, fewer parameters, or an example= that "
        f"is more like the data would resolve the slope{lost}"
    )


def _misfit(fit: FitCheck) -> str:
    if fit.ratio > 1:
        meaning = (
            "The draws are as narrow as if the model held, so their intervals are too "
            "short. A likelihood with heavier tails, overdispersion or the covariates "
            "that are missing would account for it. With robust=True, "
            "dpjax.numpyro.sample gives intervals as wide as the records show"
        )
    else:
        meaning = (
            "The draws are as wide as if the model held, so their intervals are too "
            "long. A likelihood that varies less would account for it"
        )
    return (
        "the model does not fit the records. If it held, noise and chance alone would "
        f"cause so large a deviation in fewer than one of 1000 fits. {meaning}"
    )
