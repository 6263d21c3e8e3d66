"""A convolutional network for images of digits as a posterior, and its predictions.

Two layers of 16 and 32 filters, of width 8 and 4 and stride 2, each with rectifiers and
a mean over neighbours, a layer of 32 rectifiers, and ten logits: the network of the
tutorials of DP-SGD, 26 010 weights. The paper has that of PATE, of some million
weights. Weights are N(0, 1) a priori, as in the paper.
"""

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import Posterior

__all__ = ["DIM", "posterior", "probabilities", "scores", "start"]

SHAPES = {
    "filters_1": (8, 8, 1, 16),
    "bias_1": (16,),
    "filters_2": (4, 4, 16, 32),
    "bias_2": (32,),
    "weights_3": (512, 32),
    "bias_3": (32,),
    "weights_4": (32, 10),
    "bias_4": (10,),
}
DIM = sum(int(np.prod(shape)) for shape in SHAPES.values())


def start(rng_key: jax.Array) -> dict:
    """Public weights of the size that keeps the layers' outputs near one (He)."""
    keys = dict(zip(SHAPES, jax.random.split(rng_key, len(SHAPES)), strict=True))
    return {
        name: (2 / np.prod(shape[:-1])) ** 0.5 * jax.random.normal(keys[name], shape)
        if len(shape) > 1
        else jnp.zeros(shape)
        for name, shape in SHAPES.items()
    }


def _convolve(images, filters, bias, padding):
    found = jax.lax.conv_general_dilated(
        images, filters, (2, 2), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    active = jax.nn.relu(found + bias[None, None, None])
    summed = jax.lax.reduce_window(
        active, 0.0, jax.lax.add, (1, 2, 2, 1), (1, 1, 1, 1), "VALID"
    )
    return summed / 4


def logits(position: dict, images: jax.Array) -> jax.Array:
    """``(n, 10)`` for images ``(n, 28, 28)`` of numbers in [0, 1]."""
    found = images[..., None] - 0.5
    found = _convolve(found, position["filters_1"], position["bias_1"], "SAME")
    found = _convolve(found, position["filters_2"], position["bias_2"], "VALID")
    found = found.reshape(len(images), -1) @ position["weights_3"]
    found = jax.nn.relu(found + position["bias_3"][None])
    return found @ position["weights_4"] + position["bias_4"][None]


def _logprior(position):
    return -0.5 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(position))


def loglikelihood(position, record):
    """Of one image and its label."""
    image, label = record
    return jax.nn.log_softmax(logits(position, image[None])[0])[label]


def posterior(images, labels) -> Posterior:
    """Records are pairs of an image in [0, 1], float32, and its label, int32."""
    return Posterior(_logprior, loglikelihood, (images, labels))


@jax.jit
def _probabilities(draw, images):
    return jax.nn.softmax(logits(draw, images))


def probabilities(draws, images) -> np.ndarray:
    """Posterior predictive ``(n, 10)`` of draws, a pytree of ``(draws, ...)``."""
    count = len(jax.tree.leaves(draws)[0])
    blocks = [images[i : i + 1000] for i in range(0, len(images), 1000)]
    total = 0.0
    for number in range(count):
        draw = jax.tree.map(lambda leaf, i=number: leaf[i], draws)
        total = total + np.concatenate([_probabilities(draw, b) for b in blocks])
    return total / count


def scores(chances: np.ndarray, labels: np.ndarray, bins: int = 15) -> dict:
    """Accuracy, mean log-likelihood and expected calibration error."""
    top = chances.max(axis=1)
    right = chances.argmax(axis=1) == labels
    place = np.minimum((top * bins).astype(int), bins - 1)
    gaps = np.bincount(place, right - top, bins)
    chosen = np.maximum(chances[np.arange(len(labels)), labels], 1e-12)
    return dict(
        accuracy=float(right.mean()),
        log_likelihood=float(np.log(chosen).mean()),
        calibration_error=float(np.abs(gaps).sum() / len(labels)),
    )
