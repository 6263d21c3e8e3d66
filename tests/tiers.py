"""Parametrized tests of which the default tier runs some cases."""

import pytest


def tiered(cases, default):
    """All cases, in order, those that are not in `default` marked thorough."""
    return [
        pytest.param(
            # Not `isinstance`: a sampler is a named tuple.
            *(case if type(case) is tuple else (case,)),
            marks=[] if case in default else [pytest.mark.thorough],
        )
        for case in cases
    ]
