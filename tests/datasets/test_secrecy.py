"""Whatever is wrong with the records: no message, warning or traceback quotes them."""

import functools
import gzip
import io
import sys
import traceback
import types
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax import cli
from dpjax.datasets import files
from dpjax.numpyro import posterior as posterior_of
from dpjax.records import Schema, template

WORD, NUMBER = "Qjvardane", 731905.25
QUOTES = "Qj", "jvardane", "731905", "7.319", "0xe9", "\\xe9", "é"
"""What a message holds that quotes a planted record, in part or in another format."""

SCHEMATA = [
    {"a": {"kind": "real", "range": [0, 1]}},
    {"a": {"kind": "category", "levels": ["f", "m"]}},
    {"a": {"kind": "boolean"}, "b": {"kind": "count", "range": [0, 9]}},
    {"a": {"kind": "real", "range": [0, 1], "shape": [2, 2]}},
]
HEADER = "a,b\n"
CSV = {
    "no header": f"{NUMBER},{WORD}\n1,2\n3,4\n",
    "no header, equal values": f"{NUMBER},{NUMBER}\n1,2\n3,4\n",
    "a word among numbers": f"{HEADER}1,2\n{WORD},4\n",
    "a word and a number": f"{HEADER}1,2\n{NUMBER} {WORD},4\n",
    "every value a word": f"{HEADER}{WORD},{WORD}\n{WORD},{WORD}\n",
    "an accent": f"{HEADER}1,2\n{WORD}é,4\n",
    "a longer row": f"{HEADER}1,2\n{NUMBER},4,{WORD}\n",
    "a shorter row": f"{HEADER}1,2\n{NUMBER}\n",
    "an empty line": f"{HEADER}1,2\n\n{NUMBER},{WORD}\n",
    "semicolons": f"a;b\n1;2\n{NUMBER};{WORD}\n",
    "one record too many": f"{HEADER}1,2\n3,4\n{NUMBER},{WORD}\n",
    "one record too few": f"{HEADER}{NUMBER},{NUMBER}\n",
    "a column twice": f"a,a,b\n1,2,3\n{NUMBER},{WORD},4\n",
    "no records": HEADER,
    "one record, no header": f"{NUMBER},{WORD}\n",
    "nothing": "",
    "a quote that stays open": f'{HEADER}1,2\n"{WORD},{NUMBER}\n',
    "a field without end": HEADER + "1,2\n" + WORD * 50_000 + ",4\n",
    "a zero byte": f"{HEADER}1,2\n{WORD}\0,{NUMBER}\n",
}


def npz(**arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def gz(content):
    return gzip.compress(content.encode())


FILES = {
    **{f"{name}.csv": text.encode() for name, text in CSV.items()},
    "latin.csv": f"{HEADER}1,2\n{WORD}é,4\n".encode("latin-1"),
    "latin header.csv": f"{WORD}é,{NUMBER}\n1,2\n3,4\n".encode("latin-1"),
    "gzip.csv.gz": gz(CSV["a word among numbers"]),
    "no gzip.csv.gz": f"{WORD},{NUMBER}\n".encode(),
    "half.csv.gz": gz(CSV["a word among numbers"])[:-9],
    "no zip.npz": f"{WORD},{NUMBER}\n".encode(),
    "half.npz": npz(a=np.full(2, NUMBER), b=np.ones(2))[:-40],
    "words.npz": npz(a=np.array([WORD, WORD]), b=np.ones(2)),
    "bytes.npz": npz(a=np.array([f"{WORD}é".encode("latin-1")] * 2), b=np.ones(2)),
    "objects.npz": npz(a=np.array([WORD, NUMBER], object), b=np.ones(2)),
    "pairs.npz": npz(a=np.array([(1, WORD)] * 2, [("c", int), ("d", "U9")])),
    "one.npz": npz(a=np.array(NUMBER), b=np.array(WORD)),
    "three.npz": npz(a=np.full(3, NUMBER), b=np.ones(2)),
    "square.npz": npz(a=np.full((2, 3), NUMBER), b=np.ones(2)),
    "names.npz": npz(**{WORD: np.full(2, NUMBER)}),
    "header.npz": npz(a=np.ones(2), b=np.ones(2)).replace(b"'descr'", b"Qjvarda"),
    "array.npz": npz(a=np.ones(2))[:2] + WORD.encode(),
    "dates.npz": npz(a=np.array(["7319-05-02"] * 2, "M8[D]"), b=np.ones(2)),
    "complex.npz": npz(a=np.full(2, NUMBER * 1j), b=np.ones(2)),
    "quoted.parquet": b"",
    "words.parquet": b"",
}


@pytest.fixture
def pyarrow(monkeypatch):
    """A stand-in that reads a column of words, or quotes what it cannot read."""

    def read_table(path):
        if "quoted" in path.name:
            raise ValueError(f"could not convert {WORD} with {NUMBER}")
        values = np.array([WORD, NUMBER], object)
        table = types.SimpleNamespace(to_numpy=lambda: values)
        return type("Table", (dict,), {"column_names": ["a"]})(a=table)

    parquet = types.SimpleNamespace(read_table=read_table)
    package = types.SimpleNamespace(parquet=parquet)
    monkeypatch.setitem(sys.modules, "pyarrow", package)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", parquet)


def everything_said(function):
    """Messages of warnings, and of all errors in the chain, shown or not."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        said, error = [], None
        try:
            function()
        except Exception as raised:
            error = raised
    chain = [error]
    while chain:
        if (one := chain.pop()) is not None:
            said += [*traceback.format_exception_only(one), repr(one)]
            chain += [one.__cause__, one.__context__]
    return "\n".join(said + [str(each.message) for each in caught]), error


def quoted(text):
    return [part for part in QUOTES if part in text]


@pytest.mark.parametrize("name", FILES)
def test_files_are_read_without_quoting_them(tmp_path, pyarrow, capsys, name):
    path = tmp_path / ("data." + name.partition(".")[2])
    if path.suffix == ".parquet":
        path = tmp_path / name
    path.write_bytes(FILES[name])
    refused = []
    for columns in SCHEMATA:
        schema = Schema(columns)
        said, error = everything_said(lambda read=schema.read: read(path))
        assert not quoted(said + repr(schema))
        assert isinstance(error, (ValueError, RuntimeError, type(None)))
        refused.append(error is not None)
    assert any(refused)
    if "header" not in name and name != "names.npz":
        said, error = everything_said(lambda: print(template(path)))
        assert not quoted(said + capsys.readouterr().out)


def test_published_files_are_refused_without_quoting_them():
    """A file of that name may hold other records."""
    wrong = [f"{WORD} {NUMBER}".encode(), npz(X=np.array([WORD, NUMBER], object))]
    for content in wrong:
        read = functools.partial(files.arrays, content, "file.npz", "X")
        said, error = everything_said(read)
        assert isinstance(error, RuntimeError) and not quoted(said)


def words():
    return [WORD, WORD]


@pytest.mark.parametrize(
    "data",
    [
        np.array(words()),
        np.array([WORD, NUMBER], object),
        np.array(["7319-05-02"] * 2, "M8[D]"),
        np.array([(1, WORD)] * 2, [("c", int), ("d", "U9")]),
        words(),
        [NUMBER, NUMBER],
        WORD,
        [[NUMBER], [NUMBER, NUMBER]],
        {"x": NUMBER},
        jnp.full((2, 3), NUMBER),
    ],
)
def test_data_of_posteriors_are_refused_without_quoting_them(data):
    def loglikelihood(position, record):
        return jnp.dot(position, record)

    def model(x):
        raise ValueError(f"of shape {x.shape}")

    def run():
        dpjax.run(
            functools.partial(dpjax.barker, step_size=0.1, clip_bound=0.1),
            dpjax.Posterior(jnp.sum, loglikelihood, data),
            2,
            initial_position=np.zeros((1, 2)),
            num_chains=1,
            budget=dpjax.Budget(1.0, 1e-5),
            verbose=False,
        )

    for attempt in (run, lambda: posterior_of(model, {"x": data}, plate="data")):
        said, error = everything_said(attempt)
        assert error is not None and not quoted(said)


def test_errors_of_densities_are_not_quoted():
    records = np.full((2, 2), NUMBER)

    def loglikelihood(position, record):
        raise ValueError(f"{records[0]} of {WORD}")

    posterior = dpjax.Posterior(jnp.sum, loglikelihood, np.zeros((2, 2)))
    said, error = everything_said(
        lambda: dpjax.run(
            functools.partial(dpjax.barker, step_size=0.1, clip_bound=0.1),
            posterior,
            2,
            initial_position=np.zeros((1, 2)),
            num_chains=1,
            budget=dpjax.Budget(1.0, 1e-5),
        )
    )
    assert "loglikelihood_fn cannot be evaluated" in str(error)
    assert not quoted(said)


MODEL = """
import numpy as np, numpyro, numpyro.distributions as dist

def model(x):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("people", len(x)):
        numpyro.sample("x", dist.Normal(mean, 1.0), obs=x)

def example():
    return dict(x=np.zeros(4))

def fails(num_records):
    return dict(x=np.array([float("Qj" + "vardane")]))

def fails_otherwise(num_records):
    raise KeyError("Qj" + "vardane")

def words(num_records):
    return dict(x=["Qj" + "vardane"] * num_records)

def numbers(num_records):
    return np.full(num_records, 700000 + 31905.25)
"""
JOB = """
[model]
numpyro = "model.py:model"
plate = "people"
[data]
num_records = 2
{data}
[privacy]
epsilon = 1.0
delta = 1e-5
[run]
num_chains = 2
num_steps = 2
[algorithm]
name = "barker"
step_size = 0.2
clip_bound = 0.02
"""
FILE = """file = "people.csv"
schema = {{ {} = {{ kind = "real", range = [0, 1] }} }}
arrays = {{ x = "{}" }}"""
A_WORD = FILE.format("b", "b")
"""A column of numbers that holds a word, which is missing, and runs."""


@pytest.mark.parametrize(
    "data",
    [
        *(
            f'function = "model.py:{name}"\nexample = "model.py:example"'
            for name in ("fails", "fails_otherwise", "words", "numbers")
        ),
        FILE.format("a", "a"),
        A_WORD,
    ],
)
def test_the_command_line_quotes_no_record(tmp_path, capfd, data):
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "people.csv").write_text(f"b,c\n{WORD},{NUMBER}\n1,2\n")
    (tmp_path / "job.toml").write_text(JOB.format(data=data))
    status: list[int] = []
    arguments = ["run", str(tmp_path / "job.toml"), "--out", str(tmp_path / "out")]
    with jax.numpy_rank_promotion("allow"):
        said, error = everything_said(lambda: status.append(cli.main(arguments)))
    assert error is None
    output = capfd.readouterr()
    assert status == [int(data != A_WORD)]
    assert output.err.startswith("dpjax: ") == (data != A_WORD)
    assert not quoted(said + output.out + output.err)
