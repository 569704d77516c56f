"""The tables about grouped probes have what they say."""

from typing import Any

import pytest
import torch

from benchmarks import groups
from helpers import zoo
from helpers.asking import predict


@pytest.fixture
def prediction(monkeypatch: pytest.MonkeyPatch) -> Any:
    for name, value in (("MANY", 30), ("MORE", 30), ("SEEDS", 2), ("REPEATS", 3), ("PRODUCTS", (40,))):
        monkeypatch.setattr(groups, name, value)
    model = zoo.bridge("gpt2", torch.float32)
    return predict(model, zoo.prompt(model, 40), 7)


@pytest.mark.slow
@pytest.mark.parametrize("section", groups.SECTIONS)
def test_every_section_has_a_cell_for_every_column(prediction: Any, section: str) -> None:
    _, columns, _, rows_of = groups.SECTIONS[section]
    rows = list(rows_of("a model", prediction))
    assert rows and all(len(row) == len(columns) for row in rows)
    assert all(cell.strip() not in ("", "nan") for row in rows for cell in row)


def test_longer_contexts_are_of_the_model_that_speed_is_measured_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "LONGER", (4, 6))
    monkeypatch.setitem(groups.MODELS, "gpt2-like", zoo.native_bridge)
    assert [(name, len(prediction)) for name, prediction in groups.longer_cases()] == [
        ("gpt2-like", 4),
        ("gpt2-like", 6),
    ]


@pytest.mark.slow
def test_sharing_changes_less_than_other_signs(prediction: Any) -> None:
    ((name, tokens, compared, apart, chance, _),) = groups.longer_rows("a model", prediction)
    assert (name, tokens, compared) == ("a model", "40", "32") and 0 < float(apart) < float(chance)


@pytest.mark.slow
def test_fewer_groups_and_halves_cost_as_much(prediction: Any) -> None:
    products = {row[1]: int(row[2]) for row in groups.split_rows("a model", prediction)}
    assert products == {"16 groups": 160, "8 early, 8 late": 120, "12 groups": 120}
    errors = {row[1]: float(row[3]) for row in groups.split_rows("a model", prediction)}
    assert all(0 < error < 1 for error in errors.values())
