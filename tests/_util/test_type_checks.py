"""Whether values have the types that a dataclass is annotated with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from heta_lens._util.options import check_fields, described, fits


@dataclass
class Story:
    text: str
    spans: Sequence[tuple[int, int]]
    share: float | None = None
    about: Mapping[str, Any] = field(default_factory=dict)


GOOD: dict[str, Any] = {"text": "a cat", "spans": [(0, 1)], "share": 1, "about": {"hops": 2}}


def test_a_set_is_of_one_kind() -> None:
    assert fits(frozenset((1, 2)), frozenset[int]) and fits(frozenset(), frozenset[int])
    assert not fits(frozenset((1, "2")), frozenset[int]) and not fits({1, 2}, frozenset[int])
    assert described(frozenset[int]) == "a set of a whole number"


def test_fields_of_the_annotated_types_pass() -> None:
    check_fields(Story, GOOD)
    check_fields(Story, {"text": "", "spans": []})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"text": None}, "its text is None, and must be text"),
        ({"spans": [(0, 1.5)]}, r"its spans is \[\(0, 1.5\)\], and must be a list of a list of a whole number"),
        ({"spans": [(0, 1, 2)]}, "its spans is"),
        ({"share": True}, "its share is True, and must be a number or null"),
        ({"about": {1: 2}}, "its about is"),
        ({"weather": "fine"}, "it has an unknown field 'weather'"),
    ],
)
def test_a_field_of_another_type_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        check_fields(Story, GOOD | changes)


@pytest.mark.usefixtures("unchecked")
def test_a_field_without_a_default_may_not_be_missing() -> None:
    with pytest.raises(ValueError, match="it has no spans"):
        check_fields(Story, {"text": ""})
    with pytest.raises(TypeError, match="it is 5, and must have the fields of a Story"):
        check_fields(Story, 5)  # type: ignore[arg-type]


def test_types_may_be_nested_and_are_said_in_words() -> None:
    assert fits("more", Literal["more", "less"]) and not fits("most", Literal["more", "less"])
    assert fits((1, 2, 3), tuple[int, ...]) and not fits([1, 2, 3], tuple[int, ...])
    assert described(Mapping[str, float | None]) == "an object of a number or null"
