"""Regressions from formulas are the models that one would write."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas
import pytest
from numpyro import handlers
from numpyro.distributions import biject_to
from numpyro.distributions.constraints import real
from numpyro.infer.util import log_density

import dpjax
from dpjax import config
from dpjax.numpyro import Regression
from dpjax.runner.results import Run
from dpjax.runner.statement import PrivacyStatement

SCHEMA = {
    "age": {"kind": "real", "range": [20, 80]},
    "sex": {"kind": "category", "levels": ["f", "m"]},
    "site": {"kind": "category", "levels": ["a", "b", "c"]},
    "years": {"kind": "real", "range": [1, 5]},
    "visits": {"kind": "count", "range": [0, 40]},
    "ill": {"kind": "boolean"},
    "score": {"kind": "real", "range": [-50, 50], "mean": 10, "sd": 10},
}


def people(count, seed=0):
    rng = np.random.default_rng(seed)
    age, years = rng.uniform(20, 80, count), rng.uniform(1, 5, count)
    sex, site = rng.integers(0, 2, count), rng.integers(0, 3, count)
    score = 10 + 0.2 * (age - 50) - 3 * sex + 4 * (site - 1.0) + rng.normal(size=count)
    return pandas.DataFrame(
        {
            "age": age,
            "sex": np.array(["f", "m"])[sex],
            "site": np.array(["a", "b", "c"])[site],
            "years": years,
            "visits": rng.poisson(years * np.exp(0.02 * (age - 50) + 0.3 * sex)),
            "ill": rng.random(count) < 0.3,
            "score": 2 * score - 10,
        }
    )


def by_hand(family):
    """What `Regression` states, written in NumPyro."""

    def model(table, codes):
        x = jnp.stack([jnp.asarray(table["age"]), 1.0 * codes["sex"]], axis=1)
        centre = jnp.array([50.0, 0.5])
        spread = jnp.array([60 / np.sqrt(12), 0.5])
        mean, scale = (10.0, 10.0) if family in ("gaussian", "student_t") else (0, 1.0)
        b = [
            numpyro.sample("age", dist.Normal(0, 2.5 * scale / spread[0])),
            numpyro.sample("sex[m]", dist.Normal(0, 2.5 * scale / spread[1])),
        ]
        predictor = (x - centre[None]) @ jnp.stack(b)
        if family != "ordinal":
            law = dist.Normal(mean, 2.5 * scale)
            predictor = predictor + numpyro.sample("Intercept_centred", law)
        if family == "poisson":
            sigma = numpyro.sample("1|site_sigma", dist.Exponential(1 / scale))
            law = dist.Normal(jnp.zeros(3), sigma).to_event(1)
            predictor = predictor + numpyro.sample("1|site", law)[codes["site"]]
            predictor = predictor + jnp.log(jnp.asarray(table["years"]))
            law, y = dist.Poisson(jnp.exp(predictor)), table["visits"]
        elif family == "negative_binomial":
            r = numpyro.sample("reciprocal_dispersion", dist.Exponential(1.0))
            law = dist.NegativeBinomial2(jnp.exp(predictor), 1 / r)
            y = table["visits"]
        elif family == "bernoulli":
            law, y = dist.Bernoulli(logits=predictor), 1 * table["ill"]
        elif family == "ordinal":
            shares = numpyro.sample("shares", dist.Dirichlet(jnp.ones(3)))
            below = jnp.cumsum(shares)[:-1]
            law = dist.OrderedLogistic(predictor, jnp.log(below) - jnp.log1p(-below))
            y = codes["site"]
        else:
            sigma = numpyro.sample("sigma", dist.Exponential(1 / scale))
            law, y = dist.Normal(predictor, sigma), table["score"]
            if family == "student_t":
                nu = numpyro.sample("nu", dist.Gamma(2, 0.1))
                law = dist.StudentT(nu, predictor, sigma)
        with numpyro.plate("people", len(y)):
            numpyro.sample("y", law, obs=jnp.asarray(np.asarray(y)))

    return model


UNSTATED = {"1|site", "shares"}
"""Latents whose laws are a part of the family, and no prior that a user may change."""

FORMULAS = {
    "gaussian": "score ~ age + sex",
    "student_t": "score ~ age + sex",
    "bernoulli": "ill ~ age + sex",
    "poisson": "visits ~ age + sex + (1 | site) + offset(log(years))",
    "negative_binomial": "visits ~ age + sex",
    "ordinal": "site ~ age + sex",
}


def test_an_example_may_be_given():
    regression = Regression(FORMULAS["poisson"], family="poisson", schema=SCHEMA)
    made_up = regression.posterior(people(40)).model.example
    found = regression.posterior(people(40), example=people(30)).model.example
    assert made_up.keys() == found.keys()
    assert {len(leaf) for leaf in found.values()} == {30}
    assert {len(leaf) for leaf in made_up.values()}.isdisjoint({30, 40})


def test_responses_of_new_records_are_predicted():
    """The means of 80 draws with the sd .1 err by .011, of which .08 is seven."""
    formula = "score ~ age + sex + (1 | site) + offset(years)"
    regression = Regression(formula, family="gaussian", schema=SCHEMA)
    values = {"age": 0.2, "sex[m]": -3.0, "Intercept_centred": 10.0, "sigma": 0.1}
    values |= {"1|site_sigma": 4.0, "1|site": np.array([-4.0, 0.0, 4.0])}
    positions = {
        k: np.broadcast_to(v, (2, 40, *np.shape(v))) for k, v in values.items()
    }
    statement = PrivacyStatement(1.5, 1e-6, 0.5, "REPLACE_ONE", 2, 40, "bits", "rdp")
    run = Run(positions, None, statement)
    new = dict(age=[30, 60], sex=["m", "f"], site=["c", "a"], years=[1, 2])
    found = regression.predict(run, new)
    assert found.shape == (80, 2)
    centred = 0.2 * (np.array([30, 60]) - 50) - 3 * (np.array([1, 0]) - 0.5)
    expected = 10 + centred + np.array([4, -4]) + np.array([1, 2])
    np.testing.assert_allclose(found.mean(axis=0), expected, atol=0.08)
    assert regression.predict(run, new, num_draws=5).shape == (5, 2)
    with pytest.raises(ValueError, match=r"the records \[1\] to predict"):
        regression.predict(run, new | dict(age=[30, None]))
    with pytest.raises(ValueError, match="reads nothing of new records"):
        Regression("score ~ 1", family="gaussian", schema=SCHEMA).predict(run, new)


@pytest.mark.parametrize("family", FORMULAS)
def test_a_formula_is_the_model_written_by_hand(family):
    """The posterior density at four positions, whose differences have no constants."""
    table = people(40)
    regression = Regression(FORMULAS[family], family=family, schema=SCHEMA)
    codes = {k: pandas.Categorical(table[k]).codes.astype(int) for k in ("sex", "site")}
    numbers = {k: v.to_numpy() for k, v in table.items() if k not in codes}
    theirs = by_hand(family), (numbers, codes), {}
    ours = regression.model, (), regression.read(table) | regression.public
    found = []
    for key in range(4):
        with handlers.seed(rng_seed=key):
            sites = handlers.trace(theirs[0]).get_trace(*theirs[1])
        # Predictors near their prior means, so that no term hides the others.
        values = {
            name: site["value"] * (0.5 if site["fn"].support is real else 1)
            for name, site in sites.items()
            if site["type"] == "sample" and not site["is_observed"]
        }
        assert {*regression.priors} <= {*values} <= {*regression.priors, *UNSTATED}
        found.append([float(log_density(*each, values)[0]) for each in (ours, theirs)])
    ours, theirs = np.diff(found, axis=0).T
    # Priors are stated in three digits.
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-2)
    assert np.max(np.abs(theirs)) > 1


def test_priors_are_stated_and_changed():
    formula, options = FORMULAS["poisson"], dict(family="poisson", schema=SCHEMA)
    default = Regression(formula, **options)
    lines = str(default).splitlines()
    assert lines[0] == f"{formula} (poisson)"
    assert "  age ~ Normal(0, 0.144)" in lines and "  sex[m] ~ Normal(0, 5)" in lines
    assert lines[-1] == "  sex: reference f"
    changed = Regression(formula, **options, priors={"age": "StudentT(3, 0, 0.5)"})
    assert "  age ~ StudentT(3, 0, 0.5)" in str(changed).splitlines()
    with handlers.seed(rng_seed=0):
        arrays = {k: v[:2] for k, v in changed.example.items()}
        sites = handlers.trace(changed.model).get_trace(**arrays, **changed.public)
    assert isinstance(sites["age"]["fn"].base_dist, dist.StudentT)
    unit = biject_to(sites["age"]["fn"].support)(jnp.ones(()))
    np.testing.assert_allclose(unit, 0.05774, rtol=1e-3)
    shift = sites["age"]["value"] * 50 + sites["sex[m]"]["value"] * 0.5
    centred = sites["Intercept_centred"]["value"] - sites["Intercept"]["value"]
    np.testing.assert_allclose(centred, shift, rtol=1e-5)


def test_the_probability_is_that_of_the_second_level():
    options = dict(family="bernoulli", schema=SCHEMA)
    assert Regression("sex ~ age", **options).reference_levels == {"sex": "f"}
    assert Regression("ill ~ age", **options).reference_levels == {}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"family": "binomial"}, "family must be one of gaussian"),
        ({"family": "bernoulli"}, "must be a boolean or a category"),
        ({"priors": {"weight": "Normal(0, 1)"}}, "no parameters .'weight'"),
        ({"priors": {"age": "Gauss(0, 1)"}}, "must be a class of numpyro"),
        ({"priors": {"age": "Normal(0, -1)"}}, "must be a class of numpyro"),
        ({"priors": {"age": "Uniform(0, 1)"}}, "real line or"),
        ({"priors": {"Intercept_centred": "Exponential(1)"}}, "real line or"),
        ({"priors": {"age": "Normal(0, sd)"}}, "must be a class of numpyro"),
        ({"formula": "site ~ 0 + age", "family": "ordinal"}, "has cut points"),
        ({"formula": "site ~ age", "family": "bernoulli"}, "two levels"),
    ],
)
def test_regressions_that_are_none_are_refused(change, message):
    """Before the records are asked for."""
    options = {"formula": "visits ~ age", "family": "poisson"} | change
    with pytest.raises(ValueError, match=message):
        dpjax.glm(
            records=None, schema=SCHEMA, budget=dpjax.Budget(1.0, 1e-6), **options
        )


def test_a_formula_in_a_configuration(tmp_path):
    people(50).to_csv(tmp_path / "people.csv", index=False)
    people(30).to_csv(tmp_path / "earlier.csv", index=False)
    columns = "\n".join(
        f"{name} = {{ {', '.join(f'{k} = {v!r}' for k, v in column.items())} }}"
        for name, column in SCHEMA.items()
    )
    (tmp_path / "job.toml").write_text(f"""
[model]
formula = "score ~ age + sex"
family = "gaussian"
priors = {{ age = "Normal(0, 1)" }}
[data]
file = "people.csv"
example = "earlier.csv"
num_records = 50
[data.schema]
{columns}
[privacy]
epsilon = 4.0
delta = 1e-6
[run]
num_chains = 2
""")
    job = config.load(tmp_path / "job.toml")
    posterior, _, _ = job.load()
    assert posterior.num_records == 50
    assert len(posterior.model.example["y"]) == 30
    assert jax.tree.structure(posterior) == jax.tree.structure(job.outline)
    priors = job.tables["model"]["priors"]
    assert priors["age"] == "Normal(0, 1)" and priors["sigma"] == "Exponential(0.1)"
    assert job.tables["model"]["reference_levels"] == {"sex": "f"}
    assert job.run["ledger"] == tmp_path.resolve() / "people.csv.ledger.jsonl"


def test_dpjax_imports_numpyro_where_it_is_used():
    code = """
import sys, dpjax, dpjax.cli
assert {"glm", "numpyro"} < set(dpjax.__all__) and "numpyro" not in sys.modules
assert dpjax.numpyro.glm.__module__ == "dpjax.numpyro.glm"
assert dpjax.glm is dpjax.numpyro.glm
assert "formulaic" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.thorough
def test_a_regression_is_that_of_its_formula():
    """Means differ from the posterior's by noise, with the sd that the fit states.

    Six of these have a chance of 2e-9 for each of three parameters. The posterior of so
    many records is normal, and its mode is found by Newton's method.
    """
    family, formula = "poisson", "visits ~ age + sex + offset(log(years))"
    table = people(20_000)
    with jax.numpy_rank_promotion("allow"):
        private = dpjax.glm(
            formula,
            table,
            family=family,
            schema=SCHEMA,
            budget=dpjax.Budget(4.0, 1e-6),
            verbose=False,
            unsafe_key=jax.random.key(1),
        )
    assert private.known.position_error < 0.3
    x = np.stack([table["age"] - 50, (table["sex"] == "m") - 0.5], axis=1)
    x = np.column_stack([x, np.ones(len(x))])
    prior_sds = np.array([2.5 / (60 / 12**0.5), 2.5 / 0.5, 2.5])
    mode = np.array([0, 0, np.log(np.mean(table["visits"] / table["years"]))])
    for _ in range(20):
        rate = table["years"].to_numpy() * np.exp(x @ mode)
        precision = (x.T * rate) @ x + np.diag(prior_sds**-2)
        slope = x.T @ (table["visits"].to_numpy() - rate) - mode / prior_sds**2
        mode = mode + np.linalg.solve(precision, slope)
    sds = np.sqrt(np.diag(np.linalg.inv(precision)))
    names = ("age", "sex[m]", "Intercept_centred")
    for name, exact, sd in zip(names, mode, sds, strict=True):
        ours = private.positions[name]
        apart = (np.mean(ours) - exact) / sd
        assert abs(apart) < 6 * private.known.position_error, name
        assert 0.8 < np.std(ours) / sd < 1.3, name
