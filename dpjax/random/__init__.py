"""Random variates, counts and batches, computed from uniform words. No data are read.

A kernel takes its randomness as a row of uniform uint32 words. A run draws the rows of
all its steps from a stream cipher. A single step outside a run draws its row from a JAX
key.
"""
