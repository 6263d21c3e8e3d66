"""Noise-aware posteriors from a few releases."""
