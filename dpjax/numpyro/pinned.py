"""Fits of NumPyro models whose observations read products of latents.

Let theta be the flattened position of the model. Such a model is fitted in the
coordinates zeta(theta) of `dpjax.fit.pinned`, which are the free components of a
*pinned model*: the other components have fixed values there. Draws are of theta, all
latents of the model.
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
"""Message of the error if a walk is asked for and observations read products."""


class PinnedFit(NamedTuple):
    """A posterior of a NumPyro model, and its pinned model of r free components.

    posterior
        From `dpjax.numpyro.posterior`.
    pinned
        The pinned model.
    prior_mean, prior_precision
        Mean ``(r,)`` and precision ``(r, r)`` of the normal law that fits zeta(theta)
        at draws of theta from the prior.
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
        """The mean of the prior of zeta, ``(r,)``, where the fit starts."""
        return jnp.asarray(self.prior_mean, self.pinned.center.dtype)

    @property
    def latents(self) -> Callable[[jax.Array], Any]:
        """``zeta -> position`` of the NumPyro model, a function that holds no record.

        The pinned components of the position have their fixed values.
        """
        start = prior_mean(model_of(self.posterior))
        dtype, (_, unravel) = self.start.dtype, ravel_pytree(start)
        theta = self.pinned.theta
        return lambda zeta: unravel(theta(zeta).astype(dtype))

    def zetas(self, positions) -> jax.Array:
        """zeta ``(k, r)`` of k positions of the NumPyro model, along a leading axis."""
        return _zetas(self.pinned, positions)

    def simulate(self, rng_key: jax.Array, zeta: jax.Array):
        """A made-up record from the pinned model at zeta."""
        return model_of(self.posterior).simulate(rng_key, self.latents(zeta))

    @property
    def of_zeta(self) -> Posterior:
        """The posterior of zeta while the pinned components have their fixed values."""
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
        """`score_fit` of the pinned model.

        Parameters
        ----------
        posterior
            `of_zeta`.
        nominal_num_records, options
            As in `dpjax.fit.score_fit.score_fit`.
        """
        whole = score_model(self.posterior, nominal_num_records)
        latents, kept = self.latents, self.pinned.kept
        columns_of = np.eye(len(self.pinned.center))[:, kept]

        @functools.cache  # The same function is returned each time, and traced once.
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
        """The norm by which scores may be clipped, in place of the Euclidean one.

        See `dpjax.numpyro.score_model.score_norm`.
        """
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
        """Draws of all latents, and their `Known`: see `dpjax.fit.pinned_draws.draws`.

        Parameters
        ----------
        posterior
            `of_zeta`.
        released, rng_key, num_draws, like
            As in `dpjax.runner.fit.fit`.
        norm
            The norm in which scores were clipped, or None.
        """
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
        """How much variance clipping and redraws add to the draws, `MadeUp.lost`.

        It is computed from records that the model makes up at the released position.
        """
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
