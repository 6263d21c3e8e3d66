"""Runs within a budget: steps, ledger, checkpoint, results."""

from dpjax.runner.checkpoint import CheckpointError
from dpjax.runner.ledger import LedgerError
from dpjax.runner.plan import Plan, plan
from dpjax.runner.plan_fit import plan_sample
from dpjax.runner.reserve import Reserved, reserve
from dpjax.runner.results import Fit, Run, load
from dpjax.runner.run import run
from dpjax.runner.statement import PrivacyStatement

__all__ = [
    "CheckpointError",
    "Fit",
    "LedgerError",
    "Plan",
    "PrivacyStatement",
    "Reserved",
    "Run",
    "load",
    "plan",
    "plan_sample",
    "reserve",
    "run",
]
