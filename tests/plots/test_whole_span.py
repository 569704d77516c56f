"""A span as one text, and what a page shows of every target."""

from dataclasses import replace

import pytest
import torch

from helpers.pages import data, numbers, values, written
from heta_lens.diagnostics import Diagnostics
from heta_lens.plots.page import matrix, span_values, whole_text
from heta_lens.span_attribution import SpanAttribution

TOKENS = ["a", " b", " c", " d", " e"]


def span(reasoning: int = 0) -> SpanAttribution:
    steps = [written(TOKENS[:length], [float(length + row) for row in range(length)]) for length in range(2, 5)]
    return SpanAttribution((*steps[reasoning:],), (*TOKENS,), (*steps[:reasoning],))


def test_the_text_is_the_prompt_and_the_answer() -> None:
    whole = whole_text(span())
    assert whole.text == "a b c d e" and [*whole.tokens] == TOKENS and whole.positions.tolist() == [0, 1, 2, 3, 4]
    assert [whole.text[start:stop] for start, stop in whole.offsets.tolist()] == TOKENS
    assert whole.scores.tolist() == [*span().total.tolist(), 0.0, 0.0, 0.0]


def test_the_matrix_has_every_targets_scores() -> None:
    own = matrix(span())
    assert own["targets"] == [2, 3, 4] and own["scales"] == [3.0, 5.0, 7.0]
    halves = numbers(own["halves"], "<f2")
    rows = [torch.tensor(halves[:2]) * 3, torch.tensor(halves[2:5]) * 5, torch.tensor(halves[5:]) * 7]
    for row, step in zip(rows, span().steps, strict=True):
        torch.testing.assert_close(row, step.scores, rtol=1e-3, atol=0)


def test_a_target_of_nothing_but_zeros_stays_zero() -> None:
    nothing = replace(span(), steps=tuple(replace(step, scores=0 * step.scores) for step in span().steps))
    assert matrix(nothing)["scales"] == [1.0, 1.0, 1.0] and not any(numbers(matrix(nothing)["halves"], "<f2"))


def test_every_target_has_its_parts_and_standard_errors() -> None:
    steps = tuple(
        replace(
            step,
            parts={"gate": 2 * step.scores, "curvature": -step.scores},
            diagnostics=Diagnostics(standard_errors={"scores": step.scores / 8}),
        )
        for step in span().steps
    )
    own = replace(span(), steps=steps)
    packs = matrix(own)
    assert packs["parts"]["gate"]["scales"] == [6.0, 10.0, 14.0] and packs["errors"]["scales"] == [3 / 8, 5 / 8, 7 / 8]
    assert numbers(packs["parts"]["curvature"]["halves"], "<f2") == [
        -value for value in numbers(packs["halves"], "<f2")
    ]
    gate, curvature = (shown for shown in span_values(own) if shown.name in ("gate", "curvature"))
    assert gate.values.tolist() == [*(2 * own.total).tolist(), 0, 0, 0] and "flow" in gate.what
    assert curvature.values.tolist() == [*(-own.total).tolist(), 0, 0, 0]


def test_parts_and_errors_that_some_targets_lack_are_left_out() -> None:
    first, *others = span().steps
    with_all = replace(
        first, parts={"gate": first.scores}, diagnostics=Diagnostics(standard_errors={"scores": first.scores})
    )
    own = replace(span(), steps=(with_all, *others))
    assert (matrix(own)["parts"], matrix(own)["errors"]) == ({}, None)
    assert [shown.name for shown in span_values(own)] == ["all targets"]


@pytest.mark.parametrize("reasoning", [0, 1])
def test_what_its_tokens_can_be_coloured_by(reasoning: int) -> None:
    own = span(reasoning)
    names = ["through the reasoning", "all targets"] if reasoning else ["all targets"]
    assert [shown.name for shown in span_values(own)] == names
    assert {len(shown.values) for shown in span_values(own)} == {5}
    assert [*values(own.plot())] == names and data(own.plot())["matrix"]["targets"] == [2, 3, 4]
    first = own.through if reasoning else own.total
    assert span_values(own)[0].values[: own.start].tolist() == first.tolist()
