"""Coverage of noise-aware DPVI, and of others, on three exponential families.

For every draw theta comes from the prior and records from the model; DPVI runs on them,
and its traces are post-processed. Rows hold what TARP needs of a draw: the shares of
posterior samples that are nearer than the truth to random points.

published
    The settings of the paper's code; `iterate_average` and `last_iterate` take the guide
    at the mean and at the last of the parameters for the posterior.
ours
    The same steps, epsilons and sampling, under substitution, calibrated by the
    accountant of dpjax.
dpvim
    The aligned gradient with one draw, and Adam; its last iterate.
baselines
    Bernstein and Sheldon's Gibbs sampler, and the posterior without privacy.
"""

import itertools
import time
from typing import Any

import jax
import numpy as np
import optax
from dp_accounting import NeighboringRelation

from benchmarks.noise_aware import bernstein_sheldon, closed_form, models
from dpjax import privacy
from dpjax.evaluation.tarp import shares
from dpjax.vi.dpvi import DPVIInfo
from dpjax.vi.guides import MeanField
from dpjax.vi.noise_aware import noise_aware
from dpjax.vi.optimizers import noise_scaled_sgd

__all__ = ["VARIANTS", "chunk", "noise_multiplier", "rows"]

VARIANTS = "published", "ours", "dpvim", "baselines"


def rows(settings: dict):
    """Yield the rows of every chunk of draws that `finished` rows do not have.

    Every dict has the keys of its chunk, `method`, `draw`, and texts of several
    numbers: its `truth`, `mean` and `sd` of its posterior, and `shares`; and the
    seconds that the chunk took.
    """
    finished = {
        (row["variant"], row["model"], float(row["epsilon"]), int(row["first"]))
        for row in settings["finished"]
    }
    for variant in settings["variants"]:
        for first in range(0, settings[variant]["num_draws"], settings["chunk"]):
            for model, epsilon in itertools.product(
                models.MODELS, settings["epsilons"]
            ):
                if (variant, model, epsilon, first) not in finished:
                    yield from chunk(settings, model, epsilon, variant, first)


def noise_multiplier(settings: dict, epsilon: float) -> float:
    """Least one that keeps the budget under substitution, by privacy loss distributions."""

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
    draws = min(settings["chunk"], settings[variant]["num_draws"] - first)
    # Draws share truth and data across epsilons and variants.
    rng = np.random.default_rng([settings["seed"], place, first])
    truth, data = models.simulate(model, rng, draws, settings["num_records"])
    rng = np.random.default_rng(
        [settings["seed"], place, first, round(1e6 * epsilon), VARIANTS.index(variant)]
    )
    start = time.perf_counter()
    found = _METHODS[variant](rng, settings, model, epsilon, data)
    seconds = time.perf_counter() - start
    rows = []
    for method, (samples, center) in found.items():
        nearer = shares(rng, samples, truth, center)
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
    start = np.repeat(specific["initial"], family.dim)
    return _plain(rng, settings, options, family, release, start, data)


def _published_multiplier(settings, epsilon):
    at = settings["epsilons"].index(epsilon)
    return settings["published"]["noise_multipliers"][at]


def _ours(rng, settings, model, epsilon, data):
    options = settings["ours"]
    family = models.FAMILIES[model, "numpyro"]
    release = closed_form.Release(
        l2_clip_norm=options["l2_clip_norm"],
        preconditioner=options["preconditioner"],
        noise_multiplier=noise_multiplier(settings, epsilon),
        sampling_prob=settings["sampling_prob"],
        num_records=settings["num_records"],
        corrected=options["corrected"],
    )
    start = np.array([*family.start, *[options["initial_rho"]] * family.dim])
    return _plain(rng, settings, options, family, release, start, data)


def _plain(rng, settings, options, family, release, start, data):
    """The noise-aware posterior and the guides of the same traces."""
    noise_sd = release.l2_clip_norm * release.noise_multiplier / release.sampling_prob
    noise_sd = noise_sd / np.repeat(release.preconditioner, family.dim)
    parameters, gradients, last = closed_form.run(
        rng,
        closed_form.plain_gradient(family, release),
        noise_scaled_sgd(settings["num_steps"], options["distance"]),
        data,
        start,
        release=release,
        num_samples=settings["num_samples"],
        num_steps=settings["num_steps"],
        noise_sd=noise_sd,
    )
    kept = slice(int(settings["warmup_fraction"] * settings["num_steps"]), None)
    parameters, gradients = parameters[:, kept], gradients[:, kept]

    def split(array) -> Any:
        location, rho = np.split(array, 2, axis=-1)
        return {"location": location, "rho": rho}

    infos = DPVIInfo(
        split(parameters),
        split(gradients),
        split(np.broadcast_to(noise_sd, (len(parameters), 1, len(noise_sd)))),
    )
    posterior = noise_aware(
        infos,
        optimum_sd=options["optimum_sd"],
        sampling_error_sd=options["sampling_error_sd"],
    )
    size = settings["posterior_samples"]
    key = jax.random.key(int(rng.integers(2**32)))
    aware = posterior.draws(key, MeanField(family.dim), size)
    average = parameters.mean(axis=1, dtype=np.float64)
    center = _published_space(family, average[:, None, : family.dim])[:, 0]
    found = {
        "noise_aware": aware,
        "last_iterate": _of_guide(rng, last, size),
        "iterate_average": _of_guide(rng, average, size),
    }
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
