"""NumPyro models under differential privacy; `import dpjax` does not import this."""

from dpjax.numpyro.adapter import ModelPosterior, posterior
from dpjax.numpyro.fisher import fisher_information, initial_position
from dpjax.numpyro.kernel import MCMCKernel
from dpjax.numpyro.sample import Tuned, clip_per_step, sample, tuned
from dpjax.numpyro.scoring import ScoringInfo, scoring

__all__ = [
    "MCMCKernel",
    "ModelPosterior",
    "ScoringInfo",
    "Tuned",
    "clip_per_step",
    "fisher_information",
    "initial_position",
    "posterior",
    "sample",
    "scoring",
    "tuned",
]
