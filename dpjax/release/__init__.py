"""Where records become public: clipped exact sums, accept bits, Gaussian noise.

This is the only room that reads ``posterior.data``.
"""

from dpjax.release.clip_bounds import Lipschitz, Range, sensitivity

__all__ = ["Lipschitz", "Range", "sensitivity"]
