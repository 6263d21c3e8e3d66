"""The clipping study: what clipped log ratios do to chains without privacy.

Random walk and Hamiltonian Metropolis-Hastings on the exact likelihood; only the log
ratios of the accept test are clipped, at a bound times the distance moved. The thesis
means the Euclidean distance; its code took the absolute value of the *sum* of the
components of the move, which is zero for (.1, -.1). Both run here.
"""

import dataclasses
import functools
import time
import tomllib
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from tqdm import tqdm

import dpjax
from benchmarks.thesis import published, replay, report
from benchmarks.thesis.settings import FOLDER, THESIS_MODELS
from dpjax import proposals
from dpjax.evaluation import median_bandwidth, mmd, reference_bandwidth
from dpjax.proposals import Move, Proposal
from dpjax.random import variates

__all__ = ["figure", "run"]

DISTANCES = {
    "L2": jnp.linalg.norm,
    "code": lambda jump: jnp.abs(jnp.sum(jump)),
}


def _measured(proposal: Proposal, distance: str) -> Proposal:
    """`proposal` with the distance of its moves measured as named."""

    def propose(words, position, walk, step_size):
        move = proposal.propose(words, position, walk, step_size)
        return move._replace(distance=DISTANCES[distance](move.position - position))

    return proposal._replace(propose=propose)


def _leapfrog(posterior, mass, num_integration_steps) -> Proposal:
    """The leapfrog on exact gradients as a proposal: it reads the data, not private."""

    def propose(words, position, walk, step_size):
        momentum = variates.normal(words, position.dtype) * jnp.sqrt(mass)

        def step(_, state):
            theta, momentum, slope = state
            momentum = momentum + step_size / 2 * slope
            theta = theta + step_size * momentum / mass
            slope = jax.grad(posterior)(theta)
            return theta, momentum + step_size / 2 * slope, slope

        start = position, momentum, jax.grad(posterior)(position)
        theta, end, _ = jax.lax.fori_loop(0, num_integration_steps, step, start)
        kinetic = jnp.sum((momentum**2 - end**2) / mass) / 2
        return Move(theta, jnp.linalg.norm(theta - position), walk, walk, kinetic)

    return Proposal(lambda position: (), lambda dim: dim, propose, lambda size: None)


def _proposal(posterior, distance, mass=None, num_integration_steps=None):
    if mass is None:
        return _measured(proposals.gaussian, distance)
    return _measured(_leapfrog(posterior, mass, num_integration_steps), distance)


def _algorithm(posterior, step_size, bound, **parameters):
    return dpjax.penalty(
        posterior,
        step_size,
        clip_bound=dpjax.Lipschitz(bound),
        test_noise_multiplier=0.0,
        proposal=_proposal(posterior, **parameters),
    )


def _cell(model, settings, distance, bound, num_chains, seed) -> list[dict]:
    """Rows of the chains of one sampler at one bound."""
    posterior, reference = model.posterior(), model.reference()
    path = {}
    if "mass" in settings:
        path["mass"] = np.asarray(settings["mass"][model.key], float)
        path["num_integration_steps"] = settings["num_integration_steps"]
        step_size = settings["step_size"]
    else:
        step_size = np.asarray(settings["step_size"][model.key], float)
    start = time.perf_counter()
    result = dpjax.run(
        # As an array the bound is traced, and all bounds share one compilation.
        functools.partial(
            _algorithm,
            step_size=step_size,
            bound=np.asarray(bound),
            distance=distance,
            **path,
        ),
        posterior,
        settings["num_steps"],
        initial_position=jnp.tile(jnp.asarray(model.true_theta)[None], (num_chains, 1)),
        num_chains=num_chains,
        budget=None,
        warmup_fraction=0.0,
        verbose=False,
        unsafe_key=jax.random.key(seed),
    )
    seconds = time.perf_counter() - start

    def replay_fn(rng_key, posterior, position):
        proposal = _proposal(posterior, distance, **path)
        again = replay.walk(proposal, step_size, dpjax.Lipschitz(bound))
        return again(rng_key, posterior, position)

    fixed = reference_bandwidth(reference)
    rows = []
    keys = jax.random.split(jax.random.key(seed + 1), num_chains)
    for chain, (key, draws) in enumerate(zip(keys, result.positions, strict=True)):
        bandwidth_key, replay_key = jax.random.split(key)
        kept = jnp.asarray(draws[len(draws) // 2 :])
        chosen = draws[:: max(len(draws) // replay.FEW, 1)]
        ratios, _ = replay.clip_fractions(
            replay_fn, replay_key, posterior, jnp.asarray(chosen)
        )
        rows.append(
            dict(
                chain=chain,
                acceptance=np.mean(result.acceptance_rate[chain]),
                mmd=float(mmd(kept, reference, fixed)),
                mmd_thesis=float(
                    mmd(
                        kept,
                        reference,
                        median_bandwidth(bandwidth_key, kept, reference),
                    )
                ),
                ratio_clip=float(np.mean(ratios)),
                seconds=seconds,
            )
        )
    return rows


def run(folder: Path, num_chains: int = 20, seed: int = 0) -> None:
    """Run what ``clipping.csv`` in `folder` lacks."""
    study = tomllib.loads((FOLDER / "clipping.toml").read_text())
    path = folder / "clipping.csv"
    cells = [
        dict(sampler=sampler, model=key, distance=distance, bound=bound)
        for key in study["models"]
        for sampler in ("rwmh", "hmc")
        for distance in DISTANCES
        for bound in study["bounds"]
    ]
    done = [{key: row[key] for key in cells[0]} for row in read(path)]
    for cell in tqdm([cell for cell in cells if cell not in done], unit="cell"):
        # The thesis's ten dimensional study has half of that model's records.
        model = dataclasses.replace(
            THESIS_MODELS[cell["model"]], num_records=study["num_records"]
        )
        settings, arguments = study[cell["sampler"]], (num_chains, seed)
        rows = _cell(model, settings, cell["distance"], cell["bound"], *arguments)
        report.append(path, [{**cell, **row} for row in rows])


def read(path: Path) -> list[dict]:
    """Rows of a file that `run` wrote."""
    text = ("sampler", "model", "distance")
    return [
        {key: value if key in text else float(value) for key, value in row.items()}
        for row in report.read(path)
    ]


def figure(folder: Path) -> None:
    """Figure 6.2: MMD against the bound and against the share of records clipped."""
    rows = read(folder / "clipping.csv")
    models = list(dict.fromkeys(row["model"] for row in rows))
    bounds = sorted({row["bound"] for row in rows})
    fig, axes = plt.subplots(2, len(models), figsize=(11, 7), squeeze=False)
    colours = {"hmc": "C0", "rwmh": "C1"}
    lines = []
    for column, model in enumerate(models):
        top, bottom = axes[:, column]
        for sampler, colour in colours.items():
            for number, distance in enumerate(DISTANCES):
                cells = [
                    [
                        row
                        for row in rows
                        if (row["sampler"], row["model"], row["distance"])
                        == (sampler, model, distance)
                        and row["bound"] == bound
                    ]
                    for bound in bounds
                ]
                place = (number + 2 * (sampler == "rwmh") - 1.5) / 5
                report.boxes(
                    top,
                    np.arange(len(bounds)) + place,
                    [[row["mmd_thesis"] for row in cell] for cell in cells],
                    0.18,
                    colour,
                    label=f"{sampler}, {distance} distance",
                    alpha=0.9 if distance == "L2" else 0.35,
                )
                chains = [row for cell in cells for row in cell]
                bottom.plot(
                    [row["ratio_clip"] for row in chains],
                    [row["mmd_thesis"] for row in chains],
                    "." if distance == "L2" else "x",
                    color=colour,
                    alpha=0.5,
                )
                for bound, cell in zip(bounds, cells, strict=True):
                    lines.append(_line(sampler, model, distance, bound, cell))
            medians = published.CLIPPING[f"{sampler} {model}"]
            places = np.arange(len(bounds)) + 0.1 + 0.4 * ((sampler == "rwmh") - 0.5)
            report.marks(top, places, medians)
        top.set_xticks(range(len(bounds)), [f"{bound:g}" for bound in bounds])
        top.set(title=model, xlabel="clip bound per unit of distance", ylabel="MMD")
        bottom.set(xlabel="share of log ratios clipped", ylabel="MMD")
    axes[0, 0].legend(fontsize=8)
    report.finish(fig, folder, "6.2", lines)


def _line(sampler, model, distance, bound, cell):
    known = published.CLIPPING[f"{sampler} {model}"]
    at = published.CLIPPING_BOUNDS
    return dict(
        sampler=sampler,
        model=model,
        distance=distance,
        bound=bound,
        mmd=_median(cell, "mmd"),
        mmd_thesis=_median(cell, "mmd_thesis"),
        published=known[at.index(bound)] if bound in at else np.nan,
        acceptance=_median(cell, "acceptance"),
        ratio_clip=_median(cell, "ratio_clip"),
    )


def _median(cell, key):
    return float(np.median([row[key] for row in cell])) if cell else np.nan
