"""Damaged files end in one sentence of the library's own, or are read and can be used: a sample of `make fuzz`."""

import pytest

from helpers.fuzz import READERS, outcome, run


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", READERS)
def test_no_damaged_file_ends_in_a_foreign_exception(name: str) -> None:
    found = [outcome(name, seed) for seed in range(6)]
    assert not [one for one in found if one.kind == "FAULT"]


KEPT = [
    *(("options", seed) for seed in (2, 9, 93)),
    *(("span", 59), ("tellmewhy.jsonl", 237)),
]
"""Cases that once were faults."""


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("name", "seed"), KEPT)
def test_what_once_was_a_fault_is_none(name: str, seed: int) -> None:
    assert outcome(name, seed).kind != "FAULT"


@pytest.mark.nightly
@pytest.mark.usefixtures("unchecked")
def test_thousands_of_damaged_files() -> None:
    cases = [(name, seed) for seed in range(560) for name in READERS]
    assert not [one for one in run(cases) if one.kind == "FAULT"]
