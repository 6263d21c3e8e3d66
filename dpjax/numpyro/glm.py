"""Regressions from a formula, for users who do not write a NumPyro model."""

import re
import reprlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions import constraints
from numpyro.distributions.transforms import (
    AffineTransform,
    ComposeTransform,
    Transform,
    biject_to,
)

from dpjax.numpyro.adapter import ModelPosterior, posterior
from dpjax.numpyro.complete import complete_cases
from dpjax.numpyro.sample import sample
from dpjax.privacy.budget import Budget, check_budget
from dpjax.records.formula import Design
from dpjax.records.schema import COMPLETE
from dpjax.runner.messages import say
from dpjax.runner.results import Run

__all__ = ["FAMILIES", "PLATE", "Regression", "glm"]

PLATE = "records"

FAMILIES = {
    "gaussian": ("real", "count"),
    "student_t": ("real", "count"),
    "bernoulli": ("boolean", "category"),
    "poisson": ("count",),
    "negative_binomial": ("count",),
    "ordinal": ("category",),
}
"""``{family: kinds of columns that its response may have}``."""

OF_NUMBERS = "gaussian", "student_t"
INTERCEPT = "Intercept_centred"


class Regression:
    """A NumPyro model from a formula and a public schema; no records are read.

    Parameters
    ----------
    formula
        As in `dpjax.records.formula`, such as
        ``"visits ~ age + C(sex) + (1 | clinic)"``.
    family
        The law of the response and the link: ``"gaussian"`` and ``"student_t"``
        (identity), ``"bernoulli"`` (logit), ``"poisson"`` and ``"negative_binomial"``
        (log), ``"ordinal"`` (cumulative logit).
    schema
        The argument of `dpjax.records.Schema`.
    priors
        Priors in place of the default ones, by parameter, such as
        ``{"age": "Normal(0, 1)"}``: a class of `numpyro.distributions` and its numbers.

    Attributes
    ----------
    priors
        All priors, by parameter. ``print`` of the regression shows them.
    reference_levels
        ``{category: level}``: coefficients of a category are differences from its
        reference level. If the response has two levels, the model is of the probability
        of the other one.
    model, public, example
        Arguments of `dpjax.numpyro.posterior`. The plate is ``"records"``.

    Raises
    ------
    ValueError
        As `dpjax.records.formula.Design` does; or if the family is unknown, the
        response is not of the family, or a prior is for no parameter or is not of the
        form above.

    Notes
    -----
    Priors are those of rstanarm, with the public schema in place of the data. Let s be
    the sd of the response in made-up records of the schema where the link is the
    identity, and 1 otherwise, and m its mean or 0. Then

    - ``Intercept_centred`` is Normal(m, 2.5 s). It is the predictor where all columns
      of the design matrix have their public means. ``Intercept``, which follows from
      it, is the predictor where these columns are zero.
    - The coefficient of a column with the public sd t is Normal(0, 2.5 s / t). Public
      means and sds are those of the made-up records.
    - ``sigma`` and ``1|GROUP_sigma``, the sd of a group's intercepts, are exponential
      with mean s.
    - ``nu``, the degrees of freedom of Student's t, is Gamma(2, 0.1).
    - ``reciprocal_dispersion`` of a negative binomial is exponential with mean 1.
    - ``shares`` of the levels of an ordinal response, where the predictor is zero, are
      uniform on the simplex. They determine the ``cutpoints``.

    With ``0 +`` in the formula there is no intercept, and nothing is centred; m is then
    added to the predictor where the link is the identity.

    The unconstrained positions of fits and chains are these parameters over public
    units, so that prior sds are of the order of one. Draws are the parameters
    themselves.
    """

    def __init__(
        self,
        formula: str,
        *,
        family: str,
        schema,
        priors: Mapping[str, str] | None = None,
    ):
        self.design, self.family = Design(formula, schema), family
        self._check_response()
        example, names = self.design.example, self.design.names
        self.example = example
        x = example.get("x", np.zeros((2, 0)))
        mean, scale = 0.0, 1.0
        if family in OF_NUMBERS:
            mean, scale = float(np.mean(example["y"])), float(np.std(example["y"]))
        is_centred = self.design.has_intercept
        units = dict(zip(names, scale / x.std(axis=0), strict=True))
        stated = {name: f"Normal(0, {2.5 * unit:.3g})" for name, unit in units.items()}
        if is_centred and family != "ordinal":
            stated[INTERCEPT] = f"Normal({mean:.3g}, {2.5 * scale:.3g})"
        for name in map(_sd, self.design.groups):
            stated[name] = f"Exponential({1 / scale:.3g})"
        if family in OF_NUMBERS:
            stated["sigma"] = f"Exponential({1 / scale:.3g})"
        units = dict.fromkeys(stated, scale) | units
        if family == "student_t":
            stated["nu"], units["nu"] = "Gamma(2, 0.1)", 1.0
        if family == "negative_binomial":
            name = "reciprocal_dispersion"
            stated[name], units[name] = "Exponential(1)", 1.0
        if unknown := sorted(set(priors or {}) - set(stated)):
            raise ValueError(
                f"there are no parameters {unknown}: priors may be given for "
                f"{sorted(stated)}"
            )
        self.priors = stated | dict(priors or {})
        self.reference_levels = dict(self.design.reference_levels)
        response = self.design.response
        levels = self.design.schema[response].levels
        if family == "bernoulli" and levels:
            self.reference_levels[response] = str(levels[0])
        laws = {name: _parsed(name, text) for name, text in self.priors.items()}
        kinds = {name: kind for name, (kind, _) in laws.items()}
        self.public: dict[str, Any] = {
            "numbers": {name: numbers for name, (_, numbers) in laws.items()},
            "units": {name: np.asarray(unit) for name, unit in units.items()},
            "mean": np.asarray(mean),
            "levels": {k: np.zeros(size) for k, size in self.design.groups.items()},
        }
        if names:
            self.public["centre"] = x.mean(axis=0) * is_centred
        if family == "ordinal":
            self.public["ones"] = np.ones(len(levels))
        self.model = complete_cases(_model(family, tuple(names), kinds), PLATE)

    def _check_response(self) -> None:
        family, name = self.family, self.design.response
        if family not in FAMILIES:
            raise ValueError(
                f"family must be one of {', '.join(FAMILIES)}, got {family!r}"
            )
        column = self.design.schema[name]
        is_of_family = column.kind in FAMILIES[family]
        if not is_of_family or column.missing not in ("drop", "fill"):
            raise ValueError(
                f"the response {name!r} of the family {family} must be a "
                f"{' or a '.join(FAMILIES[family])} with missing = 'drop' or 'fill'"
            )
        is_count = family in ("poisson", "negative_binomial")
        if is_count and column.range[0] < 0:
            raise ValueError(f"the range of the response {name!r} must begin at 0")
        if family == "bernoulli" and len(column.levels) not in (0, 2):
            raise ValueError(f"the response {name!r} must have two levels")
        if family == "ordinal" and not self.design.has_intercept:
            raise ValueError(
                "an ordinal response has cut points, whatever the formula says of an "
                "intercept: leave out '0 +' and '- 1'"
            )

    def __repr__(self) -> str:
        """The formula, all priors and the reference levels."""
        lines = [f"{self.design.formula} ({self.family})"]
        lines += [f"  {name} ~ {law}" for name, law in self.priors.items()]
        lines += [f"  {k}: reference {v}" for k, v in self.reference_levels.items()]
        return "\n".join(lines)

    def posterior(self, records, *, example=None) -> ModelPosterior:
        """The posterior given the records, for any kernel.

        Parameters
        ----------
        records
            As in `dpjax.records.Schema.read`.
        example
            Public records that are more like the data than those made up from the
            schema, which have all levels equally often: made up, or of an earlier study
            that was published. They are read as `records` are. They must not be rows
            of the data, on which what is released would then depend. A fit refuses an
            example of nothing but such rows, but does not notice some among others.

        Returns
        -------
        ModelPosterior
            As `dpjax.numpyro.posterior` returns it.

        Raises
        ------
        FileNotFoundError, RuntimeError, ValueError
            As `dpjax.records.Schema.read` does.

        Notes
        -----
        *Formal guarantees.* The row of a record in the design is a function of this
        record and public values alone: see `dpjax.records.Schema.read`.
        """
        example = None if example is None else self.read(example)
        return self.of_arrays(self.read(records), example)

    def read(self, records) -> dict[str, np.ndarray]:
        """Arrays for the model's arguments, as `dpjax.records.formula.Design.read`."""
        return self.design.read(records)

    def predict(
        self,
        run: Run,
        records,
        *,
        num_draws: int | None = None,
        rng_key: jax.Array | None = None,
    ) -> np.ndarray:
        """Responses of new records, whose own responses need not be known.

        Parameters
        ----------
        run
            A run of the `posterior` of this regression, as `dpjax.glm` returns it.
        records
            As in `dpjax.records.Schema.read`; a column of responses is not read.
        num_draws, rng_key
            As in `dpjax.runner.Run.predict`.

        Returns
        -------
        Responses ``(num_draws, n)``: numbers, counts, or codes of levels.

        Raises
        ------
        FileNotFoundError, RuntimeError, ValueError
            As `dpjax.records.Schema.read` and `dpjax.runner.Run.predict` do; or if a
            record lacks a term of the formula, or the formula has no terms.

        Notes
        -----
        *Formal guarantees.* As for `dpjax.runner.Run.predict`. Predictions, and the
        error about records that lack a term, tell of the new records: do not publish
        them if these records are secret.
        """
        inputs = self.design.predictors(records)
        if lacking := np.flatnonzero(~inputs[COMPLETE]).tolist():
            raise ValueError(
                f"the records {reprlib.repr(lacking)} to predict, counted from 0, lack "
                "a term of the formula, or it is not finite for them: leave them out"
            )
        found = run.predict(
            self.of_arrays(self.example), inputs, num_draws=num_draws, rng_key=rng_key
        )
        return found["y"]

    def of_arrays(self, arrays, example=None) -> ModelPosterior:
        """The posterior given arrays in the form of `Regression.example`.

        `example` is in that form as well; None stands for `Regression.example` itself.
        """
        example = self.example if example is None else example
        return posterior(
            self.model, arrays, plate=PLATE, public=self.public, example=example
        )


def glm(
    formula: str,
    records,
    *,
    family: str,
    schema,
    budget: Budget,
    priors: Mapping[str, str] | None = None,
    example=None,
    verbose: bool = True,
    **options,
) -> Run:
    """Draw from the posterior of a regression, and spend all of a budget.

    Parameters
    ----------
    formula, family, schema, priors
        As in `dpjax.numpyro.Regression`, whose docstring has the default priors.
    records
        A table of pandas, polars or pyarrow, a dict of arrays, or the path of a .csv,
        .csv.gz, .parquet or .npz file: see `dpjax.records.Schema.read`.
    budget
        Privacy budget of all draws together, and of all earlier runs in the ledger.
    example
        As in `dpjax.numpyro.Regression.posterior`. Give one if some levels are rare:
        with that of the schema their intervals may be too short.
    verbose
        Whether to show the model with its priors, and the progress.
    options
        Further arguments of `dpjax.numpyro.sample`. Different models read different
        columns of a table, so they share a ledger only if it is named for the table's
        file, as ``ledger="people.csv.ledger.jsonl"`` is for ``people.csv``.

    Returns
    -------
    Run
        As `dpjax.numpyro.sample` returns it. Draws are of the parameters with priors,
        by their names; of the groups' intercepts, such as ``1|clinic``; and of
        ``Intercept``.

    Raises
    ------
    ValueError
        As `dpjax.numpyro.Regression` does, before the records are read.
    FileNotFoundError, RuntimeError
        As `dpjax.records.Schema.read` does.
    TypeError, BudgetError, LedgerError, CheckpointError
        As `dpjax.numpyro.sample` does.

    Notes
    -----
    *Formal guarantees.* As for `dpjax.numpyro.sample`. The unit of privacy is one
    record, and the number of records is public.

    ``(1 | GROUP)`` adds one parameter for each level, so it needs more records than the
    other terms: see `dpjax.numpyro.plan` first.

    Examples
    --------
    >>> dpjax.glm(
    ...     "visits ~ age + C(sex) + (1 | clinic) + offset(log(years))",
    ...     "people.csv", family="poisson", schema="people.schema.toml",
    ...     budget=dpjax.Budget(epsilon=1, delta=1e-6),
    ... )  # doctest: +SKIP
    """
    check_budget(budget)
    regression = Regression(formula, family=family, schema=schema, priors=priors)
    if verbose:
        say(regression)
    posterior = regression.posterior(records, example=example)
    return sample(posterior, budget=budget, verbose=verbose, **options)


class _InUnits(constraints.Constraint):
    """A support, `domain`, whose unconstrained positions are in public units.

    The domain is the real line or the positive numbers. The transform from the
    unconstrained position z, which `biject_to` returns, is z -> shift + unit *
    biject_to(domain)(z).
    """

    def __init__(self, domain, shift, unit):
        self.domain, self.shift, self.unit = domain, shift, unit

    def __call__(self, x):
        return self.domain(x)

    def tree_flatten(self):
        leaves = self.domain, self.shift, self.unit
        return leaves, (("domain", "shift", "unit"), {})


@biject_to.register(_InUnits)
def _in_units(support: _InUnits) -> Transform:
    to_domain = biject_to(support.domain)
    return ComposeTransform([to_domain, AffineTransform(support.shift, support.unit)])


class _Units(Transform):
    """The identity, which gives the law that it transforms the support `codomain`.

    The law of the parameter does not change, but the units of its unconstrained
    position do.
    """

    codomain: Any = None

    def __init__(self, codomain: _InUnits):
        self.codomain = codomain

    def __call__(self, x):
        return x

    def _inverse(self, y):
        return y

    def log_abs_det_jacobian(self, x, y, intermediates=None):
        return jnp.zeros_like(x)

    def tree_flatten(self):
        return (self.codomain,), (("codomain",), {})


def _sd(group: str) -> str:
    return f"1|{group}_sigma"


def _parsed(name: str, text: str) -> tuple[type, list[np.ndarray]]:
    """The class of a prior such as ``"Normal(0, 2.5)"``, and its numbers."""
    match = re.fullmatch(r"\s*(\w+)\(([^()]*)\)\s*", str(text))
    kind = getattr(dist, match[1], None) if match else None
    try:
        if match is None or not isinstance(kind, type):
            raise ValueError
        numbers = [np.asarray(float(number)) for number in match[2].split(",")]
        law = kind(*numbers)
        if not isinstance(law, dist.Distribution):
            raise ValueError
        is_positive = law.support is constraints.positive and name != INTERCEPT
        if not (law.support is constraints.real or is_positive):
            raise ValueError
    except Exception:
        raise ValueError(
            f"the prior of {name!r} must be a class of numpyro.distributions and its "
            "numbers, such as 'Normal(0, 2.5)', on the real line or, but for "
            f"{INTERCEPT}, the positive numbers, got {text!r}"
        ) from None
    return kind, numbers


def _model(family: str, names: tuple[str, ...], kinds: dict[str, type]):
    """The NumPyro model of a family, with coefficients `names`.

    `kinds` are the classes of the priors, by parameter. The priors' numbers reach the
    model as public arguments.
    """

    def model(y, numbers, units, mean, levels, **others):
        def in_units(law, name, shift=0.0):
            units_of = _Units(_InUnits(law.support, shift, units[name]))
            return dist.TransformedDistribution(law, units_of)

        def draw(name, shift=0.0):
            law = kinds[name](*numbers[name])
            return numpyro.sample(name, in_units(law, name, shift))

        predictor, shift = jnp.zeros(y.shape), jnp.zeros(())
        if names:
            coefficients = jnp.stack([draw(name) for name in names])
            predictor = (others["x"] - others["centre"][None]) @ coefficients
            shift = others["centre"] @ coefficients
        if INTERCEPT in kinds:
            intercept = draw(INTERCEPT, mean)
            numpyro.deterministic("Intercept", intercept - shift)
            predictor = predictor + intercept
        else:
            predictor = predictor + mean
        if "offset" in others:
            predictor = predictor + others["offset"]
        for group, zeros in levels.items():
            # The parametrisation is centred, which suits groups of many records.
            law = dist.Normal(zeros, draw(_sd(group)))
            law = in_units(law, _sd(group)).to_event(1)
            effects: Any = numpyro.sample(f"1|{group}", law)
            predictor = predictor + effects[others[group]]
        if family == "gaussian":
            law = dist.Normal(predictor, draw("sigma"))
        elif family == "student_t":
            law = dist.StudentT(draw("nu"), predictor, draw("sigma"))
        elif family == "bernoulli":
            law = dist.Bernoulli(logits=predictor)
        elif family == "poisson":
            law = dist.Poisson(jnp.exp(predictor))
        elif family == "negative_binomial":
            concentration = 1 / draw("reciprocal_dispersion")
            law = dist.NegativeBinomial2(jnp.exp(predictor), concentration)
        else:
            shares = numpyro.sample("shares", dist.Dirichlet(others["ones"]))
            below = jnp.cumsum(shares)[:-1]
            cuts = numpyro.deterministic("cutpoints", jnp.log(below / (1 - below)))
            law = dist.OrderedLogistic(predictor, cuts)
        with numpyro.plate(PLATE, y.shape[0]):
            numpyro.sample("y", law, obs=y)

    return model
