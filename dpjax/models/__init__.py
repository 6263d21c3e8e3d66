"""Models: those of the papers, some with exact posterior draws, and regressions."""

from dpjax.models.banana import banana
from dpjax.models.circle import circle
from dpjax.models.gaussian import correlated_gaussian
from dpjax.models.logistic import logistic_regression
from dpjax.models.mixture import gaussian_mixture
from dpjax.models.network import bayesian_network
from dpjax.models.probit import probit_regression
from dpjax.models.thesis import THESIS_MODELS, ThesisModel, thesis_model

__all__ = [
    "THESIS_MODELS",
    "ThesisModel",
    "banana",
    "bayesian_network",
    "circle",
    "correlated_gaussian",
    "gaussian_mixture",
    "logistic_regression",
    "probit_regression",
    "thesis_model",
]
