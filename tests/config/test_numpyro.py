"""A NumPyro model and a file of one's own, run from one TOML."""

import json
from pathlib import Path

import arviz
import jax
import numpy as np
import pytest

from dpjax import cli, config
from dpjax.release import on_disk
from tests.tiers import tiered

ROOT = Path(__file__).parents[2]

MODEL = """
import jax.numpy as jnp, numpy as np, numpyro, numpyro.distributions as dist

def model(x, group, y):
    slope = numpyro.sample("slope", dist.Normal(jnp.zeros(2), 1.0).to_event(1))
    with numpyro.plate("groups", 3):
        level = numpyro.sample("level", dist.Normal(0.0, 2.0))
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 1.0))
    with numpyro.plate("people", x.shape[0]):
        age, is_female = (x[:, 0] - 40) / 20, x[:, 1]
        law = dist.Normal(level[group] + slope[0] * age + slope[1] * is_female, scale)
        numpyro.sample("y", law, obs=y)

def records(num_records):
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (num_records, 2))
    group = rng.integers(0, 3, num_records)
    return dict(x=x, group=group, y=group + x @ [1.0, -1.0])

def example():
    return records(50)
"""

TOML = """
[model]
numpyro = "model.py:model"
plate = "people"
[data]
num_records = 3000
file = "people.csv"
arrays = { x = ["age", "sex"], group = "region", y = "score" }
[data.schema]
age = { kind = "real", range = [20, 60], unit = "years" }
sex = { kind = "category", levels = ["m", "f"] }
region = { kind = "category", levels = ["N", "S", "W"] }
score = { kind = "real", range = [-10, 10] }
[privacy]
epsilon = 4.0
delta = 1e-5
[run]
num_chains = 2
"""

ALGORITHM = """
[algorithm]
name = "barker"
step_size = 0.2
clip_bound = 0.02
"""


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(1)
    age, sex = rng.integers(10, 70, 3000), rng.choice(["m", "f"], 3000)
    region = rng.choice(["N", "S", "W"], 3000)
    score = 1.0 + (region == "S") + 0.02 * age + rng.normal(size=3000)
    rows = zip(age, sex, region, score, strict=True)
    lines = [f"{a},{s},{r},{y:.6f}" for a, s, r, y in rows]
    (tmp_path / "people.csv").write_text("age,sex,region,score\n" + "\n".join(lines))
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "job.toml").write_text(TOML)
    with jax.numpy_rank_promotion("allow"):
        yield tmp_path


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:the model does not fit")
def test_a_file_and_a_model_give_draws_with_nothing_to_tune(folder, capsys):
    """No file of the run holds a number of a record, planted with fifteen digits.

    The keys are the operating system's: noise warns of the model in one of 1000 fits.
    """
    path, out, secret = folder / "job.toml", folder / "out", "1.73190524681357"
    lines = (folder / "people.csv").read_text().splitlines()
    lines[1] = f"30,m,S,{secret}"
    (folder / "people.csv").write_text("\n".join(lines))
    path.write_text(TOML + "num_draws = 200\n")
    assert cli.main(["run", str(path), "--out", str(out)]) == 0
    draws = arviz.from_netcdf(out / "draws.nc").posterior
    assert draws["level"].shape == (2, 200, 3) and draws["slope"].shape == (2, 200, 2)
    assert np.all(draws["scale"] > 0)
    assert not list(out.glob("checkpoint*"))
    assert "level[2]" in (out / "summary.csv").read_text()
    assert {"prior.png", "width.png"} <= {file.name for file in out.iterdir()}
    written = b"".join(file.read_bytes() for file in out.iterdir())
    assert secret.encode() not in written
    assert np.float64(secret).tobytes() not in written
    statement = json.loads((out / "privacy.json").read_text())
    assert 3.9 < statement["epsilon"] <= 4 and "Gaussian release" in statement["events"]
    capsys.readouterr()
    assert cli.main(["plan", str(path)]) == 0
    ledger = folder / "people.csv.ledger.jsonl"
    assert f"dpjax ledger show {ledger}" in capsys.readouterr().out
    assert cli.main(["run", str(path), "--out", str(folder / "again")]) == 1
    assert f"earlier runs in {ledger}" in capsys.readouterr().err


def test_jobs_on_one_file_share_a_ledger(folder, capsys):
    """Also if a job reaches the file by a link; unless it names another ledger."""
    (folder / "link.csv").symlink_to("people.csv")
    shared = folder.resolve() / "people.csv.ledger.jsonl"
    for file in ("people.csv", "link.csv"):
        path = folder / f"{file}.toml"
        path.write_text(TOML.replace("people.csv", file))
        assert config.load(path).run["ledger"] == shared
    own = TOML.replace("[run]", 'ledger = "gone/spent"\n[run]')
    path.write_text(own)
    assert config.load(path).run["ledger"] == folder / "gone/spent"
    assert cli.main(["run", str(path), "--out", str(folder / "out")]) == 1
    said = capsys.readouterr().err
    assert "nothing is released: there is no folder" in said and "ledger=" in said


def test_the_file_of_a_model_is_a_module_that_is_executed_once(folder):
    path, job = folder / "model.py", folder / "job.toml"
    own = "from __future__ import annotations\nimport dataclasses\n"
    own += "@dataclasses.dataclass\nclass Size:\n    x: int\n"
    count = f"with open({str(folder / 'count')!r}, 'a') as file: file.write('1')\n"
    path.write_text(own + count + path.read_text())
    source = TOML[TOML.index("file =") : TOML.index("[privacy]")]
    functions = 'function = "model.py:records"\nexample = "model.py:example"\n'
    job.write_text(TOML.replace(source, functions))
    for runs in "1", "11":
        config.load(job)
        assert (folder / "count").read_text() == runs
    path.write_text("def model(:\n")
    with pytest.raises(ValueError, match=f"SyntaxError.*`python {path.resolve()}`"):
        config.load(job)


def test_functions_stand_in_for_a_file(folder):
    source = TOML[TOML.index("file =") : TOML.index("[privacy]")]
    functions = 'function = "model.py:records"\nexample = "model.py:example"\n'
    (folder / "job.toml").write_text(TOML.replace(source, functions))
    job = config.load(folder / "job.toml")
    posterior, names, _ = job.load()
    assert names is None and posterior.num_records == job.outline.num_records == 3000
    assert job.run["ledger"] is None
    assert jax.tree.structure(posterior) == jax.tree.structure(job.outline)


def test_a_function_may_leave_arrays_on_disk(folder):
    """An array of a type that JAX has; JAX has no 64 bits in a process of 32."""
    source = TOML[TOML.index("file =") : TOML.index("[privacy]")]
    functions = 'function = "data.py:mapped"\nexample = "model.py:example"\n'
    (folder / "job.toml").write_text(TOML.replace(source, functions))
    arrays = dict(x=np.zeros((3000, 2), np.float32), y=np.zeros(3000))
    for name, values in arrays.items():
        np.save(folder / f"{name}.npy", values)
    mapped = f"""
def mapped(num_records):
    x, y = (np.load({str(folder)!r} + f"/{{k}}.npy", mmap_mode="r") for k in "xy")
    return dict(x=x, group=np.zeros(num_records, int), y=y)
"""
    (folder / "data.py").write_text(f"{MODEL}\n{mapped}")
    posterior, *_ = config.load(folder / "job.toml").load()
    is_on_disk = {k: on_disk.is_any(leaf) for k, leaf in posterior.data.items()}
    is_wide = jax.config.jax_enable_x64
    assert is_on_disk == dict(x=True, group=False, y=is_wide)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("records(num_records - 1)", r"the shapes .*2999.* say .*3000"),
        (
            "{k: v.tolist() for k, v in records(num_records).items()}",
            "makes a list of .*could change the type",
        ),
    ],
    ids=["one record less than num_records says", "lists"],
)
def test_a_function_that_returns_other_arrays_is_refused(folder, body, message):
    source = TOML[TOML.index("file =") : TOML.index("[privacy]")]
    functions = 'function = "data.py:other"\nexample = "model.py:example"\n'
    (folder / "job.toml").write_text(TOML.replace(source, functions))
    other = f"def other(num_records):\n    return {body}\n"
    (folder / "data.py").write_text(f"{MODEL}\n{other}")
    job = config.load(folder / "job.toml")
    with pytest.raises(ValueError, match=message):
        job.load()


def test_records_are_encoded_by_public_rules(folder):
    job = config.load(folder / "job.toml")
    data = job.load()[0].data
    header, *rows = (folder / "people.csv").read_text().splitlines()
    assert header == "age,sex,region,score"
    for i in (0, 7, 2999):
        age, sex, region, score = rows[i].split(",")
        expected = [np.clip(float(age), 20, 60), float(sex == "f")]
        np.testing.assert_allclose(data["x"][i], expected, rtol=1e-6)
        assert data["group"][i] == "NSW".index(region)
        np.testing.assert_allclose(data["y"][i], float(score), rtol=1e-6)
    shapes = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), data)
    assert shapes == jax.tree.map(lambda x: (x.shape, x.dtype), job.outline.data)


@pytest.mark.thorough
def test_incomplete_records_are_masked(folder):
    """The model of the user does not know of them."""
    lines = (folder / "people.csv").read_text().splitlines()
    lines[8] = lines[8].partition(",")[2].join([",", ""])
    (folder / "people.csv").write_text("\n".join(lines))
    posterior = config.load(folder / "job.toml").load()[0]
    complete = np.asarray(posterior.data["complete"])
    assert not complete[7] and complete.sum() == 2999
    position = jax.tree.map(lambda leaf: leaf[0], posterior.model.prior_draws)
    loglikelihoods = jax.vmap(posterior.loglikelihood_fn, (None, 0))
    values = np.asarray(loglikelihoods(position, posterior.data))
    assert values[7] == 0 and np.all(values[complete] != 0)


def test_schema_and_records_in_files_of_their_own(folder):
    start, stop = TOML.index("[data.schema]"), TOML.index("[privacy]")
    schema = TOML[start:stop].replace("[data.schema]", "")
    (folder / "people.schema.toml").write_text(schema)
    text = TOML[:start] + 'schema = "people.schema.toml"\n' + TOML[stop:]
    (folder / "job.toml").write_text(text)
    found = config.load(folder / "job.toml").load()[0]
    (folder / "job.toml").write_text(TOML)
    expected = config.load(folder / "job.toml").load()[0]
    jax.tree.map(np.testing.assert_array_equal, found.data, expected.data)


@pytest.mark.thorough
def test_planning_reads_no_file(folder, capsys):
    (folder / "people.csv").unlink()
    (folder / "job.toml").write_text(TOML + ALGORITHM + 'metric = "fisher"\n')
    assert cli.main(["plan", str(folder / "job.toml"), "--epsilons"]) == 0
    said = capsys.readouterr().out
    assert "barker accept bit" in said
    assert f"there is no file {folder / 'people.csv'} yet" in said
    assert cli.main(["run", str(folder / "job.toml"), "--out", str(folder)]) == 1
    assert "no data file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("model.py:model", "model.py", 'must be "file.py:function"'),
        ("model.py:model", "other.py:model", 'must be "file.py:function"'),
        ("model.py:model", "model.py:models", "has no function 'models'"),
        ('plate = "people"', "", "lacks the key 'plate'"),
        ('plate = "people"', 'plate = "persons"', "no plate 'persons'"),
        ("num_records = 3000", "num_records = 0", "between 1 and"),
        ('y = "score"', 'z = "score"', "cannot be called on one record"),
        ('y = "score"', 'y = "points"', "the array 'y' must be a column of the schema"),
        ("range = [20, 60]", "range = [60, 20]", "the lower one first, got [60, 20]"),
        ("range = [20, 60], ", "", "column 'age' of the schema lacks range"),
        ('["N", "S", "W"]', '["N", "N"]', "levels must be two or more"),
        ("num_chains = 2", "num_chains = 2\nstart = 0.0", "unknown key 'start'"),
        (
            "delta = 1e-5",
            'delta = 1e-5\nneighboring_relation = "ADD_OR_REMOVE_ONE"',
            "must be one of REPLACE_ONE, REPLACE_SPECIAL",
        ),
        ("[run]", "[adaptation]\nnum_warmup = 9\n[run]", "needs an [algorithm]"),
    ],
)
def test_bad_tables_are_refused(folder, capsys, old, new, message):
    assert TOML.count(old) == 1
    (folder / "job.toml").write_text(TOML.replace(old, new))
    assert cli.main(["plan", str(folder / "job.toml")]) == 1
    said = capsys.readouterr().err
    assert message in said and said.startswith(f"dpjax: {folder / 'job.toml'}: ")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("people.csv", "persons.csv", "no data file"),
        ("people.csv", "model.py", "must be a .csv"),
        (
            'y = "score" }\n[data.schema]',
            'y = "points" }\n[data.schema]\npoints = { kind = "boolean" }',
            "no column 'points'",
        ),
        ("num_records = 3000", "num_records = 2999", "but num_records and the schema"),
    ],
)
def test_bad_files_are_refused(folder, capsys, old, new, message):
    (folder / "job.toml").write_text(TOML.replace(old, new))
    assert cli.main(["run", str(folder / "job.toml"), "--out", str(folder)]) == 1
    assert message in capsys.readouterr().err


SHIPPED = sorted((ROOT / "configs/numpyro").glob("*.toml"))
FAST = {"adult", "own_csv", "own_formula", "poisson"}


@pytest.mark.parametrize(
    "path",
    tiered(SHIPPED, [path for path in SHIPPED if path.stem in FAST]),
    ids=lambda path: path.stem,
)
def test_shipped_configurations_load(path):
    with jax.numpy_rank_promotion("allow"):
        job = config.load(path)
    assert job.run["num_chains"] == 4
    made_up_by = {"censored": "simulate_fn", "censored_factor": "score_nodes"}
    made_up_by["survival"] = "simulate_fn"
    if path.stem in made_up_by:
        assert callable(getattr(job.outline.model, made_up_by[path.stem]))
