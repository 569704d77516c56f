"""Spans: every target gets the answer it would get alone, at the price of one set of masked forwards."""

import json
import re
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from asking import busy, cache_of, predict, relative
from test_show import data, seen
from test_storage import same
from test_untouched import differences, fail_from, state
from torch import Tensor

import heta_lens.prompt
import zoo
from heta_lens import Heta, Prediction, SpanAttribution, attribute, attribute_span, storage
from heta_lens.heta import PRESETS
from heta_lens.lens import Lens
from heta_lens.span import FORMAT, VERSION

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*makes up.*of this score:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*has no effect with:UserWarning"),
]

N, START = 11, 7  # a context ends at the end of a chunk, others on either side of it
PAIR = (7, 9)
PER_TOKEN = ("drop", "envelope", "balanced")  # among the diagnostics
SHARED: dict[str, dict[str, Any]] = {
    "default": {},
    "seed": {"support": "row", "probes": 12, "seed": 3},
    "lr": {"variant": "lr", "rank": 3},
    "ls": {"variant": "ls", "layers": 1},
    "gn": {"variant": "gn"},
    "gs": {"variant": "gs", "probes": 10},
    "kl_only": {"variant": "kl_only", "probes": 10},
    "hessian_only": {"variant": "hessian_only"},
    "no_gate": {"variant": "no_gate", "kl": "js"},
    "interactions": {"interactions": True},
    "entrywise": {"norm": "entrywise", "interactions": True, "probes": 10},
    "sum": {"balance": "sum", "support": "row"},
    "max": {"balance": "max", "flow": "direct", "value_norm": 2},
    "token": {"mask": 5, "support": "row"},
    "audit": {"audit": True, "support": "row"},
    "small batch": {"batch": 3},
}
ALONE: dict[str, dict[str, Any]] = {
    "mean": {"mask": "mean"},
    "frozen": {"variant": "win", "window": 3},
    "chunk": {"variant": "win", "window": 3, "window_mode": "chunk", "window_gate": "per_window"},
    "restrict": {"variant": "ls+win", "layers": 1, "window": 3, "window_mode": "restrict"},
    "low rank in windows": {"variant": "lr+win", "rank": 2, "window": 4},
}


@pytest.fixture
def model() -> Any:
    return zoo.bridge("gpt2")


@pytest.fixture
def ids(model: Any) -> Tensor:
    return zoo.prompt(model, N)


@pytest.fixture
def cache(model: Any, ids: Tensor) -> Any:
    return cache_of(model, ids)


def alone(cache: Any, ids: Tensor, places: Any, targets: Any = None, **options: Any) -> list[Any]:
    """Every target's own attribution."""
    targets = targets or [None] * len(places)
    return [
        attribute(cache, target, position=place, tokens=ids, **options)
        for place, target in zip(places, targets, strict=True)
    ]


def alike(found: Any, expected: Any, tolerance: float = 1e-6) -> None:
    """Two answers to one question."""
    assert (found.target, found.target_text, found.tokens) == (expected.target, expected.target_text, expected.tokens)
    assert torch.equal(found.ids, expected.ids)
    assert found.parts.keys() == expected.parts.keys()
    assert relative(found.scores, expected.scores) < tolerance
    for name, part in expected.parts.items():
        assert relative(found.parts[name], part) < tolerance, name
    for name in PER_TOKEN:
        assert (name in found.diagnostics) == (name in expected.diagnostics)
        if name in expected.diagnostics:
            assert relative(found.diagnostics[name], expected.diagnostics[name]) < tolerance, name
    for name, error in expected.standard_errors.items():
        if error is None:
            assert found.standard_errors[name] is None
        else:
            assert relative(found.standard_errors[name], error) < 100 * tolerance, name
    for name in ("additivity_gap", "target_log_prob", "target_rank"):
        assert found.diagnostics[name] == pytest.approx(expected.diagnostics[name], rel=100 * tolerance)
    assert (found.interactions is None) == (expected.interactions is None)
    if expected.interactions is not None:
        assert relative(found.interactions, expected.interactions) < tolerance


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many copies each run of a model is of."""
    run, seen = Lens.run, []

    def watched(lens: Any, ids: Any, *args: Any, **options: Any) -> Any:
        seen.append(len(ids))
        return run(lens, ids, *args, **options)

    monkeypatch.setattr(Lens, "run", watched)
    return seen


# --------------------------------------------------------------------------------------------- as each of them alone
@pytest.mark.parametrize("build", zoo.models())
@pytest.mark.usefixtures("unchecked")
def test_every_step_is_what_attribute_says_of_that_token(build: Any) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    cache = cache_of(model, ids)
    options: dict[str, Any] = {"tokens": ids, "support": "row", "probes": 1}
    span = attribute_span(cache, START, **options)
    assert len(span) == N - START
    for step in span.steps[1::2]:
        alike(step, attribute(cache, position=len(step), **options))


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(("bridge-gpt2", name) for name in SHARED | ALONE),
        *(("bridge-gemma2", name) for name in ("lr", "interactions", "frozen")),
        *(("hooked-rotary_gqa", name) for name in ("seed", "ls", "mean", "chunk") if zoo.HAS_HOOKED),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_so_it_is_with_every_option(kind: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heta_lens.prompt, "TAIL", 2)
    options: dict[str, Any] = {"probes": 2} | (SHARED | ALONE)[name]
    model = dict(zoo.KINDS)[kind]()
    ids = zoo.prompt(model, 9)
    cache = cache_of(model, ids)
    span = attribute_span(cache, 7, tokens=ids, **options)
    for step, expected in zip(span.steps, alone(cache, ids, (7, 8), **options), strict=True):
        alike(step, expected)
        assert step.options == expected.options


@pytest.mark.parametrize("build", zoo.models("bridge-llama|hooked-gpt2"))
def test_float32_changes_little(build: Any) -> None:
    model = build(torch.float32)
    ids = zoo.prompt(model, 18)
    cache = cache_of(model, ids)
    span = attribute_span(cache, 16, tokens=ids, probes=1)
    for step, expected in zip(span.steps, alone(cache, ids, (16, 17), probes=1), strict=True):
        assert relative(step.scores, expected.scores) < 3e-5


@pytest.mark.parametrize("build", zoo.models("bridge-mistral|hooked-local"))
@pytest.mark.parametrize(("start", "stop"), [(1, None), (1, 2), (59, 60), (30, 33)])
def test_spans_of_a_long_prompt(build: Any, start: int, stop: int | None) -> None:
    model = build()
    ids = zoo.prompt(model, 60 if start > 1 else 12)
    cache = cache_of(model, ids)
    span = attribute_span(cache, start, stop, tokens=ids, probes=1, support="row")
    places = range(start, stop or ids.shape[1])
    assert span.matrix.shape == (len(places), places[-1] + 1)
    for place in {places[0], places[len(places) // 2], places[-1]}:
        (expected,) = alone(cache, ids, [place], probes=1, support="row")
        alike(span.steps[place - start], expected)


def test_no_step_depends_on_what_is_cached_after_it(model: Any, ids: Tensor) -> None:
    other = ids.clone()
    other[0, 9:] = zoo.prompt(model, N, seed=1)[0, 9:]
    one, two = (attribute_span(cache_of(model, some), 6, 9, tokens=some, probes=2) for some in (ids, other))
    short = attribute_span(cache_of(model, ids[:, :9]), 6, tokens=ids[:, :9], probes=2)
    assert relative(two.matrix, one.matrix) < 1e-6
    assert relative(short.matrix, one.matrix) < 1e-6
    assert one.tokens == two.tokens == short.tokens


def test_a_cache_may_be_full_and_tokens_may_be_left_out(model: Any, ids: Tensor) -> None:
    expected = attribute_span(cache_of(model, ids), START, tokens=ids, probes=2).matrix
    assert torch.equal(attribute_span(model.run_with_cache(ids)[1], START, probes=2).matrix, expected)


@pytest.mark.parametrize("build", zoo.models("bridge-gpt2|hooked-rotary_gqa"))
@pytest.mark.parametrize("options", [{"support": "row"}, {"mask": "mean", "variant": "kl_only"}], ids=str)
def test_hooks_on_the_model_stay_at_work(build: Any, options: dict[str, Any]) -> None:
    model = build()
    ids = zoo.prompt(model, 9)
    bare = attribute_span(cache_of(model, ids), 7, tokens=ids, **options)

    def steer(live: Tensor, hook: Any) -> Tensor:  # noqa: ARG001
        assert live.shape[:2] == (1, 9)  # one prompt, and the whole of it
        return torch.cat([live[:, :3], live[:, 3:4].roll(1, -1), live[:, 4:]], 1)

    with model.hooks(fwd_hooks=[("blocks.0.hook_resid_post", steer)]):
        cache = cache_of(model, ids)
        span = attribute_span(cache, 7, tokens=ids, **options)
        singles = alone(cache, ids, (7, 8), **options)
    for step, expected in zip(span.steps, singles, strict=True):
        alike(step, expected)
    assert relative(span.matrix, bare.matrix) > 1e-3


@pytest.mark.parametrize("method", [Heta(probes=3, balance="sum"), Heta(variant="gs"), Heta.preset("released")])
def test_a_ready_method_is_its_options(cache: Any, ids: Tensor, method: Heta) -> None:
    options = {entry.name: getattr(method, entry.name) for entry in fields(method)}
    expected = attribute_span(cache, 9, tokens=ids, **options)
    assert torch.equal(attribute_span(cache, 9, tokens=ids, method=method).matrix, expected.matrix)
    single = attribute(cache, 7, tokens=ids, method=method)
    assert torch.equal(single.scores, attribute(cache, 7, tokens=ids, **options).scores)
    assert torch.equal(single.scores, attribute(cache, 7, tokens=ids, method="heta", **options).scores)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_goes_in_as_a_method(cache: Any, ids: Tensor, name: str) -> None:
    found = attribute(cache, 7, tokens=ids, method=Heta.preset(name, window=4 if name == "released" else 512))
    assert found.options["variant"] == PRESETS[name].get("variant", "full")
    for option, value in PRESETS[name].items():
        assert found.options[option] == value


# -------------------------------------------------------------------------------------------------------- at what cost
@pytest.mark.parametrize("build", zoo.models("bridge-(gpt2|llama|gptoss)|hooked-(gpt2|local)"))
def test_a_span_masks_no_more_copies_than_its_last_target(build: Any, copies: list[int]) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    cache, options = cache_of(model, ids), {"tokens": ids, "variant": "kl_only"}
    copies.clear()
    attribute(cache, position=N - 1, **options)
    last = sum(copies)
    copies.clear()
    span = attribute_span(cache, 2, **options)
    assert sum(copies) == last
    assert {step.diagnostics["forwards_shared"] for step in span.steps} == {N}  # one for each of ten, and all masked
    assert {step.diagnostics["forwards_shared_by"] for step in span.steps} == {N - 2}


def test_the_model_itself_runs_once_for_all_targets(model: Any, cache: Any, ids: Tensor, forwards: Any) -> None:
    runs = forwards(model)
    attribute(cache, position=N - 1, tokens=ids, variant="kl_only")
    last = len(runs)
    attribute_span(cache, 2, tokens=ids, variant="kl_only")
    assert len(runs) == 2 * last


@pytest.mark.parametrize("name", ["mean", "frozen", "restrict"])
def test_masks_and_windows_of_their_own_are_not_shared(cache: Any, ids: Tensor, name: str) -> None:
    steps = attribute_span(cache, 9, tokens=ids, probes=1, **ALONE[name]).steps
    singles = alone(cache, ids, (9, 10), probes=1, **ALONE[name])
    masked = [single.diagnostics["forwards_shared"] for single in singles]
    masked[1] -= "layers" in ALONE[name]  # the states that enter a layer are read once, whoever needs them
    assert [step.diagnostics["forwards_shared"] for step in steps] == masked
    assert [step.diagnostics["hvps"] for step in steps] == [single.diagnostics["hvps"] for single in singles]
    assert {step.diagnostics["forwards_shared_by"] for step in steps} == {1}


def test_what_is_shared_is_paid_for_once(cache: Any, ids: Tensor) -> None:
    singles = [one.diagnostics for one in alone(cache, ids, range(START, N), probes=2)]
    span = attribute_span(cache, START, tokens=ids, probes=2)
    graphs, hvps = (sum(one[kind] for one in singles) for kind in ("backwards", "hvps"))
    assert span.cost == {"forwards": singles[-1]["forwards_shared"] + graphs, "backwards": graphs, "hvps": hvps}
    apart = attribute_span(cache, START, tokens=ids, probes=2, mask="mean")
    assert apart.cost == {name: sum(one[name] for one in singles) for name in ("forwards", "backwards", "hvps")}
    assert attribute_span(cache, START, START + 1, tokens=ids, mask="mean", variant="kl_only").cost["hvps"] == 0


def test_backwards_are_paid_for_too(cache: Any, ids: Tensor) -> None:
    span = attribute_span(cache, START, tokens=ids, method="integrated_gradients", steps=4)
    assert span.cost["backwards"] == sum(step.diagnostics["backwards"] for step in span.steps) >= 4 * len(span)


def test_products_are_counted_where_they_are_done(cache: Any, ids: Tensor) -> None:
    steps = attribute_span(cache, START, tokens=ids, probes=3, audit=True).steps
    assert [step.diagnostics["hvps"] for step in steps] == [3 * n for n in range(START, N)]
    assert [step.diagnostics["audit"] for step in steps] == [n + 32 for n in range(START, N)]
    assert [step.diagnostics["forwards_shared"] for step in steps] == [N] * (N - START)


def test_many_targets_of_a_large_vocabulary_make_small_batches(
    cache: Any, ids: Tensor, copies: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lens, "vocabulary", property(lambda _: 2**21))
    monkeypatch.setattr(heta_lens.prompt, "available", lambda _: 2**30 + 2**25)  # half of it: 8 copies of one target
    options: dict[str, Any] = {"tokens": ids, "variant": "kl_only"}
    attribute(cache, position=N - 1, **options)
    assert max(copies) == 5  # as many as share a start
    for targets, most in ((2, 4), (3, 2), (8, 1)):
        copies.clear()
        span = attribute_span(cache, N - targets, **options)
        assert max(copies) == most
        alike(span.steps[0], alone(cache, ids, [N - targets], variant="kl_only")[0])


# ------------------------------------------------------------------------------------------------------------- targets
def test_the_tokens_that_stand_there_are_the_targets(model: Any, cache: Any, ids: Tensor) -> None:
    span = attribute_span(cache, START, 10, tokens=ids, variant="gs")
    assert [step.target for step in span.steps] == ids[0, START:10].tolist()
    assert list(span.targets) == [model.tokenizer.decode([token]) for token in ids[0, START:10]]
    assert list(span.tokens) == [model.tokenizer.decode([token]) for token in ids[0, :10]]
    assert (span.start, len(span)) == (START, 3)


@pytest.mark.parametrize("places", [(7, 10), (-4, -1), (-4, 10), (7, -1), (torch.tensor(7), torch.tensor(10))])
def test_places_count_from_either_end(cache: Any, ids: Tensor, places: Any) -> None:
    found, expected = (attribute_span(cache, *span, tokens=ids, variant="gs") for span in (places, (7, 10)))
    assert torch.equal(found.matrix, expected.matrix)
    assert (found.tokens, found.targets, found.start) == (expected.tokens, expected.targets, 7)


def test_other_targets_may_be_asked_for(model: Any, cache: Any, ids: Tensor) -> None:
    text = model.tokenizer.decode([40])
    targets = [text, PAIR, None, 7]
    span = attribute_span(cache, START, tokens=ids, targets=targets, probes=2)
    assert [step.target for step in span.steps] == [40, PAIR, int(ids[0, 9]), 7]
    for step, expected in zip(span.steps, alone(cache, ids, range(START, N), targets, probes=2), strict=True):
        alike(step, expected)
    assert "not about the contrast" in span.steps[1].diagnostics["note"]
    assert span.tokens == attribute_span(cache, START, tokens=ids, variant="transition_only").tokens
    assert span.targets[:2] == (text, " / ".join(model.tokenizer.decode([token]) for token in PAIR))


@pytest.mark.parametrize("target", [7, PAIR, " cat", torch.tensor(7)], ids=str)
def test_one_target_is_meant_for_every_place(cache: Any, ids: Tensor, target: Any) -> None:
    one, many = (
        attribute_span(cache, START, tokens=ids, targets=targets, variant="gs", probes=10)
        for targets in (target, [target] * (N - START))
    )
    assert torch.equal(one.matrix, many.matrix)
    assert one.targets == many.targets


def test_targets_may_be_a_tensor_of_ids(cache: Any, ids: Tensor) -> None:
    span = attribute_span(cache, START, tokens=ids, targets=torch.tensor([5, 6, 7, 8]), variant="transition_only")  # type: ignore[arg-type]
    assert [step.target for step in span.steps] == [5, 6, 7, 8]


def test_a_model_without_a_tokenizer_writes_ids() -> None:
    for build in (zoo.bridge, *([zoo.hooked] if zoo.HAS_HOOKED else [])):
        model = build.__wrapped__("gpt2")
        ids = zoo.prompt(model, 6)
        expected = attribute_span(cache_of(model, ids), 3, tokens=ids, probes=1)
        model.tokenizer = None
        span = attribute_span(cache_of(model, ids), 3, probes=1)
        assert torch.equal(span.matrix, expected.matrix)
        assert span.tokens == tuple(f"<{token}>" for token in ids[0])
        assert span.targets == span.tokens[3:]
        assert [seen(one) for one in data(span.plot())["labels"]] == ["all targets", *span.targets]
        with pytest.raises(ValueError, match="no tokenizer"):
            attribute_span(cache_of(model, ids), 3, targets=" cat")


@pytest.mark.parametrize("lengths", [(5, 5), (8, 5)], ids=str)
def test_predictions_of_several_prompts_share_nothing(model: Any, lengths: tuple[int, int]) -> None:
    strangers = [predict(model, zoo.prompt(model, n, seed=n)) for n in (5, 8)]
    cache = cache_of(model, zoo.prompt(model, 9))
    wrong = [Prediction.from_cache(cache, position=n) for n in lengths]
    for predictions in (strangers, wrong):
        with pytest.raises(ValueError, match="one prompt"):
            Heta(variant="kl_only").each(predictions)


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
    best = span.top(2)
    assert (best[0].text, best[0].positions) == (span.tokens[highest], (highest,))
    assert [one.score for one in best] == span.total.sort(descending=True).values[:2].tolist()
    assert len(span.top(99)) == START
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
    return replace(step, diagnostics={**step.diagnostics, "chosen": {"variant": "gs"}})


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
    assert found.plot().fragment.partition('{"tokens"')[2] == span.plot().fragment.partition('{"tokens"')[2]


def test_an_attribution_is_no_span_and_a_span_no_attribution(span: SpanAttribution, tmp_path: Path) -> None:
    path = tmp_path / "any.safetensors"
    span.steps[0].save(path)
    with pytest.raises(ValueError, match=r"not a heta_lens\.span_attribution file"):
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
        with pytest.raises(ValueError, match=r"is not a heta_lens\.span_attribution file"):
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
    drawn = data(span.plot())
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
    shown = torch.tensor(data(replace(span, steps=(other, *span.steps[1:])).plot())["values"])
    assert shown[:4, 1].tolist() == [1.0, 0.5, 0.25, 0.125]
    nothing = replace(span, steps=(replace(other, scores=torch.zeros_like(scores)),))
    assert not torch.tensor(data(replace(nothing, tokens=span.tokens[:8]).plot())["values"]).any()


def test_nothing_that_is_written_adds_structure_to_the_page(hostile: SpanAttribution, tmp_path: Path) -> None:
    plain = SpanAttribution(
        tuple(replace(step, target_text="x") for step in hostile.steps), tuple("abcdefghij")
    ).plot().save(tmp_path / "plain.html").read_text(encoding="utf-8")  # fmt: skip
    page = hostile.plot().save(tmp_path / "page.html").read_text(encoding="utf-8")
    for mark in ("<script", "</script", "<!--", "<div", "<img", "</title"):
        assert page.count(mark) == plain.count(mark), mark
    drawn = data(hostile.plot())
    assert [seen(token) for token in drawn["tokens"]] == HOSTILE
    assert [seen(label) for label in drawn["labels"]] == ["all targets", *hostile.targets]


def test_the_page_brings_everything_along(span: SpanAttribution) -> None:
    fragment = span.plot()._repr_html_()
    assert "var CircuitsVis=" in fragment
    assert not re.search(r"<(script|link|img)[^>]*\s(src|href)=", fragment)
    assert not re.search(r"\b(from|import)\s*\(?\s*[\"']https?:", fragment)
    assert "unpkg.com" not in fragment
    assert json.dumps("all targets") in fragment


# ------------------------------------------------------------------------------------------------------------ refusals
@pytest.mark.parametrize(
    ("asked", "error", "words"),
    [
        ({"start": 4, "stop": 4}, ValueError, ["span 4:4", "empty"]),
        ({"start": 5, "stop": 3}, ValueError, ["span 5:3", "empty"]),
        ({"start": -3, "stop": -3}, ValueError, ["span -3:-3", "empty"]),
        ({"start": 4, "stop": 0}, ValueError, ["span 4:0", "empty"]),
        ({"start": N}, ValueError, [f"span {N}:", "empty"]),
        ({"start": N + 1}, ValueError, ["beyond", f"{N} tokens"]),
        ({"start": 4, "stop": N + 1}, ValueError, [f"4:{N + 1}", "beyond", f"{N} tokens"]),
        ({"start": -N - 1}, ValueError, ["beyond", f"{N} tokens"]),
        ({"start": 4, "stop": -N - 1}, ValueError, ["beyond", f"{N} tokens"]),
        ({"start": 0}, ValueError, ["first token", "nothing comes before"]),
        ({"start": -N, "stop": 4}, ValueError, ["first token", "nothing comes before"]),
        ({"start": True}, TypeError, ["start=True", "whole number"]),
        ({"start": 1.0}, TypeError, ["start=1.0", "whole number"]),
        ({"start": "4"}, TypeError, ["start='4'", "whole number"]),
        ({"start": None}, TypeError, ["start=None", "whole number"]),
        ({"start": 4, "stop": False}, TypeError, ["stop=False", "whole number"]),
        ({"start": 4, "stop": "7"}, TypeError, ["stop='7'", "whole number"]),
        ({"start": 4, "targets": [7]}, ValueError, ["targets=", "1 entries", f"{N - 4} positions"]),
        ({"start": 9, "targets": []}, ValueError, ["targets=", "0 entries", "2 positions"]),
        ({"start": 9, "targets": torch.tensor([5, 6, 7])}, ValueError, ["targets=", "3 entries", "2 positions"]),
        ({"start": 4, "method": "hetta"}, ValueError, ["method='hetta'", "did you mean 'heta'"]),
        ({"start": 4, "method": Heta}, TypeError, ["method=", "'heta'"]),
        ({"start": 4, "prob": 3}, TypeError, ["no option 'prob'", "did you mean 'probes'", "window_gate"]),
        ({"start": 4, "probes": 0}, ValueError, ["probes=0", "at least 1"]),
        ({"start": 4, "method": Heta(), "probes": 3}, TypeError, ["probes", "options go with a method's name"]),
        ({"start": 4, "method": Heta.preset("released"), "beta": 1.0, "seed": 2}, TypeError, ["beta, seed"]),
    ],
    ids=lambda given: (
        " ".join(f"{name}={value}" for name, value in given.items())[:30] if isinstance(given, dict) else ""
    ),
)
@pytest.mark.usefixtures("unchecked")
def test_a_wrong_span_is_refused_before_the_model_is_run(
    model: Any, cache: Any, asked: dict[str, Any], error: Any, words: list[str], forwards: Any
) -> None:
    runs = forwards(model)
    with pytest.raises(error) as refused:
        attribute_span(cache, **asked)
    assert [word for word in words if word not in str(refused.value)] == []
    assert "\n" not in str(refused.value)
    assert Path(refused.traceback[-1].path).parent == Path(heta_lens.__file__).parent
    assert runs == []


@pytest.mark.usefixtures("unchecked")
def test_a_cache_of_several_prompts_is_sent_to_where_it_can_be_explained(
    model: Any, ids: Tensor, forwards: Any
) -> None:
    cache = cache_of(model, ids.repeat(3, 1))
    runs = forwards(model)
    for explain in (partial(attribute, target=7), partial(attribute_span, start=4)):
        with pytest.raises(ValueError, match=r"3 prompts .*attribute_batch"):
            explain(cache)
    assert runs == []


@pytest.mark.parametrize(
    ("last", "words"),
    [(121, "target=121"), ("Paris!", "not one token"), ((5, 5), "itself"), (1.5, "token id"), ([1], "token id")],
)
@pytest.mark.usefixtures("unchecked")
def test_a_bad_target_at_the_end_is_found_before_long_work(
    model: Any, cache: Any, last: Any, words: str, forwards: Any
) -> None:
    runs = forwards(model)
    targets: list[Any] = [None] * (N - 5)
    with pytest.raises((ValueError, TypeError), match=words):
        attribute_span(cache, 4, targets=[*targets, last])
    assert len(runs) <= 2


@pytest.mark.parametrize("options", [{"variant": "gn"}, {"variant": "ls", "layers": 3}, {"mask": torch.zeros(3)}])
@pytest.mark.usefixtures("unchecked")
def test_what_cannot_be_done_for_the_last_target_is_refused_before_long_work(
    model: Any, cache: Any, options: dict[str, Any], forwards: Any
) -> None:
    runs = forwards(model)
    targets: list[Any] = [None] * (N - 5)
    with pytest.raises(ValueError, match=r"contrast|layers=3|3 entries"):
        attribute_span(cache, 4, targets=[*targets, PAIR], **options)
    assert len(runs) <= 2


def test_a_run_that_ends_in_nothing_is_told_where(cache: Any, ids: Tensor) -> None:
    with pytest.raises(ValueError, match=r"information is nan at position 0, token '<bos>'"):
        attribute_span(cache, START, tokens=ids, variant="kl_only", mask=torch.full((8,), torch.nan))


# ----------------------------------------------------------------------------------------------- everything as it was
OWN_KINDS: dict[str, Callable[[], Any]] = {
    "bridge": lambda: zoo.bridge.__wrapped__("gpt2"),
    **({"hooked": lambda: zoo.hooked.__wrapped__("llama")} if zoo.HAS_HOOKED else {}),
}


@pytest.mark.parametrize("kind", OWN_KINDS)
@pytest.mark.parametrize("wrong", [None, {"targets": 10**6}, {"start": 99}, {"mask": 10**6}], ids=str)
@pytest.mark.usefixtures("unchecked")
def test_nothing_of_the_callers_changes(kind: str, wrong: dict[str, Any] | None) -> None:
    model = busy(OWN_KINDS[kind]())
    ids = zoo.prompt(model, 6)
    _, cache = model.run_with_cache(ids)
    before = state(model, cache, ids)
    asked = {"start": 3, "tokens": ids, "probes": 2} | (wrong or {})
    if wrong is None:
        span = attribute_span(cache, **asked)
        assert not any(step.scores.requires_grad for step in span.steps)
    else:
        with pytest.raises(ValueError, match=r"\w"):
            attribute_span(cache, **asked)
    assert differences(before, state(model, cache, ids)) == []


@pytest.mark.parametrize("call", [1, 4, 8])
@pytest.mark.parametrize("kind", OWN_KINDS)
@pytest.mark.usefixtures("unchecked")
def test_nothing_of_the_callers_changes_when_it_is_broken_off(
    kind: str, call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = busy(OWN_KINDS[kind]())
    ids = zoo.prompt(model, 6)
    _, cache = model.run_with_cache(ids)
    fail_from(monkeypatch, model.blocks[1].ln1, call, KeyboardInterrupt())
    before = state(model, cache, ids)
    with pytest.raises(KeyboardInterrupt):
        attribute_span(cache, 3, tokens=ids, probes=2)
    assert differences(before, state(model, cache, ids)) == []


@pytest.mark.parametrize(
    "value", [{}, {"steps": [], "tokens": ("a",)}, {"steps": [{}], "tokens": ("a",)}, {"steps": 5}], ids=str
)
def test_a_file_that_lacks_what_a_span_needs_is_called_damaged(value: dict[str, Any], tmp_path: Path) -> None:
    heta_lens.storage.save(tmp_path / "span", heta_lens.span.FORMAT, heta_lens.span.VERSION, value)
    with pytest.raises(ValueError, match="damaged"):
        heta_lens.SpanAttribution.load(tmp_path / "span")
