"""Table 1: a network on MNIST, claimed and sound epsilon side by side.

Every method takes T = (epochs) / q steps of Poisson samples of rate q. `published_*`
are as in the paper (temperature 1/2). `matched_*`, `dp_sgd`, `barker` and `fast_mh`
spend what `published_sgld` really spends under substitution: the samplers by their step
size, DP-SGD (jax-privacy's clipped gradients) by its noise, the random walks, which
release an accept bit a step, by the number of their steps. (TunaMH has no finite
epsilon; `fast_mh` is its private variant.) Samplers are judged by the mean chance of
draws from the second half of the chain, DP-SGD by the same of its iterates, and Adam,
without privacy, likewise.

`heat` is the public bound q N / sigma^2 of `dpjax.sgmcmc.noisy_gradient` on the
variance that the sample adds to a direction, over that of the noise, at the last step:
far above one, the chain need not have the temperature that it should.

Epsilons are those of ideal noise, as the claims are.
"""

import functools
import math
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax_privacy import batch_selection, clipping
from tqdm import tqdm

import dpjax
from benchmarks.sgmcmc import network
from benchmarks.thesis import report
from dpjax import privacy
from dpjax.datasets import mnist
from dpjax.privacy import NeighboringRelation
from dpjax.privacy.step_size import max_step_size
from dpjax.random.batches import num_poisson_words, poisson
from dpjax.sgmcmc.schedules import power_decay

KERNELS = dict(sgld=dpjax.sgld, sghmc=dpjax.sghmc, sgnht=dpjax.sgnht)
WALKS = dict(barker=dpjax.barker, fast_mh=dpjax.fast_mh)
RELATIONS = dict(
    add=NeighboringRelation.REPLACE_SPECIAL, replace=NeighboringRelation.REPLACE_ONE
)


def load(quick: bool = False):
    """Images in [0, 1] and labels: a posterior, and a test set."""
    splits = mnist.load_mnist()
    keep = slice(0, 2000 if quick else None)

    def arrays(split):
        images, labels = split
        images = jnp.asarray(images[keep] / 255.0, jnp.float32)
        return images, np.asarray(labels[keep], np.int32)

    images, labels = arrays(splits["train"])
    return network.posterior(images, jnp.asarray(labels)), arrays(splits["test"])


def kernel(settings: dict, method: str, init_value: float | None = None):
    """``posterior -> Algorithm`` of a sampler of the settings."""
    options = {**settings["methods"][method]}
    name = options.pop("kernel")
    options.setdefault("l2_clip_norm", settings["l2_clip_norm"])
    return functools.partial(
        KERNELS[name],
        step_size=power_decay(init_value or settings["init_value"]),
        dim=network.DIM,
        sampling_prob=settings["sampling_prob"],
        nominal_num_records=settings["num_records"],
        **options,
    )


def outline(settings: dict):
    """A posterior of the size of the data, which is all that accounting reads."""
    zeros = np.broadcast_to(0.0, settings["num_records"])
    return dpjax.Posterior(lambda position: 0.0, lambda position, record: 0.0, zeros)


def cost(settings, algorithm_fn, num_steps) -> dict:
    """Sound epsilon under both relations, and the heat bound of the last step."""
    algorithm = algorithm_fn(outline(settings))
    row = {}
    for name, relation in RELATIONS.items():
        events = algorithm.privacy(num_steps, relation)
        row[f"sound_{name}"] = privacy.epsilon(events, settings["delta"])
    sampled = settings["sampling_prob"] * settings["num_records"]
    row["heat"] = sampled / max(e.noise_multiplier for e, _ in events) ** 2
    return row


def claims(settings: dict, epochs=(1, 10, 100)) -> list[dict]:
    """What the paper claims of a number of epochs, and what is sound."""
    rows = []
    for method, claimed in settings["claimed"].items():
        for count in epochs:
            steps = round(count / settings["sampling_prob"])
            found = cost(settings, kernel(settings, method), steps)
            rows.append(dict(method=method, epochs=count, claimed=claimed) | found)
    return rows


def _matched(settings, method, num_steps, epsilon) -> float:
    """First step size that spends epsilon under substitution.

    The noise multiplier of SGHMC and SGNHT is that of SGLD with the step size over the
    friction.
    """
    options = settings["methods"][method]
    return options.get("friction", 1.0) * max_step_size(
        num_steps,
        num_records=settings["num_records"],
        sampling_prob=settings["sampling_prob"],
        l2_clip_norm=options["l2_clip_norm"],
        epsilon=epsilon,
        delta=settings["delta"],
        schedule=power_decay(1.0),
    )


def sample(settings, algorithm_fn, posterior, num_steps) -> dict:
    """Draws of one chain from the public start.

    One compiled step after the other, as `descend`: XLA's loops on CPUs take three
    times as long for convolutions.
    """

    @jax.jit
    def step(key, state, posterior):
        return algorithm_fn(posterior).step(key, state)[0]

    state = algorithm_fn(posterior).init(network.start(jax.random.key(0)))
    kept = []
    for number, key in enumerate(
        tqdm(jax.random.split(jax.random.key(1), num_steps), leave=False)
    ):
        state = step(key, state, posterior)
        if _is_kept(number, num_steps, settings["num_draws"]):
            kept.append(state.position)
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *kept)


def _is_kept(number, num_steps, num_draws) -> bool:
    """Whether a step, counted from zero, is of the thinned second half."""
    stride = max(num_steps // 2 // num_draws, 1)
    return number >= num_steps // 2 and (num_steps - 1 - number) % stride == 0


def descend(settings, method, posterior, num_steps, noise_multiplier) -> dict:
    """Iterates of DP-SGD, or of Adam if there is no noise, thinned."""
    options = settings["methods"][method]
    num_records, q = posterior.num_records, settings["sampling_prob"]
    if noise_multiplier:
        optimizer, norm = optax.sgd(options["learning_rate"]), options["l2_clip_norm"]
    else:
        optimizer, norm = optax.adam(options["learning_rate"]), math.inf
    summed = clipping.clipped_grad(
        network.loglikelihood,
        argnums=0,
        batch_argnums=1,
        l2_clip_norm=norm,
        keep_batch_dim=False,
    )
    rounded = math.ceil(q * 2**32) / 2**32
    words = jnp.zeros(num_poisson_words(rounded, num_records), jnp.uint32)
    capacity = len(poisson(words, rounded, num_records).indices)
    rng = np.random.default_rng(0)
    sampling = batch_selection.CyclicPoissonSampling(q, num_steps)
    batches = sampling.batch_iterator(num_records, rng)

    @jax.jit
    def step(position, state, key, indices, data):
        batch = jax.tree.map(lambda leaf: leaf[indices], data)
        total = summed(position, batch, is_padding_example=indices < 0)
        leaves, tree = jax.tree.flatten(total)
        keys = jax.random.split(key, len(leaves))
        sd = noise_multiplier * (norm if noise_multiplier else 0.0)
        noisy = [
            -(leaf + sd * jax.random.normal(k, leaf.shape)) / (q * num_records)
            for k, leaf in zip(keys, leaves, strict=True)
        ]
        updates, state = optimizer.update(tree.unflatten(noisy), state, position)
        return optax.apply_updates(position, updates), state

    position = network.start(jax.random.key(0))
    state, kept = optimizer.init(position), []
    for number, key in enumerate(
        tqdm(jax.random.split(jax.random.key(2), num_steps), leave=False)
    ):
        indices = batch_selection.pad_to_multiple_of(next(batches), capacity)
        position, state = step(position, state, key, indices, posterior.data)
        if _is_kept(number, num_steps, settings["num_draws"]):
            kept.append(position)
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *kept)


def _sgd_noise(settings, method, num_steps, epsilon) -> float:
    def step_events(noise_multiplier):
        event = privacy.PoissonGaussianRelease(
            noise_multiplier, settings["sampling_prob"], RELATIONS["replace"]
        )
        return [(event, 1)]

    return privacy.calibrate(
        step_events,
        num_steps=num_steps,
        epsilon=epsilon,
        delta=settings["delta"],
        bracket=(0.3, 1e3),
    )


def _walk(settings, method, posterior, num_steps, epsilon):
    """Draws of the steps that epsilon pays for, and how many these are."""
    algorithm_fn = functools.partial(WALKS[method], **settings["methods"][method])
    events = algorithm_fn(outline(settings)).privacy(1)
    paid = privacy.max_steps(events, epsilon=epsilon, delta=settings["delta"])
    paid = min(paid, num_steps)
    return sample(settings, algorithm_fn, posterior, paid), paid


def row(settings, method, posterior, test, num_steps) -> dict:
    """Scores of one method, with what it costs."""
    spent = cost(settings, kernel(settings, "published_sgld"), num_steps)
    epsilon = spent["sound_replace"]
    found = dict(
        sound_add=math.nan,
        sound_replace=epsilon,
        heat=math.nan,
        first_step_size=math.nan,
    )
    steps = num_steps
    start = time.perf_counter()
    if method == "adam":
        draws = descend(settings, method, posterior, num_steps, 0.0)
        found |= dict(sound_replace=math.inf, sound_add=math.inf)
    elif method == "dp_sgd":
        noise = _sgd_noise(settings, method, num_steps, epsilon)
        draws = descend(settings, method, posterior, num_steps, noise)
    elif method in WALKS:
        draws, steps = _walk(settings, method, posterior, num_steps, epsilon)
    else:
        size = settings["init_value"]
        if method.startswith("matched"):
            size = _matched(settings, method, num_steps, epsilon)
        algorithm_fn = kernel(settings, method, size)
        found |= cost(settings, algorithm_fn, num_steps) | dict(first_step_size=size)
        draws = sample(settings, algorithm_fn, posterior, num_steps)
    seconds = time.perf_counter() - start
    images, labels = test
    scores = network.scores(network.probabilities(draws, images), labels)
    claimed = settings["claimed"].get(method, math.nan)
    return (
        dict(method=method, steps=steps, claimed=claimed)
        | found
        | scores
        | dict(seconds=seconds)
    )


def run(settings: dict, folder, quick: bool, methods=None) -> None:
    """Rows of ``mnist.csv`` that are missing."""
    posterior, test = load(quick)
    if quick:
        settings = settings | dict(
            num_records=posterior.num_records, sampling_prob=0.02, num_epochs=1
        )
    path = folder / "mnist.csv"
    done = {r["method"] for r in report.read(path)}
    num_steps = round(settings["num_epochs"] / settings["sampling_prob"])
    missing = [m for m in methods or settings["methods"] if m not in done]
    with tqdm(missing, unit="method") as bar:
        for method in bar:
            bar.set_postfix_str(method)
            found = row(settings, method, posterior, test, num_steps)
            report.append(path, [found])
