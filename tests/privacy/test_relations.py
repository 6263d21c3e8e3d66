"""Neighbouring relations: two are known, by member or by name."""

import pytest

from dpjax import privacy
from dpjax.comparisons.one_posterior_sample import tempered
from dpjax.privacy import NeighboringRelation
from tests.release.test_taint import KERNELS, POSTERIOR, PROBIT, kernel

REPLACE = NeighboringRelation.REPLACE_ONE
UNKNOWN = [None, NeighboringRelation.REPLACE_SPECIAL, "REPLACE_SPECIAL", "replace", 1]


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_charges_known_relations_only(name):
    algorithm = kernel(name)(PROBIT if "sep" in name else POSTERIOR)
    assert algorithm.privacy(10, "REPLACE_ONE") == algorithm.privacy(10, REPLACE)
    for relation in UNKNOWN:
        with pytest.raises(ValueError, match="neighboring_relation must be"):
            algorithm.privacy(10, relation)


def test_a_budget_and_a_step_size_know_two_relations():
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


def test_one_posterior_sample_knows_two_relations():
    for relation in UNKNOWN:
        with pytest.raises(ValueError, match="neighboring_relation must be"):
            tempered(POSTERIOR, 1.0, (-1.0, 0.0), relation)
