"""Values as JSON can hold them."""

import math
from pathlib import Path
from typing import Any

import pytest

from heta_lens._util.text import plain


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (math.nan, None),
        ([math.inf, -math.inf, 1.5], ["+inf", "-inf", 1.5]),
        ({"a": Path("x"), 3: (True, None)}, {"a": "x", "3": [True, None]}),
    ],
)
def test_values_are_those_of_json(value: Any, expected: Any) -> None:
    assert plain(value) == expected
