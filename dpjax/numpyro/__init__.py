"""NumPyro models under differential privacy; imported by name only."""

from dpjax.numpyro.adapter import posterior
from dpjax.numpyro.fisher import fisher_information, fisher_metric, initial_position
from dpjax.numpyro.kernel import MCMCKernel

__all__ = [
    "MCMCKernel",
    "fisher_information",
    "fisher_metric",
    "initial_position",
    "posterior",
]
