"""Options as their class declares and documents them."""

from typing import Annotated, Any, Literal

import pytest

from heta_lens import METHODS
from heta_lens._util.options import AtLeast
from heta_lens.cli.lists import described_options, description, documented, type_text


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (int, "int"),
        (bool, "True or False"),
        (str | None, "str or none"),
        (Literal["a", "b"], "a or b"),
        (Annotated[int, AtLeast(1, whole=True)], "int ≥ 1"),
        (Annotated[float | int, AtLeast(0.01)], "float ≥ 0.01"),
        (Annotated[int | Literal["auto"] | None, AtLeast(2)], "int ≥ 2 or auto or none"),
    ],
    ids=str,
)
def test_types_are_for_people(kind: Any, text: str) -> None:
    assert type_text(kind) == text


def test_options_that_are_documented_together_share_a_line() -> None:
    found = documented("What it is.\n\n- ``a``, ``b``: the first\n  and ``x`` the second\n- ``c``: more\n\nCost: F.")
    both = "a, b: the first and x the second"
    assert found == {"a": both, "b": both, "c": "more"}


def test_a_description_ends_where_options_begin() -> None:
    assert description(METHODS["lime"]).startswith("The coefficients of g(X with only tokens z)")
    assert "number of random z" not in description(METHODS["lime"])


@pytest.mark.parametrize("method", METHODS)
def test_every_option_has_a_type_and_a_line(method: str) -> None:
    for option in described_options(METHODS[method]):
        assert option.type and option.default and option.help, option
        assert "typing" not in option.type and "`" not in option.help


def test_own_options_come_first() -> None:
    names = [option.name for option in described_options(METHODS["lime"])]
    assert names[0] == "samples" and names.index("penalty") < names.index("mask") and "progress" not in names
