"""Public data sets, and the tables that records of one's own are read from."""

from dpjax.datasets.adult import adult_features, load_adult
from dpjax.datasets.mnist import load_mnist
from dpjax.datasets.svhn import load_svhn
from dpjax.datasets.uci import load_regression

__all__ = [
    "adult_features",
    "load_adult",
    "load_mnist",
    "load_regression",
    "load_svhn",
]
