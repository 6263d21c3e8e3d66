"""Bayesian neural networks on the UCI sets (paper, tables 3 and 4), at a sound epsilon.

All methods fit the model of `dpjax.models.network` on targets and features scaled by
public ranges. What they return are draws of the weights, of which predictions are made:
with f_k(x) the outputs and s_k the noises of K draws, the prediction is the mean of
f_k(x), its log-likelihood that of the mean density, and the posterior sd of f(x) the
spread of f_k(x). The last is what a mean alone hides.
"""

import functools
import math
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

import dpjax
from dpjax import privacy
from dpjax.comparisons.dp_sep_published import dp_sep_published
from dpjax.comparisons.sep import sep
from dpjax.datasets.uci import load_regression, standardize
from dpjax.ep import pbp
from dpjax.ep.dp_sep import dp_sep
from dpjax.ep.gaussians import Diagonal
from dpjax.models import network
from dpjax.vi.dpvi import dpvi
from dpjax.vi.guides import MeanField

__all__ = ["METHODS", "evaluate", "problem", "scores"]

NUM_DRAWS = 100


def problem(name: str, settings: dict, split: int, tune: bool = False):
    """Training posterior, start and test set of a 90/10 split.

    Parameters
    ----------
    settings
        Of the set's file in `configs/sep`.
    split
        Seed of the split.
    tune
        Hold out a tenth of the training records instead of the test set.
    """
    features, targets = load_regression(name)
    features = standardize(features, settings["feature_ranges"])
    scaled = standardize(targets, settings["target_range"])
    order = np.random.default_rng(split).permutation(len(targets))
    test, train = np.split(order, [len(order) // 10])
    if tune:
        test, train = np.split(train, [len(train) // 10])
    low, high = settings["target_range"]
    posterior = network.bayesian_network(
        *(jnp.asarray(x[train], np.float32) for x in (features, scaled))
    )
    key = jax.random.key(split)
    start = network.start(key, features.shape[1], settings["num_hidden"])
    held_out = features[test].astype(np.float32), targets[test], low, high
    return posterior, start, held_out


@jax.jit
def _outputs(draws, features):
    one = jax.vmap(network.predict, (None, 0))
    return jax.lax.map(lambda draw: one(draw, features), draws)


def scores(draws: np.ndarray, held_out) -> dict:
    """What draws ``(K, size)`` say of held-out records, in the target's own units."""
    features, targets, low, high = held_out
    unit = (high - low) / 4
    outputs = np.asarray(_outputs(jnp.asarray(draws), jnp.asarray(features)))
    outputs = low + (outputs.astype(np.float64) + 2) * unit
    noise = np.exp(np.asarray(draws, np.float64)[:, -1:]) * unit
    mean, posterior_sd = outputs.mean(axis=0), outputs.std(axis=0)
    gap = (targets - outputs) / noise
    log_density = -0.5 * gap**2 - np.log(noise) - 0.5 * math.log(2 * math.pi)
    total = np.sqrt(posterior_sd**2 + np.mean(noise**2))
    return dict(
        rmse=np.sqrt(np.mean((targets - mean) ** 2)),
        log_likelihood=np.mean(
            np.logaddexp.reduce(log_density, axis=0) - math.log(len(draws))
        ),
        posterior_sd=np.mean(posterior_sd),
        noise_sd=np.sqrt(np.mean(noise**2)),
        coverage_95=np.mean(np.abs(targets - mean) < 1.96 * total),
    )


def _private(kernel, posterior, start, common, seed):
    """Draws and multiplier of `kernel` at the noise that spends the budget."""
    relation = privacy.NeighboringRelation[common["neighboring_relation"]]
    budget = privacy.Budget(common["epsilon"], common["delta"], relation)

    def events(multiplier):
        return kernel(posterior, noise_multiplier=multiplier).privacy(1, relation)

    multiplier = privacy.calibrate(
        events,
        num_steps=common["num_steps"],
        epsilon=budget.epsilon,
        delta=budget.delta,
        bracket=(0.3, 300.0),
    )
    run = dpjax.run(
        functools.partial(kernel, noise_multiplier=multiplier),
        posterior,
        common["num_steps"],
        initial_position=start[None],
        num_chains=1,
        budget=budget,
        thinning=max(common["num_steps"] // (2 * NUM_DRAWS), 1),
        verbose=False,
        unsafe_key=jax.random.key(seed),
    )
    return run.positions[0], multiplier


def run_dp_sep(
    posterior, start, common, seed, *,
    rate, init_scale, l2_clip_norm, least_precision, recentre, noise_weight,
    nominal_num_records,
):  # fmt: skip
    """All records agree on the noise's s: its two parameters count `noise_weight`."""
    weights = np.ones(2 * start.size)
    weights[[start.size - 1, -1]] = noise_weight
    kernel = functools.partial(
        dp_sep,
        match=pbp.network,
        family=Diagonal(start.shape),
        l2_clip_norm=l2_clip_norm,
        sampling_prob=common["sampling_prob"],
        schedule=optax.constant_schedule(rate),
        init_scale=init_scale,
        least_precision=least_precision,
        recentre=recentre,
        preconditioner=weights,
        nominal_num_records=nominal_num_records,
    )
    return _private(kernel, posterior, start, common, seed)


def run_dp_vi(
    posterior, start, common, seed, *, learning_rate, init_scale, l2_clip_norm
):
    kernel = functools.partial(
        dpvi,
        optimizer=optax.adam(learning_rate),
        guide=MeanField(start.size, init_scale),
        l2_clip_norm=l2_clip_norm,
        sampling_prob=common["sampling_prob"],
    )
    return _private(kernel, posterior, start, common, seed)


def run_vi(posterior, start, common, seed, *, learning_rate, init_scale, num_steps):
    kernel = functools.partial(
        dpvi,
        optimizer=optax.adam(learning_rate),
        guide=MeanField(start.size, init_scale),
        l2_clip_norm=math.inf,
        noise_multiplier=0.0,
    )
    run = dpjax.run(
        kernel,
        posterior,
        num_steps,
        initial_position=start[None],
        num_chains=1,
        budget=None,
        verbose=False,
        unsafe_key=jax.random.key(seed),
    )
    return run.positions[0][:NUM_DRAWS], 0.0


def _draws(moments, seed):
    """Of independent components."""
    family = Diagonal(moments.mean.shape)
    key = jax.random.fold_in(jax.random.key(seed), 1)
    return np.asarray(family.sample(key, family.natural(moments), NUM_DRAWS))


def run_sep(
    posterior, start, common, seed, *, rate, batch_fraction, init_scale, num_epochs
):
    moments = sep(
        jax.random.key(seed),
        posterior,
        pbp.network,
        family=Diagonal(start.shape),
        initial_position=start,
        num_epochs=num_epochs,
        batch_size=max(int(batch_fraction * posterior.num_records), 1),
        schedule=optax.constant_schedule(rate),
        init_scale=init_scale,
    )
    return _draws(moments, seed), 0.0


def run_pbp(posterior, start, common, seed, *, num_epochs):
    moments = pbp.pbp(
        jax.random.key(seed),
        posterior,
        initial_position=start,
        num_epochs=num_epochs,
    )
    return _draws(moments, seed), 0.0


def run_published(
    posterior, start, common, seed, *, num_epochs, noise_multiplier, l2_clip_norm
):
    run = dpjax.run(
        functools.partial(
            dp_sep_published,
            match=pbp.network,
            family=Diagonal(start.shape),
            noise_multiplier=noise_multiplier,
            l2_clip_norm=l2_clip_norm,
        ),
        posterior,
        num_epochs,
        initial_position=start[None],
        num_chains=1,
        budget=None,
        verbose=False,
        unsafe_key=jax.random.key(seed),
    )
    theta = jnp.asarray(run.infos.parameters[0, -1])
    return _draws(Diagonal(start.shape).moments(theta), seed), noise_multiplier


METHODS = {
    "dp_sep": run_dp_sep,
    "dp_vi": run_dp_vi,
    "sep": run_sep,
    "vi": run_vi,
    "pbp": run_pbp,
    "published": run_published,
}


def evaluate(name, settings, method, options, common, split, tune=False) -> dict:
    """One row: the scores of a method on one split."""
    posterior, start, held_out = problem(name, settings, split, tune)
    begun = time.perf_counter()
    draws, multiplier = METHODS[method](posterior, start, common, split, **options)
    seconds = time.perf_counter() - begun
    found = dict(data=name, method=method, split=split, noise_multiplier=multiplier)
    return found | scores(draws, held_out) | dict(seconds=seconds)
