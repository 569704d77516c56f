"""What a view of an attribution can be saved as beside a page."""

import io
import json

import pandas as pd
import pytest
import torch

from helpers.pages import written
from heta_lens.diagnostics import Diagnostics
from heta_lens.plots.page import as_json, exports
from heta_lens.plots.scales import score_formula
from heta_lens.span_attribution import SpanAttribution


def test_numbers_are_those_of_the_frame() -> None:
    made = written(["é", " b"], [0.1, 1 / 3])
    table = pd.read_csv(io.StringIO(str(exports(made)[".csv"]())))
    assert table["score"].tolist() == made.to_frame()["score"].tolist() and table["token"].tolist() == ["é", " b"]
    content = json.loads(as_json(made))
    assert content["formula"] == score_formula(made) and content["options"].keys() == made.options.keys()
    assert [row["score"] for row in content["rows"]] == made.scores.tolist() and content["text"] == "é b"
    assert content["title"] == made.title and content["notes"] == made.notes


def test_json_has_no_number_that_is_not_finite() -> None:
    content = as_json(
        written(
            ["a", " b"], diagnostics=Diagnostics.of({"standard_errors": {"scores": torch.tensor([0.5, float("nan")])}})
        )
    )
    assert [row["score_se"] for row in json.loads(content, parse_constant=pytest.fail)["rows"]] == [0.5, None]


def test_a_span_has_the_rows_of_all_targets() -> None:
    span = SpanAttribution((written(["a", " b"]), written(["a", " b", " c"])), ("a", " b", " c", " d"))
    assert len(json.loads(as_json(span))["rows"]) == 5


def test_figures_are_made_in_every_kind() -> None:
    made = {suffix: make() for suffix, make in exports(written(["a", " b"])).items()}
    assert [*made] == [".svg", ".png", ".pdf", ".tex", ".csv", ".json"]
    assert bytes(made[".png"][:4]) == b"\x89PNG" and bytes(made[".pdf"][:4]) == b"%PDF"  # type: ignore[arg-type]
    assert "colorbox" in str(made[".tex"])
