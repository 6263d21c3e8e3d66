"""Blood pressure given age, sex and smoking: a model of a table of one's own.

The table, own/people.csv, is made up. ``python own_csv.py`` writes it anew.
"""

import csv
from pathlib import Path

import numpy as np
import numpyro
import numpyro.distributions as dist


def model(age, sex, smoker, pressure):
    level = numpyro.sample("level", dist.Normal(120.0, 20.0))
    per_decade = numpyro.sample("per_decade", dist.Normal(0.0, 5.0))
    of_men = numpyro.sample("of_men", dist.Normal(0.0, 10.0))
    of_smokers = numpyro.sample("of_smokers", dist.Normal(0.0, 10.0))
    sigma = numpyro.sample("sigma", dist.LogNormal(2.5, 0.5))
    with numpyro.plate("people", age.shape[0]):
        mean = level + per_decade * (age - 50) / 10
        mean += of_men * (sex == 1) + of_smokers * smoker
        numpyro.sample("pressure", dist.Normal(mean, sigma), obs=pressure)


def write(path, num_records=2000, seed=0):
    """Write a table in which a few cells are missing or wrong, as in any other."""
    rng = np.random.default_rng(seed)
    clinics = ["north", "south", "east", "west", "harbour", "castle"]
    effects = dict(zip(clinics, [0.4, -0.3, 0.1, -0.2, 0.5, -0.5], strict=True))
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow("age sex smoker clinic years visits pressure".split())
        for _ in range(num_records):
            age, is_man = int(rng.integers(18, 91)), rng.random() < 0.5
            smokes, clinic = rng.random() < 0.3, str(rng.choice(clinics))
            years = round(rng.uniform(0.5, 5.0), 1)
            rate = 0.2 + 0.015 * (age - 50) + 0.3 * smokes + effects[clinic]
            visits = int(rng.poisson(years * np.exp(rate)))
            mean = 120 + 0.45 * (age - 50) + 4 * is_man + 5 * smokes
            pressure = round(rng.normal(mean, 12))
            cells = [age, "man" if is_man else "woman", "yes" if smokes else "no"]
            cells += [clinic, years, visits, pressure]
            if rng.random() < 0.05:
                cells[rng.integers(3)] = ""
            writer.writerow(cells)


if __name__ == "__main__":
    write(Path(__file__).parent / "own/people.csv")
