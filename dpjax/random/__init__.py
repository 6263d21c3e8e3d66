"""Random variates and batches from uniform words; no room below reads data.

Kernels use randomness as rows of uniform uint32 words, so that a run can take them in
bulk from a cipher and a plain step can take them from a JAX key.
"""
