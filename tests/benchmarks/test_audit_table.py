"""The table of attacks has every kernel that claims to be private."""

from pathlib import Path

import dpjax
from benchmarks import audit
from dpjax.algorithm import Sampler

PAGE = Path(__file__).parents[2] / "docs/results/audit.md"
CLAIMS_NOTHING = {"tuna", "fast_mh_published", "dp_sep_published"}


def test_every_kernel_is_attacked():
    exported = {name for name in dpjax.__all__ if name not in CLAIMS_NOTHING}
    samplers = {name for name in exported if isinstance(getattr(dpjax, name), Sampler)}
    assert samplers <= {name.partition(",")[0] for name in audit.KERNELS}


def test_the_table_is_of_these_kernels_and_refutes_none():
    table = PAGE.read_text()
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| ")]
    assert [row[0].removeprefix("| ") for row in rows[1:]] == list(audit.KERNELS)
    assert all(0 <= float(row[4]) <= float(row[3]) for row in rows[1:])
