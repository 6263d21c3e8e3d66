"""Numbers of messages have two digits and, in any size that people read, no power."""

import pytest

from dpjax.privacy.shown import rounded_up, shown


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (63_999.0, "64,000"),
        (9.96, "10"),
        (-12.3, "-12"),
        (0.0324, "0.032"),
        (1.23e-7, "1.2e-07"),
        (4e20, "4e+20"),
        (float("inf"), "inf"),
    ],
)
def test_numbers(number, text):
    assert shown(number) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.5413199, "0.5414"),
        (0.1, "0.1"),
        (1.0049e-6, "1.005e-06"),
        (3.99999, "4"),
        (float("inf"), "inf"),
    ],
)
def test_what_is_promised_is_no_smaller_where_it_is_shown(number, text):
    assert rounded_up(number) == text
