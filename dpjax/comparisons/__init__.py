"""Methods that are not private, or whose claims are not sound, to compare with.

None of them is for sensitive data.
"""

from dpjax.comparisons.dp_sep_published import dp_sep_published
from dpjax.comparisons.ep import ep
from dpjax.comparisons.fast_mh_published import fast_mh_published
from dpjax.comparisons.one_posterior_sample import hybrid, one_posterior_sample
from dpjax.comparisons.sep import sep
from dpjax.comparisons.tuna import tuna

__all__ = [
    "dp_sep_published",
    "ep",
    "fast_mh_published",
    "hybrid",
    "one_posterior_sample",
    "sep",
    "tuna",
]
