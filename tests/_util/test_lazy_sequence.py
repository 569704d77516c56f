"""Items that are computed when they are accessed."""

import pytest

from heta_lens._util.python import Lazy


def test_an_item_is_computed_when_it_is_accessed() -> None:
    computed: list[int] = []
    squares = Lazy(3, lambda place: computed.append(place) or place**2)
    assert (len(squares), computed) == (3, [])
    assert (squares[-1], computed) == (4, [2])
    assert [*squares] == [0, 1, 4]
    with pytest.raises(IndexError):
        squares[3]
