"""Private draws from a NumPyro model with nothing to tune.

``method="fit"``, the default, releases noisy sums of the records' scores (`dpjax.fit`),
and draws from the posterior that these sums imply. There are three kinds of fits:

- A model that generates whole records is fitted by `dpjax.fit.simulated`, whose draws
  keep the shape of a curved posterior.
- A model of observations given covariates is fitted by `dpjax.fit.score_fit`. It takes
  the likelihood to be normal, as a function of the latents, in the bulk of the
  posterior.
- If observations read products of latents, as in mean + scale * z, `score_fit` takes
  the likelihood to be normal in other coordinates, in which the effects of the latents
  on the observations are linear (`dpjax.fit.pinned`).

``method="walk"`` spends a share of the budget on a fit of the second kind. The rest of
the budget pays for steps of lazy `dpjax.barker`, which leave the exact posterior
unchanged:

1. *Start and metric.* Chains start at draws of the fit. The covariance of these draws
   is the metric.
2. *Clip bound.* The model itself draws records at the mean of the fit's draws. The clip
   bound is a quantile of the log ratios of these records, to first order in the step
   (`dpjax.numpyro.clipping`). For n normal records and steps of length h it is
   3.3 h / sqrt(n); for laws with heavy tails it is larger.
3. *Step length.* Clip bounds are proportional to h, so T steps cost about T h^2. Steps
   are as long as the rest of the budget allows for the wanted number of steps, and at
   most `MAX_LENGTH` posterior standard deviations.
"""

import dataclasses
import functools
import math
import os
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from dpjax import caller, privacy
from dpjax.compiled import one_call
from dpjax.fit.noises import MIN_RESOLUTION, expected_resolution
from dpjax.mcmc.barker import barker
from dpjax.numpyro.adapter import model_of
from dpjax.numpyro.clipping import clip_per_step
from dpjax.numpyro.fisher import check_simulable, prior_mean
from dpjax.numpyro.fits import NO_WALK, LatentFit, PinnedFit, fit_algorithm
from dpjax.numpyro.model import Model
from dpjax.numpyro.nodes import generated
from dpjax.numpyro.score_model import check_center
from dpjax.numpyro.seen import check_latents, pinned_model
from dpjax.posterior import Posterior
from dpjax.privacy.budget import check_budget
from dpjax.privacy.events import repeat
from dpjax.privacy.validate import check_count
from dpjax.release.captured import check_example
from dpjax.release.nominal import nominal_size
from dpjax.runner import sample as simulated
from dpjax.runner.check import check_key
from dpjax.runner.fit import fit, least_noise, spending, too_little
from dpjax.runner.messages import say
from dpjax.runner.results import Run
from dpjax.runner.run import run
from dpjax.runner.statement import PrivacyStatement

__all__ = [
    "FIT_SHARE",
    "METHODS",
    "STEPS_PER_DRAW",
    "check_method",
    "is_of_whole_records",
    "sample",
    "walk_from",
    "walk_length",
]

METHODS = ("fit", "walk")

FIT_SHARE = 0.8
"""Share of the epsilon that goes to the fit from which a walk starts. Privacy costs
grow about as epsilon squared, so this is about .64 of the budget."""

LAZINESS, MAX_LENGTH, STEPS_PER_DRAW = 0.2, 1.0, 20
"""Of a walk: the laziness of `dpjax.barker`; the longest step, in posterior standard
deviations; and the number of steps from one draw to the next."""

METRIC_DRAWS = 20_000
"""Number of draws of the fit, over all chains, that give the metric of a walk."""


@one_call
def sample(
    posterior: Posterior,
    *,
    budget: privacy.Budget,
    num_draws: int = 1000,
    num_chains: int = 4,
    method: str = "fit",
    robust: bool = False,
    nominal_num_records: int | None = None,
    ledger: str | os.PathLike | None = None,
    checkpoint: str | os.PathLike | None = None,
    verbose: bool = True,
    unsafe_key: jax.Array | None = None,
) -> Run:
    """Draw from the posterior of a NumPyro model, and spend all of a budget.

    Parameters
    ----------
    posterior
        From `dpjax.numpyro.posterior`, with an ``example`` if its model does not
        generate all of its records.
    budget
        Privacy budget of all draws together, and of all earlier runs in the ledger.
    num_draws
        Number of draws of every chain. Draws of a fit cost nothing. Draws of a walk are
        twenty steps apart, and every step is charged, so their number is approximate.
    num_chains
        Number of chains. The draws of a fit are only divided among chains, which differ
        in nothing but their name: see `dpjax.runner.Fit` for how far these draws are
        independent.
    method
        ``"fit"`` draws from the posterior that noisy sums imply. ``"walk"`` spends
        most of the budget on a fit, and goes on from its draws with steps that leave
        the exact posterior unchanged.
    robust
        Whether the width of the draws follows how much the records' scores vary about
        the parameters that fit best, whether or not the model holds. The release of
        this variation takes six hundredths of the budget, so other noise grows by 3 %.
        Any model is then fitted like one of observations given covariates. A walk
        refuses it.
    nominal_num_records
        As in `dpjax.sgld`. A walk refuses it.
    ledger, checkpoint, verbose, unsafe_key
        As in `dpjax.run`. The checkpoint of a walk is two files, and without a `ledger`
        it has a ledger of its own, of which later walks with this checkpoint hear. The
        names of all of these files begin with that of `checkpoint`.

    Returns
    -------
    Fit or Run
        The draws: a `dpjax.runner.Fit` from a fit, whose `known` says how far the draws
        are due to the records, the prior and the noise; a `dpjax.runner.Run` from a
        walk, whose privacy statement covers the fit that the walk started from.

    Raises
    ------
    ValueError
        If the model's observations cannot be drawn, or its covariates have no public
        design; if the prior is so wide that numbers overflow at its centre, or near it;
        if observations read products of latents that are not linear in some latents
        while the others are fixed, as mean + scale * z is linear in z; if a walk is
        asked for and the model has such products; if `method` is unknown or does not
        take the other options; or if the example of the model was copied from the data
        (`dpjax.release.captured.check_example`).
    TypeError
        If `budget` is not a `dpjax.Budget`, or `unsafe_key` is not a key of JAX.
    BudgetError, LedgerError, CheckpointError
        As in `dpjax.run`; and, before anything is spent, if the budget is too small for
        any fit. For a model that generates whole records, as in `dpjax.sample`.

    Warns
    -----
    UserWarning
        Before anything is spent, if no record of the example depends on some component
        of a latent, such as the effect of a group; if an observation has a Laplace law,
        which makes draws wrong where the data are of another law; or, where
        `dpjax.fit.score_fit` makes the fit, if the budget is too small for the number
        of records and parameters. After the fit, if a check of it fails that
        `Fit.checks` lists with `is_warned`: if noise hides what the records say in some
        direction, which the draws allow for, as they do for a small budget: they are
        wide; if the scores lead far from where they were released, or chains that draw
        from the fit differ; or if the records vary otherwise than the model says, by
        more than noise and chance explain, which only robust draws allow for.

    Notes
    -----
    *Formal guarantees.* All that is returned, and all runs that were charged to the
    ledger before, are together (epsilon, delta) differentially private for the relation
    of the budget. Before the fit no record is read, except that arrays which the model
    holds are compared with the data. The number of records is public.
    """
    check_key(unsafe_key)
    check_budget(budget)
    is_walk = check_method(method, robust, nominal_num_records)
    num_draws = check_count("num_draws", num_draws)
    num_chains = check_count("num_chains", num_chains)
    model = model_of(posterior)
    check_example(posterior)
    check_simulable(model)
    options: dict[str, Any] = dict(
        num_draws=num_draws,
        num_chains=num_chains,
        verbose=verbose,
        ledger=ledger,
        checkpoint=checkpoint,
        unsafe_key=unsafe_key,
    )
    if is_of_whole_records(model) and not (is_walk or robust):
        return simulated.sample(
            posterior,
            model.simulate,
            model.draw,
            budget=budget,
            nominal_num_records=nominal_num_records,
            **options,
        )
    pinned = pinned_model(model)
    check_latents(model)
    check_center(model)
    if is_walk and pinned is not None:
        raise ValueError(NO_WALK)
    if is_walk:
        return _walk(posterior, budget, **options)
    found = LatentFit(posterior) if pinned is None else PinnedFit.of(posterior, pinned)
    algorithm_fn = functools.partial(
        found.algorithm, robust=robust, nominal_num_records=nominal_num_records
    )
    target, dim = found.target, len(found.names)
    noise_multiplier, last = spending(
        algorithm_fn,
        target,
        dim,
        budget,
        found.norm(nominal_num_records),
        ledger=ledger,
        checkpoint=checkpoint,
    )
    _check_resolution(posterior, dim, budget, noise_multiplier, nominal_num_records)
    drawn = fit(
        functools.partial(algorithm_fn, noise_multiplier=noise_multiplier, last=last),
        functools.partial(found.draws, norm=last and last.norm),
        target,
        initial_position=found.start,
        budget=budget,
        **options,
    )
    return found.constrained(drawn)


def check_method(method: str, robust: bool, nominal_num_records: int | None) -> bool:
    """Whether `method` is ``"walk"``.

    Raises
    ------
    ValueError
        If `method` is not in `METHODS`, or is a walk and another option is set, which a
        walk does not take.
    """
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    if method == "walk" and nominal_num_records is not None:
        raise ValueError(
            "a walk computes with the number of records: leave out "
            'nominal_num_records, or use method="fit"'
        )
    if method == "walk" and robust:
        raise ValueError(
            "a walk leaves the posterior of the model unchanged, whose width is not "
            'robust: leave out robust=True, or use method="fit"'
        )
    return method == "walk"


def is_of_whole_records(model: Model) -> bool:
    """Whether the model can be fitted by `dpjax.fit.simulated`.

    Such a model generates all arrays of a record. The fit also differentiates scores in
    forward mode, so a model without forward-mode derivatives is fitted like a model of
    observations given covariates.
    """
    makes_all = generated(model) == frozenset(model.example)
    return makes_all and model.has_forward_mode


def _check_resolution(posterior, dim, budget, noise_multiplier, nominal_num_records):
    """Warn, before anything is spent, if noise will hide what the records say.

    The noise is that of a fit with this `noise_multiplier`. All numbers are public.
    """
    num_records = nominal_size(posterior, nominal_num_records)
    effective = posterior.tempering * num_records
    resolution = expected_resolution(dim, effective, noise_multiplier)
    if resolution >= MIN_RESOLUTION:
        return
    hidden, factor = "how much the records say in each direction", 1 / resolution
    factor *= MIN_RESOLUTION
    reason, remedy = too_little(budget, num_records, dim, hidden, factor)
    caller.warn(
        f"{reason}, and draws will be wide, in some directions perhaps as wide as the "
        f"prior. Nothing is spent yet. {remedy}. To stop here, turn this warning into "
        "an error (warnings.simplefilter)"
    )


def _walk(
    posterior,
    budget,
    *,
    num_draws,
    num_chains,
    verbose,
    ledger,
    checkpoint,
    unsafe_key,
) -> Run:
    """Run lazy Barker from the draws of a fit: see the module docstring."""
    first = second = None
    if unsafe_key is not None:
        first, second = jax.random.split(unsafe_key)
    files = [
        checkpoint and f"{os.fspath(checkpoint)}.{name}" for name in ("fit", "walk")
    ]
    share = dataclasses.replace(budget, epsilon=FIT_SHARE * budget.epsilon)
    noise_multiplier = least_noise(
        fit_algorithm, posterior, share, ledger=ledger, checkpoint=files[0]
    )
    dim = model_of(posterior).dim
    _check_resolution(posterior, dim, budget, noise_multiplier, None)
    spent = fit_algorithm(posterior, noise_multiplier=noise_multiplier).privacy(
        1, budget.neighboring_relation
    )
    with tempfile.TemporaryDirectory() as folder:
        ledger = ledger or f"{checkpoint or Path(folder) / 'run'}.ledger"
        fitted = fit(
            functools.partial(fit_algorithm, noise_multiplier=noise_multiplier),
            LatentFit(posterior).draws,
            dataclasses.replace(posterior, constrain_fn=None),
            initial_position=prior_mean(model_of(posterior)),
            budget=share,
            num_draws=METRIC_DRAWS // num_chains,
            num_chains=num_chains,
            verbose=verbose,
            ledger=ledger,
            ledger_rule=privacy.AdaptiveRule.renyi(spent, budget),
            checkpoint=files[0],
            unsafe_key=first,
        )
        num_steps = STEPS_PER_DRAW * num_draws
        vectors = jax.vmap(jax.vmap(lambda position: ravel_pytree(position)[0]))
        flat = np.asarray(vectors(fitted.positions), np.float64)
        flat = flat.reshape(-1, flat.shape[-1])
        _, unravel = ravel_pytree(prior_mean(model_of(posterior)))
        centre = unravel(jnp.asarray(flat.mean(0), jnp.result_type(float)))
        metric = np.atleast_2d(np.cov(flat.T))
        algorithm_fn = walk_from(
            posterior, centre, metric, budget, num_chains, num_steps
        )
        if verbose:
            say(walk_length(algorithm_fn, posterior, num_steps))
        result = run(
            algorithm_fn,
            posterior,
            initial_position=jax.tree.map(lambda leaf: leaf[:, 0], fitted.positions),
            num_chains=num_chains,
            budget=budget,
            thinning=STEPS_PER_DRAW,
            warmup_fraction=0.0,
            ledger=ledger,
            checkpoint=files[1],
            verbose=verbose,
            unsafe_key=second,
        )
    num_steps = result.statement.num_steps
    step = algorithm_fn(posterior).privacy(1, budget.neighboring_relation)
    events = repeat(step, num_chains * num_steps)
    statement = PrivacyStatement.of(events, budget, num_chains, num_steps, shared=spent)
    statement = statement._replace(randomness=result.statement.randomness)
    if verbose:
        say(f"with the fit that the walk started from:\n{statement}")
    return dataclasses.replace(result, statement=statement)


def walk_from(
    posterior: Posterior,
    centre,
    metric: np.ndarray,
    budget: privacy.Budget,
    num_chains: int,
    num_steps: int,
) -> functools.partial:
    """Barker's kernel for a walk, ``posterior -> Algorithm``.

    Parameters
    ----------
    posterior
        From `dpjax.numpyro.posterior`.
    centre
        Public position, a pytree, at which the model draws records for the clip bound.
    metric
        Covariance of the flattened position under the fit, ``(d, d)``.
    budget
        The budget of the fit and the walk together. The walk gets the part that
        `FIT_SHARE` leaves.
    num_chains, num_steps
        Number of chains, and of steps of each, that share this part.
    """
    per_step = clip_per_step(posterior, centre, metric)

    def walk(step_size):
        return functools.partial(
            barker,
            step_size=step_size,
            clip_bound=step_size * per_step,
            inverse_mass_matrix=metric,
            laziness=LAZINESS,
        )

    rest: dict[str, Any] = dict(
        epsilon=budget.epsilon * math.sqrt(1 - FIT_SHARE**2),
        delta=budget.delta,
        method="rdp",
    )

    def cost(step_size):
        step = walk(step_size)(posterior).privacy(1, budget.neighboring_relation)
        return repeat(step, num_chains)

    if privacy.max_steps(cost(MAX_LENGTH), **rest) >= num_steps:
        return walk(MAX_LENGTH)
    bracket = (1e-6 * MAX_LENGTH, MAX_LENGTH)
    return walk(privacy.calibrate(cost, num_steps=num_steps, bracket=bracket, **rest))


def walk_length(algorithm_fn, posterior: Posterior, num_steps: int) -> str:
    """A sentence that says how far `num_steps` steps of `walk_from` take a chain."""
    length = algorithm_fn.keywords["step_size"]
    variance = LAZINESS / 2 * num_steps * length**2 / model_of(posterior).dim
    return (
        f"the walk: steps of {length:.2g} posterior sds, which take a chain "
        f"about {math.sqrt(variance):.2g} posterior sds in each direction. "
        "Draws are in good part those of the fit unless that is well above one"
    )
