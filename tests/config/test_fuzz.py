"""Damaged configurations and tables: one sentence, status 1, and nothing charged.

The damage is drawn by hypothesis from fixed seeds: to TOML, keys that are dropped or
doubled, values of other types, extreme numbers, tables in wrong places, cut bytes; to
tables of records, cut and flipped bytes, doubled columns, wrong shapes, pickles.
"""

import contextlib
import copy
import gzip
import io
import json
import math
import os
import pickle
import signal
import tomllib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from dpjax import cli, config
from dpjax.config.keys import HUGE, TINY
from dpjax.records import Schema

ROOT = Path(__file__).parents[2]

SMALL = """
[model]
name = "correlated_gaussian"
prior_sd = 10.0
[data]
source = "generated"
num_records = 100
dim = 2
seed = 1
[algorithm]
{algorithm}
[privacy]
epsilon = 2.0
delta = 1e-5
ledger = "spent.jsonl"
[run]
num_chains = 2
num_steps = 20
start = [0.0, 0.0]
thinning = 2
"""

ALGORITHMS = [
    'name = "barker"\nstep_size = 0.1\nclip_bound = 0.05\nlaziness = 0.5',
    'name = "penalty"\nstep_size = 0.1\nclip_per_distance = 1.0\n'
    "test_noise_multiplier = 60.0",
    'name = "sgld"\nl2_clip_norm = 3.0\nsampling_prob = 0.1\n'
    'step_size = { schedule = "power_decay", init_value = 0.1 }',
    'name = "dpvi"\nl2_clip_norm = 3.0\nsampling_prob = 0.1\nnoise_multiplier = 20.0\n'
    'guide = { name = "low_rank", rank = 1 }\n'
    'optimizer = { name = "adam", learning_rate = 0.1 }',
]

BAD = [
    *("", "4", "0.1", "nan", "\0", "ü\u202e🙂", "x" * 5000, "../x", "fisher", "all"),
    *(math.nan, math.inf, -math.inf, 0, 0.0, -0.0, 1, -1, 1.5, True, False),
    *(1e-320, 1e-30, 1e30, 1e300, -1e300, 2**31, 10**9, 10**15, 2**63, 2**64, 10**400),
    *([], [[]], [0.0], [math.nan, 1.0], [1, [2]], ["a"], [[1.0], [1.0, 2.0]], [True]),
    *({}, {"name": "barker"}, {"": {}}, {"schedule": "power_decay"}, {"x": {"y": []}}),
]
"""Values that TOML can hold and hardly any key can."""

FACTORS = [-1, 0, 2, 10, *(10.0**k for k in (-25, -12, -6, -3, -1, 3, 6, 12, 25))]


def places(table, path=()):
    """Paths of all keys of nested tables."""
    for key, value in table.items():
        yield (*path, key)
        if isinstance(value, dict):
            yield from places(value, (*path, key))


@st.composite
def damaged_tables(draw):
    """The tables of a small job, of which one or two keys are damaged."""
    tables_ = tomllib.loads(SMALL.format(algorithm=draw(st.sampled_from(ALGORITHMS))))
    for _ in range(draw(st.integers(1, 2))):
        *path, key = draw(st.sampled_from(list(places(tables_))))
        table = tables_
        for name in path:
            table = table[name]
        how = draw(st.sampled_from(["drop", "add", "replace", "nest", *3 * ["scale"]]))
        if how == "drop":
            del table[key]
        elif how == "add":
            new = draw(
                st.sampled_from(["", "step_size", "seed", "naïve", "dim", "file"])
            )
            table[new] = copy.deepcopy(draw(st.sampled_from(BAD)))
        elif how == "scale" and isinstance(table[key], int | float):
            factor = draw(st.sampled_from(FACTORS))
            table[key] = type(table[key])(table[key] * factor)
        elif how == "nest":
            table[key] = {key: copy.deepcopy(table[key])}
        else:
            table[key] = copy.deepcopy(draw(st.sampled_from(BAD)))
        if not tables_:
            break
    return tables_


def toml(value) -> str:
    """TOML of a value, as an inline table if it is a dict."""
    if isinstance(value, dict):
        pairs = (f"{json.dumps(key)} = {toml(v)}" for key, v in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, str):
        return json.dumps(value)
    return str(value).lower() if isinstance(value, bool) else repr(value)


def written(tables_) -> str:
    return "\n".join(f"{json.dumps(key)} = {toml(v)}" for key, v in tables_.items())


class Hang(BaseException):
    """Nothing came back in time."""


@contextlib.contextmanager
def patience(seconds: int):
    def hang(number, frame):
        raise Hang

    before = signal.signal(signal.SIGALRM, hang)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def check_refusal(message: str) -> None:
    assert "\n" not in message and 20 < len(message) < 700, message
    assert "Traceback" not in message


def refused(folder, text: str | bytes, heard: list | None = None) -> bool:
    """Whether the command refuses the job; what a refused job may do is checked."""
    path, out = folder / "job.toml", folder / "out"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with contextlib.redirect_stderr(io.StringIO()) as said, patience(60):
        with contextlib.redirect_stdout(io.StringIO()):
            status = cli.main(["run", str(path), "--out", str(out)])
    assert status in (0, 1)
    if status:
        check_refusal(said.getvalue().removesuffix("\n"))
        if heard is not None:
            heard.append(said.getvalue())
    assert {path.name for path in folder.rglob("*")} <= {"job.toml", "out"}
    return status == 1


def leaves(value):
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from leaves(part)
    else:
        yield value


def check_accepted(text: str, job: config.Job) -> None:
    """What was accepted holds no number that nobody can mean, and counts are counts."""
    numbers = [v for v in leaves(tomllib.loads(text)) if isinstance(v, int | float)]
    assert all(v == 0 or TINY <= abs(v) <= HUGE for v in numbers), text
    assert "" not in leaves(tomllib.loads(text))
    for name in {"num_chains", "num_steps", "thinning"} & job.run.keys():
        assert type(job.run[name]) is int and job.run[name] > 0
    start = job.run["initial_position"]
    assert start.shape == (job.run["num_chains"], 2) and np.isfinite(start).all()


def fuzz(count: int, strategy, check, *arguments) -> None:
    """``check(*arguments, case)`` of so many cases, the same ones at every call."""

    @settings(
        max_examples=count,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def cases(case):
        check(*arguments, case)

    cases()


def counts(default: int, thorough: int):
    cases = [default, pytest.param(thorough, marks=pytest.mark.thorough)]
    return pytest.mark.parametrize("count", cases)


@pytest.fixture
def loaded(monkeypatch):
    """Jobs that get as far as their data, in place of their runs."""
    jobs = []
    monkeypatch.setattr(cli, "write_run", lambda job, out: jobs.append(job))
    return jobs


BARKER = SMALL.format(algorithm=ALGORITHMS[0])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[algorithm]", "[[algorithm]]", "algorithm must be a table, got ["),
        (BARKER, "model = 5\n", "the file model must be a table, got 5"),
        (BARKER, "", "the file lacks the key 'model'"),
        ("num_steps = 20", "num_steps = -1", "[run] num_steps must be a whole number"),
        ("num_steps = 20", "num_steps = nan", "got nan"),
        ("num_steps = 20", "num_steps = 20.0", "got 20.0"),
        ("thinning = 2", 'thinning = "0.1"', "[run] thinning must be a whole number"),
        ("num_chains = 2", 'num_chains = "4"', "got '4'"),
        ("num_chains = 2", "num_chains = true", "got True"),
        ("num_chains = 2", "num_chains = 1_000_000_000", "between 1 and 100,000"),
        ("num_steps = 20", "num_steps = 1_000_000_000", "do not fit in memory: take"),
        ("num_steps = 20", "num_steps = 20_000", "steps of as many chains"),
        ("laziness = 0.5", "laziness = 1e-320", "laziness must be a number (0, or of"),
        ("laziness = 0.5", 'laziness = ""', "got ''"),
        ("step_size = 0.1", "step_size = -inf", "got -inf"),
        ("step_size = 0.1", "step_size = true", "step_size must be a number"),
        ("epsilon = 2.0", "epsilon = inf", "epsilon must be a number"),
        ("num_records = 100", "num_records = 900_000_000", "at most 500,000,000"),
        ("start = [0.0, 0.0]", "start = [nan, 0.0]", "start must be a number"),
        ("dim = 2", f"dim = 0x{'f' * 5000}", "dim must be"),
        ("seed = 1", "seed = -1", "seed must be a whole number between 0 and 2^32 - 1"),
        ("seed = 1", f"seed = {'[' * 5000}", "is not valid TOML"),
        ("seed = 1", f"seed = {'9' * 5000}", "is not valid TOML"),
        ("seed = 1", "seed = 1979-05-27", "seed must be a whole number"),
        ("thinning = 2", "thinning = 2\nunsafe_seed = 1e3", "unsafe_seed must be"),
        ('"spent.jsonl"', '""', "ledger must be a text, not empty"),
    ],
)
def test_what_no_job_can_mean_is_refused(tmp_path, old, new, message):
    """By the whole command, before it charges anything."""
    assert BARKER.count(old) == 1
    said = []
    assert refused(tmp_path, BARKER.replace(old, new), said)
    assert message in said[0]


@counts(50, 700)
def test_damaged_keys(count, tmp_path, loaded):
    def check(damaged):
        text = written(damaged)
        if not refused(tmp_path, text):
            check_accepted(text, loaded.pop())

    fuzz(count, damaged_tables(), check)


@st.composite
def damaged_bytes(draw, contents: list[bytes]):
    """One of the contents, with bytes that are cut out, put in, doubled or changed."""
    content = bytearray(draw(st.sampled_from(contents)))
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(content)))
        stop = min(len(content), start + draw(st.sampled_from([0, 1, 4, 30, 10**6])))
        new = draw(
            st.one_of(
                st.binary(max_size=4),
                st.sampled_from([b"\n", b",", b'"', b"[", b"=", b"\0", b"\xff\xfe"]),
                st.just(bytes(content[start:stop]) * 2),
            )
        )
        content[start:stop] = new
    return bytes(content)


@counts(50, 400)
def test_damaged_files_of_configuration(count, tmp_path, loaded):
    texts = [SMALL.format(algorithm=lines).encode() for lines in ALGORITHMS]
    texts += [path.read_bytes() for path in sorted((ROOT / "configs").glob("*.toml"))]
    fuzz(count, damaged_bytes(texts), refused, tmp_path)


SCHEMA = Schema(
    {
        "age": {"kind": "real", "range": [0, 50]},
        "score": {"kind": "count", "range": [-9, 9], "missing": "indicator"},
        "region": {"kind": "category", "levels": ["N", "S"]},
    }
)
ARRAYS = {"x": ["age", "score_missing", "score"], "group": "region"}


SOUND = {
    "age": {"kind": "real", "range": [0, 50], "unit": "years", "mean": 20, "sd": 9.0},
    "region": {"kind": "category", "levels": ["N", "S"], "missing": "category"},
    "image": {"kind": "real", "range": [0, 1], "shape": [2, 3], "missing": "fill"},
    "visits": {"kind": "count", "range": [0, 9], "missing": "indicator"},
}


@st.composite
def damaged_schemata(draw):
    table = copy.deepcopy(SOUND)
    for _ in range(draw(st.integers(1, 2))):
        *path, key = draw(st.sampled_from(list(places(table))))
        column = table[path[0]] if path else table
        column[draw(st.sampled_from([key, "kind", "levels"]))] = copy.deepcopy(
            draw(st.sampled_from(BAD))
        )
    return table


@counts(100, 1000)
def test_damaged_schemata(count):
    """What is accepted can be drawn from and read."""

    def check(table):
        try:
            schema = Schema(table)
        except ValueError as error:
            check_refusal(str(error))
        else:
            example = schema.example()
            found = schema.read({name: example[name] for name in schema})
            assert all(np.isfinite(values).all() for values in found.values())

    fuzz(count, damaged_schemata(), check)


CSV = b"age,region,score\n" + b"".join(
    b"%d,%s,%.2f\n" % (20 + i, b"NS"[i % 2 :][:1], i / 7) for i in range(12)
)


def saved(save, *arguments, **arrays) -> bytes:
    file = io.BytesIO()
    save(file, *arguments, **arrays)
    return file.getvalue()


def archives() -> list[bytes]:
    """Archives of the right columns, and of columns that must be refused."""
    right = dict(
        age=np.arange(12.0), score=np.ones(12), region=np.array(["N", "S"] * 6)
    )
    wrong = [
        dict(score=np.ones((12, 1))),
        dict(score=np.ones(())),
        dict(score=np.ones(12) * 1j),
        dict(score=np.zeros(12, "datetime64[s]")),
        dict(score=np.zeros(12, [("a", float)])),
        dict(score=np.array([Pickled()] * 12)),
        dict(age=np.ones((12, 3))),
        dict(region=np.ones((12, 2))),
    ]
    return [saved(np.savez, **right), *(saved(np.savez, **right | w) for w in wrong)]


class Pickled:
    """What must not be made of a file."""

    def __reduce__(self):
        return os.abort, ()


def check_table(path, content: bytes) -> None:
    """Whatever the bytes are, what is read has the shapes and values of the columns."""
    path.write_bytes(content)
    try:
        with patience(60):
            found = SCHEMA.read(path, ARRAYS)
    except (ValueError, RuntimeError) as error:
        check_refusal(str(error))
        assert error.__cause__ is error.__context__ is None
    else:
        rows = len(found["x"])
        assert found["x"].shape == (rows, 3) and np.isfinite(found["x"]).all()
        assert np.abs(found["x"] - 25).max() <= 34
        assert set(found["group"].tolist()) <= {0, 1}
        assert found["group"].shape == found["complete"].shape == (rows,)


@counts(40, 300)
def test_damaged_text_tables(count, tmp_path):
    check_table(tmp_path / "file.csv", CSV)
    assert len(SCHEMA.read(tmp_path / "file.csv", ARRAYS)["x"]) == 12
    contents = [CSV, b"", CSV.replace(b"age", b"score"), CSV.replace(b",", b";")]
    fuzz(count, damaged_bytes(contents), check_table, tmp_path / "file.csv")


@counts(20, 120)
def test_damaged_compressed_tables(count, tmp_path):
    content = gzip.compress(CSV, mtime=0)
    fuzz(count, damaged_bytes([content]), check_table, tmp_path / "file.csv.gz")


@counts(40, 400)
def test_damaged_archives(count, tmp_path):
    right, *wrong = archives()
    (tmp_path / "file.npz").write_bytes(right)
    assert len(SCHEMA.read(tmp_path / "file.npz", ARRAYS)["x"]) == 12
    for content in [*wrong, pickle.dumps(Pickled()), saved(np.save, np.ones(12))]:
        (tmp_path / "file.npz").write_bytes(content)
        with pytest.raises((ValueError, RuntimeError)):
            SCHEMA.read(tmp_path / "file.npz", ARRAYS)
    fuzz(count, damaged_bytes([right, *wrong]), check_table, tmp_path / "file.npz")


@counts(20, 120)
def test_damaged_parquet_tables(count, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = dict(age=range(12), score=np.ones(12), region=["N", "S"] * 6)
    contents = [saved(lambda file: parquet.write_table(pyarrow.table(columns), file))]
    fuzz(count, damaged_bytes(contents), check_table, tmp_path / "file.parquet")
