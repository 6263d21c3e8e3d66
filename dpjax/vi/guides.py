"""Gaussian guides: the families from which variational inference picks its best.

A guide is theta = m + s * (A e) with e standard normal, location m, scales s =
softplus(rho) of the d components, and a shape A that has no scale of its own,

    mean field    A e = e,
    low rank      A e = e_1 + F e_2,    F (d, r), e_2 of r components,
    full rank     A e = e + L e,        L (d, d) strictly lower triangular.

They are the families of NumPyro's ``AutoDiagonalNormal``,
``AutoLowRankMultivariateNormal`` and ``AutoMultivariateNormal``, on the same
unconstrained space as `dpjax.numpyro.posterior`. Parameters are dicts ``location``, a
pytree like the position, ``rho`` ``(d,)`` and, but for the mean field, ``factor``.
"""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import solve_triangular

__all__ = ["FullRank", "Guide", "LowRank", "MeanField"]


@dataclass(frozen=True)
class Guide:
    """What the guides share.

    Parameters
    ----------
    dim
        d, the number of components of the position.
    init_scale
        s at the start.

    Raises
    ------
    ValueError
        If a parameter is not positive; later, if a position has not d components.
    """

    dim: int
    init_scale: float = 0.1

    def __post_init__(self):
        if not (isinstance(self.dim, int) and self.dim >= 1):
            raise ValueError(f"dim must be a positive integer, got {self.dim}")
        if not 0 < self.init_scale < math.inf:
            raise ValueError(f"init_scale must be positive, got {self.init_scale}")

    @property
    def num_normals(self) -> int:
        """Standard normals that `transform` takes."""
        return self.dim

    @property
    def num_parameters(self) -> int:
        """Numbers in the parameters."""
        return 2 * self.dim

    def init(self, position) -> dict:
        """Parameters of independent components about the public `position`."""
        position = jax.tree.map(jnp.asarray, position)
        flat, _ = ravel_pytree(position)
        if flat.size != self.dim:
            raise ValueError(
                f"the position has {flat.size} components, the guide {self.dim}"
            )
        rho = jnp.full(flat.shape, math.log(math.expm1(self.init_scale)), flat.dtype)
        return {"location": position, "rho": rho}

    def transform(self, parameters, normals: jax.Array):
        """theta from e, ``(num_normals,)``; a pytree like the location."""
        location, unravel = ravel_pytree(parameters["location"])
        return unravel(location + _scales(parameters) * self.shape(parameters, normals))

    def entropy(self, parameters) -> jax.Array:
        """Exact, in nats."""
        constant = self.dim * (1 + math.log(2 * math.pi)) / 2
        return (
            constant
            + jnp.sum(jnp.log(_scales(parameters)))
            + self.log_determinant(parameters)
        )

    def log_prob(self, parameters, position) -> jax.Array:
        """Log density at `position`."""
        location, _ = ravel_pytree(parameters["location"])
        flat, _ = ravel_pytree(position)
        square = self.square(parameters, (flat - location) / _scales(parameters))
        # The entropy is the mean of minus this, and the mean square is d.
        return (self.dim - square) / 2 - self.entropy(parameters)

    def sample(self, rng_key: jax.Array, parameters, num_samples: int):
        """Independent draws: a pytree like the location, ``(num_samples, ...)``."""
        dtype = parameters["rho"].dtype
        normals = jax.random.normal(rng_key, (num_samples, self.num_normals), dtype)
        return jax.vmap(self.transform, (None, 0))(parameters, normals)

    def shape(self, parameters, normals):
        """A e."""
        return normals

    def log_determinant(self, parameters):
        """log det(A A^T) / 2."""
        return 0.0

    def square(self, parameters, scaled):
        """x^T (A A^T)^-1 x."""
        return jnp.sum(scaled**2)


@dataclass(frozen=True)
class MeanField(Guide):
    """Independent components."""


@dataclass(frozen=True, kw_only=True)
class LowRank(Guide):
    """Independent components and a few common ones.

    Parameters
    ----------
    rank
        r.
    """

    rank: int

    def __post_init__(self):
        super().__post_init__()
        if not (isinstance(self.rank, int) and self.rank >= 1):
            raise ValueError(f"rank must be a positive integer, got {self.rank}")

    @property
    def num_normals(self) -> int:
        return self.dim + self.rank

    @property
    def num_parameters(self) -> int:
        return (2 + self.rank) * self.dim

    def init(self, position) -> dict:
        parameters = super().init(position)
        shape = self.dim, self.rank
        return parameters | {"factor": jnp.zeros(shape, parameters["rho"].dtype)}

    def shape(self, parameters, normals):
        own, common = jnp.split(normals, [self.dim])
        return own + jnp.matmul(parameters["factor"], common, precision="highest")

    def log_determinant(self, parameters):
        # det(I_d + F F^T) = det(I_r + F^T F).
        return jnp.sum(jnp.log(jnp.diag(self._root(parameters["factor"]))))

    def square(self, parameters, scaled):
        # (I + F F^T)^-1 = I - F (I + F^T F)^-1 F^T.
        factor = parameters["factor"]
        common = jnp.matmul(factor.T, scaled, precision="highest")
        common = solve_triangular(self._root(factor), common, lower=True)
        return jnp.sum(scaled**2) - jnp.sum(common**2)

    def _root(self, factor):
        gram = jnp.matmul(factor.T, factor, precision="highest")
        return jnp.linalg.cholesky(jnp.eye(self.rank, dtype=factor.dtype) + gram)


@dataclass(frozen=True)
class FullRank(Guide):
    """All covariances; `factor` holds L row by row, ``(d (d - 1) / 2,)``."""

    @property
    def num_parameters(self) -> int:
        return 2 * self.dim + self.dim * (self.dim - 1) // 2

    def init(self, position) -> dict:
        parameters = super().init(position)
        size = self.dim * (self.dim - 1) // 2
        return parameters | {"factor": jnp.zeros(size, parameters["rho"].dtype)}

    def shape(self, parameters, normals):
        return jnp.matmul(self._root(parameters), normals, precision="highest")

    def square(self, parameters, scaled):
        root = self._root(parameters)
        return jnp.sum(solve_triangular(root, scaled, lower=True) ** 2)

    def _root(self, parameters):
        """I + L, whose determinant is one."""
        factor = parameters["factor"]
        identity = jnp.eye(self.dim, dtype=factor.dtype)
        return identity.at[np.tril_indices(self.dim, -1)].set(factor)


def _scales(parameters) -> jax.Array:
    return jax.nn.softplus(parameters["rho"])
