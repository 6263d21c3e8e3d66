"""Claimed epsilons of all kernels beside lower bounds that an attack certifies.

    python -m benchmarks.audit > docs/results/audit.md

Each kernel makes as many first steps as make the claim about 4 at delta = .01, on
made-up records. A record is the gradient of its log-likelihood, unless a kernel needs
another model: so an adversary may choose which way a record pulls, and how strongly.
"""

import argparse
import functools
import textwrap
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

import dpjax
from dpjax.ep import sites
from dpjax.ep.gaussians import Diagonal, Full
from dpjax.models.probit import probit_regression
from dpjax.runner import attack as attacks

RECORDS = np.zeros((4096, 2), np.float32)


def logprior(position):
    return -0.5 * jnp.sum(position**2) / 100


def linear(position, record):
    return jnp.dot(position, record)


def mixture(means, record):
    squares = jnp.sum((record[None] - means) ** 2, axis=1)
    return jax.nn.logsumexp(-0.5 * squares)


def lifted(nats):
    """A posterior whose prior favours every position but the start, by so much.

    It makes up for what a test expects to lose to its noise.
    """

    def prior(position):
        return jnp.where(position[0] == 0, 0.0, nats)

    return dpjax.Posterior(prior, linear, RECORDS)


LINEAR = dpjax.Posterior(logprior, linear, RECORDS)
MIXTURE = dpjax.Posterior(logprior, mixture, RECORDS)
PROBIT = probit_regression(RECORDS, np.ones(len(RECORDS), np.float32))

MOVE = dict(step_size=1.0, clip_bound=0.25)
SUM = dict(l2_clip_norm=1.0, sampling_prob=0.25)
CHAIN = dict(SUM, dim=2, step_size=0.1)
FRICTION = dict(CHAIN, friction=0.5)
FIT = dict(
    l2_clip_norm=1.0,
    noise_multiplier=4.0,
    optimizer=optax.sgd(0.1),
    guide=dpjax.guides.MeanField(2, init_scale=0.01),
)
PATH = dict(
    step_size=100.0,
    clip_bound=1e-3,
    num_integration_steps=2,
    l2_clip_norm=1.0,
    noise_multiplier=8.0,
)
SEP = dict(
    match=sites.probit, family=Diagonal((2,)), l2_clip_norm=1.0, noise_multiplier=4.0
)
EM = dict(family=Full((2, 2)), component_sd=1.0, record_norm=1.0, noise_multiplier=8.0)
KERNELS = {
    "barker": (dpjax.barker, MOVE),
    "barker, lazy": (dpjax.barker, dict(MOVE, laziness=0.2)),
    "penalty": (dpjax.penalty, dict(MOVE, test_noise_multiplier=1.0), lifted(0.125)),
    "penalty, guided walk": (
        dpjax.penalty,
        dict(MOVE, test_noise_multiplier=1.0, proposal=dpjax.proposals.guided_walk),
    ),
    "hmc": (dpjax.hmc, PATH, lifted(1e7)),
    "hmc, sampled": (dpjax.hmc, dict(PATH, sampling_prob=0.5), lifted(1e7)),
    "minibatch_penalty": (
        dpjax.minibatch_penalty,
        dict(MOVE, test_noise_multiplier=2.0, batch_size=4),
        lifted(8.0),
    ),
    "minibatch_barker": (
        dpjax.minibatch_barker,
        dict(step_size=1.0, batch_size=8),
    ),
    "fast_mh": (dpjax.fast_mh, dict(MOVE, expected_batch_size=4.0)),
    "dpvi": (dpjax.dpvi, FIT),
    "dpvi, sampled": (dpjax.dpvi, dict(FIT, sampling_prob=0.25)),
    "dpvi, plain": (dpjax.dpvi, dict(FIT, aligned=False)),
    "sgld": (dpjax.sgld, CHAIN),
    "sghmc": (dpjax.sghmc, FRICTION),
    "sgnht": (dpjax.sgnht, FRICTION),
    "dp_sep": (dpjax.dp_sep, SEP, PROBIT),
    "dp_em": (dpjax.dp_em, EM, MIXTURE, np.array([[-1.0, 0.0], [1.0, 0.0]])),
}


def audited(name: str, **options) -> attacks.Attack:
    """The attack on one of `KERNELS`."""
    kernel, settings, *model = KERNELS[name]
    posterior, position = (*model, *(LINEAR, np.zeros(2))[len(model) :])
    algorithm_fn = functools.partial(kernel, **settings)
    return attacks.attack(algorithm_fn, posterior, position, **options)


def heading(num_trials: int, seed: int) -> str:
    """What stands above the rows."""
    text = (
        f"`python -m benchmarks.audit --trials {num_trials} --seed {seed}`, JAX "
        f"{jax.__version__}, {jax.default_backend()}. Neighbours differ in one "
        "substituted record. `claimed` is what the accountant says of so many first "
        "steps of one chain, `audited` a lower bound on what they cost, both at delta "
        f"= {attacks.DELTA}; a bound is false with chance {attacks.SIGNIFICANCE:g}. A "
        "bound above the claim would refute it, a bound below proves nothing: the "
        "attack sees the outputs only, not the proposals, momenta and samples that a "
        "kernel keeps to itself, and what it certifies is limited by its trials."
    )
    return (
        f"# Claimed and audited costs of all kernels\n\n{textwrap.fill(text, 92)}\n\n"
        "| kernel | steps | records | claimed | audited | audited / claimed | trials "
        "on either data set | seed | seconds |\n|---|---|---|---|---|---|---|---|---|"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=8192)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(heading(options.trials, options.seed), flush=True)
    for name in KERNELS:
        start = time.perf_counter()
        found = audited(name, num_trials=options.trials, seed=options.seed)
        print(
            f"| {name} | {found.num_steps} | {found.num_records} | {found.claimed:.3f} "
            f"| {found.found:.3f} | {found.found / found.claimed:.2f} "
            f"| {found.num_trials} | {found.seed} | {time.perf_counter() - start:.0f} |"
            + (" REFUTED" if found.is_refuted else ""),
            flush=True,
        )


if __name__ == "__main__":
    main()
