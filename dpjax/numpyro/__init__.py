"""NumPyro models under differential privacy; imported by name only."""

from dpjax.numpyro.adapter import posterior
from dpjax.numpyro.fisher import fisher_information, fisher_metric, initial_position
from dpjax.numpyro.kernel import MCMCKernel
from dpjax.numpyro.sample import Tuned, clip_per_step, sample, tuned
from dpjax.numpyro.scoring import scoring

__all__ = [
    "MCMCKernel",
    "Tuned",
    "clip_per_step",
    "fisher_information",
    "fisher_metric",
    "initial_position",
    "posterior",
    "sample",
    "scoring",
    "tuned",
]
