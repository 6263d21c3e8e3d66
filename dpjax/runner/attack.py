"""Attack a kernel on two neighbouring data sets of made-up records.

The adversary of `dpjax.privacy.audit` needs two data sets that a step tells apart, and
a score of what the step releases. Both are found by trying, so they fit any kernel:

*Data sets.* Of many made-up records, those of one scale whose log-likelihoods have the
most different gradients take the place of the first record. The other records are all
one whose gradient is about zero, or pairs that cancel. A pilot chooses the scale and
the others: those at which steps differ most.

*A louder pilot.* One record changes a step so little that no pilot would see how. So as
many of the first records are replaced, on both sides, as it takes. The score that is
learned from them is then used on data sets that differ in one record.

*Score.* Of one step from the start, the features are where the position moved, the
accept bit and the released vectors. Fisher's linear discriminant projects them on a
line, which is cut into intervals. The score is the log of how much more often the
pilot's steps fell into an interval on one data set than on the other. It is fixed
before the trials begin, whose randomness is independent of the pilot's.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from dpjax import privacy
from dpjax.posterior import Posterior
from dpjax.privacy import NeighboringRelation, audit
from dpjax.privacy.events import repeat
from dpjax.privacy.validate import check_count, check_relation

__all__ = ["DELTA", "SIGNIFICANCE", "Attack", "attack"]

DELTA = 1e-2
"""delta of claim and bound: at a smaller one, more trials are needed to find much."""

SIGNIFICANCE = 1e-6
"""Chance that the bound exceeds the true epsilon."""

EPSILON = 4.0
"""Claim that an attack aims at by its number of steps."""

MIN_RECORDS = 16
MAX_EVALUATIONS, TRIALS = 2**20, (2**11, 2**13)
"""Evaluations of records in one trial, and trials, if their numbers are not given."""

SCALES = 10.0 ** np.arange(-1, 6)
CANDIDATES = 64
"""Scales of made-up records, and how many there are of each."""

SEARCH_ROUNDS = 40

CLEAR = 8.0
"""Standard errors by which the pilot's steps on two data sets differ clearly."""

SMALL_PILOT, PILOT, MAX_FEATURES = 2**15, 2**19, 2**24
"""Numbers of steps that choose the data sets and that fit the score, and the most
numbers of their features that are kept in memory."""

NUM_INTERVALS, NUM_THRESHOLDS = 16, 33


class Attack(NamedTuple):
    """What an attack found.

    claimed
        epsilon of `num_steps` first steps of one chain, by the accountant.
    found
        Lower bound on their epsilon.
    delta
        delta of both.
    significance
        Chance that `found` exceeds the true epsilon.
    num_steps, num_trials, num_records
        Steps of a trial, trials on either data set, and records in the first one.
    neighboring_relation
        How the data sets differ.
    seed
        Of the made-up records and of all randomness.
    """

    claimed: float
    found: float
    delta: float
    significance: float
    num_steps: int
    num_trials: int
    num_records: int
    neighboring_relation: NeighboringRelation
    seed: int

    @property
    def is_refuted(self) -> bool:
        """Whether the steps release more than is claimed."""
        return self.found > self.claimed

    def __str__(self) -> str:
        verdict = "The claim survives this attack, which does not prove it."
        if self.is_refuted:
            verdict = "REFUTED: the kernel releases more than it is charged for."
        elif self.found == 0:
            verdict = "The attack found nothing; it may need more steps or trials."
        return (
            f"{self.num_steps} times the first step of one chain, on "
            f"{self.num_records} made-up records ({self.neighboring_relation.name})\n"
            f"claimed: epsilon = {self.claimed:.4g} at delta = {self.delta:g}\n"
            f"audited: epsilon >= {self.found:.4g} at delta = {self.delta:g} "
            f"({self.num_trials} trials on either data set, seed {self.seed}, false "
            f"with chance {self.significance:g})\n{verdict}"
        )


def attack(
    algorithm_fn: Callable,
    outline: Posterior,
    position: Any,
    neighboring_relation=NeighboringRelation.REPLACE_ONE,
    *,
    num_trials: int | None = None,
    num_steps: int | None = None,
    seed: int = 0,
) -> Attack:
    """Bound from below what steps of a kernel cost, beside what is claimed.

    Parameters
    ----------
    algorithm_fn
        ``posterior -> Algorithm``, as for `dpjax.run`.
    outline
        Posterior with made-up records, such as `dpjax.config.Job.outline`. Only their
        shapes and types are used; as few of them are made up as the kernel takes and
        the attack needs.
    position
        Where every step begins, a pytree.
    neighboring_relation
        That of the claim.
    num_trials, num_steps
        Positive integers. By default there are as many steps as make the claim
        `EPSILON`, unless that takes too long, and the more trials the fewer steps.
    seed
        Repeats an attack.

    Raises
    ------
    ValueError
        If an argument is out of range, there are fewer than two records, the kernel
        claims no finite epsilon, no made-up records have gradients, or, if the relation
        is not substitution, none of them is a blank.
    """
    relation = check_relation("neighboring_relation", neighboring_relation)
    position = jax.tree.map(jnp.asarray, position)
    shapes = jax.eval_shape(lambda: outline.data)
    size, events = _smallest(algorithm_fn, outline, shapes, relation)
    if num_steps is None:
        most = privacy.max_steps(events, epsilon=EPSILON, delta=DELTA)
        num_steps = max(1, min(most, MAX_EVALUATIONS // size))
    num_steps = check_count("num_steps", num_steps)
    if num_trials is None:
        least, most = TRIALS
        num_trials = min(most, max(least, least * MAX_EVALUATIONS // num_steps // size))
    num_trials = check_count("num_trials", num_trials)
    claimed = privacy.epsilon(repeat(events, num_steps), DELTA)

    rng = np.random.default_rng(seed)
    # A new function, so that no program of an earlier attack is used.
    kernel = lambda data: algorithm_fn(data)  # noqa: E731
    pilot = functools.partial(_pilot, rng, kernel, position)
    pairs = _pairs(rng, outline, shapes, position, size, relation)
    pair, score = _choose(pilot, pairs, size)
    found = pilot(pair, PILOT)
    thresholds = _thresholds([score(side) for side in found], num_steps)
    start = algorithm_fn(pair[0]).init(position).position
    step_score = functools.partial(_score_of_step, score, start)
    sums = [
        audit.scores(
            _key(rng),
            kernel,
            data,
            position,
            step_score,
            num_trials=num_trials,
            num_steps=num_steps,
        )
        for data in pair
    ]
    low, high = (np.digitize(side, thresholds) for side in sums)
    bound = audit.epsilon_lower_bound(low, high, DELTA, significance=SIGNIFICANCE)
    numbers = num_steps, num_trials, size, relation, seed
    return Attack(claimed, bound, DELTA, SIGNIFICANCE, *numbers)


def _smallest(algorithm_fn, outline, shapes, relation):
    """The least number of records that suffices, and the events of a step with it.

    More records are taken while the kernel refuses fewer, or while its steps cost too
    much and cost less with more.
    """
    if outline.num_records < 2:
        raise ValueError("an attack on one of the records needs at least two")
    size, best = min(MIN_RECORDS, outline.num_records), None
    while True:
        few = jax.tree.map(
            lambda shape, size=size: np.zeros((size, *shape.shape[1:]), shape.dtype),
            shapes,
        )
        try:
            events = algorithm_fn(dataclasses.replace(outline, data=few)).privacy(
                1, relation
            )
            claim = privacy.epsilon(events, DELTA)
        except ValueError:
            if size == outline.num_records and best is None:
                raise
        else:
            if best is not None and claim >= best[0]:
                break
            best = claim, size, events
            if claim <= EPSILON:
                break
        if size == outline.num_records:
            break
        size = min(2 * size, outline.num_records)
    assert best is not None
    if best[0] == math.inf:
        raise ValueError(
            f"a step of this kernel has no finite epsilon at delta = {DELTA}, so there "
            "is no claim to audit"
        )
    return best[1:]


def _choose(pilot, pairs, size: int):
    """The pair of neighbours that a step tells apart best, and a score of its steps."""
    found = [(*_loudness(pilot, pair_fn, size), pair_fn) for pair_fn in pairs]
    if not found:
        raise ValueError(
            "no two made-up records have finite gradients at the start, so there is "
            "nothing to attack with"
        )
    _, replaced, pair_fn = max(found, key=lambda line: line[0])
    return pair_fn(1), _Score.of(pilot(pair_fn(replaced), PILOT))


def _loudness(pilot, pair_fn, size: int) -> tuple[float, int]:
    """How differently steps score two data sets for each record that is replaced.

    Returns
    -------
    The difference for each record, and the least number of replaced records for which
    the difference is clear.
    """
    *fewer, most = sorted({1, size // 8, size // 3, size - 1} - {0})
    for replaced in fewer:
        difference, error = _difference(pilot(pair_fn(replaced), SMALL_PILOT))
        if difference > CLEAR * error:
            return difference / replaced, replaced
    difference, _ = _difference(pilot(pair_fn(most), SMALL_PILOT))
    return difference / most, most


def _pairs(rng, outline, shapes, position, size: int, relation):
    """Functions ``k -> pair of posteriors`` that differ in the first k records.

    If k is 1, the two are neighbours.
    """

    def slope(record):
        gradient = jax.grad(outline.loglikelihood_fn)(position, record)
        return ravel_pytree(gradient)[0]

    slopes = jax.jit(jax.vmap(slope))
    replaces = relation is NeighboringRelation.REPLACE_ONE
    blank = _blank(shapes)
    if not replaces and np.isfinite(slope(blank)).all():
        raise ValueError(
            "no made-up record of these types adds zero to sums, as one with a NaN "
            "does: audit the claim for REPLACE_ONE"
        )
    made_up = [
        jax.tree.map(functools.partial(_made_up, rng, scale), shapes)
        for scale in SCALES
    ]
    found = [np.asarray(slopes(records), np.float64) for records in made_up]
    lengths = [_lengths(gradients) for gradients in found]
    if not np.isfinite(np.concatenate(lengths)).any():
        return
    quiet = _quiet(rng, slopes, shapes)
    for records, gradients, length in zip(made_up, found, lengths, strict=True):
        usable = np.flatnonzero(np.isfinite(length))
        if usable.size < 2:
            continue
        # Clipping leaves long gradients their direction; what is long is not known.
        middle = max(np.median(length[usable]), 1e-30)
        short = gradients[usable] / (length[usable] + middle)[:, None]
        gaps = np.linalg.norm(short[:, None] - short, axis=2)
        one, other = np.unravel_index(np.argmax(gaps), gaps.shape)
        one, other = (_row(records, int(usable[i])) for i in (one, other))
        for others in ([quiet] * (size - 1), ([one, other] * size)[: size - 1]):
            yield functools.partial(
                _pair, outline, one, other if replaces else blank, others
            )


def _pair(outline, one, other, others, replaced: int):
    """Posteriors with so many records of one kind or the other."""
    rest = others[: len(others) + 1 - replaced]
    sets = [one] * replaced + rest, [other] * replaced + rest
    return [
        dataclasses.replace(
            outline, data=jax.tree.map(lambda *rows: jnp.stack(rows), *rows)
        )
        for rows in sets
    ]


def _blank(shapes):
    """A record whose floats are NaN, so that kernels count it as none."""

    def one(shape):
        is_float = jnp.issubdtype(shape.dtype, jnp.floating)
        return jnp.full(shape.shape[1:], jnp.nan if is_float else 0, shape.dtype)

    return jax.tree.map(one, shapes)


def _quiet(rng, slopes, shapes):
    """A made-up record of almost no gradient, by a random search that closes in."""
    best = jax.tree.map(lambda shape: jnp.zeros(shape.shape[1:], shape.dtype), shapes)
    for scale in np.geomspace(10.0, 1e-6, SEARCH_ROUNDS):
        moved = jax.tree.map(functools.partial(_made_up, rng, scale), shapes)
        tried = jax.tree.map(
            lambda move, kept: jnp.concatenate(
                [kept[None], kept[None] + move if move.dtype.kind == "f" else move]
            ),
            moved,
            best,
        )
        best = _row(tried, int(np.argmin(_lengths(np.asarray(slopes(tried))))))
    return best


def _made_up(rng, scale: float, shape):
    size = CANDIDATES, *shape.shape[1:]
    if jnp.issubdtype(shape.dtype, jnp.floating):
        return jnp.asarray(scale * rng.standard_normal(size), shape.dtype)
    return jnp.asarray(rng.integers(0, 2, size), shape.dtype)


def _lengths(gradients):
    """Euclidean norms, infinite where they are not finite."""
    with np.errstate(all="ignore"):
        found = np.linalg.norm(gradients, axis=1)
    return np.where(np.isfinite(found), found, np.inf)


def _row(records, index: int):
    return jax.tree.map(lambda leaf: leaf[index], records)


def _features(start, state, info) -> jax.Array:
    """What a step from the position `start` released, in one vector; all is public."""
    moved = jax.tree.map(jnp.subtract, state.position, start)
    leaves = jax.tree.leaves((moved, info))
    numbers = [jnp.ravel(leaf).astype(float) for leaf in leaves]
    return jnp.nan_to_num(jnp.concatenate(numbers))


@functools.partial(jax.jit, static_argnums=(0, 3))
def _released(algorithm_fn, position, posterior, num_steps, rng_key):
    algorithm = algorithm_fn(posterior)
    state = algorithm.init(position)

    def step(key):
        return _features(state.position, *algorithm.step(key, state))

    keys = jax.random.split(rng_key, num_steps)
    return jax.lax.map(step, keys, batch_size=audit.TRIALS_AT_ONCE)


def _key(rng) -> jax.Array:
    return jax.random.key(int(rng.integers(2**31)))


def _pilot(rng, algorithm_fn, position, pair, num_steps: int):
    """Features of single steps on both data sets, ``(steps, features)`` each."""
    width = jax.eval_shape(
        functools.partial(_released, algorithm_fn, num_steps=1),
        position,
        pair[0],
        rng_key=jax.eval_shape(lambda: jax.random.key(0)),
    ).shape[1]
    num_steps = min(num_steps, max(MAX_FEATURES // width, 1024))
    return [
        np.asarray(_released(algorithm_fn, position, data, num_steps, _key(rng)), float)
        for data in pair
    ]


def _difference(samples) -> tuple[float, float]:
    """By how many of its standard deviations the score of a step differs between two
    samples, where it was not fitted, and the standard error of that."""
    half = len(samples[0]) // 2
    score = _Score.of([side[:half] for side in samples])
    low, high = (score(side[half:]) for side in samples)
    spread = math.sqrt((low.var() + high.var()) / 2) or 1e-30
    return (high.mean() - low.mean()) / spread, math.sqrt(2 / half)


class _Score(NamedTuple):
    """The score of a step: the log likelihood ratio of an interval of a projection."""

    direction: np.ndarray
    edges: np.ndarray
    values: np.ndarray

    @classmethod
    def of(cls, samples) -> "_Score":
        """Fitted to features ``(steps, features)`` on either data set."""
        direction = _discriminant(*samples)
        projected = [side @ direction for side in samples]
        inner = np.linspace(0, 1, NUM_INTERVALS + 1)[1:-1]
        # Every value once: most steps of a lazy kernel stay where they are.
        edges = np.quantile(np.unique(np.concatenate(projected)), inner)
        counts = [
            np.bincount(np.searchsorted(edges, side), minlength=edges.size + 1) + 0.5
            for side in projected
        ]
        low, high = (np.log(count / count.sum()) for count in counts)
        return cls(direction, edges, high - low)

    def __call__(self, features):
        return self.values[np.searchsorted(self.edges, features @ self.direction)]


def _discriminant(low, high) -> np.ndarray:
    """Direction in which the features of two samples differ most, for their spread."""
    both = np.concatenate([low, high])
    spread = both.std(axis=0)
    unit = np.where(spread > 0, 1 / np.where(spread > 0, spread, 1.0), 0.0)
    within = (np.cov((low * unit).T) + np.cov((high * unit).T)) / 2
    within = np.atleast_2d(within) + 1e-6 * np.eye(unit.size)
    gap = (high.mean(axis=0) - low.mean(axis=0)) * unit
    return np.linalg.solve(within, gap) * unit


def _score_of_step(score: _Score, start, state, info):
    projected = _features(start, state, info) @ jnp.asarray(score.direction, float)
    return jnp.asarray(score.values)[
        jnp.searchsorted(jnp.asarray(score.edges), projected)
    ]


def _thresholds(scores, num_steps: int) -> np.ndarray:
    """Thresholds over the likely range of sums of `num_steps` of the pilot's scores."""
    ends = [
        num_steps * side.mean() + sign * 4 * math.sqrt(num_steps) * side.std()
        for side in scores
        for sign in (-1, 1)
    ]
    return np.linspace(min(ends), max(ends), NUM_THRESHOLDS)
