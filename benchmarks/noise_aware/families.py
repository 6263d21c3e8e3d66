"""Coverage of noise-aware DPVI, and of others, on three exponential families.

For every draw theta comes from the prior and records from the model; DPVI runs on them,
and its traces are post-processed. Rows hold what TARP needs of a draw: the shares of
posterior samples that are nearer than the truth to random points.

published
    The settings of the paper's code; `iterate_average` and `last_iterate` take the
    guide at the mean and at the last parameters for the posterior.
ours
    As many steps of samples as large, under substitution. Gradients are taken in
    NumPyro's space, prior and entropy outside the clip, and what clipping takes off is
    added back as the model expects it. Draws from the guide come in pairs z, 2 m - z:
    what all records have in common, the gradient of m times the mean of e, leaves the
    gradients of rho, which are then smaller than those of m by s^2 and can be released
    with less noise. From the mean of the prior the step sizes fall like 1 / (1 + t /
    half_life), and the regression takes all steps. Its curvature is known from the
    model, up to `curvature_log_sd`, and the prior of phi* is that of theta.
dpvim
    The aligned gradient with one draw, and Adam; its last iterate.
baselines
    Bernstein and Sheldon's Gibbs sampler, and the posterior without privacy.
"""

import itertools
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from dp_accounting import NeighboringRelation

from benchmarks.noise_aware import bernstein_sheldon, closed_form, models
from dpjax import privacy
from dpjax.evaluation.tarp import shares, shares_marginal
from dpjax.vi.dpvi import DPVIInfo
from dpjax.vi.guides import MeanField
from dpjax.vi.noise_aware import noise_aware
from dpjax.vi.optimizers import noise_scaled_sgd

__all__ = ["VARIANTS", "chunk", "noise_multiplier", "rows"]

VARIANTS = "published", "ours", "dpvim", "baselines"


def rows(settings: dict):
    """Yield the rows of every chunk of draws that `finished` rows do not have.

    Every dict has the keys of its chunk, `method`, `draw`, and texts of several
    numbers: its `truth`, `mean` and `sd` of its posterior, `shares`, and `marginal`
    ones, those of every component on its own; and the seconds that the chunk took.
    """
    finished = {
        (row["variant"], row["model"], float(row["epsilon"]), int(row["first"]))
        for row in settings["finished"]
    }
    for variant in settings["variants"]:
        for first in range(
            0, settings[variant]["num_draws"], settings[variant]["chunk"]
        ):
            for model, epsilon in itertools.product(
                settings["models"], settings["epsilons"]
            ):
                if (variant, model, epsilon, first) not in finished:
                    yield from chunk(settings, model, epsilon, variant, first)


def noise_multiplier(settings: dict, epsilon: float) -> float:
    """The least that keeps the budget under substitution."""

    def events(multiplier):
        event = privacy.PoissonGaussianRelease(
            multiplier, settings["sampling_prob"], NeighboringRelation.REPLACE_ONE
        )
        return [(event, 1)]

    return privacy.calibrate(
        events,
        num_steps=settings["num_steps"],
        epsilon=epsilon,
        delta=settings["delta"],
        bracket=(1.0, 10_000.0),
    )


def chunk(settings: dict, model: str, epsilon: float, variant: str, first: int):
    """Rows of the draws of one chunk, by every method of the variant."""
    place = models.MODELS.index(model)
    draws = min(settings[variant]["chunk"], settings[variant]["num_draws"] - first)
    # Truth and data are those of other epsilons, and of variants with equal chunks.
    rng = np.random.default_rng([settings["seed"], place, first])
    truth, data = models.simulate(model, rng, draws, settings["num_records"])
    rng = np.random.default_rng(
        [settings["seed"], place, first, round(1e6 * epsilon), VARIANTS.index(variant)]
    )
    start = time.perf_counter()
    found = _METHODS[variant](rng, settings, model, epsilon, data)
    seconds = time.perf_counter() - start
    rows = []
    marginal_rng = np.random.default_rng([settings["seed"], place, first, 1])
    for method, (samples, center) in found.items():
        nearer = shares(rng, samples, truth, center)
        marginal = shares_marginal(marginal_rng, samples, truth, center)
        mean, sd = samples.mean(axis=1), samples.std(axis=1)
        for i in range(draws):
            row = dict(model=model, epsilon=epsilon, variant=variant, first=first)
            row |= dict(
                method=method,
                draw=first + i,
                truth=_text(truth[i]),
                mean=_text(mean[i]),
                sd=_text(sd[i]),
                shares=_text(nearer[:, i]),
                marginal=_text(np.ravel(marginal[..., i])),
                seconds=seconds,
            )
            rows.append(row)
    return rows


def _text(numbers):
    return " ".join(f"{number:.6g}" for number in numbers)


def _published(rng, settings, model, epsilon, data):
    options = settings["published"]
    specific = options[model]
    family = models.FAMILIES[model, "published"]
    release = closed_form.Release(
        l2_clip_norm=specific["l2_clip_norm"],
        preconditioner=specific["preconditioner"],
        noise_multiplier=_published_multiplier(settings, epsilon),
        sampling_prob=settings["sampling_prob"],
        num_records=settings["num_records"],
        inside=True,
    )
    optimizer = noise_scaled_sgd(settings["num_steps"], options["distance"])
    start = np.repeat(specific["initial"], family.dim)
    trace = _run(rng, settings, family, release, optimizer, start, data)
    first = int(settings["warmup_fraction"] * settings["num_steps"])
    posterior = noise_aware(
        _infos(release, *(part[:, first:] for part in trace[:2])),
        sampling_error_sd=options["sampling_error_sd"],
    )
    return _of_traces(rng, settings, family, posterior, trace)


def _published_multiplier(settings, epsilon):
    at = settings["epsilons"].index(epsilon)
    return settings["published"]["noise_multipliers"][at]


def _ours(rng, settings, model, epsilon, data):
    options = settings["ours"]
    family = models.FAMILIES[model, "numpyro"]
    release = closed_form.Release(
        l2_clip_norm=options["l2_clip_norm"][model],
        preconditioner=options["preconditioner"],
        noise_multiplier=noise_multiplier(settings, epsilon),
        sampling_prob=settings["sampling_prob"],
        num_records=settings["num_records"],
        corrected=True,
    )
    num_steps, half = settings["num_steps"], options["half_life"]
    optimizer = optax.chain(
        noise_scaled_sgd(num_steps, (2 * family.dim) ** 0.5),
        optax.scale_by_schedule(lambda step: 1 / (1 + step / half)),
    )
    location, location_sd = models.PRIOR_MOMENTS[model]
    rho = options["initial_rho"]
    start = np.array([*location, *[rho] * family.dim])
    trace = _run(rng, settings, family, release, optimizer, start, data, True)
    late = jnp.asarray(trace[0][:, num_steps // 2 :].mean(axis=1))
    expected = jax.jit(
        jax.vmap(
            lambda parameters: closed_form.expected_curvature(
                family, release, parameters
            )
        )
    )(late)
    posterior = noise_aware(
        _infos(release, *trace[:2]),
        optimum_mean={"location": np.array(location), "rho": rho},
        optimum_sd={"location": np.array(location_sd), "rho": 1.0},
        curvature=_split(expected),
        curvature_log_sd=options["curvature_log_sd"],
        sampling_error_sd=options["sampling_error_sd"],
    )
    return _of_traces(rng, settings, family, posterior, trace)


def _run(rng, settings, family, release, optimizer, start, data, antithetic=False):
    return closed_form.run(
        rng,
        closed_form.plain_gradient(family, release),
        optimizer,
        data,
        start,
        release=release,
        num_samples=settings["num_samples"],
        num_steps=settings["num_steps"],
        antithetic=antithetic,
        noise_sd=_noise_sd(release, family.dim),
    )


def _noise_sd(release, dim):
    sd = release.l2_clip_norm * release.noise_multiplier / release.sampling_prob
    return sd / np.repeat(release.preconditioner, dim)


def _infos(release, parameters, gradients):
    """What `dpjax.run` returns of `dpvi`, with draws for chains."""
    noise_sd = _noise_sd(release, parameters.shape[-1] // 2)
    noise_sd = np.broadcast_to(noise_sd, (len(parameters), 1, len(noise_sd)))
    return DPVIInfo(*map(_split, (parameters, gradients, noise_sd)))


def _split(array) -> Any:
    location, rho = np.split(np.asarray(array), 2, axis=-1)
    return {"location": location, "rho": rho}


def _of_traces(rng, settings, family, posterior, trace):
    """Samples and centres of the noise-aware posterior and of guides of the trace."""
    parameters, _, last = trace
    size = settings["posterior_samples"]
    first = int(settings["warmup_fraction"] * settings["num_steps"])
    average = parameters[:, first:].mean(axis=1, dtype=np.float64)
    key = jax.random.key(int(rng.integers(2**32)))
    found = {
        "noise_aware": posterior.draws(key, MeanField(family.dim), size),
        "last_iterate": _of_guide(rng, last, size),
        "iterate_average": _of_guide(rng, average, size),
    }
    center = _published_space(family, average[:, None, : family.dim])[:, 0]
    return {
        name: (_published_space(family, np.asarray(samples)), center)
        for name, samples in found.items()
    }


def _dpvim(rng, settings, model, epsilon, data):
    specific = settings["published"][model]
    family = models.FAMILIES[model, "published"]
    release = closed_form.Release(
        l2_clip_norm=specific["l2_clip_norm"],
        preconditioner=(1.0, 1.0),
        noise_multiplier=_published_multiplier(settings, epsilon),
        sampling_prob=settings["sampling_prob"],
        num_records=settings["num_records"],
    )
    parameters, _, last = closed_form.run(
        rng,
        closed_form.aligned_gradient(family, release),
        optax.adam(settings["dpvim"]["learning_rate"]),
        data,
        np.repeat(specific["initial"], family.dim),
        release=release,
        num_samples=1,
        num_steps=settings["num_steps"],
    )
    kept = int(settings["warmup_fraction"] * settings["num_steps"])
    center = parameters[:, kept:, : family.dim].mean(axis=1)
    return {"dpvim": (_of_guide(rng, last, settings["posterior_samples"]), center)}


def _baselines(rng, settings, model, epsilon, data):
    if model == "gamma_exponential":
        rates = bernstein_sheldon.exponential(rng, data, (8.0, 2.0), epsilon)
        gibbs = np.log(np.expm1(rates))[..., None]
    else:
        prior = models.CONCENTRATIONS[model]
        gibbs = bernstein_sheldon.categorical(rng, data, prior, epsilon)
    exact = models.exact_posterior(model, rng, data, settings["posterior_samples"])
    return {
        name: (samples, samples.mean(axis=1))
        for name, samples in (("bernstein_sheldon", gibbs), ("exact", exact))
    }


_METHODS = {
    "published": _published,
    "ours": _ours,
    "dpvim": _dpvim,
    "baselines": _baselines,
}


def _of_guide(rng, parameters, size):
    location, rho = np.split(parameters[:, None], 2, axis=-1)
    shape = len(parameters), size, location.shape[-1]
    return location + np.logaddexp(0, rho) * rng.standard_normal(shape)


def _published_space(family, samples):
    return np.asarray(jax.vmap(jax.vmap(family.published))(samples), np.float64)
