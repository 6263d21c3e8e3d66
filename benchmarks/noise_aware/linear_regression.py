"""Table 2: coverage of the posterior of a linear regression with 12 unknowns.

    sig2 ~ InvGamma(20, 1/2),    w | sig2 ~ N(0, 4 sig2 I_11),
    y | x ~ N(w'x, sig2),    x ~ N(0, I_10) and a column of ones,

each draw of (w, sig2) with data of its own. Coverage is that of (w, log(e^sig2 - 1)).

- `published`: the settings of the paper's code; from the same traces the exact
  noise-aware posterior, Laplace's approximation without and with the code's error, the
  last iterate and the iterate average.
- `ours`: full batches, no prior and entropy inside the clip, the model's own prior for
  phi*, and a curvature about the guide's guess.
- `gibbs`: Gibbs-SS-Noisy, from noisy sufficient statistics.
"""

import functools
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from dp_accounting import NeighboringRelation
from tqdm import tqdm

import dpjax
from benchmarks.noise_aware import gibbs_linear
from dpjax import privacy
from dpjax.evaluation import coverage_rmse, noise_floor
from dpjax.evaluation.tarp import coverage, rmse_with_error, shares, shares_marginal
from dpjax.vi.guides import MeanField
from dpjax.vi.optimizers import noise_scaled_sgd

__all__ = ["posterior_samples", "rows", "runner", "sampler", "scores", "simulate"]

DIM = 12
SHAPE, RATE = 20.0, 0.5
PAPER = {
    "exact": {0.1: 0.036, 0.3: 0.035, 1.0: 0.027},
    "published_laplace": {0.1: 0.078, 0.3: 0.098, 1.0: 0.060},
    "last_iterate": {0.1: 0.512, 0.3: 0.307, 1.0: 0.360},
    "gibbs": {0.1: 0.301, 0.3: 0.299, 1.0: 0.323},
}
"""The paper's RMSE; its NUTS beside the exact back end."""


def logprior(position):
    weights, variance = position["weights"], jax.nn.softplus(position["variance"])
    of_variance = -(SHAPE + 1) * jnp.log(variance) - RATE / variance
    of_weights = -jnp.sum(weights**2) / (8 * variance)
    of_weights -= weights.size * jnp.log(variance) / 2
    return of_variance + of_weights + jax.nn.log_sigmoid(position["variance"])


def loglikelihood(position, record):
    x, y = record
    variance = jax.nn.softplus(position["variance"])
    residual = y - jnp.dot(x, position["weights"])
    return -(residual**2) / (2 * variance) - jnp.log(variance) / 2


def simulate(rng: np.random.Generator, num_draws: int, num_records: int):
    """theta ``(num_draws, 12)``, x ``(num_draws, num_records, 11)``, y."""
    variance = RATE / rng.gamma(SHAPE, 1.0, num_draws)
    sd = np.sqrt(variance)[:, None]
    weights = 2 * sd * rng.standard_normal((num_draws, DIM - 1))
    x = rng.standard_normal((num_draws, num_records, DIM - 1), np.float32)
    x[..., -1] = 1.0
    noise = sd * rng.standard_normal((num_draws, num_records))
    y = np.einsum("dnj,dj->dn", x, weights) + noise
    truth = np.column_stack([np.log(np.expm1(variance)), weights])
    return truth, x, y.astype(np.float32)


def noise_multiplier(options, settings, epsilon) -> float:
    """That of the options, or what spends epsilon; add/remove, as in the paper."""
    at = settings["epsilons"].index(epsilon)
    if "noise_multipliers" in options:
        return options["noise_multipliers"][at]
    outline = dpjax.Posterior(logprior, loglikelihood, (np.zeros((1, 11)), np.zeros(1)))

    def step_events(value):
        algorithm = dpjax.dpvi(
            outline,
            optax.sgd(1.0),
            guide=MeanField(DIM),
            l2_clip_norm=1.0,
            noise_multiplier=value,
            sampling_prob=options["sampling_prob"],
            aligned=False,
        )
        return algorithm.privacy(1, NeighboringRelation.REPLACE_SPECIAL)

    return privacy.calibrate(
        step_events,
        num_steps=options["num_steps"],
        epsilon=epsilon,
        delta=settings["delta"],
        bracket=(1.0, 3e4),
    )


def runner(options: dict, multiplier: float, at: int):
    """DPVI on many data sets, with the options for epsilon number `at`.

    Returns
    -------
    A function of keys, x and y, a run each along the leading axes, to what was released
    and the last parameters.
    """
    is_published = "noise_multipliers" in options
    weights, variance, rho = _of(options["preconditioner"], at)
    preconditioner = {"location": _location(weights, variance), "rho": rho}
    weights, variance, rho = _of(options["distance"], at)
    distance = {"location": _location(weights, variance), "rho": rho}
    num_steps = options["num_steps"]
    optimizer = noise_scaled_sgd(num_steps, distance)
    if "held_fraction" in options:
        first = int(options["held_fraction"] * num_steps)
        schedule = optax.exponential_decay(
            1.0, num_steps - first, options["final_fraction"], transition_begin=first
        )
        factor = options["search_distance"] / weights
        optimizer = optax.chain(optimizer, _search(first, factor, schedule))
    start = _location(
        np.full(DIM - 1, options["initial_weight"]), options["initial_variance"]
    )
    scale_of_weight, scale_of_variance = options["initial_scales"]
    scales = np.array([scale_of_variance, *[scale_of_weight] * (DIM - 1)])

    @jax.jit
    @jax.vmap
    def run(key, x, y):
        algorithm = dpjax.dpvi(
            dpjax.Posterior(logprior, loglikelihood, (x, y)),
            optimizer,
            guide=MeanField(DIM),
            l2_clip_norm=options["l2_clip_norm"],
            noise_multiplier=multiplier,
            sampling_prob=options["sampling_prob"],
            num_samples=options["num_samples"],
            aligned=False,
            preconditioner=preconditioner,
            published=is_published,
        )
        state = algorithm.init(jax.tree.map(jnp.asarray, start))
        rho = jnp.log(jnp.expm1(jnp.asarray(scales, state.position["rho"].dtype)))
        state = state._replace(position=state.position | {"rho": rho})

        def step(state, key):
            state, info = algorithm.step(key, state)
            return state, info

        final, infos = jax.lax.scan(step, state, jax.random.split(key, num_steps))
        return infos, final.position

    return run


def _of(values, at):
    """A list for all epsilons, or the one of number `at`."""
    if isinstance(values[0], list):
        return values[min(at, len(values) - 1)]
    return values


def _location(weights, variance):
    return {"variance": variance, "weights": weights}


def _search(num_steps, factor, schedule):
    """For the first steps the variance stays, and the weights go faster by a factor."""

    def update(updates, count, params=None):
        is_search = count < num_steps
        location = _location(
            updates["location"]["weights"]
            * jnp.where(is_search, factor, schedule(count)),
            updates["location"]["variance"] * jnp.where(is_search, 0.0, 1.0),
        )
        return updates | {"location": location}, count + 1

    return optax.GradientTransformation(lambda params: jnp.zeros((), int), update)


def posterior_samples(options: dict, infos, last, key, num_samples: int) -> dict:
    """Samples of theta by method, ``(num_draws, num_samples, 12)``, and a centre."""
    first = int(options["warmup_fraction"] * options["num_steps"])
    infos = jax.tree.map(lambda leaf: leaf[:, first:], infos)
    average = jax.tree.map(lambda leaf: leaf.mean(axis=1), infos.parameters)
    if "curvature_log_sd" in options:
        prior = jax.random.gamma(jax.random.key(0), SHAPE, (10_000,))
        variance = np.log(np.expm1(RATE / np.asarray(prior, np.float64)))
        sd_of_weight = 2 * (RATE / (SHAPE - 1)) ** 0.5
        methods = ("exact",)
        options = dict(
            curvature_log_sd=options["curvature_log_sd"],
            optimum_mean={"location": _location(0.0, variance.mean()), "rho": 0.0},
            optimum_sd={"location": _location(sd_of_weight, variance.std()), "rho": 1},
        )
    else:
        methods = ("exact", "laplace", "published_laplace")
        options = dict(sampling_error_sd=options["sampling_error_sd"])
    keys = iter(jax.random.split(key, len(methods) + 2))
    found = {
        method: dpjax.noise_aware(infos, method=method, **options).draws(
            next(keys), MeanField(DIM), num_samples
        )
        for method in methods
    }
    sample = functools.partial(MeanField(DIM).sample, num_samples=num_samples)
    for name, fit in (("last_iterate", last), ("iterate_average", average)):
        own = jax.random.split(next(keys), len(fit["rho"]))
        found[name] = jax.vmap(sample)(own, fit)
    stacked = {name: _stacked(theta) for name, theta in found.items()}
    return stacked, _stacked(average["location"])


def _stacked(location):
    variance, weights = (np.asarray(location[k]) for k in ("variance", "weights"))
    return np.concatenate([variance[..., None], weights], axis=-1)


def _gibbs(options, epsilon, rng, x, y):
    """Samples from statistics released at `epsilon`, and their mean."""
    dim = DIM - 1
    prior = gibbs_linear.Prior(np.zeros(dim), np.eye(dim) / 4, SHAPE, RATE)
    statistics = [
        gibbs_linear.release(
            rng,
            features[:, :-1].astype(np.float64),
            response.astype(np.float64),
            feature_bound=np.full(dim - 1, options["feature_bound"]),
            response_bound=options["response_bound"],
            epsilon=epsilon,
        )
        for features, response in zip(x, y, strict=True)
    ]
    weights, variance = gibbs_linear.sample(
        rng,
        statistics,
        prior,
        num_warmup=options["num_warmup"],
        num_samples=options["num_samples"],
    )
    unconstrained = variance + np.log(-np.expm1(-variance))
    samples = np.concatenate([unconstrained[..., None], weights], axis=-1)
    return {"gibbs": samples}, samples.mean(axis=1)


def sampler(settings: dict, name: str, at: int):
    """A function of a generator, x and y to samples by method, and a centre."""
    options, epsilon = settings[name], settings["epsilons"][at]
    if name == "gibbs":
        return functools.partial(_gibbs, options, epsilon)
    run = runner(options, noise_multiplier(options, settings, epsilon), at)

    def sample(rng, x, y):
        run_key, draw_key = jax.random.split(jax.random.key(int(rng.integers(2**32))))
        infos, last = jax.device_get(run(jax.random.split(run_key, len(x)), x, y))
        size = settings["posterior_samples"]
        return posterior_samples(options, infos, last, draw_key, size)

    return sample


class Scores(NamedTuple):
    """What the posteriors of some draws by one method are worth.

    nearer
        Shares of the samples nearer than the truth, ``(num_repeats, num_draws)``.
    z
        Truth minus mean over sd, ``(num_draws, 12)``.
    marginal
        Coverage of each component, ``(12, num_repeats, 21)``.
    """

    nearer: np.ndarray
    z: np.ndarray
    marginal: np.ndarray


def scores(settings: dict, sample, at: int, first: int) -> dict[str, Scores]:
    """By method, of the chunk of draws that begins at `first`."""
    rng = np.random.default_rng([settings["seed"], at, first])
    truth, x, y = simulate(rng, settings["chunk"], settings["num_records"])
    found, center = sample(rng, x, y)
    marginal_rng = np.random.default_rng([settings["seed"], at, first, 1])
    return {
        method: Scores(
            shares(rng, samples, truth, center),
            (truth - samples.mean(axis=1)) / samples.std(axis=1),
            coverage(shares_marginal(marginal_rng, samples, truth, center)),
        )
        for method, samples in found.items()
    }


def rows(settings: dict):
    """A row for every way to run, method and epsilon that is not among the finished."""
    finished = {(r["run"], float(r["epsilon"])) for r in settings.get("finished", ())}
    for name in settings["methods"]:
        for at, epsilon in enumerate(settings["epsilons"]):
            if (name, epsilon) not in finished:
                sample = sampler(settings, name, at)
                start = time.perf_counter()
                chunks = range(0, settings[name]["num_draws"], settings["chunk"])
                parts = [
                    scores(settings, sample, at, first)
                    for first in tqdm(chunks, f"{name} {epsilon:g}")
                ]
                seconds = time.perf_counter() - start
                yield from summary(settings["seed"], name, epsilon, parts, seconds)


def summary(seed: int, name: str, epsilon: float, parts: list, seconds: float):
    """Rows of the methods from the `scores` of equally large chunks.

    `marginal` has the coverage errors of the variance and of each weight.
    """
    rng = np.random.default_rng(seed)
    floor = noise_floor(rng, sum(len(next(iter(part.values())).z) for part in parts))
    for method in parts[0]:
        nearer, z, marginal = zip(*(part[method] for part in parts), strict=True)
        rmse, error = rmse_with_error(rng, np.concatenate(nearer, axis=1))
        z = np.concatenate(z)
        each = coverage_rmse(np.mean(marginal, axis=0)).mean(axis=1)
        yield dict(
            run=name,
            epsilon=epsilon,
            method=method,
            draws=len(z),
            rmse=rmse,
            error=error,
            floor=float(floor.mean()),
            floor_95=float(np.quantile(floor, 0.95)),
            paper=PAPER.get(method, {}).get(epsilon, np.nan),
            marginal=" ".join(f"{number:.3g}" for number in each),
            z_sd_weights=float(z[:, 1:].std()),
            z_mean_variance=float(z[:, 0].mean()),
            z_sd_variance=float(z[:, 0].std()),
            seconds=seconds,
        )
