"""Means of a Gaussian mixture: distances to NUTS (paper, figure 1 and table 1).

n records of J components N(m_j, s^2 I), s known, m_j ~ N(0, prior_sd^2 I). Every method
starts at the true means plus N(0, start_sd^2), so that all name the components alike.
Distances are Frobenius norms of the differences of all means, and of all covariances,
to those of a long NUTS run; `average` is the mean of both, as in the paper.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax

import dpjax
from dpjax import privacy
from dpjax.comparisons import baselines
from dpjax.comparisons.dp_sep_published import dp_sep_published
from dpjax.comparisons.ep import ep
from dpjax.comparisons.sep import sep
from dpjax.ep import sites
from dpjax.ep.dp_em import dp_em
from dpjax.ep.dp_sep import dp_sep
from dpjax.ep.gaussians import Full, Moments
from dpjax.posterior import Posterior

__all__ = ["problem", "rows"]

PAPER = {
    ("sep", math.inf, math.inf): 0.0012,
    ("sep", math.inf, 20.0): 0.0134,
    ("sep", math.inf, 10.0): 0.748,
    ("sep", math.inf, 1.0): 1.126,
    ("dp_sep", 5.0, 10.0): 6.61,
    ("dp_sep", 1.0, 10.0): 44.0,
    ("dp_em", 5.0, 0.0): 7.11,
    ("dp_em", 1.0, 0.0): 32.7,
}
"""The paper's averages, of its own DP-SEP at C = 1 and of its accounting."""


def problem(settings):
    """Posterior and true means."""
    rng = np.random.default_rng(settings["seed"])
    shape = settings["num_components"], settings["dim"]
    means = settings["prior_sd"] * rng.normal(size=shape)
    labels = rng.integers(shape[0], size=settings["num_records"])
    noise = settings["component_sd"] * rng.normal(size=(len(labels), shape[1]))
    precision = settings["prior_sd"] ** -2
    scale = -0.5 / settings["component_sd"] ** 2

    def logprior(position):
        return -0.5 * precision * jnp.sum(position**2)

    def loglikelihood(position, record):
        gaps = jnp.sum((position - record[None]) ** 2, axis=1)
        return jax.nn.logsumexp(scale * gaps)

    records = jnp.asarray(means[labels] + noise)
    return Posterior(logprior, loglikelihood, records), means


def reference(posterior, means) -> Moments:
    """Of the components' means, by NUTS from the true ones."""
    run = baselines.nuts(
        jax.random.key(0),
        posterior,
        5_000,
        initial_position=jnp.tile(jnp.asarray(means)[None], (4, 1, 1)),
    )
    return _moments(run.positions.reshape(-1, *means.shape))


def _moments(draws):
    centred = draws - draws.mean(axis=0)
    covariance = np.einsum("kji,kjl->jil", centred, centred) / len(draws)
    return Moments(draws.mean(axis=0), covariance)


def _distances(found, exact):
    mean, covariance = (
        float(np.linalg.norm(np.ravel(one - other)))
        for one, other in zip(found, exact, strict=True)
    )
    return dict(mean=mean, covariance=covariance, average=(mean + covariance) / 2)


def _private(kernel, posterior, start, settings, epsilon, num_steps, last, seed):
    """Infos' parameters, averaged over the last states, within the budget."""
    relation = privacy.NeighboringRelation[settings["neighboring_relation"]]

    def events(multiplier):
        return kernel(posterior, noise_multiplier=multiplier).privacy(1, relation)

    budget = privacy.Budget(epsilon, settings["delta"], relation)
    multiplier = privacy.calibrate(
        events,
        num_steps=num_steps,
        epsilon=epsilon,
        delta=settings["delta"],
        bracket=(0.01, 1000.0),
    )
    run = dpjax.run(
        functools.partial(kernel, noise_multiplier=multiplier),
        posterior,
        num_steps,
        initial_position=start[None],
        num_chains=1,
        budget=budget,
        warmup_fraction=1 - last,
        verbose=False,
        unsafe_key=jax.random.key(seed),
    )
    return jax.tree.map(lambda leaf: leaf[0].mean(axis=0), run.infos.parameters)


def _dp_sep(posterior, start, settings, family, site_fn, epsilon, seed):
    options = settings["dp_sep"]
    kernel = functools.partial(
        dp_sep,
        match=site_fn,
        family=family,
        l2_clip_norm=options["l2_clip_norm"],
        sampling_prob=options["sampling_prob"],
        schedule=optax.constant_schedule(options["rate"]),
        init_scale=options["init_scale"],
        least_precision=options["least_precision"],
        nominal_num_records=settings["nominal_num_records"],
    )
    theta = _private(
        kernel, posterior, start, settings, epsilon, options["num_steps"], 0.5, seed
    )
    return family.moments(jnp.asarray(theta))


def _dp_em(posterior, start, settings, family, site_fn, epsilon, seed):
    options = settings["dp_em"]
    kernel = functools.partial(
        dp_em,
        family=family,
        component_sd=settings["component_sd"],
        record_norm=options["record_norm"],
        prior_strength=options["prior_strength"],
        nominal_num_records=settings["nominal_num_records"],
    )
    mixture = _private(
        kernel, posterior, start, settings, epsilon, options["num_steps"], 0.2, seed
    )
    counts = (
        mixture.weights * settings["nominal_num_records"] + options["prior_strength"]
    )
    return Moments(mixture.means, mixture.covariances / counts[:, None, None])


def rows(settings):
    """Yield a row for every method, clip norm, epsilon and seed."""
    posterior, means = problem(settings)
    family = Full(means.shape)
    site_fn = sites.mixture(settings["num_components"], settings["component_sd"])
    exact = reference(posterior, means)

    def row(method, epsilon, clip, seed, found):
        distances = _distances(found, exact)
        paper = PAPER.get((method, epsilon, clip), math.nan)
        return (
            dict(method=method, epsilon=epsilon, clip=clip, seed=seed)
            | distances
            | dict(paper=paper)
        )

    for seed in range(settings["num_seeds"]):
        rng = np.random.default_rng([settings["seed"], seed])
        start = means + settings["start_sd"] * rng.normal(size=means.shape)
        start = jnp.asarray(start)
        common = dict(family=family, initial_position=start)
        found = ep(
            posterior, site_fn, num_sweeps=settings["ep"]["num_sweeps"], **common
        )
        yield row("ep", math.inf, math.inf, seed, found)
        for clip in settings["sep"]["clips"]:
            found = sep(
                jax.random.key(seed),
                posterior,
                site_fn,
                num_epochs=settings["sep"]["num_epochs"],
                batch_size=settings["sep"]["batch_size"],
                l2_clip_norm=clip,
                **common,
            )
            yield row("sep", math.inf, clip, seed, found)
        for epsilon in settings["epsilons"]:
            arguments = posterior, start, settings, family, site_fn, epsilon, seed
            clip = settings["dp_sep"]["l2_clip_norm"]
            yield row("dp_sep", epsilon, clip, seed, _dp_sep(*arguments))
            yield row("dp_em", epsilon, 0.0, seed, _dp_em(*arguments))
        options = settings["published"]
        run = dpjax.run(
            functools.partial(
                dp_sep_published,
                match=site_fn,
                family=family,
                l2_clip_norm=options["l2_clip_norm"],
                noise_multiplier=0.0,
            ),
            posterior,
            options["num_epochs"],
            initial_position=start[None],
            num_chains=1,
            budget=None,
            warmup_fraction=0.5,
            verbose=False,
            unsafe_key=jax.random.key(seed),
        )
        found = family.moments(jnp.asarray(run.infos.parameters[0, -1]))
        yield row("published", math.inf, options["l2_clip_norm"], seed, found)
