"""How long the accountant takes, and what it says.

    OMP_NUM_THREADS=1 python -m benchmarks.accounting

Every call is the first of its kind in the process.
"""

import functools
import time

from dpjax import acceptance, privacy

REPLACE = privacy.NeighboringRelation.REPLACE_ONE
ADD = privacy.NeighboringRelation.ADD_OR_REMOVE_ONE
DELTA = 1e-6


def bit(sensitivity, laziness=1.0):
    return privacy.AcceptBit(acceptance.barker(laziness), sensitivity)


def penalty(sensitivity, laziness=1.0):
    return privacy.AcceptBit(acceptance.penalty(2.0, laziness), sensitivity)


def sample(noise, sampling_prob, relation=REPLACE):
    return privacy.PoissonGaussianRelease(noise, sampling_prob, relation)


EPSILONS = [
    [(bit(0.01), 5000)],
    [(bit(0.001), 10**6)],
    [(bit(0.1, 0.2), 1711)],
    [(bit(0.01, 0.01), 5000)],
    [(bit(1e-6, 1e-4), 5000)],
    [(penalty(0.01), 5000)],
    [(penalty(0.1, 0.01), 5000)],
    [(privacy.PoissonAcceptBit(acceptance.barker(), 0.01, 11.0), 1000)],
    [(sample(1.0, 0.01), 10**4)],
    [(sample(100.0, 0.001), 10**7)],
    [(sample(1000.0, 0.0001), 10**9)],
    [(bit(0.01 + 1e-4 * i), 20) for i in range(100)],
]
MAX_STEPS = [
    [(bit(0.01), 1)],
    [(bit(0.1, 0.1), 1)],
    [(sample(250.0, 1e-4, ADD), 1)],
    [(sample(50.0, 0.1), 10), (bit(0.02), 1)],
    [(privacy.FixedBatch(privacy.BarkerTest(1000), 1000, 10**5), 1)],
    [(privacy.FixedBatch(penalty(1.0), 1000, 10**5), 1)],
]
CALIBRATED = [(bit, 1000), (functools.partial(bit, laziness=0.1), 5000)]


def timed(call):
    start = time.perf_counter()
    found = call()
    return found, time.perf_counter() - start


def main():
    plan = dict(epsilon=1.0, delta=DELTA)
    for events in EPSILONS:
        count = f"{sum(n for _, n in events)} of {len(events)} kinds: {events[0][0]}"
        found, seconds = timed(lambda events=events: privacy.epsilon(events, DELTA))
        print(f"{seconds:6.2f} s  epsilon {found:10.6g}  {count}", flush=True)
    for step in MAX_STEPS:
        found, seconds = timed(lambda step=step: privacy.max_steps(step, **plan))
        print(f"{seconds:6.2f} s  steps {found:12d}  {step[0][0]}", flush=True)
    for event_fn, num_steps in CALIBRATED:
        found, seconds = timed(
            lambda event_fn=event_fn, num_steps=num_steps: privacy.calibrate(
                lambda value: [(event_fn(value), 1)],
                num_steps=num_steps,
                bracket=(1e-4, 1.0),
                **plan,
            )
        )
        print(f"{seconds:6.2f} s  value {found:12.6g}  {num_steps} bits", flush=True)


if __name__ == "__main__":
    main()
