"""Charged runs share no randomness, unless they are one and the same run."""

import functools
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dpjax
from dpjax.runner import CheckpointError, loop

CLIP_NORM, DIM, NUM_RECORDS, NOISE = 1.0, 4, 20, 500.0
FAR = 5 * NUM_RECORDS * CLIP_NORM
"""More than 2 a - b can be for sums a and b without noise, 60, with their rounding to
lattices of 16 and 32, another 32. Sums with noise differ by less in all of their 12
numbers with a chance of 1e-11."""

RECORDS = np.random.default_rng(0).normal(0.5, 1.0, (NUM_RECORDS, DIM))
BUDGET = dpjax.Budget(50.0, 1e-5)


def logprior(position):
    return -jnp.sum(position**2) / 50


def loglikelihood(position, record):
    return -jnp.sum((record - position) ** 2) / 2


def absolute(position, record):
    return -jnp.sum(jnp.abs(record - position))


def weighted(weight):
    """The text of its program is the same for all weights, which are constants."""
    weights = np.full(2000, weight)
    return lambda *arguments: jnp.mean(weights) * loglikelihood(*arguments)


FIT = functools.partial(
    dpjax.dpvi,
    optimizer=optax.sgd(0.1),
    guide=dpjax.guides.MeanField(DIM),
    l2_clip_norm=CLIP_NORM,
    noise_multiplier=NOISE,
)


def go(algorithm_fn=FIT, data=RECORDS, likelihood=loglikelihood, **changes):
    options = dict(
        num_steps=3,
        initial_position=np.zeros((1, DIM)),
        num_chains=1,
        budget=BUDGET,
        warmup_fraction=0.0,
        verbose=False,
        unsafe_key=jax.random.key(0),
    )
    posterior = dpjax.Posterior(logprior, likelihood, jnp.asarray(data))
    return dpjax.run(algorithm_fn, posterior, **options | changes)


def released(run):
    """The noisy sums. Gradients of rho depend on rho besides, so on earlier noise."""
    return run.infos.gradient["location"]


def test_runs_without_a_budget_share_the_noise_of_a_key():
    """So the sum without noise can be read, which the other tests look for."""
    quiet = released(go(budget=None))
    loud = released(go(functools.partial(FIT, noise_multiplier=2 * NOISE), budget=None))
    assert np.abs(quiet).max() > FAR > np.abs(2 * quiet - loud).max()


def test_two_noise_multipliers_do_not_give_the_sum_away():
    quiet = released(go())
    loud = released(go(functools.partial(FIT, noise_multiplier=2 * NOISE)))
    assert np.abs(2 * quiet - loud).max() > FAR


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (dict(), dict(likelihood=absolute)),
        (dict(likelihood=weighted(1.0)), dict(likelihood=weighted(2.0))),
        (dict(), dict(data=np.concatenate([RECORDS[:-1], -RECORDS[-1:]]))),
        (dict(), dict(initial_position=np.ones((1, DIM)))),
        (dict(), dict(algorithm_fn=functools.partial(FIT, optimizer=optax.sgd(0.2)))),
        (dict(), dict(num_steps=4)),
    ],
    ids=["likelihood", "constant", "data", "start", "optimizer", "steps"],
)
def test_two_runs_of_one_key_and_one_cost_do_not_share_noise(before, after):
    one, other = (go(**run).infos.gradient["location"] for run in (before, after))
    assert np.abs(one[:, :3] - other[:, :3]).max() > FAR


def test_the_same_run_gives_the_same_draws(tmp_path):
    """With a ledger as well: as often as its state is the same."""
    first = go()
    np.testing.assert_array_equal(first.positions, go().positions)
    path = tmp_path / "ledger"
    (tmp_path / "other").mkdir()
    runs = [go(ledger=path), go(ledger=path)]
    again = [go(ledger=tmp_path / "other" / "ledger") for _ in range(2)]
    np.testing.assert_array_equal(runs[0].positions, first.positions)
    for run, same in zip(runs, again, strict=True):
        np.testing.assert_array_equal(run.positions, same.positions)
    assert np.abs(released(runs[0]) - released(runs[1])).max() > FAR


def test_the_ledger_and_the_statement_say_who_chose_the_randomness(tmp_path):
    path = tmp_path / "ledger"
    chosen, drawn = go(ledger=path), go(ledger=path, unsafe_key=None)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["unsafe_key"] for line in lines] == [True, False]
    assert "unsafe_key" in chosen.statement.randomness
    assert "operating system" in drawn.statement.randomness


def test_a_run_is_not_resumed_without_its_charge(tmp_path, monkeypatch):
    """Killed; its ledger is put back as it was before the run, and it goes on."""
    ledger, backup = tmp_path / "ledger", tmp_path / "backup"
    backup.mkdir()
    files = dict(ledger=ledger, checkpoint=tmp_path / "checkpoint")
    go(ledger=ledger, unsafe_key=None)
    for name in ("ledger", "ledger.head"):
        shutil.copy(tmp_path / name, backup)

    def killed(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(loop, "advance", killed)
        with pytest.raises(KeyboardInterrupt):
            go(**files)
    paid = [(tmp_path / name).read_bytes() for name in ("ledger", "ledger.head")]
    for name in ("ledger", "ledger.head"):
        shutil.copy(backup / name, tmp_path)
    with pytest.raises(CheckpointError, match="no longer holds"):
        go(**files)
    for name, content in zip(("ledger", "ledger.head"), paid, strict=True):
        (tmp_path / name).write_bytes(content)
    go(**files)
