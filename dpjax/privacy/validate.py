"""Checks of numbers that enter a privacy computation.

Every function raises `ValueError` on NaN, infinity, a wrong type or an absurd value.
The checks are needed because dp-accounting 0.6 accepts NaN and then reports
epsilon = 0.
"""

import math
import numbers
import operator

import jax
import numpy as np
from dp_accounting import NeighboringRelation

__all__ = [
    "MAX_EPSILON",
    "check_count",
    "check_delta",
    "check_epsilon",
    "check_kept_size",
    "check_positive",
    "check_positive_number",
    "check_real",
    "check_relation",
    "check_replaced",
]


MAX_EPSILON = 500.0
"""The largest epsilon of a budget."""


def check_real(name: str, value, *, low: float, high: float) -> float:
    """Return `value` as a float in [low, high].

    Raises
    ------
    ValueError
        If it is not a finite real number in that range, or if it is a boolean.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ValueError(
            f"{name} must be a real number, got {value!r}; pass a Python float"
        )
    try:
        number = float(value)
    except OverflowError:  # An integer may be larger than any float.
        number = math.inf
    if not low <= number <= high:
        raise ValueError(
            f"{name} must be finite and between {low:g} and {high:g}, got {value!r}"
        )
    return number


def check_epsilon(value) -> float:
    """Return a target epsilon, a float in [1e-9, `MAX_EPSILON`]."""
    return check_real("epsilon", value, low=1e-9, high=MAX_EPSILON)


def check_delta(value) -> float:
    """Return a target delta, a float in [1e-100, 1)."""
    return check_real("delta", value, low=1e-100, high=math.nextafter(1.0, 0.0))


def check_relation(name: str, value) -> NeighboringRelation:
    """Return a neighbouring relation, which may be given by its name.

    Raises
    ------
    ValueError
        If it is not a neighbouring relation.
    """
    known = {relation.name: relation for relation in NeighboringRelation}
    relation = known.get(value) if isinstance(value, str) else value
    if not isinstance(relation, NeighboringRelation):
        raise ValueError(
            f"{name} must be one of {', '.join(known)}, got {value!r}; sensitivities "
            "depend on it"
        )
    return relation


def check_kept_size(name: str, value) -> NeighboringRelation:
    """Return a neighbouring relation that keeps the number of records.

    Adding or removing a record is refused. A program for n + 1 records may round what
    it computes from one of them in another way than a program for n records, because
    XLA treats the last rows of a matrix product otherwise than those before. If terms
    cancel, the last digit of a term may be larger than a clip bound. Then adding one
    record could move a sum by several clip bounds. Memory and time depend on n as well.

    Raises
    ------
    ValueError
        As for `check_relation`, or if records are added or removed.
    """
    relation = check_relation(name, value)
    if relation is NeighboringRelation.ADD_OR_REMOVE_ONE:
        raise ValueError(
            f"{name} must keep the number of records, as programs for n and for n + 1 "
            "records do not round alike, got ADD_OR_REMOVE_ONE: use REPLACE_SPECIAL, "
            "under which a blank that adds zero to every sum takes a record's place "
            "at the same cost, or REPLACE_ONE"
        )
    return relation


def check_replaced(name: str, value, what: str) -> NeighboringRelation:
    """Return the relation REPLACE_ONE; `what` is accounted for under no other one.

    Raises
    ------
    ValueError
        As for `check_relation`, or if it is another relation.
    """
    relation = check_relation(name, value)
    if relation is not NeighboringRelation.REPLACE_ONE:
        raise ValueError(
            f"{what} accounted for under substitution of one record only, not under "
            f"{relation.name}: use NeighboringRelation.REPLACE_ONE, or a kernel on all "
            "records"
        )
    return relation


def check_count(name: str, value) -> int:
    """Return a positive Python integer of at most 10^15.

    Raises
    ------
    ValueError
        If it is not an integer in that range. Booleans and floats are not integers.
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        count = operator.index(value)
    except TypeError:
        raise ValueError(
            f"{name} must be an integer, got {value!r}; pass a Python int"
        ) from None
    if not 1 <= count <= 10**15:
        raise ValueError(f"{name} must be between 1 and 1e15, got {count}")
    return count


def check_positive(**parameters) -> None:
    """Refuse parameters that are not positive and finite.

    Each keyword is the name of a parameter, and its value a number or a pytree of
    numbers.

    Raises
    ------
    ValueError
        If a number is not positive and finite. The message names the parameter.
    """
    for name, value in parameters.items():
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(value)]
        if not all(np.all((0 < leaf) & (leaf < math.inf)) for leaf in leaves):
            raise ValueError(f"{name} must be positive and finite, got {value}")


def check_positive_number(name: str, value) -> float:
    """Return a positive and finite parameter as a Python float.

    An array would be broadcast, and a release be charged for one of its entries. What
    is multiplied by a NumPy scalar of half precision is rounded to that.

    Raises
    ------
    ValueError
        If it is not one number, or not positive and finite.
    """
    if not jax.tree_util.all_leaves([value]) or np.ndim(value):
        raise ValueError(f"{name} must be one number, got {value}")
    check_positive(**{name: value})
    return float(value)
