"""Refusals of NumPyro models that cannot be protected, without reading the data.

The log density of a model must be a prior plus a sum over records. A model is traced
and evaluated on made-up records that have the shapes of the data, so no refusal depends
on a value of the data. There are three kinds of evidence:

- NumPyro's trace shows the sites and their types.
- The traced program shows which site reads which array (`numpyro.ops.provenance`).
- Evaluated densities show a record whose likelihood depends on other records, and a
  prior that depends on the number of records. Neither is seen in a trace.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.ops.provenance import eval_provenance

from dpjax import caller
from dpjax.compiled import evaluated
from dpjax.numpyro.model import Model, Rows, in_plate, is_latent
from dpjax.numpyro.quadrature import innermost
from dpjax.release.captured import captured
from dpjax.release.taint import check_call
from dpjax.release.traced import equations

__all__ = [
    "OVERFLOW",
    "check_dependencies",
    "check_numbers",
    "check_sites",
    "dependencies",
    "is_finite",
    "listed",
    "traced",
    "warn_of_captured",
]

MAX_RELATIVE_ERROR = 1e-3
"""Bound on the rounding errors of float32 sums over records, relative to the sum of the
absolute terms. If records depend on each other, sums differ by far more."""

OVERFLOW = (
    "numbers overflow at the latents that are tried, which are about 0.3 from zero in "
    "unconstrained space: covariates in units far from one do this, such as years in "
    "an exponential. Divide them by a public constant, or standardise them by their "
    "public range, before the model is called"
)
"""End of the messages of checks that fail because a density overflows. Covariates in
natural units, such as years, are often the reason."""

REMEDIES = {
    "param": "sites of numpyro.param are not sampled; give them a prior with "
    "numpyro.sample. LocScaleReparam has none if its centered= is a number",
    "mutable": "mutable state may carry one record's values into another's; remove it",
    "control_flow": "numpyro's scan and cond may link records, as a time series does; "
    "use jax.lax.scan inside the log-likelihood of one record, or remove it",
    "prng_key": "the likelihood must not be random; remove numpyro.prng_key and "
    "dropout",
}
"""``{type of a site that is refused: advice of the message}``."""


def traced(function, *arguments):
    """Evaluate `function` abstractly, as `jax.eval_shape` does.

    Raises
    ------
    ValueError
        If the model raises an error, or makes a callback or a print; the message says
        what to do.
    """
    try:
        program, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
    except (
        jax.errors.ConcretizationTypeError,
        jax.errors.TracerArrayConversionError,
    ) as error:
        raise ValueError(
            "the model branches in Python on, or takes out of JAX, a value of the data "
            "or of a latent, which would make the program depend on it: use jnp.where "
            f"or jax.lax.cond, and jax.numpy instead of numpy ({_first_line(error)})"
        ) from error
    except NotImplementedError as error:
        if "control flow" in str(error):
            message = f"control flow in a plate: {REMEDIES['control_flow']}"
            raise ValueError(message) from error
        raise ValueError(
            "nothing can be drawn from a law of the model, as from ImproperUniform: "
            "give every latent a prior that has draws"
        ) from error
    except Exception as error:
        raise ValueError(
            "the model cannot be called on one record, as model(**data, **public) with "
            "arrays that have one entry along their leading axis: "
            f"{_first_line(error)}"
        ) from error
    for eqn in equations(program):
        check_call(eqn)
    return shapes


def check_sites(model: Model, sites: dict, rows: Rows) -> None:
    """Refuse models by their sites, as one trace shows them.

    Parameters
    ----------
    model
        The model.
    sites, rows
        The sites and the handler that ``model.trace`` returned.

    Raises
    ------
    ValueError
        If the plate of the records is missing or has no sites; if there is no latent,
        or one that is discrete, constant or inside the plate; or if a site is of a type
        in `REMEDIES`.
    """
    plate = model.plate
    if plate not in rows.plates:
        others = f"only {sorted(set(rows.plates))}" if rows.plates else "nor any other"
        raise ValueError(
            f"the model has no plate {plate!r}, {others}: put the records in `with "
            f"numpyro.plate({plate!r}, n)` or name theirs as plate"
        )
    for kind, remedy in REMEDIES.items():
        if kind in rows.types:
            raise ValueError(f"{kind} {rows.types[kind]!r}: {remedy}")
    latents = {name: site for name, site in sites.items() if is_latent(site)}
    for name, site in latents.items():
        if in_plate(site, plate):
            raise ValueError(
                f"latent {name!r} is inside plate {plate!r}: a latent of one record is "
                "drawn from that record's data alone, and its release is not private. "
                "Marginalise it (e.g. MixtureSameFamily) or move it out of the plate; "
                "if it is an observation, give it obs= and name it in data"
            )
        if site["fn"].support.is_discrete:
            raise ValueError(
                f"latent {name!r} is discrete: it has no unconstrained position. "
                "Marginalise it (e.g. MixtureSameFamily)"
            )
        if isinstance(innermost(site["fn"]), dist.Delta):
            raise ValueError(
                f"latent {name!r} has a Delta law, and so one value alone: make it a "
                "numpyro.deterministic"
            )
    if not latents:
        raise ValueError("the model has no latent site: there is nothing to sample")
    if not any(
        site["type"] == "sample" and in_plate(site, plate) for site in sites.values()
    ):
        raise ValueError(
            f"no site is inside plate {plate!r}: move the observations into it"
        )


def dependencies(model: Model, position):
    """Names of the arrays of the data that each part of each site reads.

    Returns
    -------
    ``{part: {site: names}}``. The parts are ``inside``, the log-likelihoods inside the
    plate; ``outside``, the log priors and factors outside of it; ``log_dets``, the
    log-determinants of the latents' transforms; ``values``, the values of all of these
    sites; and ``deterministics``, the values of the deterministic sites.
    """

    def parts(**records):
        sites, log_dets, _ = model.trace(records, position)

        def values(kind):
            chosen = {k: site for k, site in sites.items() if site["type"] == kind}
            return {k: jnp.asarray(site["value"]) for k, site in chosen.items()}

        return dict(
            inside=model.log_probs(position, records, inside=True)[0],
            outside=model.log_probs(position, records, inside=False)[0],
            log_dets=log_dets,
            values=values("sample"),
            deterministics=values("deterministic"),
        )

    return eval_provenance(parts, **model.one_example)


def check_dependencies(model: Model, reads) -> None:
    """Refuse sites outside the plate that read data, and sites inside that read none.

    `reads` is what `dependencies` returns.

    Raises
    ------
    ValueError
        If there are such sites.
    """
    for name, names in (*reads["outside"].items(), *reads["log_dets"].items()):
        if names:
            raise ValueError(
                f"site {name!r} is outside plate {model.plate!r} but reads "
                f"{listed(names)}: the prior would depend on the records. Choose it "
                "without the data, standardise with public constants before the model "
                "is called, or move an observation or factor into the plate"
            )
    for name, names in reads["inside"].items():
        if not names:
            raise ValueError(
                f"site {name!r} is inside plate {model.plate!r} but reads none of "
                f"{listed(model.example)}: if its data reached the model by closure, "
                "name them in data; if not, move it out of the plate"
            )


def is_finite(model: Model, position) -> bool:
    """Whether each of the made-up records has a finite density."""
    each = evaluated(jax.vmap(model.loglikelihood, (None, 0)), position, model.example)
    return bool(np.all(np.isfinite(each)))


def check_numbers(model: Model, position) -> None:
    """Refuse models whose densities, evaluated at `position`, are no sum over records.

    Raises
    ------
    ValueError
        If a site has several log-likelihoods for one record; if the log-likelihood of
        all made-up records is not the sum of those of each; if the prior depends on the
        number of records; or if a density is not finite.
    """
    records, entries = model.example, {}
    rows = jax.tree.leaves(records)[0].shape[0]

    def alone(record):
        one = jax.tree.map(lambda leaf: leaf[None], record)
        for name, site in model.trace(one, position)[0].items():
            if site["type"] == "sample" and in_plate(site, model.plate):
                shape = jnp.shape(site["fn"].log_prob(site["value"]))
                dims = {frame.name: frame.dim for frame in site["cond_indep_stack"]}
                entries[name] = shape[dims[model.plate]]
        return model.loglikelihood(position, record)

    traced(alone, jax.tree.map(lambda leaf: leaf[0], records))
    for name, count in entries.items():
        if count != 1:
            raise ValueError(
                f"site {name!r} has {count} log-likelihoods for one record: other "
                "records reached the model by closure or as public; name all the data "
                "in data"
            )
    each = np.asarray(evaluated(jax.vmap(alone), records), np.float64)
    prior = float(evaluated(model.logprior, position))

    of_all = model.loglikelihood_of_all, model.logprior_among
    try:
        total, prior_of_all = (float(evaluated(f, position, records)) for f in of_all)
    except Exception as error:
        raise ValueError(
            f"the model takes one record but not {rows}: {_first_line(error)}"
        ) from error
    if np.isfinite(total) and np.isfinite(prior):
        size = max(np.sum(np.abs(each)), 1.0)
        if not abs(total - np.sum(each)) <= MAX_RELATIVE_ERROR * size:
            raise ValueError(
                f"the log-likelihood of {rows} made-up records is {total:.6g} together "
                f"but {np.sum(each):.6g} one by one: a record's likelihood depends on "
                "other records (standardisation inside the model, a time series). "
                "Standardise with public constants, and let one entry of the data be "
                "one independent series"
            )
        if not abs(prior_of_all - prior) <= MAX_RELATIVE_ERROR * max(abs(prior), 1.0):
            raise ValueError(
                f"the prior density is {prior_of_all:.6g} for {rows} records but "
                f"{prior:.6g} for one: it depends on their number through the shape of "
                "the data. Pass that number as public, or leave it out"
            )
    if not np.isfinite(prior):
        of_sites = functools.partial(model.log_probs, inside=False)
        sites = evaluated(of_sites, position, records)[0]
        names = [k for k, value in sites.items() if not np.all(np.isfinite(value))]
        raise ValueError(
            f"the density of {listed(names or sites)} is not finite where it should "
            "be, near zero in unconstrained space. A TransformedDistribution whose "
            "last transform is an AffineTransform needs domain=, such as "
            "constraints.positive, to have the right support"
        )
    if not np.all(np.isfinite(each)):
        raise ValueError(
            "the density of made-up records is not finite. Give example=, a few "
            "made-up records in the form of data that the model could have produced. "
            f"If it has such records, {OVERFLOW}. Or the model divides by the spread "
            "of its argument, which is zero for one record: use a public constant"
        )


def warn_of_captured(function) -> None:
    """Warn of values that `function`, of the user, captured: they count as public."""
    names = {name for name, value in captured(function) if not _is_obvious(value)}
    if names:
        caller.warn(
            f"the model captured {listed(names)} from outside: treated as public. "
            "If they were computed from the data, no privacy is claimed for them; pass "
            "records as data and constants as public"
        )


def _is_obvious(value) -> bool:
    """Whether a captured value is one to three booleans or integers from -2 to 2."""
    if not isinstance(value, int | np.ndarray) or np.size(value) > 3:
        return False
    numbers = np.asarray(value)
    return numbers.dtype.kind in "bi" and bool(np.all(np.abs(numbers) <= 2))


def listed(names) -> str:
    return ", ".join(map(repr, sorted(names)))


def _first_line(error):
    return (str(error).strip() or repr(error)).splitlines()[0]
