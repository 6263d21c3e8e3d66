"""Neighbouring relations are known by member or by name; budgets may have two."""

import pytest

from dpjax import privacy
from dpjax.comparisons.one_posterior_sample import tempered
from dpjax.privacy import NeighboringRelation
from tests.release.test_taint import KERNELS, POSTERIOR, PROBIT, kernel

REPLACE = NeighboringRelation.REPLACE_ONE
ADD, SPECIAL = (
    NeighboringRelation.ADD_OR_REMOVE_ONE,
    NeighboringRelation.REPLACE_SPECIAL,
)
UNKNOWN = [None, "replace", 1]


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_charges_known_relations_only(name):
    algorithm = kernel(name)(PROBIT if "sep" in name else POSTERIOR)
    assert algorithm.privacy(10, "REPLACE_ONE") == algorithm.privacy(10, REPLACE)
    for relation in UNKNOWN:
        with pytest.raises(ValueError, match="neighboring_relation must be"):
            algorithm.privacy(10, relation)


def test_a_run_cannot_hide_the_number_of_records():
    """XLA may round what it computes from a record otherwise if there is one more."""
    with pytest.raises(ValueError, match="use REPLACE_SPECIAL"):
        privacy.Budget(1.0, 1e-6, ADD)


@pytest.mark.parametrize("sampling_prob", [0.1, 1.0])
def test_a_blank_costs_what_an_added_record_does(sampling_prob):
    added, special = (
        privacy.PoissonGaussianRelease(5.0, sampling_prob, relation)
        for relation in (ADD, SPECIAL)
    )
    for method in ("rdp", "pld"):
        costs = [
            privacy.epsilon([(event, 100)], 1e-6, method) for event in (added, special)
        ]
        assert costs[0] == costs[1] > 0


def test_a_budget_and_a_step_size_know_relations_by_name():
    assert privacy.Budget(1.0, 1e-6, "REPLACE_ONE").neighboring_relation is REPLACE
    given = dict(num_steps=3, num_records=100, sampling_prob=1.0, l2_clip_norm=1.0)
    given |= dict(epsilon=1.0, delta=1e-6)
    assert privacy.max_step_size(
        **given, neighboring_relation="REPLACE_ONE"
    ) == privacy.max_step_size(**given, neighboring_relation=REPLACE)
    for relation in UNKNOWN:
        with pytest.raises(ValueError, match="neighboring_relation must be"):
            privacy.Budget(1.0, 1e-6, relation)
        with pytest.raises(ValueError, match="neighboring_relation must be"):
            privacy.max_step_size(**given, neighboring_relation=relation)


def test_one_posterior_sample_knows_relations_by_name():
    for relation in UNKNOWN:
        with pytest.raises(ValueError, match="neighboring_relation must be"):
            tempered(POSTERIOR, 1.0, (-1.0, 0.0), relation)
