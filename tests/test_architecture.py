"""Imports run one way, the data have one door, and files stay short."""

import ast
from pathlib import Path

import pytest

import dpjax

ROOT = Path(dpjax.__file__).parent
FILES = {
    path.relative_to(ROOT).with_suffix("").as_posix(): path
    for path in sorted(ROOT.rglob("*.py"))
}
# Every module imports from rooms of a lower number, or from its own room if that is
# a package of one subject.
RANKS = {
    "posterior": 0, "algorithm": 0, "cipher": 0, "data_files": 0, "exact_sums": 0,
    "components": 0, "inversion": 0, "bounds": 0, "tables": 0, "config_keys": 0,
    "data": 1, "uci": 1, "mnist": 1, "svhn": 1, "minibatch": 1, "queries": 1,
    "taint": 0,
    "gradient_queries": 2, "poisson_queries": 2, "noise": 2, "acceptance": 2,
    "proposals": 3, "privacy": 3, "models": 3, "evaluation": 3, "gradient_release": 3.5,
    "fisher": 4, "mcmc": 4, "sgmcmc": 4, "vi": 4, "ep": 4, "config_model": 4,
    "adaptation": 5, "results": 5, "checkpoint": 5, "config_vi": 5, "config_sgmcmc": 5,
    "engine": 6, "baselines": 6, "run": 7, "one_posterior_sample": 8, "numpyro": 8,
    "config_numpyro": 9, "config": 10, "cli": 11, "__init__": 12,
}  # fmt: skip
WHOLE = {"privacy", "models", "evaluation", "numpyro"}
KERNELS = {"mcmc", "sgmcmc", "vi", "ep"}
DOORS = {"queries", "gradient_queries", "poisson_queries"}
NOT_PRIVATE = {"ep/ep", "ep/sep", "ep/pbp"}
SHARED = {
    "mcmc/metropolis_hastings",
    "mcmc/minibatch_step",
    "mcmc/poisson_step",
    "sgmcmc/noisy_gradient",
    "vi/approximate_draws",
    "vi/exact_draws",
    "vi/guides",
    "vi/trace_model",
    "ep/match",
    "ep/natural",
    "ep/tied",
}


def imported(path):
    """Modules of dpjax that a file imports, as paths without suffix."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] != "dpjax":
                continue
            while parts and "/".join(parts[1:]) not in FILES:
                if "/".join([*parts[1:], "__init__"]) in FILES:
                    break
                parts.pop()
            found.add("/".join(parts[1:]))
    return found


def room(module):
    return module.split("/")[0]


def may_import(module, other):
    if room(module) == room(other):
        same = room(module) in WHOLE or other in SHARED
        return same and module != other
    return RANKS[room(other)] < RANKS[room(module)]


def data_reads(path):
    """Lines that read an attribute ``data`` of anything but ``self``."""
    tree = ast.parse(path.read_text())
    modules = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr == "data"
        # The module `dpjax.data` is not a posterior.
        and not (isinstance(node.value, ast.Name) and node.value.id in modules)
    ]


@pytest.mark.parametrize("module", FILES)
def test_imports_run_one_way(module):
    assert room(module) in RANKS, "a new room needs a place in RANKS"
    others = imported(FILES[module])
    assert all(may_import(module, other) for other in others), others


def test_the_checker_sees_wrong_imports(tmp_path):
    wrong = {
        "mcmc/barker": "from dpjax.mcmc.penalty import penalty",
        "privacy/events": "from dpjax.mcmc import barker",
        "queries": "import dpjax.noise",
        "noise": "from dpjax import run",
        "results": "from dpjax.run import run",
    }
    for module, line in wrong.items():
        path = tmp_path / "file.py"
        path.write_text(line)
        others = imported(path)
        assert others and not any(may_import(module, other) for other in others)


@pytest.mark.parametrize(
    "module", sorted(set(FILES) - DOORS - NOT_PRIVATE - {"posterior"})
)
def test_only_the_doors_read_the_data(module):
    reads = data_reads(FILES[module])
    # `run` looks at the shapes of the records; nothing else may.
    lines = FILES[module].read_text().splitlines()
    for number in reads:
        assert module == "run"
        assert "shape" in "".join(lines[number - 3 : number]), lines[number - 1]


def test_the_checker_sees_reads_of_the_data(tmp_path):
    path = tmp_path / "file.py"
    path.write_text("def leak(posterior):\n    return posterior.data.sum()\n")
    assert data_reads(path) == [2]
    assert all(data_reads(FILES[door]) for door in DOORS)


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("mcmc/metropolis_hastings", ["log_ratio_sum", "remember"]),
        ("mcmc/minibatch_step", ["batch_moments"]),
        ("mcmc/poisson_step", ["poisson_log_ratio"]),
        ("mcmc/hmc", ["gradient_sum"]),
        ("gradient_release", ["sampled_gradient_sum"]),
        ("vi/dpvi", []),
        ("ep/dp_sep", []),
        ("ep/dp_sep_published", ["sampled_gradient_sum"]),
        ("ep/dp_em", []),
    ],
)
def test_kernels_read_the_data_once(module, names):
    calls = [
        node.attr
        for node in ast.walk(ast.parse(FILES[module].read_text()))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in DOORS
        and node.attr not in ("GRID", "Lipschitz", "Range", "sensitivity")
    ]
    assert sorted(calls) == names


def test_two_places_release():
    """The engine checks, the others mark."""
    users = {module for module, path in FILES.items() if "taint" in imported(path)}
    assert users == {"acceptance", "noise", "engine"}


@pytest.mark.parametrize("module", FILES)
def test_files_are_short(module):
    assert len(FILES[module].read_text().splitlines()) <= 350
