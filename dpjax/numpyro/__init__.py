"""NumPyro models under differential privacy.

`import dpjax` does not import this package.
"""

from dpjax.numpyro.adapter import ModelPosterior, posterior
from dpjax.numpyro.clipping import clip_per_step, l2_clip_norm
from dpjax.numpyro.complete import complete_cases
from dpjax.numpyro.fisher import fisher_information, initial_position
from dpjax.numpyro.glm import Regression, glm
from dpjax.numpyro.kernel import MCMCKernel
from dpjax.numpyro.plan import plan
from dpjax.numpyro.sample import sample

__all__ = [
    "MCMCKernel",
    "ModelPosterior",
    "Regression",
    "clip_per_step",
    "complete_cases",
    "fisher_information",
    "glm",
    "initial_position",
    "l2_clip_norm",
    "plan",
    "posterior",
    "sample",
]
