"""Families of Gaussians in natural parameters.

If densities are multiplied, their natural parameters are added. A density proportional
to exp(h^T w - w^T L w / 2) has the precision L and the linear parameter h = L m, where
m is its mean. Both are kept in one vector theta = (h, vech(L)), in which an entry of L
off the diagonal appears once, times sqrt 2. So the Euclidean norm of theta is
|theta|^2 = |h|^2 + |L|_F^2. A factor of a Gaussian may have an L that is not positive
definite.

A family is defined by the shape of the array w. In `Diagonal` all entries of w are
independent. In `Full` the entries along the last axis of w have a dense L; entries that
differ in the other axes are independent.
"""

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["Diagonal", "Family", "Full", "Moments"]

# By default some devices multiply float32 matrices in fewer bits.
dot = functools.partial(jnp.dot, precision="highest")
matmul = functools.partial(jnp.matmul, precision="highest")


class Moments(NamedTuple):
    """Moments of a Gaussian.

    mean
        Array of the family's shape.
    covariance
        For `Full`, covariances along the last axis, ``(..., d, d)``. For `Diagonal`,
        variances, of the shape of the mean.
    """

    mean: jax.Array
    covariance: jax.Array


@dataclass(frozen=True)
class Family(ABC):
    """Base class of the families.

    The argument `linear` is h, `precision` is L, and `natural` is theta.

    Parameters
    ----------
    shape
        Shape of w, a tuple of positive integers.

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
        """Number of entries of w."""
        return math.prod(self.shape)

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of entries of theta."""

    @abstractmethod
    def pack(self, linear, precision) -> jax.Array:
        """theta from h and a symmetric L."""

    @abstractmethod
    def unpack(self, natural) -> tuple[jax.Array, jax.Array]:
        """h and L from theta."""

    @abstractmethod
    def floor(self, natural, least_precision) -> jax.Array:
        """The nearest theta where no eigenvalue of L is below `least_precision`."""

    @abstractmethod
    def smallest_precision(self, natural) -> float:
        """The smallest eigenvalue of L, a Python float; theta must not be traced."""

    @abstractmethod
    def inverse(self, matrix) -> jax.Array:
        """The inverse of a precision or a covariance, in the same form."""

    @abstractmethod
    def product(self, matrix, vector) -> jax.Array:
        """A precision or a covariance, times an array of the shape of w."""

    @abstractmethod
    def root(self, covariance) -> jax.Array:
        """A matrix R with R R^T equal to the covariance."""

    @abstractmethod
    def hessian(self, function, point) -> jax.Array:
        """Second derivatives of `function` at `point`, in the form of L."""

    def natural(self, moments: Moments) -> jax.Array:
        """Natural parameters ``(size,)`` of the Gaussian with these moments."""
        precision = self.inverse(moments.covariance)
        return self.pack(self.product(precision, moments.mean), precision)

    def moments(self, natural: jax.Array) -> Moments:
        """Moments of the Gaussian with natural parameters ``(size,)``.

        They are not finite if the precision is not positive definite.
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

    def prior(self, logprior_fn: Callable) -> np.ndarray:
        """Natural parameters ``(size,)`` of a Gaussian prior, from its log density.

        Parameters
        ----------
        logprior_fn
            Log density, up to a constant, of positions of the family's shape. It must
            not read the data.

        Raises
        ------
        ValueError
            If `logprior_fn` is not the log of a proper Gaussian density of this family.
        """
        with jax.ensure_compile_time_eval():
            origin = jnp.zeros(self.shape)
            slope = jax.grad(logprior_fn)
            precision = -self.hessian(logprior_fn, origin)
            linear = slope(origin)
            natural = np.asarray(self.pack(linear, precision))
            # The gradient of the log density of a Gaussian of this family is h - L w
            # everywhere. It is compared at a second point, in general position.
            point = jnp.cos(jnp.arange(1.0, self.dim + 1)).reshape(self.shape)
            expected = np.asarray(linear - self.product(precision, point))
            is_gaussian = np.allclose(slope(point), expected, rtol=1e-4, atol=1e-6)
            if not (is_gaussian and self.smallest_precision(natural) > 0):
                raise ValueError(
                    f"logprior_fn must be the log of a proper Gaussian density of "
                    f"{self}: expectation propagation multiplies it by Gaussians"
                )
        return natural


class Diagonal(Family):
    """Independent components: h and L have the shape of w."""

    @property
    def size(self) -> int:
        return 2 * self.dim

    def pack(self, linear, precision) -> jax.Array:
        return jnp.concatenate([linear.ravel(), precision.ravel()])

    def unpack(self, natural) -> tuple[jax.Array, jax.Array]:
        linear, precision = jnp.split(natural, 2)
        return linear.reshape(self.shape), precision.reshape(self.shape)

    def floor(self, natural, least_precision) -> jax.Array:
        linear, precision = self.unpack(natural)
        return self.pack(linear, jnp.maximum(precision, least_precision))

    def smallest_precision(self, natural) -> float:
        return float(np.min(self.unpack(natural)[1]))

    def inverse(self, matrix: jax.Array) -> jax.Array:
        return jnp.where(matrix > 0, 1 / matrix, jnp.nan)

    def product(self, matrix, vector) -> jax.Array:
        return matrix * vector

    def root(self, covariance) -> jax.Array:
        return jnp.sqrt(covariance)

    def hessian(self, function, point) -> jax.Array:
        # The sums of the rows of the Hessian. They are its diagonal if components are
        # independent.
        return jax.jvp(jax.grad(function), (point,), (jnp.ones_like(point),))[1]


class Full(Family):
    """Dense covariances along the last axis of w, of length d.

    h has the shape of w, and L has the shape ``(*shape, d)``.
    """

    @property
    def size(self) -> int:
        d = self.shape[-1]
        return self.dim + self.dim // d * (d * (d + 1) // 2)

    def _triangle(self, dtype):
        """Rows and columns of the entries of L that theta holds, and their factors."""
        rows, columns = np.triu_indices(self.shape[-1])
        weights = np.where(rows == columns, 1.0, math.sqrt(2)).astype(dtype)
        return rows, columns, np.broadcast_to(weights, (*self.shape[:-1], rows.size))

    def pack(self, linear, precision) -> jax.Array:
        rows, columns, weights = self._triangle(precision.dtype)
        entries = precision[..., rows, columns] * weights
        return jnp.concatenate([linear.ravel(), entries.ravel()])

    def unpack(self, natural) -> tuple[jax.Array, jax.Array]:
        linear, entries = jnp.split(natural, [self.dim])
        rows, columns, weights = self._triangle(entries.dtype)
        entries = entries.reshape(weights.shape) / weights
        upper = jnp.zeros((*self.shape, self.shape[-1]), entries.dtype)
        upper = upper.at[..., rows, columns].set(entries)
        precision = upper.at[..., columns, rows].set(entries)
        return linear.reshape(self.shape), precision

    def floor(self, natural, least_precision) -> jax.Array:
        linear, precision = self.unpack(natural)
        values, vectors = jnp.linalg.eigh(precision)
        raised = jnp.maximum(least_precision - values, 0)[..., None, :] * vectors
        return self.pack(linear, precision + matmul(raised, vectors.mT))

    def smallest_precision(self, natural) -> float:
        return float(np.min(np.linalg.eigvalsh(self.unpack(natural)[1])))

    def inverse(self, matrix) -> jax.Array:
        root = self.root(matrix)
        identity = jnp.eye(root.shape[-1], dtype=root.dtype)
        identity = jnp.broadcast_to(identity, root.shape)
        return jax.scipy.linalg.cho_solve((root, True), identity)

    def product(self, matrix, vector) -> jax.Array:
        return matmul(matrix, vector[..., None])[..., 0]

    def root(self, covariance) -> jax.Array:
        return jnp.linalg.cholesky(covariance)

    def hessian(self, function, point) -> jax.Array:
        d = self.shape[-1]
        blocks = jax.hessian(function)(point).reshape(-1, d, self.dim // d, d)
        every = np.arange(self.dim // d)
        return blocks[every, :, every, :].reshape(*self.shape, d)
