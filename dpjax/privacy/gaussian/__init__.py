"""Releases with noise, of all records and of samples of them."""
