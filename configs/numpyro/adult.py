"""Logistic regression on UCI Adult, with a design made up from public ranges."""

import numpy as np
import numpyro
import numpyro.distributions as dist

from dpjax.datasets.adult import adult_features, load_adult


def model(x, y):
    prior = dist.Normal(0.0, 3.0).expand([x.shape[1]]).to_event(1)
    coefficients = numpyro.sample("coefficients", prior)
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ coefficients), obs=y)


def records(num_records):
    x, y, _ = adult_features(load_adult()["train"], "compact")
    return {"x": x[:num_records], "y": y[:num_records]}


def example():
    """A thousand people who never were."""
    rng = np.random.default_rng(0)
    size = 1000
    people = {
        "age": rng.integers(17, 91, size),
        "education-num": rng.integers(1, 17, size),
        "hours-per-week": rng.integers(1, 81, size),
        "capital-gain": 10_000 * (rng.random(size) < 0.1),
        "capital-loss": 2_000 * (rng.random(size) < 0.1),
        "marital-status": rng.choice(["Married-civ-spouse", "Divorced"], size),
        "occupation": rng.choice(["Prof-specialty", "Sales", "Other-service"], size),
        "income": np.full(size, "<=50K"),
    }
    unused = "workclass education relationship race sex native-country".split()
    people |= {name: np.full(size, "?") for name in unused}
    x, y, _ = adult_features(people, "compact")
    return {"x": x, "y": y}
