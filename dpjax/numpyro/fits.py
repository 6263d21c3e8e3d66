"""Fits of NumPyro models in the coordinates in which their likelihood is about normal.

These are the latents of most models (`LatentFit`). If observations read products of
latents, they are the coordinates zeta(theta) of `dpjax.fit.pinned`, where theta is the
flattened position of the model (`PinnedFit`). They are the free components of a *pinned
model*: the other components have fixed values there. Draws are of theta, all latents of
the model.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from dpjax.algorithm import Algorithm
from dpjax.compiled import evaluated
from dpjax.fit import pinned_draws, score_draws
from dpjax.fit.foretold import made_up
from dpjax.fit.inquiry import ScoreModel
from dpjax.fit.names import names_of
from dpjax.fit.normal_laws import PriorLaw
from dpjax.fit.pinned import Pinned
from dpjax.fit.released import Released
from dpjax.fit.score_fit import score_fit
from dpjax.numpyro.adapter import model_of
from dpjax.numpyro.fisher import prior_law, prior_mean
from dpjax.numpyro.nodes import kept_information
from dpjax.numpyro.score_model import score_model, score_norm
from dpjax.posterior import Posterior
from dpjax.release.mixed_norm import MixedNorm
from dpjax.release.noisy_sum import NoisySum
from dpjax.runner.results import Run

__all__ = ["NO_WALK", "LatentFit", "PinnedFit", "fit_algorithm"]

NO_WALK = (
    "observations read products of latents, such as scale * z, and a walk takes steps "
    "along straight lines, which lead away from latents with the same product: use "
    'method="fit"'
)
"""Message of the error if a walk is asked for and observations read products."""


def fit_algorithm(
    posterior: Posterior,
    *,
    noise_multiplier: float,
    last: NoisySum | None = None,
    robust: bool = False,
    nominal_num_records: int | None = None,
) -> Algorithm:
    """`dpjax.fit.score_fit.score_fit` of a NumPyro model, with the same parameters.

    Raises
    ------
    ValueError
        As in `dpjax.numpyro.fisher_information`.
    """
    return score_fit(
        posterior,
        score_model(posterior, nominal_num_records),
        noise_multiplier=noise_multiplier,
        last=last,
        robust=robust,
        nominal_num_records=nominal_num_records,
    )


@dataclasses.dataclass(frozen=True)
class LatentFit:
    """A fit of a NumPyro model in its latents.

    Parameters
    ----------
    posterior
        From `dpjax.numpyro.posterior`.
    """

    posterior: Posterior

    @property
    def target(self) -> Posterior:
        """The posterior in the coordinates of the fit."""
        return self.posterior

    @property
    def start(self):
        """The position where the fit starts, the mean of the prior."""
        return prior_mean(model_of(self.posterior))

    @property
    def names(self) -> list[str]:
        """Names of the components of a flattened position of the fit."""
        return names_of(self.start)

    @property
    def precision(self) -> np.ndarray:
        """Precision ``(d, d)`` of the normal law that fits the prior."""
        return prior_law(model_of(self.posterior))[1]

    def positions(self, latents):
        """Positions of the fit, from those of the model, with a leading axis."""
        return latents

    def simulate(self, rng_key: jax.Array, position):
        """A made-up record from the model at a position of the fit."""
        return model_of(self.posterior).simulate(rng_key, position)

    def algorithm(self, posterior: Posterior, **options) -> Algorithm:
        """`score_fit` of `target`, which is passed as `posterior`, with its options."""
        return fit_algorithm(posterior, **options)

    def norm(self, nominal_num_records: int | None) -> MixedNorm | None:
        """The norm by which scores may be clipped, in place of the Euclidean one.

        See `dpjax.numpyro.score_model.score_norm`.
        """
        return score_norm(self.posterior, nominal_num_records, self.precision)

    def draws(
        self,
        posterior: Posterior,
        released: Released,
        rng_key,
        num_draws: int,
        like,
        norm: MixedNorm | None = None,
    ):
        """Draws of all latents, and what is known of them.

        See `dpjax.fit.score_draws.draws`.

        Parameters
        ----------
        posterior
            `target`.
        released, rng_key, num_draws, like
            As in `dpjax.runner.fit.fit`.
        norm
            The norm in which scores were clipped, or None.
        """
        lost_fn = functools.partial(self.lost, posterior, norm)
        return score_draws.draws(posterior, released, rng_key, num_draws, like, lost_fn)

    def lost(
        self, posterior: Posterior, norm: MixedNorm | None, released: Released
    ) -> float:
        """How much variance clipping and redraws add to the draws, `MadeUp.lost`.

        It is computed from records that the model makes up at the released position.
        """
        _, unravel = ravel_pytree(self.start)
        position = unravel(jnp.asarray(released.position))
        (found,) = made_up(
            posterior.loglikelihood_fn,
            self.simulate,
            self.precision,
            posterior.tempering,
            jax.tree.map(lambda leaf: leaf[None], position),
            kept_information(model_of(self.posterior)),
        )
        num_records = float(released.num_records) / posterior.tempering
        return found.lost(num_records, float(released.clip_norm), norm)

    def constrained(self, run: Run) -> Run:
        """The run with draws of the parameters of the model."""
        return run


@dataclasses.dataclass(frozen=True)
class PinnedFit(LatentFit):
    """A fit of a NumPyro model in zeta, the r free components of its pinned model.

    Parameters
    ----------
    pinned
        The pinned model.
    prior_mean, prior_precision
        Mean ``(r,)`` and precision ``(r, r)`` of the normal law that fits zeta(theta)
        at draws of theta from the prior.
    """

    pinned: Pinned
    prior_mean: np.ndarray
    prior_precision: np.ndarray

    @classmethod
    def of(cls, posterior: Posterior, pinned: Pinned) -> "PinnedFit":
        draws = _zetas(pinned, model_of(posterior).prior_draws)
        return cls(posterior, pinned, *PriorLaw.of(draws))

    @property
    def start(self) -> jax.Array:
        """The mean of the prior of zeta, ``(r,)``."""
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

    @property
    def names(self) -> list[str]:
        names = names_of(prior_mean(model_of(self.posterior)))
        return [names[i] for i in self.pinned.kept]

    @property
    def precision(self) -> np.ndarray:
        return self.prior_precision

    def positions(self, latents) -> jax.Array:
        return _zetas(self.pinned, latents)

    def simulate(self, rng_key: jax.Array, position: jax.Array):
        return super().simulate(rng_key, self.latents(position))

    @property
    def target(self) -> Posterior:
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
        self,
        posterior: Posterior,
        *,
        nominal_num_records: int | None = None,
        **options,
    ) -> Algorithm:
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
        return score_norm(
            self.posterior, nominal_num_records, self.precision, self.pinned.kept
        )

    def draws(self, posterior, released, rng_key, num_draws, like, norm=None):
        """As of the base class: see `dpjax.fit.pinned_draws.draws`."""
        model = model_of(self.posterior)
        mean, precision = prior_law(model)
        return pinned_draws.draws(
            self.posterior,
            released,
            rng_key,
            num_draws,
            super().start,
            pinned=self.pinned,
            prior_mean=mean,
            prior_precision=precision,
            lost_fn=functools.partial(self.lost, posterior, norm),
        )

    def constrained(self, run: Run) -> Run:
        positions = self.posterior.constrain(run.positions)
        return dataclasses.replace(run, positions=positions)


def _zetas(pinned: Pinned, positions) -> jax.Array:
    def zetas(positions):
        vectors = jax.vmap(lambda position: ravel_pytree(position)[0])(positions)
        return jax.lax.map(pinned.zeta, vectors)

    return evaluated(zetas, positions)
