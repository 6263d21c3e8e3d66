"""The kind of noise is chosen by dimension and budget, and spends the budget."""

import pytest

from dpjax import privacy
from dpjax.privacy import NeighboringRelation as Relation
from dpjax.release.gaussian_sum import GaussianSum
from dpjax.release.k_norm_sum import KNormSum
from dpjax.release.quietest_sum import quietest_sum

SEARCH = [(privacy.GaussianRelease(20.0), 3)]


@pytest.mark.parametrize(
    ("size", "others", "relation", "kind"),
    [
        (4, SEARCH, Relation.REPLACE_ONE, KNormSum),
        (10, [], Relation.REPLACE_SPECIAL, KNormSum),
        (100, [], Relation.REPLACE_ONE, GaussianSum),
        (2000, SEARCH, Relation.REPLACE_ONE, GaussianSum),
        # Nearly all of the budget is spent elsewhere.
        (10, [(privacy.GaussianRelease(4.5), 1)], Relation.REPLACE_ONE, GaussianSum),
    ],
)
def test_the_sum_spends_the_budget_with_less_noise(size, others, relation, kind):
    budget = privacy.Budget(1.0, 1e-6, relation)
    release = quietest_sum(0.7, size, others, budget)
    assert type(release) is kind
    assert release.l2_clip_norm == 0.7
    event = release.event(size, relation)
    spent = privacy.epsilon([*others, (event, 1)], 1e-6)
    assert 0.999 < spent <= 1.0
    if kind is KNormSum:
        gaussian = privacy.GaussianRelease(event.noise_multiplier / 0.95)
        assert privacy.epsilon([*others, (gaussian, 1)], 1e-6) >= 1.0
