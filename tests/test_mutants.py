"""Failures that were found once, put back one at a time: a named test sees each.

A mutant is a line of `MUTANTS`: what is replaced, by what, and the test that must fail
then, with its arguments. The argument `tmp_path`, `monkeypatch` or the like is that of
the fixture. Mutants of what only they concern are beside other tests: of sums and
clipping in `tests/release/test_log_ratios.py`, of marks and leaks in
`tests/release/test_taint.py`, of acceptance in `tests/mcmc/test_exactness.py`,
`test_minibatch_kernels.py` and `test_fast_mh_balance.py`, of noise and samples in
`tests/privacy/test_audit_gradients.py`, of claims in `tests/privacy/test_audit.py`, and
of whole jobs in `tests/runner/test_attack.py`.
"""

import dataclasses
import hashlib
import inspect
import itertools
import math
import os
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import NeighboringRelation

import dpjax
from dpjax import compiled
from dpjax.numpyro import MCMCKernel
from dpjax.privacy import AdaptiveRule, accountant
from dpjax.random import batches, chacha, counts
from dpjax.release import (
    accept_bit,
    captured,
    clip_bounds,
    exact_sums,
    gaussian,
    gaussian_sum,
    k_norm_sum,
    log_ratios,
    sealed,
    separate,
    taint,
    vector_sums,
)
from dpjax.runner import checkpoint, ledger, program
from tests import test_acceptance
from tests.mcmc import test_minibatch_privacy, test_privacy
from tests.numpyro import test_kernel
from tests.privacy import test_accountant, test_large_epsilon, test_relations
from tests.random import test_batches
from tests.release import (
    test_captured,
    test_gaussian_noise,
    test_gaussian_sum,
    test_k_norm_sum,
    test_log_ratios,
    test_mixed_norm,
    test_self_test,
    test_taint,
    test_vector_sums,
)
from tests.runner import (
    test_batch,
    test_ledger,
    test_program,
    test_randomness,
    test_reserve,
    test_run,
)

pytestmark = pytest.mark.thorough

run_module = inspect.getmodule(dpjax.run)
batch_module = inspect.getmodule(dpjax.batch)
REPLACE = NeighboringRelation.REPLACE_ONE


def nothing(*arguments, **keywords):
    """In place of a check."""


# Sums and noise.


def non_finite_as_the_bound(ratio, clip_bound, cells=log_ratios._cells):
    return cells(jnp.nan_to_num(ratio, nan=jnp.inf, posinf=1e30), clip_bound)


def by_the_realised_size(vectors, kept, *rest, clip=exact_sums.clip_to_grid):
    share = kept.size / jnp.maximum(jnp.sum(kept), 1)
    return [jnp.trunc(cells * share) for cells in clip(vectors, kept, *rest)]


def in_float32(integers, axis=-1):
    return jnp.sum(integers.astype(jnp.float32) / 3, axis=axis)


def longer(vectors, kept, l2_clip_norm, *rest, clip=exact_sums.clip_to_grid):
    cells = clip(vectors, kept, 1.05 * l2_clip_norm, *rest)
    return [jnp.trunc(1.05 * piece) for piece in cells]


def too_long(vectors, directions=exact_sums.directions):
    cells, length = directions(vectors)
    return jnp.rint(1.01 * cells), length


def louder(factor):
    def add_noise(words, integers, unit, multiplier, add=gaussian.add_noise):
        return add(words, integers, unit, factor(multiplier))

    return add_noise


def off_the_lattice(words, integers, unit, multiplier, add=gaussian.add_noise):
    return add(words, integers, unit, multiplier) + 4 * exact_sums.GRID * unit


def uniform(chance):
    return 12**0.5 * (chance - 0.5)


def in_euclidean_norm(vectors, kept, l2_clip_norm, axis, norm):
    return exact_sums.clip_to_grid(vectors, kept, l2_clip_norm, axis)


def of_one_length(words, size, noise_multiplier, norm):
    with jax.enable_x64(True):
        numbers = k_norm_sum._normal(words)[size + 1 :]
        return noise_multiplier * exact_sums.VECTOR_GRID * numbers


def one_stream(key, stream, shape, tape=chacha.tape):
    return tape(key, 0, shape)


def with_replacement(words, batch_size, num_records):
    return words[:batch_size] % num_records


def of_fixed_size(words, sampling_prob, num_records):
    size = max(round(sampling_prob * num_records), 1)
    indices = jnp.argsort(jnp.resize(words, num_records))[:size]
    return batches.Sample(indices.astype(jnp.uint32), jnp.ones(size, bool))


# Charges.


def of_adding(bound, relation):
    return float(bound)


def of_one_chain(algorithm, num_chains, budget, num_steps):
    return algorithm.privacy(num_steps, budget.neighboring_relation)


def of_the_plan_alone(spent, events):
    return spent.runs or [events]


def of_a_fixed_plan(rule, runs, epsilon):
    return accountant.delta([pair for run in runs for pair in run], epsilon)


def halved(name, error=accountant.numerical_error):
    """Events whose error of this name counts half."""

    def mutant(events):
        found = error(events)
        return found._replace(**{name: getattr(found, name) / 2})

    return mutant


def as_computed(log_ratio, chance):
    with jax.enable_x64(True):
        return jnp.floor(jnp.nan_to_num(chance) * 2.0**63).astype(jnp.uint64)


# Programs, checkpoints and randomness.


class Anything:
    def __eq__(self, other):
        return True

    __hash__ = None


def charged_as_anything(*arguments, trace=program.trace, **keywords):
    return trace(*arguments, **keywords)._replace(outline=Anything())


def of_the_secret_alone(secret, *parts):
    return hashlib.sha256(secret).digest()


numbers = itertools.count()


def another_digest(tree):
    return next(numbers).to_bytes(32)


def one_digest(tree):
    return bytes(32)


def readable_by_all(path, flags, mode=0o777, open_fn=os.open):
    return open_fn(path, flags, 0o644 if flags & os.O_CREAT else mode)


def unlimited(kernel, wanted, keys):
    return np.asarray(wanted), np.zeros_like(wanted)


def unsealed(kernel, *read):
    return jnp.zeros(9, jnp.uint32)


# Ledgers.


UNSYNCED = types.SimpleNamespace(**{**vars(os), "fsync": nothing})


def of_any_relation(lines, path, relation, spent=ledger._spent):
    return spent(lines, path, lines[0].relation if lines else relation)


# Records that a program holds.


def untainted(program, inputs):
    return [False] * len(program.jaxpr.outvars)


def without_literals(program, with_literals=True, constants=captured.constants):
    return constants(program, with_literals=False)


def but_constrain_fn(posterior, *rest, check=captured.check_functions):
    check(dataclasses.replace(posterior, constrain_fn=None), *rest)


def by_no_content(records, arrays):
    return [math.inf] * len(arrays)


closure = test_program.closure
MUTANTS = {
    # Sums and noise
    "a record that is not finite counts as the clip bound": (
        log_ratios, "_cells", non_finite_as_the_bound,
        test_minibatch_privacy.test_non_finite_ratios_count_as_zero, dict(bad=np.nan),
    ),
    "a sum is divided by the realised size of its sample": (
        vector_sums, "clip_to_grid", by_the_realised_size,
        test_vector_sums.test_sum_over_the_sample_is_that_over_its_records, {},
    ),
    "vectors are clipped a twentieth too late": (
        vector_sums, "clip_to_grid", longer,
        test_log_ratios.test_gradient_sensitivity, dict(norm=0.3),
    ),
    "directions are longer than one": (
        vector_sums, "directions", too_long,
        test_log_ratios.test_gradient_sensitivity, dict(norm=0.3),
    ),
    "sums round in float32": (
        log_ratios, "exact_sum", in_float32,
        test_log_ratios.test_order_does_not_change_the_sums, {},
    ),
    "the noise is a fiftieth too small": (
        gaussian, "add_noise", louder(lambda multiplier: 0.98 * multiplier),
        test_gaussian_noise.test_release_has_the_noise, dict(multiplier=0.74),
    ),
    "the noise multiplier is taken for a variance": (
        gaussian, "add_noise", louder(lambda multiplier: multiplier**0.5),
        test_gaussian_sum.test_measured_noise_is_the_noise_charged,
        dict(sampling_prob=1.0),
    ),
    "the noise is uniform": (
        gaussian, "ndtri", uniform,
        test_gaussian_noise.test_release_has_the_noise, dict(multiplier=2.0),
    ),
    "releases leave the lattice": (
        gaussian, "add_noise", off_the_lattice,
        test_gaussian_noise.test_release_has_the_noise, dict(multiplier=2.0),
    ),
    "K-norm noise is Gaussian": (
        k_norm_sum, "_noise", of_one_length,
        test_k_norm_sum.test_the_noise_has_the_law, dict(dim=2),
    ),
    "records are clipped in another norm than noise is for": (
        vector_sums, "clip_to_grid", in_euclidean_norm,
        test_mixed_norm.test_sums_are_no_farther_apart_than_is_charged, {},
    ),
    "all streams of a key are one": (
        chacha, "tape", one_stream,
        test_gaussian_noise.test_streams_and_keys_differ, {},
    ),
    "a batch is drawn with replacement": (
        batches, "without_replacement", with_replacement,
        test_batches.test_first_distinct_ones_to_arrive,
        dict(batch_size=5, num_records=10),
    ),
    "a Poisson sample has a fixed size": (
        batches, "poisson", of_fixed_size,
        test_batches.test_poisson_samples_are_sets_of_binomial_size,
        dict(sampling_prob=0.5, num_records=7),
    ),
    # Charges
    "a substitution costs what an addition does": (
        clip_bounds, "sensitivity", of_adding,
        test_gaussian_sum.test_events, dict(relation=REPLACE, sensitivity=2.0),
    ),
    "an unknown relation is charged": (
        clip_bounds, "check_kept_size", lambda name, relation: relation,
        test_relations.test_a_kernel_charges_known_relations_only, dict(name="barker"),
    ),
    "the chance of a record is rounded down": (
        gaussian_sum, "math", types.SimpleNamespace(ceil=math.floor),
        test_gaussian_sum.test_sampling_prob_is_rounded_up, {},
    ),
    "one chain of many is charged": (
        run_module, "cost_of", of_one_chain,
        test_run.test_budget_is_for_all_chains_together, {},
    ),
    "copies of a data set are charged apart": (
        batch_module, "digest", another_digest,
        test_batch.test_the_runs_on_a_data_set_add_up, {},
    ),
    "what is beyond a plan is free": (
        ledger.Spent, "after", of_the_plan_alone,
        test_reserve.test_runs_beyond_a_plan_are_charged_or_refused, {},
    ),
    "runs chosen in view of others add up like a plan": (
        AdaptiveRule, "delta", of_a_fixed_plan,
        test_run.test_a_later_run_is_charged_as_chosen_in_view_of_the_first, {},
    ),
    "half of the failures are charged": (
        accountant, "numerical_error", halved("failure_prob"),
        test_accountant.test_numerical_error_of_bits_is_charged, {},
    ),
    "half of the relative error is charged": (
        accountant, "numerical_error", halved("relative_error"),
        test_accountant.test_relative_error_of_releases_is_charged, {},
    ),
    "coordinates are charged for half their error": (
        gaussian, "RELATIVE_ERROR", gaussian.RELATIVE_ERROR / 2,
        test_large_epsilon.test_every_step_is_charged_for_its_rounding,
        dict(name="sgld"),
    ),
    "a bit has the chance that was computed": (
        accept_bit, "threshold", as_computed,
        test_acceptance.test_edges_of_the_threshold,
        dict(words=(0, 0), ratio=-1e300, expected=True),
    ),
    "log ratios round for nothing": (
        clip_bounds, "MAX_RECORDS", 2**24,
        test_privacy.test_rounding_of_log_ratios_is_charged, {},
    ),
    "noise ends at nine standard deviations": (
        gaussian, "REACH", 9.0,
        test_gaussian_noise.test_single_words,
        dict(words=3 * (2**32 - 1,), expected=40 - 20 * 2.0**-13),
    ),
    "chances of counts are rounded down": (
        counts, "math", types.SimpleNamespace(ceil=math.floor),
        test_batches.test_sizes_have_the_binomial_law,
        # Tables are kept; no other test asks for this one.
        dict(sampling_prob=0.01, num_records=3001),
    ),
    "MCMC's steps are not counted": (
        MCMCKernel, "_pay", unlimited,
        test_kernel.test_no_step_is_given_away_by_starting_again,
        dict(num_chains=2, method="vectorized"),
    ),
    "MCMC's steps are paid for by any state": (
        MCMCKernel, "_words_of", unsealed,
        test_kernel.test_no_step_is_given_away_by_changing_a_state,
        dict(name="kernel"),
    ),
    "a kernel and its count are copied": (
        MCMCKernel, "__reduce__", object.__reduce__,
        test_kernel.test_a_kernel_is_not_copied, {},
    ),
    "flags that relax floating point pass": (
        program, "check_arithmetic", nothing,
        test_self_test.test_a_flag_is_named_before_anything_is_charged, {},
    ),
    # Programs, checkpoints and randomness
    "another program than the charged one runs": (
        compiled, "_traces", itertools.repeat(1),
        test_program.test_a_variable_of_a_function_is_run_as_it_is,
        dict(place="likelihood", wrap=jax.jit),
    ),
    "an algorithm may change after the charge": (
        run_module.programs, "trace", charged_as_anything,
        test_program.test_an_algorithm_that_changes_under_way_is_refused, {},
    ),
    "any run is resumed": (
        checkpoint, "check", nothing, test_program.test_another_run_is_not_resumed,
        dict(before={}, after=dict(algorithm_fn=closure(0.01)), names="cost, program"),
    ),
    "a run is resumed on other data": (
        run_module, "digest", one_digest, test_program.test_another_run_is_not_resumed,
        dict(
            before={},
            after=dict(target=test_program.posterior(test_program.RECORDS[::-1])),
            names="data",
        ),
    ),
    "a run is resumed without its charge": (
        run_module, "_check_paid", nothing,
        test_randomness.test_a_run_is_not_resumed_without_its_charge, {},
    ),
    "runs of one key share their noise": (
        run_module, "keyed", of_the_secret_alone,
        test_randomness.test_two_noise_multipliers_do_not_give_the_sum_away, {},
    ),
    "files are opened through links": (
        os, "O_NOFOLLOW", 0,
        test_ledger.test_no_link_is_followed, dict(name="ledger"),
    ),
    "others may read the ledger": (
        os, "open", readable_by_all, test_ledger.test_reservations_add_up, {},
    ),
    # Ledgers
    "lines that a ledger lost are not missed": (
        ledger, "_check_head", nothing,
        test_ledger.test_a_ledger_that_lost_a_charge_is_refused,
        dict(attack="last line deleted"),
    ),
    "a charge goes to a file that was moved": (
        ledger, "_check_name", nothing,
        test_ledger.test_a_charge_does_not_go_to_a_file_that_was_moved,
        dict(renamed="as it pays", left="a copy"),
    ),
    "a charge is not on disk": (
        ledger, "os", UNSYNCED,
        test_ledger.test_no_charge_returns_before_it_is_on_disk, {},
    ),
    "budgets of two data sets add up": (
        ledger, "keyed", of_the_secret_alone,
        test_ledger.test_data_sets_do_not_mix, {},
    ),
    "charges under two relations add up": (
        ledger, "_spent", of_any_relation, test_ledger.test_relations_do_not_mix, {},
    ),
    # Records that a program holds
    "nobody follows the records through the program": (
        taint, "tainted", untainted, test_taint.test_leaks_are_named,
        dict(changes=dict(move=test_taint.state_reads), named="draws, state.position"),
    ),
    "the loop is not searched": (
        program, "check_loop", nothing, test_taint.test_leaks_are_named,
        dict(changes=dict(move=test_taint.bit_reads), named="bits"),
    ),
    "the start is not searched": (
        program, "check_start", nothing,
        test_taint.test_functions_that_close_over_the_records_are_refused,
        dict(data=test_taint.DATA),
    ),
    "a function of one record opens all": (
        separate, "alone", lambda function: function,
        test_taint.test_a_function_of_one_record_reads_no_others,
        dict(read=test_taint.a_sum),
    ),
    "other functions than the searched are sampled": (
        sealed, "_functions", lambda posterior: None,
        test_taint.test_an_algorithm_samples_with_the_functions_that_were_searched,
        dict(name="logprior_fn"),
    ),
    "sums of records are not counted": (
        program, "_check_counts", nothing,
        test_taint.test_what_a_sampler_is_given_reads_no_records,
        dict(read=test_taint.a_sum, message="makes 2 sums"),
    ),
    "callbacks pass": (
        taint, "CALLS_OUT", frozenset(),
        test_taint.test_callbacks_are_refused_whatever_they_see,
        dict(function=test_taint.printed),
    ),
    "functions are not searched": (
        captured, "check_functions", nothing,
        test_captured.test_a_likelihood_that_holds_the_records_is_refused,
        dict(hide=test_captured.by_constant),
    ),
    "what is published is not searched": (
        captured, "check_functions", but_constrain_fn,
        test_captured.test_a_constrain_fn_that_publishes_a_copy_is_refused, {},
    ),
    "globals, closures and defaults are not searched": (
        captured, "captured", lambda function: [],
        test_captured.test_a_global_is_found, {},
    ),
    "literals are not searched": (
        captured, "constants", without_literals,
        test_captured.test_a_number_of_the_data_that_became_a_literal_is_found, {},
    ),
    "views of the data are not known": (
        taint, "is_one_of", lambda value, leaves: False,
        test_captured.test_records_are_told_by_identity_shape_and_content,
        dict(name="a view"),
    ),
    "copies of some records are not known": (
        captured.Records, "_chances", by_no_content,
        test_captured.test_records_are_told_by_identity_shape_and_content,
        dict(name="some records"),
    ),
}  # fmt: skip


def fixture(module, name: str):
    """What a fixture of a module without arguments returns."""
    return getattr(module, name)._get_wrapped_function()


@pytest.fixture
def given(tmp_path):
    """``test -> its fixtures``; its patches are undone."""
    with pytest.MonkeyPatch.context() as patch:

        def find(test):
            values = dict(tmp_path=tmp_path, monkeypatch=patch)
            if test.__module__ == test_ledger.__name__:
                values["path"] = fixture(test_ledger, "path")(tmp_path)
            if test.__module__ == test_run.__name__:
                values["posterior"] = fixture(test_run, "posterior")()
            if test.__module__ == test_reserve.__name__:
                values["posterior"] = fixture(test_reserve, "posterior")()
                path_fn = fixture(test_reserve, "path")
                values["path"] = path_fn(values["posterior"], tmp_path)
            names = inspect.signature(test).parameters
            return {name: value for name, value in values.items() if name in names}

        yield find


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_killed(name, given, monkeypatch):
    place, attribute, wrong, test, arguments = MUTANTS[name]
    jax.clear_caches()
    compiled._programs.clear()
    with jax.numpy_rank_promotion("allow"), monkeypatch.context() as patch:
        patch.setattr(place, attribute, wrong)
        fixtures = given(test)
        killed = AssertionError, pytest.fail.Exception, ValueError
        with pytest.raises(killed) as found:
            test(**fixtures, **arguments)
    # A run counts its releases itself.
    if isinstance(found.value, ValueError):
        assert "releases and is charged for" in str(found.value)
    jax.clear_caches()
    compiled._programs.clear()
