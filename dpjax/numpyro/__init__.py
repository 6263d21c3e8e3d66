"""NumPyro models under differential privacy; imported by name only."""

from dpjax.numpyro.adapter import posterior

__all__ = ["posterior"]
