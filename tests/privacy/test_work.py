"""How much the accountant computes for many kinds of events or many steps."""

import numpy as np
import pytest

from dpjax import acceptance, privacy
from dpjax.privacy.bits import poisson_renyi, renyi
from dpjax.privacy.gaussian import convolution, profiles

ADD = privacy.NeighboringRelation.ADD_OR_REMOVE_ONE
BUDGET = {"epsilon": 1.0, "delta": 1e-6}
KINDS = np.arange(20)


def bit(sensitivity):
    return privacy.AcceptBit(acceptance.barker(), sensitivity)


def poisson(bound):
    return privacy.PoissonAcceptBit(acceptance.barker(), bound, 11.0)


def barker_test(size):
    return privacy.FixedBatch(privacy.BarkerTest(size), size, 10**5)


def batch(noise):
    return privacy.FixedBatch(privacy.GaussianRelease(noise), 1000, 10**5)


def sample(sampling_prob, noise=1.0):
    return privacy.PoissonGaussianRelease(noise, sampling_prob, ADD)


def epsilon_of_poisson_bits():
    return privacy.epsilon([(poisson(0.01 + 1e-4 * i), 20) for i in KINDS], 1e-6)


def steps_after_barker_tests():
    spent = [(barker_test(1001 + int(i)), 1) for i in KINDS]
    return privacy.max_steps([(barker_test(1000), 1)], spent=spent, **BUDGET)


def steps_of_batches():
    step = [(batch(20.0 + i / 50), 1) for i in KINDS]
    return privacy.max_steps(step, epsilon=10.0, delta=1e-6)


def steps_of_rare_samples():
    return privacy.max_steps([(sample(1e-6), 1)], **BUDGET)


def steps_whose_rare_losses_are_large():
    return privacy.max_steps([(sample(1e-6, 0.5), 1)], **BUDGET)


def sensitivity_of_bits():
    def step(value):
        return [(bit(value * (1 + i / 100)), 1) for i in KINDS]

    return privacy.calibrate(step, num_steps=50, bracket=(1e-4, 1.0), **BUDGET)


CALLS = {
    epsilon_of_poisson_bits: (2e6, 0),
    steps_after_barker_tests: (1e6, 0),
    steps_of_batches: (5e4, 1e7),
    steps_of_rare_samples: (2e4, 1.5e6),
    steps_whose_rare_losses_are_large: (1e6, 1.5e7),
    sensitivity_of_bits: (8e6, 0),
}
"""The most values of divergences, shifts and profiles that a call may compute, and the
most frequencies of Fourier transforms."""


@pytest.mark.thorough
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_calls_compute_little(call, monkeypatch):
    work = {"values": 0, "frequencies": 0}

    def count(module, name, kind):
        counted = getattr(module, name)

        def counting(*args, **kwargs):
            found = counted(*args, **kwargs)
            work[kind] += np.size(found)
            return found

        monkeypatch.setattr(module, name, counting)

    count(renyi, "divergence", "values")
    count(poisson_renyi, "_shift", "values")
    count(profiles, "delta", "values")
    count(convolution.fft, "rfft", "frequencies")
    call()
    most_values, most_frequencies = CALLS[call]
    assert 0 < work["values"] <= most_values
    assert work["frequencies"] <= most_frequencies
