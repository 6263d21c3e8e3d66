"""Chains of Hamiltonian Monte Carlo in NumPy."""

import numpy as np
from scipy.stats import truncnorm

from dpjax.fit.slope_chains import NUM_CHAINS, chains


def test_moments_are_those_of_the_law():
    """Normal coordinates of several sds, one of which is never above 1."""
    sds, per_chain = np.array([1.0, 0.5, 2.0]), 200

    def log_density(x):
        value = -np.sum((x / sds) ** 2, axis=1) / 2
        return np.where(x[:, 2] > 1, np.nan, value), -x / sds**2

    found = chains(np.random.default_rng(0), log_density, 3, per_chain)
    found = found.reshape(per_chain, NUM_CHAINS, 3)
    assert found[..., 2].max() <= 1
    cut = truncnorm(-np.inf, 1 / sds[2], scale=sds[2])
    firsts = [0, 0, cut.mean()]
    seconds = [*sds[:2] ** 2, cut.moment(2)]
    for power, expected in enumerate([firsts, seconds], start=1):
        means = np.mean(found**power, axis=0)
        error = np.std(means, axis=0, ddof=1) / np.sqrt(NUM_CHAINS)
        assert np.all(error < 0.1 * sds**power)
        # A t of 31 degrees of freedom is above 8 with a chance of 5e-9.
        assert np.all(np.abs(np.mean(means, axis=0) - expected) < 8 * error)
