"""SpanAttribution: read, shown, saved and loaded."""

import json
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor

import heta_lens.model.batching
import heta_lens.prediction.prediction
from helpers.batches import START
from helpers.nested import same
from helpers.views import data, seen
from heta_lens import SpanAttribution, attribute_span
from heta_lens._util import storage
from heta_lens.diagnostics import Diagnostics
from heta_lens.plots import circuitsvis, page
from heta_lens.span_attribution import FORMAT, VERSION

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*has no effect with:UserWarning"),
]
PAIR = (7, 9)


# ------------------------------------------------------------------------------------------------------ the whole of it
@pytest.fixture
def span(cache: Any, ids: Tensor) -> SpanAttribution:
    return attribute_span(cache, START, 10, tokens=ids, probes=3, targets=[None, PAIR, None], interactions=True)


def test_the_matrix_ends_before_each_target(span: SpanAttribution) -> None:
    assert span.matrix.shape == (3, 10)
    for row, step in zip(span.matrix, span.steps, strict=True):
        assert torch.equal(row[: len(step)], step.scores)
        assert (row[: len(step)] > 0).all()
        assert row[len(step) :].tolist() == [0.0] * (10 - len(step))


def test_the_total_is_of_the_prompts_tokens_and_of_no_others(span: SpanAttribution) -> None:
    expected = [sum(float(step.scores[i]) for step in span.steps) for i in range(START)]
    assert span.total.tolist() == pytest.approx(expected, rel=1e-12)


def test_totals_are_read_like_scores(span: SpanAttribution) -> None:
    highest = int(span.total.argmax())
    best = span.top(2, special=True)
    assert (best[0].text, best[0].positions) == (span.tokens[highest], (highest,))
    assert [one.score for one in best] == span.total.sort(descending=True).values[:2].tolist()
    assert len(span.top(99, special=True)) == START
    assert [one.positions[0] for one in span.top(99)] == [
        one.positions[0] for one in span.top(99, special=True) if one.positions != (0,)
    ], "the first is special"
    text = "".join(span.tokens[:START])
    for words in (span.by_word(), span.by_spans([(0, len(text))])):
        assert sum(word.score for word in words) == pytest.approx(float(span.total.sum()))
        assert [place for word in words for place in word.positions] == list(range(START))
    assert max(word.score for word in span.by_word("max")) == float(span.total.max())
    with pytest.raises(ValueError, match="not inside the context"):
        span.by_spans([(0, len(text) + 1)])


def test_the_frame_has_a_row_for_each_target_and_each_token_before_it(span: SpanAttribution) -> None:
    frame = span.to_frame()
    assert len(frame) == 7 + 8 + 9
    assert list(frame.index) == list(range(24))
    for place, step, target in zip((7, 8, 9), span.steps, span.targets, strict=True):
        rows: Any = frame[frame.target_position == place].drop(columns=["target", "target_position"])
        pd.testing.assert_frame_equal(rows.reset_index(drop=True), step.to_frame())
        assert set(frame.target[frame.target_position == place]) == {target}
    summed = frame[frame.position < START].groupby("position").score.sum()
    assert summed.tolist() == pytest.approx(span.total.tolist())


def test_a_terminal_sees_the_totals(span: SpanAttribution) -> None:
    shown = repr(span).splitlines()
    assert all(target in shown[0] for target in span.targets)
    assert f"{float(span.total.max()):.4g}" in shown[1]
    assert repr(span.tokens[int(span.total.argmax())]) in shown[1]
    assert not any("p =" in line for line in shown)  # no single target's likelihood
    assert max(map(len, shown)) <= 80
    assert "variant='gs'" in repr(replace(span, steps=(with_chosen(span.steps[0]), *span.steps[1:])))


def with_chosen(step: Any) -> Any:
    return replace(step, diagnostics=Diagnostics.of({**step.diagnostics, "chosen": {"variant": "gs"}}))


# --------------------------------------------------------------------------------------------------------- keeping it
def test_a_file_gives_back_everything(span: SpanAttribution, tmp_path: Path) -> None:
    span.save(tmp_path / "span.safetensors")
    found = SpanAttribution.load(tmp_path / "span.safetensors")
    assert isinstance(found, SpanAttribution)
    assert found.tokens == span.tokens
    assert len(found.steps) == 3
    for step, expected in zip(found.steps, span.steps, strict=True):
        for entry in fields(expected):
            assert same(getattr(step, entry.name), getattr(expected, entry.name)), entry.name
    assert found.steps[1].target == PAIR
    assert found.steps[0].standard_errors["interactions"] is not None
    assert torch.equal(found.matrix, span.matrix)
    assert repr(found) == repr(span)
    pd.testing.assert_frame_equal(found.to_frame(), span.to_frame())
    assert found.plot().fragment == span.plot().fragment


def test_an_attribution_is_no_span_and_a_span_no_attribution(span: SpanAttribution, tmp_path: Path) -> None:
    path = tmp_path / "any.safetensors"
    span.steps[0].save(path)
    with pytest.raises(ValueError, match=r"not a heta_lens\.span file"):
        SpanAttribution.load(path)
    span.save(path)
    with pytest.raises(ValueError, match=r"not a heta_lens\.attribution file"):
        heta_lens.Attribution.load(path)


def test_what_was_not_written_whole_or_by_us_is_refused(span: SpanAttribution, tmp_path: Path) -> None:
    path = tmp_path / "span.safetensors"
    span.save(path)
    whole = path.read_bytes()
    for content in (b"", b"text", whole[: len(whole) // 2], whole[:-1]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"is not a heta_lens\.span file"):
            SpanAttribution.load(path)
    storage.save(path, FORMAT, VERSION + 1, {"steps": [], "tokens": ()})
    with pytest.raises(ValueError, match="upgrade it"):
        SpanAttribution.load(path)
    with pytest.raises(FileNotFoundError):
        SpanAttribution.load(tmp_path / "none.safetensors")


# ---------------------------------------------------------------------------------------------------------- the page
HOSTILE = ["<bos>", "</script>", "<script>alert(1)</script>", "&lt;b&gt;", "<b>x</b>", "R&D", '"', "<!--", "\n", "\\"]


@pytest.fixture
def hostile(span: SpanAttribution) -> SpanAttribution:
    """The worst of tokens, some of them targets."""
    targets = ("<script>alert(2)</script>", ("</script>", "&amp;"), "<img src=x onerror=alert(3)>")
    steps = [replace(step, target_text=text) for step, text in zip(span.steps, targets, strict=True)]
    return SpanAttribution(tuple(steps), tuple(HOSTILE))


def test_the_page_shows_every_targets_scores_and_all_together(span: SpanAttribution) -> None:
    drawn = data(circuitsvis(span, special=True))
    assert [seen(token) for token in drawn["tokens"]] == list(span.tokens)
    assert [seen(label) for label in drawn["labels"]] == ["all targets", *span.targets]
    shown = torch.tensor(drawn["values"])
    assert shown.shape == (10, 4)
    for column, scores in zip(shown.T, [span.total, *(step.scores for step in span.steps)], strict=True):
        deepest = min(float(scores.max()), 2 * float(scores.sort().values[-2]))
        torch.testing.assert_close(column[: len(scores)], (scores / deepest).clamp(max=1).float())
        assert not column[len(scores) :].any()


def test_one_outlier_bleaches_nothing(span: SpanAttribution) -> None:
    scores = torch.tensor([1e6, 1.0, 0.5, 0.25, 0.0, 0.0, 0.0], dtype=torch.float64)
    other = replace(span.steps[0], scores=scores)
    shown = torch.tensor(data(circuitsvis(replace(span, steps=(other, *span.steps[1:])), special=True))["values"])
    assert shown[:4, 1].tolist() == [1.0, 0.5, 0.25, 0.125]
    nothing = replace(span, steps=(replace(other, scores=torch.zeros_like(scores)),))
    assert not torch.tensor(data(circuitsvis(replace(nothing, tokens=span.tokens[:8])))["values"]).any()


def test_nothing_that_is_written_adds_structure_to_the_page(hostile: SpanAttribution, tmp_path: Path) -> None:
    clean = SpanAttribution(tuple(replace(step, target_text="x") for step in hostile.steps), tuple("abcdefghij"))
    for shown in (circuitsvis, page):
        plain, written = (
            shown(made).save(tmp_path / "page.html").read_text(encoding="utf-8") for made in (clean, hostile)
        )
        for mark in ("<script", "</script", "<!--", "<div", "<img", "</title"):
            assert written.count(mark) == plain.count(mark), mark
    drawn = data(circuitsvis(hostile, special=True))
    assert [seen(token) for token in drawn["tokens"]] == HOSTILE
    assert [seen(label) for label in drawn["labels"]] == ["all targets", *hostile.targets]


def test_the_page_brings_everything_along(span: SpanAttribution) -> None:
    fragment = circuitsvis(span)._repr_html_()
    assert "var CircuitsVis=" in fragment
    assert not re.search(r"<(script|link|img)[^>]*\s(src|href)=", fragment)
    assert not re.search(r"\b(from|import)\s*\(?\s*[\"']https?:", fragment)
    assert "unpkg.com" not in fragment
    assert json.dumps("all targets") in fragment


@pytest.mark.parametrize(
    "value", [{}, {"steps": [], "tokens": ("a",)}, {"steps": [{}], "tokens": ("a",)}, {"steps": 5}], ids=str
)
def test_a_file_that_lacks_what_a_span_needs_is_called_damaged(value: dict[str, Any], tmp_path: Path) -> None:
    storage.save(tmp_path / "span", FORMAT, VERSION, value)
    with pytest.raises(ValueError, match="damaged"):
        heta_lens.SpanAttribution.load(tmp_path / "span")
