"""The tables about grouped probes have what they say."""

from typing import Any

import pytest
import torch

from benchmarks import pareto
from benchmarks.groups import asked, correction, early_and_late, errors, intervals, longer_contexts
from benchmarks.groups.__main__ import SECTIONS
from helpers import zoo
from helpers.asking import predict


@pytest.fixture
def prediction(monkeypatch: pytest.MonkeyPatch) -> Any:
    for module, name, value in (
        *((asked, "MANY", 30), (intervals, "MORE", 30), (intervals, "REPEATS", 3), (errors, "PRODUCTS", (40,))),
        *((errors, "SEEDS", 2), (early_and_late, "SEEDS", 2)),
    ):
        monkeypatch.setattr(module, name, value)
    monkeypatch.setitem(pareto.REFERENCE, "probes", 3)
    model = zoo.bridge("gpt2", torch.float32)
    return predict(model, zoo.prompt(model, 40), 7)


@pytest.mark.thorough
@pytest.mark.parametrize("section", SECTIONS)
def test_every_section_has_a_cell_for_every_column(prediction: Any, section: str) -> None:
    _, columns, _, _, rows_of = SECTIONS[section]
    given = [pareto.Prompt(prediction, [], name) for name in "ab"] if section == "correction" else prediction
    rows = list(rows_of("a model", given))
    assert rows and all(len(row) == len(columns) for row in rows)
    assert all(cell.strip() not in ("", "nan") for row in rows for cell in row)


def test_longer_contexts_are_of_the_model_that_speed_is_measured_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(longer_contexts, "LONGER", (4, 6))
    monkeypatch.setitem(asked.MODELS, "gpt2-like", zoo.native_bridge)
    assert [(name, len(prediction)) for name, prediction in longer_contexts.longer_cases()] == [
        ("gpt2-like", 4),
        ("gpt2-like", 6),
    ]


@pytest.mark.slow
def test_sharing_changes_less_than_other_signs(prediction: Any) -> None:
    ((name, tokens, compared, apart, chance, _),) = longer_contexts.rows("a model", prediction)
    assert (name, tokens, compared) == ("a model", "40", "32") and 0 < float(apart) < float(chance)


@pytest.mark.slow
def test_fewer_groups_and_halves_cost_as_much(prediction: Any) -> None:
    products = {row[1]: int(row[2]) for row in early_and_late.rows("a model", prediction)}
    assert products == {"16 groups": 160, "8 early, 8 late": 120, "12 groups": 120}
    errors = {row[1]: float(row[3]) for row in early_and_late.rows("a model", prediction)}
    assert all(0 < error < 1 for error in errors.values())


def test_errors_are_of_the_curvature_without_and_with_the_cross_talk(prediction: Any) -> None:
    out, left = correction.with_and_without(prediction)
    assert 0 < out.l1 < 2 and 0 < left.l1 < 2 and out.l1 != left.l1
    assert out.total < left.total  # something is taken out of every token that shares its group
    assert out.curvature >= abs(out.total) - 1e-9 and left.curvature >= abs(left.total) - 1e-9
