"""Runs of samplers and fits within a privacy budget.

Here a budget is checked and charged to a ledger, the steps are made and checkpointed,
and the draws come back with their privacy statement. `run` is the centre of the folder;
`batch`, `reserve`, `plan` and `dpjax.runner.fit` are built on its parts.
"""

from dpjax.runner.batch import Batch, BatchStatement, batch
from dpjax.runner.checkpoint import CheckpointError
from dpjax.runner.ledger import LedgerError
from dpjax.runner.plan import Plan, plan
from dpjax.runner.plan_fit import plan_sample
from dpjax.runner.reserve import Reserved, reserve
from dpjax.runner.results import Fit, Run, load
from dpjax.runner.run import run
from dpjax.runner.statement import PrivacyStatement

__all__ = [
    "Batch",
    "BatchStatement",
    "CheckpointError",
    "Fit",
    "LedgerError",
    "Plan",
    "PrivacyStatement",
    "Reserved",
    "Run",
    "batch",
    "load",
    "plan",
    "plan_sample",
    "reserve",
    "run",
]
