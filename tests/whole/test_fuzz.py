"""Damaged files end in one sentence of the library's own, or are read and can be used."""

import pytest

from helpers.fuzz import READERS, fault


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("seeds", [range(6), pytest.param(range(6, 600), marks=pytest.mark.nightly)], ids=str)
@pytest.mark.parametrize("name", READERS)
def test_no_damaged_file_ends_in_a_foreign_exception(name: str, seeds: range) -> None:
    assert not [found for seed in seeds if (found := fault(name, seed))]
