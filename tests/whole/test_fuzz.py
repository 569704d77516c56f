"""Damaged files end in one sentence of the library's own, or are read and can be used."""

import pytest

from helpers.fuzz import READERS, fault


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", READERS)
def test_no_damaged_file_ends_in_a_foreign_exception(name: str) -> None:
    assert not [found for seed in range(6) if (found := fault(name, seed))]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("name", "seed"), [("span", 59), ("tellmewhy.jsonl", 237)])
def test_what_once_was_a_fault_is_none(name: str, seed: int) -> None:
    assert not fault(name, seed)


@pytest.mark.nightly
@pytest.mark.usefixtures("unchecked")
def test_thousands_of_damaged_files() -> None:
    assert not [found for seed in range(560) for name in READERS if (found := fault(name, seed))]
