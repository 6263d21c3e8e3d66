"""Runs within a budget: steps, ledger, checkpoint, results."""

from dpjax.runner.checkpoint import CheckpointError
from dpjax.runner.fit import Fit
from dpjax.runner.ledger import LedgerError
from dpjax.runner.reserve import Plan, reserve
from dpjax.runner.results import PrivacyStatement, Run, load_infos
from dpjax.runner.run import run

__all__ = [
    "CheckpointError",
    "Fit",
    "LedgerError",
    "Plan",
    "PrivacyStatement",
    "Run",
    "load_infos",
    "reserve",
    "run",
]
