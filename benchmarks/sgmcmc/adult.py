"""Figure 3: logistic regression on Adult, with the sound epsilon on the axis.

- `dp_sgld`: steps eta t^(-1/3), as large as epsilon pays for, temperature 1.
- `published`: temperature 1/2 and the step size of Theorem 3 with the constant of the
  paper's example, which claims epsilon; the sound one is beside it.
- `ops`: one posterior sample, whose law is assumed exact.
- `hybrid`: half of epsilon for one posterior sample, half for SGLD from there.
- `sgld`: steps as for the largest epsilon, all records, and no claim.

SGLD releases its whole trajectory and is judged by the posterior mean of the chance of
the second half; one posterior sample by itself. PATE, which needs public records, is
left out.
"""

import functools
import time

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

import dpjax
from benchmarks.dpvi import adult as load
from benchmarks.dpvi import score
from benchmarks.thesis import report
from dpjax import privacy
from dpjax.comparisons import sgld_claims
from dpjax.comparisons.one_posterior_sample import hybrid, one_posterior_sample
from dpjax.privacy.step_size import max_step_size
from dpjax.sgmcmc.schedules import power_decay

NUMERICAL = 0.999
"""Share of delta for ideal noise; numerical error takes less than the rest."""

METHODS = ("dp_sgld", "published", "ops", "hybrid", "sgld")


class Cell:
    """One method at one epsilon on the data."""

    def __init__(self, settings, posterior, test):
        self.settings, self.posterior, self.test = settings, posterior, test
        self.dim = test[0].shape[1]
        self.common = dict(
            l2_clip_norm=settings["l2_clip_norm"],
            sampling_prob=settings["sampling_prob"],
        )
        self.largest = functools.cache(self._largest)

    def sgld(self, step_size, temperature=1.0):
        return functools.partial(
            dpjax.sgld,
            step_size=power_decay(step_size),
            dim=self.dim,
            temperature=temperature,
            **self.common,
        )

    def _largest(self, epsilon):
        return max_step_size(
            self.settings["num_steps"],
            num_records=self.posterior.num_records,
            epsilon=epsilon,
            delta=self.settings["delta"] * NUMERICAL,
            schedule=power_decay(1.0),
            **self.common,
        )

    def draws(self, key, algorithm_fn):
        """Positions of a chain, and what it costs under substitution."""
        num_steps = self.settings["num_steps"]
        run = dpjax.run(
            algorithm_fn,
            self.posterior,
            num_steps,
            initial_position=jnp.zeros((1, self.dim)),
            num_chains=1,
            budget=None,
            verbose=False,
            unsafe_key=key,
        )
        events = algorithm_fn(self.posterior).privacy(num_steps)
        return run.positions, privacy.epsilon(events, self.settings["delta"])

    def one_sample(self, key, epsilon):
        options = self.settings["one_posterior_sample"]
        return one_posterior_sample(
            self.posterior,
            epsilon,
            initial_position=jnp.zeros(self.dim),
            unsafe_key=key,
            **options,
        )

    def run(self, method, epsilon, key):
        """Positions, step size of the first step, and sound epsilon."""
        if method == "ops":
            return self.one_sample(key, epsilon), np.nan, epsilon
        if method == "published":
            claim = sgld_claims.li_theorem_3(
                self.settings["num_steps"],
                num_records=self.posterior.num_records,
                epsilon=epsilon,
                delta=self.settings["delta"],
                constant=self.settings["constant"],
                **self.common,
            )
            algorithm_fn = self.sgld(claim.step_size, temperature=0.5)
            positions, sound = self.draws(key, algorithm_fn)
            return positions, claim.step_size, sound
        if method == "hybrid":
            step_size = self.largest(epsilon / 2)
            options = dict(self.settings["one_posterior_sample"])
            options.pop("num_steps")
            run = hybrid(
                self.sgld(step_size),
                self.posterior,
                self.settings["num_steps"],
                initial_position=jnp.zeros(self.dim),
                num_chains=1,
                budget=dpjax.Budget(epsilon, self.settings["delta"]),
                first_epsilon=epsilon / 2 * (1 - 1e-6),
                verbose=False,
                unsafe_key=key,
                **options,
            )
            return run.positions, step_size, run.statement.epsilon
        step_size = self.largest(epsilon)
        algorithm_fn = self.sgld(step_size)
        if method == "sgld":
            options = {**algorithm_fn.keywords, "sampling_prob": 1.0}
            algorithm_fn = functools.partial(dpjax.sgld, **options)
        positions, sound = self.draws(key, algorithm_fn)
        return positions, step_size, np.inf if method == "sgld" else sound


def run(settings: dict, folder, quick: bool, methods=None) -> None:
    """Rows of ``adult.csv`` that are missing, and figure 3."""
    if quick:
        settings = settings | dict(epsilons=[1.0], repetitions=1, num_steps=100)
        settings["one_posterior_sample"] |= dict(num_warmup=50, num_steps=50)
    path = folder / "adult.csv"
    done = {
        (r["method"], float(r["epsilon"]), int(r["repetition"]))
        for r in report.read(path)
    }
    cells = [
        (method, epsilon, repetition)
        for repetition in range(settings["repetitions"])
        for method in methods or METHODS
        for epsilon in (
            settings["epsilons"][-1:] if method == "sgld" else settings["epsilons"]
        )
        if (method, epsilon, repetition) not in done
    ]
    posterior, test = load(settings["columns"])
    cell = Cell(settings, posterior, test)
    with tqdm(cells, unit="cell") as bar:
        for method, epsilon, repetition in bar:
            bar.set_postfix_str(f"{method} {epsilon:g}")
            start = time.perf_counter()
            key = jax.random.key(repetition)
            positions, step_size, sound = cell.run(method, epsilon, key)
            accuracy, log_likelihood = score(positions, *test)
            row = dict(
                method=method,
                epsilon=epsilon,
                repetition=repetition,
                sound_epsilon=float(sound),
                step_size=float(step_size),
                accuracy=float(accuracy),
                log_likelihood=float(log_likelihood),
                seconds=time.perf_counter() - start,
            )
            report.append(path, [row])
    _plot(report.read(path), folder / "figure_3.png")


def _plot(rows, path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 2, figsize=(9, 3.6))
    for panel, score_name in zip(panels, ("accuracy", "log_likelihood"), strict=True):
        for place, method in enumerate(METHODS):
            chosen = [r for r in rows if r["method"] == method]
            if not chosen:
                continue
            groups = {}
            for row in chosen:
                groups.setdefault(row["epsilon"], []).append(row)
            values = [
                [float(r[score_name]) for r in group] for group in groups.values()
            ]
            means = [np.mean(group) for group in values]
            if method == "sgld":
                panel.axhline(
                    means[0], color="k", linestyle=":", label="SGLD, not private"
                )
                continue
            epsilons = [float(group[0]["sound_epsilon"]) for group in groups.values()]
            errors = [np.std(group) for group in values]
            panel.errorbar(epsilons, means, errors, color=f"C{place}", label=method)
        panel.set_xscale("log")
        panel.set_xlabel("sound epsilon, substitution")
        panel.set_ylabel(score_name.replace("_", " "))
    panels[0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
