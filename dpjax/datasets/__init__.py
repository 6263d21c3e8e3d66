"""Public data sets, and the encoding of records from the user's own files."""

from dpjax.datasets.adult import adult_features, load_adult
from dpjax.datasets.mnist import cosine_features, load_mnist, published_features
from dpjax.datasets.svhn import load_svhn
from dpjax.datasets.uci import load_regression, standardize

__all__ = [
    "adult_features",
    "cosine_features",
    "load_adult",
    "load_mnist",
    "load_regression",
    "load_svhn",
    "published_features",
    "standardize",
]
