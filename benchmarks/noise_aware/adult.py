"""Table 3: calibration of logistic regression on Adult with 57 coefficients.

Columns as in the paper's code: six attributes, all their categories, and five numbers
as z-scores of the split they are in, which epsilon does not cover; rows with a question
mark are left out. A prediction is the mean of 1 / (1 + exp(-x'theta)) over the
posterior. The test records are sorted by it and cut into ten equal parts. The curve of
the mean prediction against the observed rate, extended linearly, is compared with the
diagonal at 100 rates.

- `published`: the settings of the paper's code.
- `ours`: full batches, no prior and entropy inside the clip, the model's own prior for
  phi*, curvatures about the guide's guess.

`naive` plugs in the last location.
"""

import time

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import NeighboringRelation
from scipy.interpolate import interp1d
from tqdm import tqdm

import dpjax
from benchmarks.noise_aware import evaluate
from dpjax import privacy
from dpjax.datasets import adult
from dpjax.models import logistic_regression
from dpjax.vi.guides import MeanField
from dpjax.vi.optimizers import noise_scaled_sgd

__all__ = ["calibration", "figure", "load", "rows", "runner", "summary"]

CATEGORIES = (
    "workclass",
    "education",
    "marital-status",
    "occupation",
    "race",
    "sex",
)
NUMBERS = ("age", "fnlwgt", "capital-gain", "capital-loss", "hours-per-week")
RATES = np.linspace(0.01, 0.99, 100)
PAPER = {
    "exact": {0.1: 0.061, 0.3: 0.026, 1.0: 0.024},
    "published_laplace": {0.1: 0.084, 0.3: 0.044, 1.0: 0.046},
    "naive": {0.1: 0.120, 0.3: 0.067, 1.0: 0.054},
}
"""The paper's RMSE; its NUTS beside the exact back end."""
SCORES = "rmse", "accuracy", "log_likelihood"


def load():
    """Features and labels of the training and of the test records."""
    found = []
    values = {}
    for columns in adult.load_adult().values():
        texts = [column for column in columns.values() if column.dtype.kind == "U"]
        kept = np.all([column != "?" for column in texts], axis=0)
        columns = {name: column[kept] for name, column in columns.items()}
        # Those of the training records, which come first.
        values = values or {name: np.unique(columns[name]) for name in CATEGORIES}
        parts = [columns[name][:, None] == values[name] for name in CATEGORIES]
        numbers = np.column_stack([columns[name] for name in NUMBERS])
        numbers = (numbers - numbers.mean(axis=0)) / numbers.std(axis=0)
        ones = np.ones((len(numbers), 1))
        features = np.concatenate([*parts, numbers, ones], axis=1)
        labels = columns["income"] == ">50K"
        found.append((features.astype(np.float32), labels.astype(np.float32)))
    return found


def calibration(predictions, labels, num_bins: int = 10):
    """RMSE of the calibration curve, and its mean predictions and observed rates."""
    order = np.argsort(predictions)
    means = [part.mean() for part in np.array_split(predictions[order], num_bins)]
    rates = [part.mean() for part in np.array_split(labels[order], num_bins)]
    rates, first = np.unique(rates, return_index=True)
    means = np.array(means)[first]
    curve = interp1d(rates, means, fill_value="extrapolate")
    return float(np.sqrt(np.mean((curve(RATES) - RATES) ** 2))), means, rates


def predict(features, theta) -> np.ndarray:
    """Mean chance of a one over theta, ``(num_samples, dim)``."""
    parts = np.array_split(np.asarray(theta, np.float32), max(len(theta) // 100, 1))
    total = sum(np.sum(1 / (1 + np.exp(-features @ part.T)), axis=1) for part in parts)
    return total / len(theta)


def runner(settings: dict, name: str, at: int, posterior, dim: int):
    """DPVI with the options of that name for epsilon number `at`.

    Returns
    -------
    A function of a key to what was released and the last parameters, with an axis for
    one chain.
    """
    options = settings[name]

    def algorithm_of(posterior, noise_multiplier):
        return dpjax.dpvi(
            posterior,
            noise_scaled_sgd(options["num_steps"], options["distances"][at]),
            guide=MeanField(dim, options["initial_scale"]),
            l2_clip_norm=options["l2_clip_norm"],
            noise_multiplier=noise_multiplier,
            sampling_prob=options["sampling_prob"],
            num_samples=options["num_samples"],
            aligned=False,
            preconditioner=options["preconditioner"],
            published=name == "published",
        )

    if "noise_multipliers" in options:
        multiplier = options["noise_multipliers"][at]
    else:
        multiplier = privacy.calibrate(
            lambda value: algorithm_of(posterior, value).privacy(
                1, NeighboringRelation.REPLACE_SPECIAL
            ),
            num_steps=options["num_steps"],
            epsilon=settings["epsilons"][at],
            delta=settings["delta"],
            bracket=(1.0, 3e4),
        )

    @jax.jit
    def run(key, posterior):
        algorithm = algorithm_of(posterior, multiplier)
        state = algorithm.init(jnp.zeros(dim))
        keys = jax.random.split(key, options["num_steps"])
        last, infos = jax.lax.scan(lambda s, k: algorithm.step(k, s), state, keys)
        return jax.tree.map(lambda leaf: leaf[None], (infos, last.position))

    return lambda key: jax.device_get(run(key, posterior))


def posteriors(options: dict, infos) -> dict:
    """Noise-aware posteriors by method."""
    first = int(options["warmup_fraction"] * options["num_steps"])
    infos = jax.tree.map(lambda leaf: leaf[:, first:], infos)
    if "curvature_log_sd" in options:
        prior = dict(optimum_mean=0.0, optimum_sd=1.0)
        prior |= dict(curvature_log_sd=options["curvature_log_sd"])
        return {"exact": dpjax.noise_aware(infos, **prior)}
    prior = dict(sampling_error_sd=options["sampling_error_sd"])
    return {
        method: dpjax.noise_aware(infos, method=method, **prior)
        for method in ("exact", "laplace", "published_laplace")
    }


def rows(settings: dict):
    """A row for every run that is not among the finished, and method."""
    finished = {
        (r["run"], float(r["epsilon"]), int(r["repetition"]))
        for r in settings.get("finished", ())
    }
    (features, labels), test = load()
    dim = features.shape[1]
    posterior = logistic_regression(jnp.asarray(features), jnp.asarray(labels))
    for name in settings["methods"]:
        for at, epsilon in enumerate(settings["epsilons"]):
            repetitions = [
                repetition
                for repetition in range(settings[name]["num_runs"])
                if (name, epsilon, repetition) not in finished
            ]
            if repetitions:
                run = runner(settings, name, at, posterior, dim)
            for repetition in tqdm(repetitions, f"{name} {epsilon:g}"):
                start = time.perf_counter()
                key = jax.random.key(settings["seed"] + repetition)
                run_key, draw_key = jax.random.split(key)
                infos, last = run(run_key)
                seconds = time.perf_counter() - start
                found = {"naive": last["location"]}
                for method, aware in posteriors(settings[name], infos).items():
                    draw_key, key = jax.random.split(draw_key)
                    size = settings["posterior_samples"]
                    found[method] = aware.draws(key, MeanField(dim), size)[0]
                for method, theta in found.items():
                    row = dict(run=name, epsilon=epsilon, repetition=repetition)
                    yield row | _scores(method, theta, test) | {"seconds": seconds}


def _scores(method, theta, test):
    features, labels = test
    predictions = predict(features, theta)
    rmse, means, rates = calibration(predictions, labels)
    likelihoods = np.where(labels == 1, predictions, 1 - predictions)
    return dict(
        method=method,
        rmse=rmse,
        accuracy=float(np.mean((predictions > 0.5) == labels)),
        log_likelihood=float(np.mean(np.log(likelihoods))),
        predictions=" ".join(f"{mean:.4f}" for mean in means),
        rates=" ".join(f"{rate:.4f}" for rate in rates),
    )


def summary(rows: list[dict]) -> list[dict]:
    """Mean over the repetitions, and sd of the RMSE, beside the paper's mean."""
    cells = {}
    for row in rows:
        key = row["run"], float(row["epsilon"]), row["method"]
        cells.setdefault(key, []).append([float(row[score]) for score in SCORES])
    found = []
    for (run, epsilon, method), values in cells.items():
        row = dict(run=run, epsilon=epsilon, method=method, runs=len(values))
        row |= dict(zip(SCORES, np.mean(values, axis=0).tolist(), strict=True))
        row["rmse_sd"] = float(np.std(np.transpose(values)[0]))
        found.append(row | {"paper": PAPER.get(method, {}).get(epsilon, np.nan)})
    return found


def figure(rows: list[dict], path) -> None:
    """Calibration curves of all repetitions, a panel for every run and epsilon."""
    runs = list(dict.fromkeys(row["run"] for row in rows))
    epsilons = sorted({float(row["epsilon"]) for row in rows})
    colours = {method: f"C{i}" for i, method in enumerate(PAPER)}
    axes = "observed rate", "mean prediction"
    with evaluate.sheet(path, len(runs), len(epsilons), *axes) as panels:
        for row in rows:
            if row["method"] not in colours:
                continue
            place = runs.index(row["run"]), epsilons.index(float(row["epsilon"]))
            rates, means = (
                np.array(row[name].split(), float) for name in ("rates", "predictions")
            )
            panels[place].plot(rates, means, color=colours[row["method"]], alpha=0.4)
        for (i, j), panel in np.ndenumerate(panels):
            panel.set_title(f"{runs[i]}, epsilon {epsilons[j]:g}")
        for method, colour in colours.items():
            panels[0, 0].plot([], [], color=colour, label=method.replace("_", " "))
