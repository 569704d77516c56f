"""Span attributions: read, shown, saved and loaded, and followed through a reasoning."""

from collections.abc import Sequence
from dataclasses import fields
from itertools import combinations
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor

import heta_lens.model.batching
import heta_lens.prediction.prediction
from helpers.attributions import START, same
from heta_lens import SpanAttribution, attribute_span
from heta_lens._util import storage
from heta_lens.attribution import VERSION
from heta_lens.span_attribution import hops

# ----------------------------------------------------------------------------------------------------- span attribution
pytestmark = pytest.mark.filterwarnings("ignore:.*has no effect with:UserWarning")
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


@pytest.mark.parametrize(
    "value", [{}, {"steps": [], "tokens": ("a",)}, {"steps": [{}], "tokens": ("a",)}, {"steps": 5}], ids=str
)
def test_a_file_that_lacks_what_a_span_needs_is_called_damaged(value: dict[str, Any], tmp_path: Path) -> None:
    storage.save(tmp_path / "span", heta_lens.SpanAttribution.kind, VERSION, value)
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
