"""How long the accountant takes, and what it says.

    OMP_NUM_THREADS=1 python -m benchmarks.accounting

Every call is the first of its kind in the process. The times are those of the
processor.
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


def poisson(bound, laziness=1.0):
    return privacy.PoissonAcceptBit(acceptance.barker(laziness), bound, 11.0)


def barker_test(size):
    return privacy.FixedBatch(privacy.BarkerTest(size), size, 10**5)


def batch(noise):
    return privacy.FixedBatch(privacy.GaussianRelease(noise), 1000, 10**5)


EPSILONS = [
    [(bit(0.01), 5000)],
    [(bit(0.001), 10**6)],
    [(bit(0.1, 0.2), 1711)],
    [(bit(0.01, 0.01), 5000)],
    [(bit(1e-6, 1e-4), 5000)],
    [(penalty(0.01), 5000)],
    [(penalty(0.1, 0.01), 5000)],
    [(poisson(0.01), 1000)],
    [(sample(1.0, 0.01), 10**4)],
    [(sample(100.0, 0.001), 10**7)],
    [(sample(1000.0, 0.0001), 10**9)],
    [(bit(0.01 + 1e-4 * i), 20) for i in range(100)],
    [(poisson(0.01 + 1e-4 * i), 20) for i in range(100)],
    [(barker_test(1000 + i), 20) for i in range(100)],
    [(sample(1 + 0.02 * i, 0.001), 10) for i in range(100)],
]
MAX_STEPS = [
    [(bit(0.01), 1)],
    [(bit(0.1, 0.1), 1)],
    [(sample(250.0, 1e-4, ADD), 1)],
    [(sample(50.0, 0.1), 10), (bit(0.02), 1)],
    [(sample(1.0, 1e-6), 1)],
    [(poisson(0.01, laziness=0.1), 1)],
    [(barker_test(1000), 1)],
    [(privacy.FixedBatch(penalty(1.0), 1000, 10**5), 1)],
    [(batch(2 + 0.02 * i), 1) for i in range(100)],
    [(sample(2 + 0.02 * i, 0.001, ADD), 1) for i in range(100)],
]
SPENT = [
    [(barker_test(1001 + i), 1) for i in range(100)],
    [(batch(20 + 0.2 * i), 1) for i in range(100)],
    [(poisson(0.001 + 1e-5 * i), 1) for i in range(100)],
]
"""Earlier events of a plan; its steps release the kind of the first of them."""

CALIBRATED = [
    (bit, 1000, 1),
    (functools.partial(bit, laziness=0.1), 5000, 1),
    (bit, 10, 100),
]
"""Events of a sensitivity, the number of steps, and the kinds of events in a step."""


def timed(call):
    start = time.process_time()
    found = call()
    return found, time.process_time() - start


def main():
    plan = dict(epsilon=1.0, delta=DELTA)
    for events in EPSILONS:
        count = f"{sum(n for _, n in events)} of {len(events)} kinds: {events[0][0]}"
        found, seconds = timed(lambda events=events: privacy.epsilon(events, DELTA))
        print(f"{seconds:6.2f} s  epsilon {found:10.6g}  {count}", flush=True)
    plans = [(step, []) for step in MAX_STEPS]
    plans += [([(spent[0][0], 1)], spent) for spent in SPENT]
    for step, spent in plans:
        kinds = f"{len(step)} kinds after {len(spent)}: {step[0][0]}"
        found, seconds = timed(
            lambda step=step, spent=spent: privacy.max_steps(step, spent=spent, **plan)
        )
        print(f"{seconds:6.2f} s  steps {found:12d}  {kinds}", flush=True)
    for event_fn, num_steps, kinds in CALIBRATED:
        found, seconds = timed(
            lambda event_fn=event_fn, num_steps=num_steps, kinds=kinds: (
                privacy.calibrate(
                    lambda value: [
                        (event_fn(value * (1 + i / kinds)), 1) for i in range(kinds)
                    ],
                    num_steps=num_steps,
                    bracket=(1e-4, 1.0),
                    **plan,
                )
            )
        )
        steps = f"{num_steps} steps of {kinds} kinds"
        print(f"{seconds:6.2f} s  value {found:12.6g}  {steps}", flush=True)


if __name__ == "__main__":
    main()
