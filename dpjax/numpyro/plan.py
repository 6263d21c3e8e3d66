"""`plan` computes what `dpjax.numpyro.sample` would give for several budgets."""

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import biject_to

from dpjax import privacy
from dpjax.compiled import compiled, one_call
from dpjax.fit import contrast
from dpjax.fit.foretold import Noise, made_up
from dpjax.fit.noises import MIN_RESOLUTION, Noises, expected_resolution
from dpjax.fit.scores import NUM_REDRAWS, NUM_SEARCH_REDRAWS
from dpjax.numpyro.adapter import model_of
from dpjax.numpyro.fisher import check_simulable, prior_mean
from dpjax.numpyro.fits import NO_WALK, LatentFit, PinnedFit
from dpjax.numpyro.model import Model, is_latent
from dpjax.numpyro.nodes import conditional_scores, kept_information
from dpjax.numpyro.sample import (
    FIT_SHARE,
    STEPS_PER_DRAW,
    check_method,
    is_of_whole_records,
    walk_from,
    walk_length,
)
from dpjax.numpyro.score_model import check_center
from dpjax.numpyro.seen import check_latents, pinned_model
from dpjax.posterior import Posterior
from dpjax.privacy.budget import check_budget
from dpjax.privacy.validate import check_count
from dpjax.release.gaussian_sum import GaussianSum
from dpjax.release.k_norm_sum import KNormSum
from dpjax.release.nominal import nominal_size
from dpjax.runner.check import warn_of_large_delta
from dpjax.runner.fit import least_noise
from dpjax.runner.plan import EPSILONS, Plan
from dpjax.runner.plan_fit import (
    NUM_POSITIONS,
    FitCost,
    Gain,
    Passes,
    plan_fit,
    simulated_cost,
    spending_and_gain,
)
from dpjax.runner.sample import checked_prior_draws
from dpjax.runner.trial import timed

__all__ = ["plan"]

NUM_TIMED = 2**13
"""Number of made-up records in the passes that are timed."""


@one_call
def plan(
    posterior: Posterior,
    *,
    budget: privacy.Budget,
    num_draws: int = 1000,
    num_chains: int = 4,
    method: str = "fit",
    robust: bool = False,
    nominal_num_records: int | None = None,
    guess: Mapping[str, Any] | None = None,
    epsilons: Iterable[float] = EPSILONS,
) -> Plan:
    """The accuracy that `dpjax.numpyro.sample` would have, for several budgets.

    No record is read. The model makes up records at the centre of its prior and at
    draws from the prior. From the scores of these records follows how far noise and
    clipping would move and widen the draws: see `dpjax.fit.foretold`.

    Parameters
    ----------
    posterior, budget, num_draws, num_chains, method, robust, nominal_num_records
        As in `dpjax.numpyro.sample`. Only the shapes of the data are used.
    guess
        A value of every latent, by name and in the units of the model, at which records
        are made up in place of the prior's centre and draws. It must come from earlier
        studies, not from the data.
    epsilons
        Epsilons to compare with that of `budget`, at the same delta.

    Returns
    -------
    Plan
        For each epsilon and parameter, by how much noise and clipping move the centre
        of the draws, and how wide the draws are, both in sds of the exact posterior;
        which budgets would be refused; and from which number of records or epsilon on
        the answer would be worth the budget. Parameters are unconstrained. The plan of
        a walk is that of the fit from which it starts. It also says how far the steps
        of the walk take a chain from there.

    Raises
    ------
    TypeError, ValueError
        As in `dpjax.numpyro.sample`; or if `guess` does not name the latents, or has
        values outside of the support of the prior.

    Notes
    -----
    *Formal guarantees.* All that is returned follows from public numbers, the model and
    the shapes of the data.
    """
    check_budget(budget)
    warn_of_large_delta(budget, posterior)
    is_walk = check_method(method, robust, nominal_num_records)
    num_draws = check_count("num_draws", num_draws)
    num_chains = check_count("num_chains", num_chains)
    model = model_of(posterior)
    check_simulable(model)
    is_whole = is_of_whole_records(model) and not robust and not is_walk
    pinned = None if is_whole else pinned_model(model)
    if is_walk and pinned is not None:
        raise ValueError(NO_WALK)
    if is_whole:
        checked_prior_draws(posterior, model.simulate, model.draw)
    else:
        check_center(model)
    num_records = nominal_size(posterior, nominal_num_records)
    positions = _positions(posterior) if guess is None else _guessed(model, guess)
    centre = jax.tree.map(lambda leaf: leaf[0], positions)
    asked = LatentFit(posterior) if pinned is None else PinnedFit.of(posterior, pinned)
    found = made_up(
        asked.target.loglikelihood_fn,
        asked.simulate,
        asked.precision,
        posterior.tempering,
        asked.positions(positions),
        1.0 if is_whole else kept_information(model),
    )
    if is_whole:
        cost = simulated_cost(
            posterior, model.simulate, model.draw, nominal_num_records
        )
    else:
        check_latents(model)
        passes = _tried(posterior, num_records, centre, robust)
        cost = _cost(asked, passes, robust, is_walk, nominal_num_records)
    planned = plan_fit(found, asked.names, cost, budget, epsilons)
    if pinned is not None:
        said = (
            "observations read products of latents: rows are of effects, by the names "
            "of the latents that they are linear in"
        )
        return dataclasses.replace(planned, text=f"{planned.text}\n{said}")
    if not is_walk:
        return planned
    num_steps = STEPS_PER_DRAW * num_draws
    noise_multiplier, gain = cost.spending(budget, num_records)
    noise = cost.noise(noise_multiplier, num_records, gain)
    metric, _ = found[0].covariances(num_records, noise)
    walk = walk_from(posterior, centre, metric, budget, num_chains, num_steps)
    said = walk_length(walk, posterior, num_steps)
    return dataclasses.replace(planned, text=f"{planned.text}\n{said}")


def _cost(
    asked: LatentFit, passes: Passes, robust: bool, is_walk: bool, nominal_num_records
) -> FitCost:
    """What the fit does with a budget. If `is_walk`, it gets `FIT_SHARE` of epsilon."""
    posterior, dim = asked.target, len(asked.names)
    num_records = nominal_size(posterior, nominal_num_records)
    algorithm_fn = functools.partial(
        asked.algorithm, robust=robust, nominal_num_records=nominal_num_records
    )

    def noises_of(noise_multiplier, num_records, last=None):
        effective = posterior.tempering * num_records
        return Noises.of(dim, effective, noise_multiplier, robust, last)

    def noise(noise_multiplier, num_records, gain):
        found = noises_of(noise_multiplier, num_records)
        last, ratio = gain.noise * found.scores[-1], 1.0
        if gain.norm is not None:
            release = KNormSum(1.0, noise_multiplier, norm=gain.norm)
            found = noises_of(noise_multiplier, num_records, release)
            ratio = gain.norm.ratio
        firsts = [ratio * first for first in found.scores[:-1]]
        found = found._replace(scores=[*firsts, last])
        return Noise(found.pooled_scores, found.slope_clip * found.slope, gain.norm)

    norm = None if is_walk else asked.norm(nominal_num_records)

    def spent(budget, size):
        of_so_many = algorithm_fn
        if size != num_records:
            of_so_many = functools.partial(
                algorithm_fn, nominal_num_records=math.ceil(size)
            )
        if is_walk:
            share = dataclasses.replace(budget, epsilon=FIT_SHARE * budget.epsilon)
            return least_noise(of_so_many, posterior, share), Gain()
        return spending_and_gain(
            of_so_many,
            posterior,
            dim,
            budget,
            lambda noise_multiplier: noises_of(noise_multiplier, size).scores[-1],
            norm,
        )

    def resolution(noise_multiplier, num_records):
        effective = posterior.tempering * num_records
        return expected_resolution(dim, effective, noise_multiplier)

    def events(relation, noise_multiplier):
        algorithm = algorithm_fn(posterior, noise_multiplier=noise_multiplier)
        return algorithm.privacy(1, relation)

    return FitCost(
        num_records,
        spent,
        noise,
        resolution,
        MIN_RESOLUTION,
        events,
        is_refused=False,
        share=FIT_SHARE if is_walk else 1.0,
        of_passes=passes,
    )


def _positions(posterior):
    """The prior's centre, then draws from it: `NUM_POSITIONS` along a leading axis."""
    model = model_of(posterior)
    return jax.tree.map(
        lambda one, more: jnp.concatenate([one[None], more[: NUM_POSITIONS - 1]]),
        prior_mean(model),
        model.prior_draws,
    )


def _guessed(model: Model, guess: Mapping[str, Any]):
    """The guess as an unconstrained position, with a leading axis of length one.

    Raises
    ------
    ValueError
        If the guess does not name all latents, or is outside of the prior's support.
    """
    sites, _, _ = model.trace(model.one_example, rng_key=jax.random.key(0))
    latents = {name: site for name, site in sites.items() if is_latent(site)}
    if guess.keys() != latents.keys():
        raise ValueError(
            f"guess must name the latents {sorted(latents)}, got {sorted(guess)}"
        )
    position = {
        name: biject_to(site["fn"].support).inv(
            jnp.broadcast_to(jnp.asarray(guess[name], float), site["value"].shape)
        )
        for name, site in latents.items()
    }
    if not all(np.all(np.isfinite(leaf)) for leaf in position.values()):
        raise ValueError("guess has values outside of the support of the prior")
    return jax.tree.map(lambda leaf: leaf[None], position)


def _tried(posterior: Posterior, num_records: int, position, robust: bool) -> Passes:
    """An estimate of time and memory for all passes of a fit over the records.

    There are two kinds of passes. Those of the search compare a record's observed score
    with its other scores; those of the other releases also clip and centre the scores.
    One pass of each kind is made here over `NUM_TIMED` records of the example, and its
    time is scaled to `num_records` records and to the number of passes.
    """
    model = model_of(posterior)
    records = jax.tree.map(
        lambda leaf: np.resize(leaf, (NUM_TIMED, *leaf.shape[1:])), model.example
    )
    release = GaussianSum(1.0, 1.0)
    words = jnp.zeros(release.num_words(model.dim, NUM_TIMED), jnp.uint32)

    def tried(contribution_fn, num_redraws):
        scores_fn = conditional_scores(model, num_redraws)

        def one_pass(records, words):
            return release(
                words,
                dataclasses.replace(posterior, data=records),
                lambda record, key: contribution_fn(scores_fn(position, record, key)),
                rng_key=jax.random.key(1),
            )

        program: Any = compiled(one_pass, records, words)
        return timed(program, records, words)[1], program.memory_analysis()

    of_search, _ = tried(contrast.difference, NUM_SEARCH_REDRAWS)
    of_rest, memory = tried(
        lambda scores: contrast.contrast(scores, 1.0).score, NUM_REDRAWS
    )
    noises = Noises.of(model.dim, num_records, 1.0, robust)
    num_search = sum(map(len, noises.steps))
    num_rest = len(noises.curvatures) + len(noises.scores) + 3 + 2 * robust
    whole = num_search * of_search + num_rest * of_rest
    scale = num_records / NUM_TIMED
    # A release reads records by blocks, so its intermediate results do not grow with
    # the number of records.
    num_bytes = scale * memory.argument_size_in_bytes + memory.temp_size_in_bytes
    return Passes(scale * whole, num_bytes)
