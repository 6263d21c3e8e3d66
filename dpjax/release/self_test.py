"""A test of the arithmetic on which sums, bits and noise rely, as it is compiled here.

The guarantees of this room hold in IEEE 754 arithmetic: a value that is not finite is
seen, and the same expression of the same numbers rounds the same. XLA keeps to that
unless a flag or a backend relaxes it.
"""

import functools
import os
import re

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import ndtri

from dpjax.posterior import Posterior
from dpjax.release import accept_bit, gaussian, log_ratios, vector_sums
from dpjax.release.exact_sums import GRID, VECTOR_GRID, exact_product, exact_sum
from dpjax.release.gradient_parts import Outer

__all__ = ["check_arithmetic"]

VARIABLES = "XLA_FLAGS", "LIBTPU_INIT_ARGS"
FAST_MATH = re.compile(
    r"--xla_\w*enable_fast_math(?!\w|=(?:false|0)\b)\S*", re.IGNORECASE
)
"""A flag that lets XLA leave IEEE 754, unless its value is false."""

SPECIAL = 0.0, 1e-40, 0.3, -1.0, 1e4, -1e30, 3e38, np.nan, np.inf, -np.inf
LOG_RATIOS = np.nan, -np.inf, np.inf
NOISE_MULTIPLIER = 1.5


def check_arithmetic(**options) -> None:
    """Refuse flags, compilers and devices whose arithmetic is not that of IEEE 754.

    The first call of a process tests. Later ones with the same options, on the same
    backend and in the same precision, look at the flags alone.

    Parameters
    ----------
    options
        Options of the XLA compiler by name, with which the test is compiled.

    Raises
    ------
    RuntimeError
        If they are; the message names the flags.
    """
    given = {name: os.environ.get(name, "") for name in VARIABLES}
    for name, value in given.items():
        if value.strip() and not value.lstrip().startswith("-"):
            raise RuntimeError(
                f"{name} names a file of flags, {value!r}, which may hold others now "
                f"than when XLA read it: write the flags into {name} themselves and "
                "start Python anew"
            )
    flags = " ".join(given.values())
    if fast := FAST_MATH.findall(flags):
        raise RuntimeError(
            f"{' '.join(fast)} lets XLA round as it likes, and then clipped sums can "
            f"exceed their sensitivity: take it out of {' or '.join(VARIABLES)} and "
            "start Python anew"
        )
    kind = jax.default_backend(), jnp.result_type(float)
    wrong = _failures(*kind, **options)
    if wrong:
        raise RuntimeError(
            f"the arithmetic of this {jax.default_backend()} backend is not that of "
            f"IEEE 754 ({', '.join(wrong)}), so clipped sums can exceed their "
            f"sensitivity: unset {' and '.join(VARIABLES)} (now {flags.strip()!r}) and "
            "start Python anew, or run on another device"
        )


@functools.cache
def _failures(backend: str, dtype, **options) -> list[str]:
    """What goes wrong, tried on made-up numbers."""
    rng = np.random.default_rng(0)
    usual = rng.normal(size=(64, 2)) * np.exp(3 * rng.normal(size=(64, 1)))
    records = np.concatenate([usual, rng.choice(SPECIAL, (64, 2))])
    words = rng.integers(0, 2**32, (64, gaussian.WORDS_PER_COORDINATE), np.uint32)
    words[:3] = [[0, 1, 0], [0, 1, 0], [2**32 - 1] * 3]
    integers = rng.integers(-GRID, GRID, (300, 2), endpoint=True)
    with np.errstate(all="ignore"):
        numbers = [np.asarray(a, dtype) for a in (records, LOG_RATIOS, integers)]
    given = *numbers, words
    program = jax.jit(_evaluate).lower(*given).compile(options)
    # NumPyro begins chains on several devices inside a trace.
    with jax.ensure_compile_time_eval():
        found = jax.tree.map(np.asarray, program(*given))
    of_each, of_all, bits, totals, noise = found
    exact = [*integers.sum(axis=0), *(integers[:, :1] * integers).sum(axis=0)]
    found = {
        "clipping": all(_is_clipped(cells) for cells in of_each)
        and all(_add_up(*pair) for pair in zip(of_each, of_all, strict=True)),
        "sums": np.array_equal(np.concatenate(totals), exact),
        "bits": np.array_equal(bits, [False, False, True]),
        "noise": np.array_equal(noise, _expected_noise(words)),
    }
    return [name for name, is_good in found.items() if not is_good]


def _evaluate(records, ratios, integers, words):
    """Sums over each record alone and over all, accept bits, more sums, and noise."""

    def by_components(record):
        # XLA may evaluate these for the norm, and again for the sum.
        return [jnp.sin(3 * x) * x + record[0] for x in record]

    def whole(record):
        return record * jnp.tanh(record[0]) + record

    def product(record):
        return Outer(jnp.sin(3 * record[:1, None]) + record[0], record[None])

    def cells(data):
        target = Posterior(jnp.sum, lambda at, record: at * record[0], data)
        zero, one = jnp.zeros((), data.dtype), jnp.ones((), data.dtype)
        ratio, _ = log_ratios.log_ratio_sum(target, zero, one, float(GRID))
        kinds = by_components, whole, product
        vectors = [vector_sums.vector_sum(target, kind, 0.7) for kind in kinds]
        with jax.enable_x64(True):
            return [*vectors, ratio[None] * (VECTOR_GRID // GRID)]

    def noise(row):
        with jax.enable_x64(True):
            nothing = jnp.zeros(1, jnp.int64)
        return gaussian.add_noise(row, nothing, 1.0, NOISE_MULTIPLIER)

    def bit(row, log_ratio):
        return accept_bit.draw(row[:2], "barker", log_ratio)

    bits = jax.vmap(bit)(words[: len(LOG_RATIOS)], ratios)
    of_each = jax.vmap(lambda record: cells(record[None]))(records)
    pair = integers[:, :1, None], integers[:, None]
    totals = exact_sum(integers, axis=0), exact_product(*pair)
    return of_each, cells(records), bits, totals, jax.vmap(noise)(words)


def _is_clipped(cells) -> bool:
    """Whether every row is of integers, and no longer than a clip bound."""
    is_integer = np.isfinite(cells).all() and np.array_equal(cells, np.rint(cells))
    norms = np.linalg.norm(cells.astype(np.float64), axis=1)
    return bool(is_integer and (norms <= VECTOR_GRID).all())


def _add_up(of_each, of_all) -> bool:
    """Whether sums over records are what the records add.

    The last digits of a record may differ between programs, and with them two cells.
    """
    difference = np.abs(of_each.sum(axis=0) - of_all)
    return bool((difference <= 2 * GRID * len(of_each)).all())


def _expected_noise(words) -> np.ndarray:
    """What `gaussian.add_noise` adds to zero, by SciPy."""
    first, second, third = words.astype(np.float64).T
    tail = first * 2.0**-33 + second * 2.0**-65
    half = ndtri(tail + np.floor(third / 2) * 2.0**-96 + 2.0**-97)
    half[(words == 2**32 - 1).all(axis=1)] = gaussian.REACH * (2.0**-14 - 1)
    sd = NOISE_MULTIPLIER * VECTOR_GRID
    noise = sd * np.where(words[:, 2] & 1, -half, half)[:, None]
    spacing = 2.0 ** np.floor(np.log2(sd / 16))
    return np.floor(np.floor(noise + 0.5) / spacing + 0.5) * spacing
