"""Gaussian releases, of all records and of samples of them."""
