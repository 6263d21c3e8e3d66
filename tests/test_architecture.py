"""Imports run one way, and one room reads the data."""

import ast
from pathlib import Path

import pytest

import dpjax

ROOT = Path(dpjax.__file__).parent
FILES = {
    path.relative_to(ROOT).with_suffix("").as_posix(): path
    for path in sorted(ROOT.rglob("*.py"))
}
# A room imports from rooms above it in this list, and from itself.
RANKS = [
    "caller", "random", "posterior", "algorithm", "acceptance", "evaluation",
    "privacy", "bounds", "release", "compiled", "proposals", "models", "datasets",
    "records",
    "fisher", "nuts", "mcmc", "sgmcmc", "vi", "ep", "adaptation", "fit", "runner",
    "report", "numpyro",
    "comparisons", "config", "cli", "__main__", "__init__",
]  # fmt: skip
# The rooms of kernels: these never import each other, but what they share.
KERNELS = {"mcmc", "sgmcmc", "vi", "ep"}
SHARED = {
    "mcmc/metropolis_hastings",
    "mcmc/minibatch_step",
    "mcmc/poisson_step",
    "sgmcmc/noisy_gradient",
    "sgmcmc/schedules",
    "vi/approximate_draws",
    "vi/exact_draws",
    "vi/guides",
    "vi/trace_model",
    "ep/gaussians",
    "ep/shared_site",
    "ep/sites",
}
# Where the runner passes records on: to a program as its argument, or to be read from
# disk, to JAX for their shapes, and to a hash, which other processes take part in. An
# attack asks made-up records for their shapes.
HANDED_ON = {
    "numpyro/kernel": [
        "read = arrays_of(self._algorithm_fn), self._posterior.data",
    ],
    "runner/attack": ["shapes = jax.eval_shape(lambda: outline.data)"],
    "runner/batch": [
        "data = jax.tree.map(together, *(each.data for each in posteriors))",
        "if on_disk.is_any([each.data for each in posteriors]):",
        "records = [digest(posterior.data) for posterior in posteriors]",
    ],
    "runner/check": ["inputs += [True] * len(on_disk.in_memory(posterior.data))"],
    "runner/hashes": ["found.update(block.data)"],
    "runner/processes": [
        "parts = {shard.device: shard.data for shard in array.addressable_shards}",
    ],
    "runner/program": [
        "data = jax.tree.map(moved, posterior.data)",
        "data = list(map(on_disk.canonical, on_disk.in_memory(posterior.data)))",
        "data = on_disk.joined(posterior.data, data)",
        "if mesh is not None and on_disk.is_any(posterior.data):",
    ],
    "runner/reserve": ["records = functools.cache(lambda: digest(posterior.data))"],
    "runner/run": [
        "position, record = jax.eval_shape(first, (positions, posterior.data))",
        "records = functools.cache(lambda: digest(posterior.data))",
    ],
    "runner/spread": [
        "data = jax.tree.map(part, jax.tree.map(np.asarray, posterior.data))",
        "same = dict(records=digest(posterior.data).hex())",
    ],
    "runner/trial": ["shapes = jax.tree.map(_shape, posterior.data)"],
}
# Inferences without privacy, which read the data as they please.
NOT_PRIVATE = {"comparisons/ep", "comparisons/sep", "ep/pbp"}


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
        is_room_itself = module.endswith("__init__")
        return is_room_itself or room(module) not in KERNELS or other in SHARED
    return RANKS.index(room(other)) < RANKS.index(room(module))


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
        # The module `dpjax.datasets.adult` is not a posterior.
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
        "random/batches": "import dpjax.release.gaussian",
        "release/log_ratios": "from dpjax import fisher",
        "vi/dpvi": "from dpjax.runner.run import run",
    }
    for module, line in wrong.items():
        path = tmp_path / "file.py"
        path.write_text(line)
        others = imported(path)
        assert others and not any(may_import(module, other) for other in others)


@pytest.mark.parametrize(
    "module",
    sorted(
        module
        for module in set(FILES) - NOT_PRIVATE - {"posterior"}
        if room(module) != "release"
    ),
)
def test_only_release_reads_the_data(module):
    lines = FILES[module].read_text().splitlines()
    found = [lines[number - 1].strip() for number in data_reads(FILES[module])]
    assert sorted(found) == HANDED_ON.get(module, [])


def test_the_checker_sees_reads_of_the_data(tmp_path):
    path = tmp_path / "file.py"
    path.write_text("def leak(posterior):\n    return posterior.data.sum()\n")
    assert data_reads(path) == [2]
    assert data_reads(FILES["release/log_ratios"])


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("mcmc/metropolis_hastings", ["log_ratio_sum", "remember"]),
        ("mcmc/minibatch_step", ["batch_moments"]),
        ("mcmc/poisson_step", ["poisson_log_ratio"]),
        ("mcmc/hmc", []),
        ("release/noisy_sum", ["shape_of", "vector_sum"]),
        ("release/gaussian_sum", []),
        ("release/k_norm_sum", []),
        ("fit/newton_scores", ["vector_sum"]),
        ("vi/dpvi", []),
        ("ep/dp_sep", []),
        ("comparisons/dp_sep_published", ["vector_sum"]),
        ("ep/dp_em", []),
    ],
)
def test_kernels_read_the_data_once(module, names):
    calls = [
        node.attr
        for node in ast.walk(ast.parse(FILES[module].read_text()))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in ("log_ratios", "poisson_log_ratios", "vector_sums")
    ]
    assert sorted(calls) == names


def test_two_places_release():
    """The runner and what searches models check, the others mark releases or sums."""
    users = {
        module for module, path in FILES.items() if "release/taint" in imported(path)
    }
    marking = {"release/accept_bit", "release/gaussian"}
    summing = {"release/vector_sums", "release/log_ratios"}
    summing |= {"release/poisson_log_ratios"}
    checking = {"release/captured", "runner/check", "runner/program"}
    checking |= {"numpyro/refusals"}
    assert users == marking | summing | checking
