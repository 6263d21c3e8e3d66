"""What runs is what was charged, whatever changes between two runs of a process."""

import contextlib
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dpjax
from dpjax.runner import CheckpointError, loop, program
from dpjax.vi.guides import MeanField

RECORDS = np.random.default_rng(0).normal(0.5, 1.0, (60, 2))
STARTS = np.zeros((2, 2))
BUDGET = dpjax.Budget(3.0, 1e-5)


def logprior(position):
    return -jnp.sum(position**2) / 50


def loglikelihood(position, record):
    return -jnp.sum((record - position) ** 2) / 2


def posterior(data=RECORDS, loglikelihood_fn=loglikelihood):
    return dpjax.Posterior(logprior, loglikelihood_fn, jnp.asarray(data))


BARKER = functools.partial(dpjax.barker, step_size=0.3, clip_bound=0.02)
OPTIONS = dict(
    num_steps=40,
    num_chains=2,
    initial_position=STARTS,
    budget=BUDGET,
    warmup_fraction=0.0,
    verbose=False,
)


def go(algorithm_fn=BARKER, target=None, **changes):
    target = posterior() if target is None else target
    return dpjax.run(
        algorithm_fn, target, **{**OPTIONS, **changes}, unsafe_key=jax.random.key(0)
    )


def cost(run):
    return run.statement.epsilon


def test_a_variable_of_the_algorithm_is_charged_and_run_as_it_is():
    """A notebook's cell is run twice, with another value of a global variable."""
    variables = {"clip_bound": 0.02}

    def algorithm_fn(posterior):
        return dpjax.barker(posterior, 0.3, **variables)

    loud = go(algorithm_fn)
    variables["clip_bound"] = 1e-6
    quiet = go(algorithm_fn)
    assert cost(quiet) < 1e-3 < cost(loud)
    fresh = go(functools.partial(dpjax.barker, step_size=0.3, clip_bound=1e-6))
    np.testing.assert_array_equal(quiet.positions, fresh.positions)
    assert not np.array_equal(quiet.positions, loud.positions)


@pytest.mark.parametrize(
    ("place", "wrap"), [("likelihood", jax.jit), ("proposal", lambda f: f)]
)
def test_a_variable_of_a_function_is_run_as_it_is(place, wrap):
    variables = {"scale": 1.0}

    @wrap
    def changing(position, record):
        return variables["scale"] * loglikelihood(position, record)

    @wrap
    def propose(words, position, walk, step_size):
        move = dpjax.proposals.fixed_length.propose(words, position, walk, step_size)
        return move._replace(position=variables["scale"] * move.position)

    if place == "likelihood":
        arguments = BARKER, posterior(loglikelihood_fn=changing)
    else:
        proposal = dpjax.proposals.fixed_length._replace(propose=propose)
        arguments = (functools.partial(BARKER, proposal=proposal),)
    first = go(*arguments)
    variables["scale"] = -1.0
    second = go(*arguments)
    assert not np.array_equal(first.positions, second.positions)
    variables["scale"] = 1.0
    np.testing.assert_array_equal(go(*arguments).positions, first.positions)


@pytest.mark.usefixtures("simplified_constants")
def test_programs_of_other_constants_are_not_mixed_up():
    def of(scale):
        scales = scale * jnp.arange(1.0, 41.0)

        def scaled(position, record):
            return loglikelihood(position, record) * jnp.sum(scales) / 820

        return go(target=posterior(loglikelihood_fn=scaled)).positions

    assert not np.array_equal(of(1.0), of(-1.0))


def test_equal_runs_compile_once(compilations):
    """Also with other data, and with functions that are defined again."""

    def again():
        def loglikelihood(position, record):
            return -jnp.sum((record - position) ** 2) / 2

        kernel = functools.partial(dpjax.barker, step_size=0.3, clip_bound=0.02)
        return go(kernel, posterior(RECORDS + 1.0, loglikelihood))

    go()
    again()
    assert compilations.count("jit(loop)") == 1


def test_programs_survive_that_jax_forgets_them():
    first = go()
    jax.clear_caches()
    np.testing.assert_array_equal(go().positions, first.positions)


def test_an_algorithm_that_changes_under_way_is_refused():
    bounds = iter([0.01, 0.02, 0.03, 0.04, 0.05])

    def algorithm_fn(posterior):
        return dpjax.barker(posterior, 0.3, clip_bound=next(bounds))

    with pytest.raises(ValueError, match="algorithms of different costs"):
        go(algorithm_fn)


def vi(learning_rate):
    return functools.partial(
        dpjax.dpvi,
        optimizer=optax.adam(learning_rate),
        guide=MeanField(2),
        l2_clip_norm=1.0,
        noise_multiplier=30.0,
    )


def closure(clip_bound):
    return lambda posterior: dpjax.barker(posterior, 0.3, clip_bound=clip_bound)


@pytest.mark.parametrize(
    ("before", "after", "names"),
    [
        (dict(), dict(algorithm_fn=closure(0.01)), "cost, program"),
        (dict(algorithm_fn=vi(0.1)), dict(algorithm_fn=vi(0.2)), "program"),
        (dict(), dict(target=posterior(RECORDS[::-1])), "data"),
        (dict(), dict(ledger="another"), "ledger"),
        (dict(), dict(budget=dpjax.Budget(4.0, 1e-5)), "budget"),
        (dict(), dict(initial_position=STARTS + 1), "parameters"),
        (dict(), dict(thinning=2), "thinning"),
    ],
)
def test_another_run_is_not_resumed(tmp_path, monkeypatch, before, after, names):
    """Killed, and resumed with one thing changed: refused, and it says what."""
    files = dict(ledger=tmp_path / "ledger", checkpoint=tmp_path / "checkpoint")
    if "ledger" in after:
        after = dict(ledger=tmp_path / after["ledger"])

    def killed(*arguments):
        raise KeyboardInterrupt

    before = {"algorithm_fn": closure(0.02), **before, **files}
    with monkeypatch.context() as patch:
        patch.setattr(loop, "advance", killed)
        with pytest.raises(KeyboardInterrupt):
            go(**before)
    charged = files["ledger"].read_bytes()
    with pytest.raises(CheckpointError, match=rf"\({names}(, program)? differ\)"):
        go(**before | after)
    assert files["ledger"].read_bytes() == charged
    assert go(**before).statement.epsilon <= BUDGET.epsilon
    assert files["ledger"].read_bytes() == charged


def test_the_rule_by_which_random_words_are_numbered_is_part_of_a_program():
    """Otherwise runs with the noise of one key could differ in other random numbers."""

    def check(is_partitionable):
        with jax.threefry_partitionable(is_partitionable):
            starts = jnp.asarray(STARTS)
            return program.check_algorithm(BARKER, posterior(), starts).identity

    assert check(True) != check(False)


@pytest.mark.parametrize("name", ["checkpoint", "checkpoint.partial"])
def test_nobody_can_lay_the_checkpoint_out_for_reading(tmp_path, name):
    """A link where the file goes, or its unfinished copy, does not receive the key."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("")
    (tmp_path / name).symlink_to(elsewhere)
    refused = pytest.raises(ValueError, match="symbolic link")
    with refused if name == "checkpoint" else contextlib.nullcontext():
        go(checkpoint=tmp_path / "checkpoint")
    assert elsewhere.read_text() == ""
