"""Span attributions: read, shown, saved and loaded, and followed through a reasoning."""

from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import combinations
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
from heta_lens.span_attribution import FORMAT, VERSION, hops

# ----------------------------------------------------------------------------------------------------- span attribution
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


@pytest.mark.parametrize(
    "value", [{}, {"steps": [], "tokens": ("a",)}, {"steps": [{}], "tokens": ("a",)}, {"steps": 5}], ids=str
)
def test_a_file_that_lacks_what_a_span_needs_is_called_damaged(value: dict[str, Any], tmp_path: Path) -> None:
    storage.save(tmp_path / "span", FORMAT, VERSION, value)
    with pytest.raises(ValueError, match="damaged"):
        heta_lens.SpanAttribution.load(tmp_path / "span")


# ----------------------------------------------------------------------------------------------------------- score hops
PROMPT, WRITTEN, AFTER = 4, 4, 2
LENGTH = PROMPT + WRITTEN + AFTER


def drawn(seed: int, signed: bool) -> tuple[Tensor, list[Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    draw = torch.randn if signed else torch.rand
    rows = [draw(PROMPT + at, generator=generator, dtype=torch.float64) for at in range(WRITTEN)]
    return draw(LENGTH, generator=generator, dtype=torch.float64), rows


def by_paths(scores: Tensor, rows: Sequence[Tensor]) -> list[list[float]]:
    """For each number of written tokens on the way, the sum over all ways to each token before them."""
    share = [[float(value) / float(row.abs().sum()) for value in row] for row in rows]
    result = [[0.0] * LENGTH for _ in range(WRITTEN + 1)]
    for at in [*range(PROMPT), *range(PROMPT + WRITTEN, LENGTH)]:
        result[0][at] = float(scores[at])
    for count in range(1, WRITTEN + 1):
        for way in combinations(reversed(range(WRITTEN)), count):  # from the last to the first
            for end in range(PROMPT):
                value = float(scores[PROMPT + way[0]])
                for here, there in zip(way, [*(PROMPT + one for one in way[1:]), end], strict=True):
                    value *= share[here][there]
                result[count][end] += value
    return result


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_every_way_is_counted_once(seed: int, signed: bool) -> None:
    scores, rows = drawn(seed, signed)
    found = hops(scores, rows)
    torch.testing.assert_close(found.values, torch.tensor(by_paths(scores, rows), dtype=torch.float64))
    sizes = by_paths(scores.abs(), [row.abs() for row in rows])
    torch.testing.assert_close(found.sizes, torch.tensor(sizes, dtype=torch.float64))


@pytest.mark.parametrize("signed", [False, True])
def test_nothing_is_lost_and_nothing_stays_with_what_was_written(signed: bool) -> None:
    scores, rows = drawn(5, signed)
    found = hops(scores, rows)
    torch.testing.assert_close(found.sizes.sum(), scores.abs().sum(), rtol=1e-14, atol=0)
    assert (found.sizes[:, PROMPT : PROMPT + WRITTEN] == 0).all()
    assert torch.equal(found.values[:, -AFTER:].sum(0), scores[-AFTER:])  # between reasoning and answer: as it was
    if not signed:
        assert torch.equal(found.values, found.sizes)
        torch.testing.assert_close(found.values.sum(), scores.sum(), rtol=1e-14, atol=0)


def test_by_hand() -> None:
    """Two of four go to the first written token, one to the second; that gives three quarters to the first."""
    found = hops(torch.tensor([1.0, 0, 2, 1]), [torch.tensor([1.0, 3]), torch.tensor([2.0, 0, 6])])
    assert found.values.tolist() == [[1, 0, 0, 0], [0.75, 1.5, 0, 0], [0.1875, 0.5625, 0, 0]]


def test_signs_multiply_and_do_not_divide_by_almost_nothing() -> None:
    """What speaks against a token that speaks for the target speaks against the target, and the other way round."""
    row = torch.tensor([1.0, -1.0 + 1e-9])  # whose sum is nearly 0
    for_it, against = (hops(torch.tensor([0.0, 0, score]), [row]).values.sum(0) for score in (1.0, -1.0))
    torch.testing.assert_close(for_it, torch.tensor([0.5, -0.5, 0]))
    torch.testing.assert_close(against, torch.tensor([-0.5, 0.5, 0]))
    cancelled = hops(torch.tensor([0.0, 0, 1, -1]), [torch.tensor([1.0, 0]), torch.tensor([1.0, 0, 0])])
    assert cancelled.values.sum(0).tolist() == [0, 0, 0, 0]
    assert cancelled.sizes.sum(0).tolist() == [2, 0, 0, 0]


def test_a_token_without_scores_of_its_own_keeps_what_it_has() -> None:
    rows = [torch.zeros(2), torch.tensor([1.0, 1, 2])]
    found = hops(torch.tensor([1.0, 0, 3, 4]), rows)
    assert found.values.tolist() == [[1, 0, 3, 0], [1, 1, 2, 0]]
    nothing = hops(torch.zeros(4), rows)
    assert nothing.values.tolist() == [[0, 0, 0, 0]]


@pytest.mark.parametrize("size", [1e-300, 1e300, 5e-324])
def test_scores_of_any_size_have_shares(size: float) -> None:
    row = torch.tensor([3.0, 1.0], dtype=torch.float64) * size
    found = hops(torch.tensor([0.0, 0, 1], dtype=torch.float64), [row])
    torch.testing.assert_close(found.values[1], torch.tensor([0.75, 0.25, 0], dtype=torch.float64))


def test_long_chains_end() -> None:
    """Every written token gives all to the one before it: as many hops as there are tokens."""
    rows = [torch.zeros(1 + at).index_fill(0, torch.tensor([at]), 1.0) for at in range(50)]
    found = hops(torch.zeros(51).index_fill(0, torch.tensor([50]), 1.0), rows)
    assert found.values.shape == (51, 51)
    assert found.values[50].tolist() == [1.0, *[0.0] * 50] and found.values.sum() == 1


def test_a_set_explained_as_a_whole_hands_on_the_same_where_scores_are_linear() -> None:
    """FlashTrace's recursion: the reasoning is one weighted set, and the share that came to it is what a hop counts."""
    scores, rows = drawn(7, signed=False)
    scores = scores[: PROMPT + WRITTEN] / scores[: PROMPT + WRITTEN].sum()
    each = torch.stack([torch.nn.functional.pad(row / row.sum(), (0, len(scores) - len(row))) for row in rows])
    observed, reached = scores[:PROMPT].clone(), scores[PROMPT:].sum()
    last = scores
    for _ in range(WRITTEN):
        weights = last[PROMPT:] / last[PROMPT:].sum()
        last = weights @ each
        observed += reached * last[:PROMPT]
        reached = reached * last[PROMPT:].sum()
        if not reached:
            break
    torch.testing.assert_close(hops(scores, rows).values.sum(0)[:PROMPT], observed)


def test_scores_that_are_no_number_end_too() -> None:
    assert hops(torch.tensor([0.0, torch.nan]), [torch.tensor([1.0])]).values.isnan().any()
