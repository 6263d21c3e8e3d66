"""Fits of NumPyro models whose observations read products of latents.

Such a model is fitted in the coordinates zeta of `dpjax.fit.pinned`, and the draws are
of all latents.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from dpjax.algorithm import Algorithm
from dpjax.fit import pinned_draws
from dpjax.fit.compiled import evaluated
from dpjax.fit.foretold import made_up
from dpjax.fit.inquiry import ScoreModel
from dpjax.fit.pinned import Pinned
from dpjax.fit.released import Released
from dpjax.fit.score_fit import score_fit
from dpjax.numpyro.adapter import model_of
from dpjax.numpyro.fisher import law_of, prior_law, prior_mean
from dpjax.numpyro.nodes import kept_information
from dpjax.numpyro.score_model import score_model, score_norm
from dpjax.posterior import Posterior
from dpjax.release.mixed_norm import MixedNorm

__all__ = ["NO_WALK", "PinnedFit"]

NO_WALK = (
    "observations read products of latents, such as scale * z, and a walk takes steps "
    "along straight lines, which lead away from latents with the same product: use "
    'method="fit"'
)
"""Why such a model has no walk."""


class PinnedFit(NamedTuple):
    """A posterior of a NumPyro model, and its pinned model.

    posterior
        From `dpjax.numpyro.posterior`.
    pinned
        The pinned model.
    prior_mean, prior_precision
        Of the normal law that fits zeta at draws of the prior, ``(r,)`` and ``(r, r)``.
    """

    posterior: Posterior
    pinned: Pinned
    prior_mean: np.ndarray
    prior_precision: np.ndarray

    @classmethod
    def of(cls, posterior: Posterior, pinned: Pinned) -> "PinnedFit":
        draws = _zetas(pinned, model_of(posterior).prior_draws)
        return cls(posterior, pinned, *law_of(np.asarray(draws)))

    @property
    def dim(self) -> int:
        return len(self.pinned.kept)

    @property
    def start(self) -> jax.Array:
        """The centre of the prior of zeta."""
        return jnp.asarray(self.prior_mean, self.pinned.center.dtype)

    @property
    def latents(self) -> Callable[[jax.Array], Any]:
        """``zeta -> position`` of the NumPyro model; it holds no record."""
        start = prior_mean(model_of(self.posterior))
        dtype, (_, unravel) = self.start.dtype, ravel_pytree(start)
        theta = self.pinned.theta
        return lambda zeta: unravel(theta(zeta).astype(dtype))

    def zetas(self, positions) -> jax.Array:
        """zeta of positions of the NumPyro model with a leading axis, ``(k, r)``."""
        return _zetas(self.pinned, positions)

    def simulate(self, rng_key: jax.Array, zeta: jax.Array):
        """A record from the pinned model."""
        return model_of(self.posterior).simulate(rng_key, self.latents(zeta))

    @property
    def of_zeta(self) -> Posterior:
        """The posterior of zeta with the pinned components at their values."""
        target, latents = self.posterior, self.latents
        logprior_fn, loglikelihood_fn = target.logprior_fn, target.loglikelihood_fn
        return dataclasses.replace(
            target,
            logprior_fn=lambda zeta: logprior_fn(latents(zeta)),
            loglikelihood_fn=lambda zeta, record: loglikelihood_fn(
                latents(zeta), record
            ),
            constrain_fn=None,
            public=(target.public, self.pinned[:2]),
        )

    def algorithm(
        self, posterior: Posterior, *, nominal_num_records: int | None, **options
    ) -> Algorithm:
        """`score_fit` of the pinned model; the options are its own."""
        whole = score_model(self.posterior, nominal_num_records)
        latents, kept = self.latents, self.pinned.kept
        columns_of = np.eye(len(self.pinned.center))[:, kept]

        @functools.cache  # One function is traced once.
        def of_zeta(scores_fn):
            def scores(zeta, record, rng_key):
                found = scores_fn(latents(zeta), record, rng_key)
                return found._replace(directions=found.directions[:, kept])

            return scores

        def expected(*function):
            assert whole.expected is not None
            of_latents = whole.expected(*function)

            def mean(zeta, columns):
                columns = jnp.asarray(columns_of, columns.dtype) @ columns
                return of_latents(latents(zeta), columns)

            return mean

        model = ScoreModel(
            of_zeta(whole.scores_fn),
            of_zeta(whole.search_scores_fn),
            whole.expected and expected,
            lambda zeta: whole.information(latents(zeta))[np.ix_(kept, kept)],
            self.prior_mean,
            self.prior_precision,
        )
        return score_fit(
            posterior, model, nominal_num_records=nominal_num_records, **options
        )

    def norm(self, nominal_num_records: int | None) -> MixedNorm | None:
        """In which scores may be clipped: `dpjax.numpyro.score_model.score_norm`."""
        return score_norm(
            self.posterior,
            nominal_num_records,
            self.prior_precision,
            self.pinned.kept,
        )

    def draws(
        self,
        posterior: Posterior,
        released: Released,
        rng_key,
        num_draws: int,
        like,
        norm: MixedNorm | None = None,
    ):
        """Draws of all latents, and what they know; see `dpjax.fit.pinned_draws`."""
        model = model_of(self.posterior)
        return pinned_draws.draws(
            self.posterior,
            released,
            rng_key,
            num_draws,
            prior_mean(model),
            pinned=self.pinned,
            prior_mean=prior_law(model)[0],
            prior_precision=prior_law(model)[1],
            lost_fn=functools.partial(self._lost, posterior, norm),
        )

    def _lost(
        self, posterior: Posterior, norm: MixedNorm | None, released: Released
    ) -> float:
        """How much variance clipping and redraws add, where the draws are."""
        (found,) = made_up(
            posterior.loglikelihood_fn,
            self.simulate,
            self.prior_precision,
            posterior.tempering,
            jnp.asarray(released.position)[None],
            kept_information(model_of(self.posterior)),
        )
        num_records = float(released.num_records) / posterior.tempering
        return found.lost(num_records, float(released.clip_norm), norm)


def _zetas(pinned: Pinned, positions) -> jax.Array:
    def zetas(positions):
        vectors = jax.vmap(lambda position: ravel_pytree(position)[0])(positions)
        return jax.lax.map(pinned.zeta, vectors)

    return evaluated(zetas, positions)
