"""Random variates, counts and batches from uniform words. Nothing here reads data.

A kernel takes its randomness as a row of uniform uint32 words. A run takes all rows in
bulk from a cipher; a single step takes its row from a JAX key.
"""
