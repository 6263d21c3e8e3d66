"""Gaussian guides: the families of distributions that variational inference fits.

A guide is theta = m + s * (A e), where e is standard normal, m is the location,
s = softplus(rho) are the scales of the d components, and A has one of the forms

    mean field    A e = e,
    low rank      A e = e_1 + F e_2,    F (d, r), e_2 of r components,
    full rank     A e = e + L e,        L (d, d) strictly lower triangular.

They are the families of NumPyro's ``AutoDiagonalNormal``,
``AutoLowRankMultivariateNormal`` and ``AutoMultivariateNormal``, on the same
unconstrained space as `dpjax.numpyro.posterior`. The parameters of a guide are a dict
of ``location``, a pytree like the position, and ``rho``, ``(d,)``. `LowRank` and
`FullRank` also have ``factor``, which holds F or L.
"""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from dpjax.privacy.validate import check_count, check_positive

__all__ = ["FullRank", "Guide", "LowRank", "MeanField"]


@dataclass(frozen=True)
class Guide:
    """A Gaussian guide; the base class, whose components are independent.

    Parameters
    ----------
    dim
        d, the number of components of the position.
    init_scale
        The scale s of every component at the start.

    Raises
    ------
    ValueError
        If a parameter is not positive; from ``init``, if the position does not have d
        components.
    """

    dim: int
    init_scale: float = 0.1

    def __post_init__(self):
        check_count("dim", self.dim)
        check_positive(init_scale=self.init_scale)

    @property
    def num_normals(self) -> int:
        """Number of standard normals that `transform` takes."""
        return self.dim

    @property
    def num_parameters(self) -> int:
        """Number of entries of the parameters phi, in all leaves."""
        parameters = jax.eval_shape(self.init, jnp.zeros(self.dim))
        return sum(leaf.size for leaf in jax.tree.leaves(parameters))

    def init(self, position) -> dict:
        """Parameters of independent components whose mean is the public `position`."""
        position = jax.tree.map(jnp.asarray, position)
        flat, _ = ravel_pytree(position)
        if flat.size != self.dim:
            raise ValueError(
                f"the position has {flat.size} components, the guide {self.dim}"
            )
        rho = jnp.full(flat.shape, math.log(math.expm1(self.init_scale)), flat.dtype)
        return {"location": position, "rho": rho}

    def transform(self, parameters, normals: jax.Array):
        """theta, a pytree like the location, from e, ``(num_normals,)``."""
        location, unravel = ravel_pytree(parameters["location"])
        correlated = self.correlate(parameters, normals)
        return unravel(location + jax.nn.softplus(parameters["rho"]) * correlated)

    def entropy(self, parameters) -> jax.Array:
        """The exact entropy of the guide, in nats."""
        constant = self.dim * (1 + math.log(2 * math.pi)) / 2
        log_scale = jnp.sum(jnp.log(jax.nn.softplus(parameters["rho"])))
        return constant + log_scale + self.log_determinant(parameters)

    def sample(self, rng_key: jax.Array, parameters, num_samples: int):
        """Independent draws of theta, a pytree with leaves ``(num_samples, ...)``."""
        dtype = parameters["rho"].dtype
        normals = jax.random.normal(rng_key, (num_samples, self.num_normals), dtype)
        return jax.vmap(self.transform, (None, 0))(parameters, normals)

    def correlate(self, parameters, normals):
        """A e, ``(d,)``, from e, ``(num_normals,)``."""
        return normals

    def log_determinant(self, parameters):
        """log det(A A^T) / 2, the part of the entropy that is due to A."""
        return 0.0


@dataclass(frozen=True)
class MeanField(Guide):
    """Independent components."""


@dataclass(frozen=True, kw_only=True)
class LowRank(Guide):
    """Independent components, and a few factors that the components share.

    Parameters
    ----------
    rank
        r, the number of shared factors.
    """

    rank: int

    def __post_init__(self):
        super().__post_init__()
        check_count("rank", self.rank)

    @property
    def num_normals(self) -> int:
        return self.dim + self.rank

    def init(self, position) -> dict:
        parameters = super().init(position)
        shape = self.dim, self.rank
        return parameters | {"factor": jnp.zeros(shape, parameters["rho"].dtype)}

    def correlate(self, parameters, normals):
        own, common = jnp.split(normals, [self.dim])
        return own + jnp.matmul(parameters["factor"], common, precision="highest")

    def log_determinant(self, parameters):
        # det(I_d + F F^T) = det(I_r + F^T F), for smaller matrices.
        factor = parameters["factor"]
        gram = jnp.matmul(factor.T, factor, precision="highest")
        root = jnp.linalg.cholesky(jnp.eye(self.rank, dtype=factor.dtype) + gram)
        return jnp.sum(jnp.log(jnp.diag(root)))


@dataclass(frozen=True)
class FullRank(Guide):
    """Gaussians with any covariance; ``factor`` is L by rows, ``(d (d - 1) / 2,)``."""

    def init(self, position) -> dict:
        parameters = super().init(position)
        size = self.dim * (self.dim - 1) // 2
        return parameters | {"factor": jnp.zeros(size, parameters["rho"].dtype)}

    def correlate(self, parameters, normals):
        factor = parameters["factor"]
        identity = jnp.eye(self.dim, dtype=factor.dtype)
        root = identity.at[np.tril_indices(self.dim, -1)].set(factor)
        return jnp.matmul(root, normals, precision="highest")
