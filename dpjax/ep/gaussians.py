"""Gaussians by natural parameters, in which multiplying densities is adding vectors.

A density proportional to exp(h^T w - w^T L w / 2) has the precision L and the linear
parameter h = L m. Both are kept in one vector theta = (h, vech(L)) whose Euclidean norm
is that of its parts, |theta|^2 = |h|^2 + |L|_F^2: entries off the diagonal of L appear
once, times sqrt 2. A factor of a Gaussian may have an L that is not positive definite.

A family is the array shape of w: `Diagonal` takes all its entries as independent,
`Full` has a dense L for the last axis, independent ones along the axes before it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["Diagonal", "Family", "Full", "Moments"]


class Moments(NamedTuple):
    """Of a Gaussian.

    mean
        Array of the family's shape.
    covariance
        ``(..., d, d)``, or variances of the shape of the mean for `Diagonal`.
    """

    mean: jax.Array
    covariance: jax.Array


@dataclass(frozen=True)
class Family:
    """What the families share.

    Parameters
    ----------
    shape
        Of w, positive integers.

    Raises
    ------
    ValueError
        If the shape is not a tuple of positive integers.
    """

    shape: tuple[int, ...]

    def __post_init__(self):
        is_tuple = isinstance(self.shape, tuple) and len(self.shape) >= 1
        if not (is_tuple and all(isinstance(n, int) and n >= 1 for n in self.shape)):
            raise ValueError(
                f"shape must be a tuple of positive integers, got {self.shape!r}"
            )

    @property
    def dim(self) -> int:
        """Numbers in w."""
        return math.prod(self.shape)

    def natural(self, moments: Moments) -> jax.Array:
        """Natural parameters ``(size,)`` of a Gaussian with these moments."""
        precision = self.inverse(moments.covariance)
        return self.pack(self.product(precision, moments.mean), precision)

    def moments(self, natural: jax.Array) -> Moments:
        """Of the Gaussian with natural parameters ``(size,)``.

        Not finite if the precision is not positive definite.
        """
        linear, precision = self.unpack(natural)
        covariance = self.inverse(precision)
        return Moments(self.product(covariance, linear), covariance)

    def sample(self, rng_key: jax.Array, natural: jax.Array, num_samples: int):
        """Independent draws, ``(num_samples, *shape)``."""
        mean, covariance = self.moments(natural)
        normals = jax.random.normal(rng_key, (num_samples, *self.shape), mean.dtype)
        root = self.root(covariance)
        return jax.vmap(lambda normal: mean + self.product(root, normal))(normals)

    def prior(self, logprior_fn: Callable) -> jax.Array:
        """Natural parameters of a Gaussian log density, but for a constant.

        Parameters
        ----------
        logprior_fn
            Of positions of the family's shape. It must not read the data.

        Raises
        ------
        ValueError
            If it is not the log of a proper Gaussian density of this family.
        """
        with jax.ensure_compile_time_eval():
            origin = jnp.zeros(self.shape)
            # What the curvature says must hold elsewhere too: at a point in general
            # position.
            point = jnp.cos(jnp.arange(1.0, self.dim + 1)).reshape(self.shape)
            slope = jax.grad(logprior_fn)
            precision = -self.hessian(logprior_fn, origin)
            linear = slope(origin)
            expected = np.asarray(linear - self.product(precision, point))
            natural = np.asarray(self.pack(linear, precision))
            is_gaussian = np.allclose(slope(point), expected, rtol=1e-4, atol=1e-6)
            if not (is_gaussian and self.least_precision(natural) > 0):
                raise ValueError(
                    f"logprior_fn must be the log of a proper Gaussian density of "
                    f"{self}: expectation propagation multiplies it by Gaussians"
                )
        return natural


class Diagonal(Family):
    """Independent components: h and L of the shape of w."""

    @property
    def size(self) -> int:
        """Numbers in theta."""
        return 2 * self.dim

    def pack(self, linear, precision) -> jax.Array:
        """theta from h and L."""
        return jnp.concatenate([linear.ravel(), precision.ravel()])

    def unpack(self, natural) -> tuple[jax.Array, jax.Array]:
        """h and L from theta."""
        linear, precision = jnp.split(natural, 2)
        return linear.reshape(self.shape), precision.reshape(self.shape)

    def floor(self, natural, least) -> jax.Array:
        """The nearest theta whose precisions are at least `least`."""
        linear, precision = self.unpack(natural)
        return self.pack(linear, jnp.maximum(precision, least))

    def least_precision(self, natural) -> float:
        """The smallest precision, of concrete natural parameters."""
        return float(np.min(self.unpack(natural)[1]))

    def inverse(self, matrix):
        return jnp.where(matrix > 0, 1 / matrix, jnp.nan)

    def product(self, matrix, vector):
        return matrix * vector

    def root(self, covariance):
        return jnp.sqrt(covariance)

    def hessian(self, function, point):
        # Right for independent components, whose Hessian is its row sums.
        return jax.jvp(jax.grad(function), (point,), (jnp.ones_like(point),))[1]


class Full(Family):
    """Dense covariances along the last axis of w: L is ``(*shape, d)``."""

    @property
    def size(self) -> int:
        """Numbers in theta."""
        d = self.shape[-1]
        return self.dim + self.dim // d * (d * (d + 1) // 2)

    def _triangle(self):
        rows, columns = np.triu_indices(self.shape[-1])
        return rows, columns, np.where(rows == columns, 1.0, math.sqrt(2))

    def pack(self, linear, precision) -> jax.Array:
        """theta from h and a symmetric L."""
        rows, columns, weights = self._triangle()
        entries = precision[..., rows, columns]
        weights = np.broadcast_to(weights, entries.shape).astype(entries.dtype)
        return jnp.concatenate([linear.ravel(), (entries * weights).ravel()])

    def unpack(self, natural) -> tuple[jax.Array, jax.Array]:
        """h and L from theta."""
        d = self.shape[-1]
        rows, columns, weights = self._triangle()
        linear, entries = jnp.split(natural, [self.dim])
        entries = entries.reshape(*self.shape[:-1], rows.size)
        entries = entries / np.broadcast_to(weights, entries.shape).astype(
            entries.dtype
        )
        upper = jnp.zeros((*self.shape, d), entries.dtype)
        upper = upper.at[..., rows, columns].set(entries)
        precision = upper.at[..., columns, rows].set(entries)
        return linear.reshape(self.shape), precision

    def floor(self, natural, least) -> jax.Array:
        """The nearest theta whose eigenvalues of L are at least `least`."""
        linear, precision = self.unpack(natural)
        values, vectors = jnp.linalg.eigh(precision)
        raised = jnp.maximum(least - values, 0)[..., None, :] * vectors
        raised = jnp.matmul(raised, jnp.swapaxes(vectors, -1, -2), precision="highest")
        return self.pack(linear, precision + raised)

    def least_precision(self, natural) -> float:
        """The smallest eigenvalue of L, of concrete natural parameters."""
        return float(np.min(np.linalg.eigvalsh(self.unpack(natural)[1])))

    def inverse(self, matrix):
        root = jnp.linalg.cholesky(matrix)
        identity = jnp.broadcast_to(
            jnp.eye(self.shape[-1], dtype=root.dtype), root.shape
        )
        return jax.scipy.linalg.cho_solve((root, True), identity)

    def product(self, matrix, vector):
        return jnp.matmul(matrix, vector[..., None], precision="highest")[..., 0]

    def root(self, covariance):
        return jnp.linalg.cholesky(covariance)

    def hessian(self, function, point):
        d = self.shape[-1]
        blocks = jax.hessian(function)(point).reshape(-1, d, self.dim // d, d)
        every = np.arange(self.dim // d)
        return blocks[every, :, every, :].reshape(*self.shape, d)
