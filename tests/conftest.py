"""Settings of every test: 64 bits unless DPJAX_TEST_X64=0, and JAX at its strictest.

Reuse of keys, which does not depend on the precision, is looked for in 64 bits. Most
tests compile far longer than they run. So their programs are hardly optimised, except
in the rooms that `OPTIMISED` names for the tier. Runs of a single step, such as fits,
are optimised in no test. XLA generates code in one piece, too, which takes less time,
but for thorough tests in 32 bits: what users have is compiled as theirs is. In 64 bits
XLA uses its older generator of loops, which takes less than half the time of the newer
one. The older one computes wrong scores of some beta binomial laws
(`test_compiled.py`), so dpjax does not use it.
"""

import gc
import os
import tempfile
from pathlib import Path

# Read when JAX is imported. JAX 0.9 logs two long lines for every program that it reads
# from a folder, with which processes would fill pipes that a test does not read.
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import jax
import pytest

X64 = os.environ.get("DPJAX_TEST_X64", "1") != "0"

jax.config.update("jax_enable_x64", X64)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_debug_key_reuse", X64)

IN_ONE_PIECE = "--xla_cpu_parallel_codegen_split_count=1 "
OLDER_LOOPS = "--xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters=true "

# Left out in 32 bits: what these test is text, files, charges, processes, what a
# program reads, whether it is the same, which form a model has, or computed by NumPy
# and mpmath. The one program of JAX in the accounting is that of
# `privacy/bits/test_exact.py`.
if not X64:
    collect_ignore = [
        "test_architecture.py",
        "test_cli.py",
        "test_docs.py",
        "config",
        "datasets",
        "records",
        "test_compiled.py",
        "fit/test_effects.py",
        "fit/test_pinned.py",
        "numpyro/test_glm.py",
        "numpyro/test_kernel.py",
        "numpyro/test_products.py",
        "numpyro/test_seen.py",
        "release/test_captured.py",
        "release/test_self_test.py",
        "release/test_separate.py",
        "release/test_taint.py",
        "test_readme.py",
        "runner/test_batch.py",
        "runner/test_compilations.py",
        "runner/test_ledger.py",
        "runner/test_messages.py",
        "runner/test_on_disk.py",
        "runner/test_plan.py",
        "runner/test_processes.py",
        "runner/test_program.py",
        "runner/test_randomness.py",
        "runner/test_reserve.py",
        "runner/test_run.py",
        "runner/test_signals.py",
        "privacy/gaussian",
        "privacy/bits/test_renyi.py",
        "privacy/bits/test_poisson_renyi.py",
        "privacy/bits/test_batch_renyi.py",
        "privacy/bits/test_total_variation.py",
        "privacy/test_accountant.py",
        "privacy/test_events.py",
        "privacy/test_planning.py",
        "privacy/test_shown.py",
        "privacy/test_step_size.py",
        "privacy/test_thesis_counts.py",
    ]

# Exact accounting computes for longer than it compiles, as do simulations of kernels
# and fits. The releases are tested as users have them.
OPTIMISED = {
    "not thorough": {"privacy"},
    "thorough": {"fit", "mcmc", "privacy", "release", "sgmcmc"},
}

# Files with tests that take far longer than others.
LONG = ["horseshoe", "processes", "numpyro", "plan_fits", "seen", "devices"]
LONG += ["designs", "hierarchical", "glm", "sample", "on_disk", "readme", "audit_bits"]
LONG += ["cli", "score_fit", "simulated"]


def pytest_collection_modifyitems(items):
    """Long tests are first: at the end, a worker may have to wait for another's."""
    items.sort(key=lambda item: item.path.stem.removeprefix("test_") not in LONG)


def pytest_configure(config):
    """Compile fast, and keep programs in a folder that all workers of this run share.

    JAX_COMPILATION_CACHE_DIR names a folder that outlives the run. Workers and
    subprocesses inherit the environment of the process that starts them. Programs of a
    single operation are kept too: every file needs the same ones.
    """
    gc.disable()  # See `programs`.
    if X64 or config.option.markexpr == "not thorough":
        flags = IN_ONE_PIECE + OLDER_LOOPS * X64
        os.environ["XLA_FLAGS"] = flags + os.environ.get("XLA_FLAGS", "")
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        folder = tempfile.TemporaryDirectory(prefix="dpjax-programs-")
        config.add_cleanup(folder.cleanup)
        os.environ["JAX_COMPILATION_CACHE_DIR"] = folder.name
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    for name, kind in (
        ("JAX_COMPILATION_CACHE_DIR", str),
        ("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", float),
    ):
        jax.config.update(name.lower(), kind(os.environ[name]))


@pytest.fixture(autouse=True, scope="module")
def programs(request):
    """How a file's programs are compiled.

    They stay in memory for that file: those of a session fill gigabytes. Garbage is
    collected between files, too, and what is none then is not looked at again. Python
    would look for it again and again while JAX traces, which makes many objects and
    little garbage, and tests would take a tenth longer.
    """
    is_default_tier = request.config.option.markexpr == "not thorough"
    optimised = OPTIMISED["not thorough" if is_default_tier else "thorough"]
    room = request.path.relative_to(Path(__file__).parent).parts[0]
    jax.config.update("jax_disable_most_optimizations", room not in optimised)
    # JAX is set up before dpjax is imported.
    from dpjax import compiled

    compiled.QUICKLY["xla_backend_optimization_level"] = 0
    yield
    jax.clear_caches()
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def x64():
    """Whether JAX computes in 64 bits."""
    return jax.config.jax_enable_x64


@pytest.fixture
def quickly_compiled():
    """For programs that take longer to optimise than to run."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture
def compilations():
    """The names of the programs that XLA is asked for, in a list that grows.

    Programs that other tests have compiled are forgotten.
    """
    # JAX is set up before dpjax is imported.
    from dpjax import compiled

    names = []

    def listen(event, seconds, fun_name="", **_):
        if event.endswith("backend_compile_duration"):
            names.append(fun_name)

    jax.clear_caches()
    compiled._programs.clear()
    # A process asks XLA once which options it knows.
    compiled._without_library()
    jax.monitoring.register_event_duration_secs_listener(listen)
    yield names
    jax.monitoring.unregister_event_duration_listener(listen)


@pytest.fixture
def simplified_constants(request):
    """Whether JAX keeps arrays that a program holds out of its list of constants.

    They are then literals of the program, and its text leaves them out.
    """
    name = "jax_use_simplified_jaxpr_constants"
    before = getattr(jax.config, name)
    jax.config.update(name, getattr(request, "param", True))
    yield
    jax.config.update(name, before)
