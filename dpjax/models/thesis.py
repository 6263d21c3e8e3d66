"""The eight models of the thesis's experiments: constants, data, starts, references.

Data, starts and reference draws are those of the thesis's code. That code drew them in
float64, with JAX's original threefry, which JAX 0.5 and later do not use by default.
While numbers are drawn here, both are set, whatever the caller's settings. So the
numbers are the same with x64 on and off, up to the rounding of the result.

References
----------
Räisä (2021), Differentially Private Metropolis-Hastings Algorithms, table 5.1,
section 5 and the accompanying code.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.models.banana import BANANA
from dpjax.models.circle import CIRCLE
from dpjax.models.gaussian import GAUSSIAN
from dpjax.models.shared import Family
from dpjax.posterior import Posterior

__all__ = ["THESIS_MODELS", "ThesisModel", "thesis_model"]

START_SEED = 4236482


@dataclass(frozen=True)
class ThesisModel:
    """One row of the thesis's table 5.1.

    Attributes
    ----------
    key
        Name of the model in the thesis's code, such as ``"easy-2d"``.
    name
        Name of the model in the thesis's text.
    dim, num_records
        d and n.
    tempering
        T, the power of the likelihood: 1, or 1000 / n in the tempered models.
    true_theta
        The parameter at which the data were drawn, ``(dim,)``. The circle has no such
        parameter; the origin stands for it.
    start_centre
        Centre of the starting points, ``(dim,)``.
    """

    key: str
    name: str
    dim: int
    num_records: int
    tempering: float
    true_theta: tuple[float, ...]
    start_centre: tuple[float, ...]
    _family: Family = field(repr=False)
    _constants: Mapping[str, Any] = field(repr=False, hash=False)
    _data_key: Callable[[], jax.Array] = field(repr=False)
    _reference_seed: int = field(repr=False)

    @property
    def delta(self) -> float:
        """The thesis's delta, 0.1 / n."""
        return 0.1 / self.num_records

    def simulate(self, seed=None) -> jax.Array:
        """The thesis's data: shape ``(n, d)``, or ``(n,)`` radii for the circle.

        Parameters
        ----------
        seed
            Seed of other data from the same law; None draws the thesis's data.
        """
        with jax.enable_x64(True), jax.threefry_partitionable(False):
            key = self._data_key() if seed is None else jax.random.key(seed)
            data = np.asarray(self._generate(key))
        return jnp.asarray(data, float)

    def _generate(self, key):
        return self._family.generate(
            key, self.num_records, dim=self.dim, **self._constants
        )

    def posterior(self, data=None) -> Posterior:
        """The posterior given `data`, or given the thesis's data if None."""
        data = self.simulate() if data is None else data
        return self._family.build(data, **self._constants)

    def fisher_information(self) -> Callable[[jax.Array], jax.Array]:
        """The model's ``FisherInformation``: ``position -> (d, d)``; reads no data."""
        information = self._family.fisher_information
        assert information is not None
        return information(self.num_records, **self._constants)

    def exact_sample(self, rng_key, data, num_samples) -> jax.Array:
        """Independent posterior draws, ``(num_samples, d)``; not private."""
        return self._family.exact_sample(rng_key, data, num_samples, **self._constants)

    def reference(self) -> jax.Array:
        """The thesis's reference sample, ``(1000, d)``; not private.

        The thesis has no reference sample for the circle. The one returned is drawn by
        the exact sampler of `dpjax.models.circle`.
        """
        with jax.enable_x64(True), jax.threefry_partitionable(False):
            rng_key = jax.random.key(self._reference_seed)
            data = self._generate(self._data_key())
            draws = np.asarray(self.exact_sample(rng_key, data, 1000))
        return jnp.asarray(draws, float)

    def starts(self, reference, num_chains=20) -> jax.Array:
        """Starting points ``(num_chains, d)`` around `start_centre`; not private.

        The starting points have the same standard deviation in every component. It is
        the standard deviation of `reference`, averaged over components, or 1 for the
        circle.

        Parameters
        ----------
        reference
            Posterior draws, ``(m, d)``. The starting points have their dtype.
        """
        spread = 1.0
        if self.key != "circle":
            spread = np.std(np.asarray(reference, np.float64), axis=0).mean()
        with jax.enable_x64(True), jax.threefry_partitionable(False):
            keys = [jax.random.key(START_SEED + i) for i in range(num_chains)]
            normal = [np.asarray(jax.random.normal(key, (self.dim,))) for key in keys]
        starts = np.asarray(self.start_centre) + spread * np.stack(normal)
        return jnp.asarray(starts, reference.dtype)


def thesis_model(key: str) -> ThesisModel:
    """The model that the thesis's code calls `key`.

    Raises
    ------
    ValueError
        If `key` is none of `THESIS_MODELS`.
    """
    if key not in THESIS_MODELS:
        raise ValueError(f"unknown model {key!r}, choose from {sorted(THESIS_MODELS)}")
    return THESIS_MODELS[key]


def _model(
    family, data_key, reference_seed, key, name, dim, num_records, tempering=1.0,
    theta=None, centre=None, **constants,
):  # fmt: skip
    theta = theta or (0.0, 3.0) + (0.0,) * (dim - 2)
    return ThesisModel(
        key, name, dim, num_records, tempering, theta, centre or theta,
        family, dict(constants, tempering=tempering), data_key, reference_seed,
    )  # fmt: skip


_banana = partial(_model, BANANA, lambda: jax.random.key(43247), 56437)
_gaussian = partial(_model, GAUSSIAN, lambda: jax.random.key(46283648), 434927)
_circle = partial(
    _model, CIRCLE, lambda: jax.random.split(jax.random.key(742983))[1], 56437
)

THESIS_MODELS = {
    model.key: model
    for model in (
        _banana("easy-2d", "Flat banana d=2", 2, 100_000),
        _banana("easy-10d", "Flat banana d=10", 10, 200_000),
        _banana("tempered-2d", "Tempered banana d=2", 2, 100_000, 0.01),
        _banana("tempered-10d", "Tempered banana d=10", 10, 200_000, 0.005),
        _banana("gauss-30d", "High dimensional Gauss", 30, 200_000, curvature=0.0),
        _banana("hard-2d", "Narrow banana", 2, 150_000, curvature=350.0),
        _gaussian("hard-gauss-2d", "Correlated Gauss", 2, 200_000),
        _circle("circle", "Circle", 2, 100_000, theta=(0.0, 0.0), centre=(0.0, 1.0)),
    )
}
"""The models by `ThesisModel.key`, in the order of table 5.1."""
