"""Steps over more records than the memory should hold: time, and peak memory.

    python -m benchmarks.large FOLDER [--num-records N] [--json FILE]

Records of ten float32 numbers are made up and written to a file in FOLDER, which is
removed at the end. ``disk`` is the time in which the disk alone reads the file, past
the page cache.

``first`` is the time of the first step on disk (`numpy.memmap`), for which the page
cache of the system holds nothing of the file; the program was compiled before. Of the
steps after it, when the cache holds what was read, ``later`` and ``in memory`` are the
median seconds on disk and in memory, in turns in one process, and ``ratio`` the median
of their ratios. All states must be equal in the end, to the last bit.

``anonymous`` is the peak of the memory that a process on disk, or in memory, cannot
give back: RssAnon and RssShmem of /proc/self/status, looked up every 5 ms. Pages of the
file are RssFile. They are not counted, and dropped when memory is short. The JSON file
has the peak with them too, VmHWM. The last line is a whole `dpjax.run` with a budget
and a ledger, for which the records are hashed.
"""

import argparse
import functools
import json
import mmap
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np

import dpjax

DIM = 10
SEED = 0
NUM_LATER = 4
BLOCK = 10**6
BARKER = functools.partial(dpjax.barker, step_size=1e-5, clip_bound=2e-5)
SGLD = functools.partial(dpjax.sgld, step_size=0.1, dim=DIM, l2_clip_norm=4.0)
STEPS = {
    "barker, 1 chain": (BARKER, 1),
    "barker, 4 chains": (BARKER, 4),
    "sgld, 1 chain": (functools.partial(SGLD, sampling_prob=1.0), 1),
    "sgld, a sample of .1%": (functools.partial(SGLD, sampling_prob=0.001), 1),
}
RUN = "a run of 20 steps of barker, 1 chain"


def logprior(position):
    return -0.5 * jnp.sum(position**2)


def loglikelihood(position, record):
    return -0.5 * jnp.sum((record - position) ** 2)


def write(path, num_records):
    """Made-up records, in blocks."""
    rng = np.random.default_rng(SEED)
    shape = num_records, DIM
    records = np.lib.format.open_memmap(path, "w+", np.float32, shape)
    for start in range(0, num_records, BLOCK):
        rows = records[start : start + BLOCK]
        rows[:] = rng.standard_normal(rows.shape, np.float32)
    records.flush()


def disk_seconds(path) -> float:
    """Seconds in which the disk reads the file, past the page cache."""
    buffer = mmap.mmap(-1, 2**24)
    file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    start = time.perf_counter()
    while os.readv(file, [buffer]):
        pass
    os.close(file)
    return time.perf_counter() - start


def forget(path) -> None:
    """Drop the file from the page cache."""
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)


class Peak(threading.Thread):
    """The peak memory of this process while it runs, in GB."""

    def __init__(self):
        super().__init__(daemon=True)
        self.anonymous = 0.0

    def run(self):
        while True:
            self.anonymous = max(
                self.anonymous, gigabytes("RssAnon") + gigabytes("RssShmem")
            )
            time.sleep(0.005)


def gigabytes(name: str) -> float:
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(name))
    return int(line.split()[1]) * 1024 / 1e9


class Stepper:
    """The chains of a line, which move once a call.

    Parameters
    ----------
    line
        Name of the kernel in `STEPS`.
    records
        In memory, or on disk.
    """

    def __init__(self, line, records):
        kernel, num_chains = STEPS[line]
        posterior = dpjax.Posterior(logprior, loglikelihood, records)
        self._arguments = []
        if not isinstance(records, np.memmap):
            posterior = jax.block_until_ready(jax.device_put(posterior))
            self._arguments = [posterior]

        def step(keys, states, posterior=posterior):
            return jax.vmap(kernel(posterior).step)(keys, states)[0]

        self._key = jax.random.key(SEED)
        starts = jnp.zeros((num_chains, DIM))
        self._states = jax.vmap(kernel(posterior).init)(starts)
        lowered = jax.jit(step).lower(self._keys(), self._states, *self._arguments)
        self._compiled = lowered.compile()

    def _keys(self):
        self._key, key = jax.random.split(self._key)
        return jax.random.split(key, len(jax.tree.leaves(self._states)[0]))

    def __call__(self) -> float:
        """Make a step; returns its seconds."""
        keys = self._keys()
        start = time.perf_counter()
        states = self._compiled(keys, self._states, *self._arguments)
        self._states = jax.block_until_ready(states)
        return time.perf_counter() - start

    def states(self) -> list:
        return [np.asarray(leaf).tolist() for leaf in jax.tree.leaves(self._states)]


def measured(path, line: str, places: list[str]) -> dict:
    """Seconds of each of the steps, which take turns; peak memory; and a hash.

    Parameters
    ----------
    places
        Where the records are: ``"disk"``, ``"memory"``, or both.
    """
    peak = Peak()
    peak.start()
    modes = dict(disk="r", memory=None)
    records = [np.load(path, mmap_mode=modes[place]) for place in places]
    if line == RUN:
        seconds = [charged(*records)]
    else:
        steppers = [Stepper(line, each) for each in records]
        # More steps tell the time, and two the peak of the memory.
        count = 1 + NUM_LATER if len(places) > 1 else 2
        seconds = [[step() for step in steppers] for _ in range(count)]
        assert all(s.states() == steppers[0].states() for s in steppers)
    return dict(seconds=seconds, anonymous=peak.anonymous, with_file=gigabytes("VmHWM"))


def charged(records) -> float:
    """Seconds of a run of twenty steps, from the hash of its records to its draws."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        dpjax.run(
            BARKER,
            dpjax.Posterior(logprior, loglikelihood, records),
            20,
            initial_position=np.zeros((1, DIM), np.float32),
            num_chains=1,
            budget=dpjax.Budget(1.0, 1e-9),
            ledger=os.path.join(folder, "ledger.jsonl"),
            verbose=False,
            unsafe_key=jax.random.key(SEED),
        )
    return time.perf_counter() - start


def apart(path, line, *places) -> dict:
    """`measured`, in a process of its own."""
    forget(path)
    call = f"measured({str(path)!r}, {line!r}, {places!r})"
    code = f"import json; from benchmarks.large import *; print(json.dumps({call}))"
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(result.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--num-records", type=int, default=10**8)
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    path = arguments.folder / "records.npy"
    try:
        write(path, arguments.num_records)
        size = path.stat().st_size
        forget(path)
        disk = disk_seconds(path)
        print(f"{arguments.num_records:.0e} records, {size / 1e9:.2f} GB")
        print(f"disk {disk:.2f} s ({size / disk / 1e9:.2f} GB/s)")
        table = compare(path)
    finally:
        path.unlink(missing_ok=True)
    if arguments.json:
        found = dict(num_records=arguments.num_records, disk=disk, lines=table)
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


def compare(path) -> list[dict]:
    """The lines of the table, which it prints."""
    heads = "first", "later", "in memory", "ratio", "anonymous", "in memory"
    print(f"{'':24}" + "".join(f"{head:>11}" for head in heads))
    lines = []
    for line in STEPS:
        on_disk, in_memory = (apart(path, line, place) for place in ("disk", "memory"))
        turns = np.array(apart(path, line, "disk", "memory")["seconds"])[1:]
        disk, memory = np.median(turns, axis=0)
        ratio = np.median(turns[:, 0] / turns[:, 1])
        first = on_disk["seconds"][0][0]
        print(
            f"{line:24}{first:9.2f} s{disk:9.2f} s{memory:9.2f} s{ratio:11.2f}"
            f"{on_disk['anonymous']:8.2f} GB{in_memory['anonymous']:8.2f} GB",
            flush=True,
        )
        peaks = {
            f"{place}_{name}": found[name]
            for place, found in (("disk", on_disk), ("memory", in_memory))
            for name in ("anonymous", "with_file")
        }
        lines.append(dict(line=line, first=first, turns=turns.tolist()) | peaks)
    run = apart(path, RUN, "disk")
    print(f"{RUN}: {run['seconds'][0]:.1f} s, {run['anonymous']:.2f} GB")
    return [*lines, dict(line=RUN) | run]


if __name__ == "__main__":
    main()
