"""Spans: every target gets the answer it would get alone, from one set of masked forwards; or is refused."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import heta_lens.model.batching
import heta_lens.prediction.prediction
import heta_lens.prediction.rerun
from helpers import zoo
from helpers.asking import cache_of, missing, refusal, relative
from helpers.attributions import START, N, alone
from helpers.attributions import alike as alike_within
from heta_lens import Heta, activation, attribute, attribute_span
from heta_lens._util.options import keywords

pytestmark = pytest.mark.filterwarnings("ignore:.*has no effect with:UserWarning")

PAIR = (7, 9)
alike = partial(alike_within, tolerance=1e-6)

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
    "small batch": {"batch": 3},
}

ALONE: dict[str, dict[str, Any]] = {
    "mean": {"mask": "mean"},
    "frozen": {"variant": "win", "window": 3},
    "chunk": {"variant": "win", "window": 3, "window_mode": "chunk", "window_gate": "per_window"},
    "restrict": {"variant": "ls+win", "layers": 1, "window": 3, "window_mode": "restrict"},
    "low rank in windows": {"variant": "lr+win", "rank": 2, "window": 4},
}


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


@pytest.mark.sample(quick=3, test=6)
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
    monkeypatch.setattr(heta_lens.prediction.rerun, "TAIL", 2)
    options: dict[str, Any] = {"probes": 2} | (SHARED | ALONE)[name]
    model = dict(zoo.KINDS)[kind]()
    ids = zoo.prompt(model, 9)
    cache = cache_of(model, ids)
    span = attribute_span(cache, 7, tokens=ids, **options)
    for step, expected in zip(span.steps, alone(cache, ids, (7, 8), **options), strict=True):
        alike(step, expected)
        assert step.options == expected.options


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


@pytest.mark.parametrize("method", ["heta", "heta variant=ls layers=1", "causal_tracing"])
def test_activations_of_a_span_are_explained_as_each_alone(method: str) -> None:
    model = zoo.bridge("gpt2", n_layers=3)
    ids = zoo.prompt(model, 9)
    cache, (name, *options) = cache_of(model, ids), method.split()
    how = {"tokens": ids, "method": name, **keywords(options)}
    low, high = (activation(f"blocks.{layer}.hook_resid_post", index=1) for layer in (0, 2))
    span = attribute_span(cache, 7, targets=[low, high], **how)
    for step, target in zip(span.steps, (low, high), strict=True):
        torch.testing.assert_close(step.scores, attribute(cache, target, position=len(step), **how).scores)


@pytest.mark.parametrize("method", ["heta", "heta variant=ls layers=1"])
def test_two_names_of_one_activation_have_the_same_scores(method: str) -> None:
    model = zoo.bridge("gpt2", n_layers=3)
    ids = zoo.prompt(model, 9)
    name, *options = method.split()
    after, before = (
        attribute(cache_of(model, ids), activation(point, index=3), tokens=ids, method=name, **keywords(options))
        for point in ("blocks.0.hook_resid_post", "blocks.1.hook_resid_pre")
    )
    torch.testing.assert_close(after.scores, before.scores)


def test_batches_that_reach_no_token_of_a_target_leave_the_target_out() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, 9)
    cache, options = cache_of(model, ids), {"tokens": ids, "method": "leave_one_out", "batch": 1}
    span = attribute_span(cache, 4, targets=lambda logits: logits[7] - logits[9], **options)
    for step in span.steps:
        single = attribute(cache, lambda logits: logits[7] - logits[9], position=len(step), **options)
        torch.testing.assert_close(step.scores, single.scores)


def test_a_token_is_measured_if_every_target_measured_it_alone() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, 24)
    span = attribute_span(cache_of(model, ids), 8, 11, tokens=ids, method="leave_one_out", forwards=6)
    each = torch.stack([step.measured[: span.start] for step in span.steps]).all(0)
    assert span.summed.measured.equal(each) and not each.all()


def test_a_cache_of_some_layers_is_as_good_as_one_of_the_embeddings() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, 6)
    _, part = model.run_with_cache(ids, names_filter=["hook_embed", "blocks.0.attn.hook_pattern"])
    options = {"tokens": ids, "probes": 2}
    torch.testing.assert_close(attribute(part, **options).scores, attribute(cache_of(model, ids), **options).scores)


@pytest.mark.slow
def test_forwards_are_shared(cache: Any, ids: Tensor) -> None:
    shared, apart = (attribute_span(cache, START, tokens=ids, probes=2, **more) for more in ({}, {"mask": "mean"}))
    for span, together in ((shared, N - START), (apart, None)):
        assert {step.diagnostics.cost.forwards_shared_by for step in span.steps} == {together}
        assert {step.diagnostics.cost.forwards_shared is None for step in span.steps} == {together is None}


def test_the_tokens_that_stand_there_are_the_targets(model: Any, cache: Any, ids: Tensor) -> None:
    span = attribute_span(cache, START, 10, tokens=ids, variant="gs")
    assert [step.target for step in span.steps] == ids[0, START:10].tolist()
    assert list(span.targets) == [model.tokenizer.decode([token]) for token in ids[0, START:10]]
    assert list(span.tokens) == [model.tokenizer.decode([token]) for token in ids[0, :10]]
    assert (span.start, len(span)) == (START, 3)


@pytest.mark.slow
def test_other_targets_may_be_asked_for(model: Any, cache: Any, ids: Tensor) -> None:
    text = model.tokenizer.decode([40])
    targets = [text, PAIR, None, 7]
    span = attribute_span(cache, START, tokens=ids, targets=targets, probes=2)
    assert [step.target for step in span.steps] == [40, PAIR, int(ids[0, 9]), 7]
    for step, expected in zip(span.steps, alone(cache, ids, range(START, N), targets, probes=2), strict=True):
        alike(step, expected)
    assert "not about the contrast" in span.steps[1].diagnostics["note"]
    assert span.tokens == attribute_span(cache, START, tokens=ids, variant="transition_only").tokens
    assert span.targets[:2] == (
        text,
        " rather than ".join(model.tokenizer.decode([token]).strip(" ") for token in PAIR),
    )


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"start": 4, "stop": 4}, ["span 4:4", "empty"]),
        ({"start": 4, "stop": N + 1}, [f"4:{N + 1}", "beyond", f"{N} tokens"]),
        ({"start": 0}, ["first token", "nothing comes before"]),
        ({"start": 4, "targets": [7]}, ["targets=", "1 entries", f"{N - 4} positions"]),
        ({"start": 4, "end": 6}, ["no option 'end'"]),
        ({"start": 4, "method": Heta(), "probes": 3}, ["probes", "options go with a method's name"]),
        ({"start": 4, "method": Heta.preset("released"), "beta": 1.0, "seed": 2}, ["beta, seed"]),
    ],
    ids=lambda given: str(given)[:30],
)
@pytest.mark.usefixtures("unchecked")
def test_a_wrong_span_is_refused_before_the_model_is_run(
    model: Any, cache: Any, asked: dict[str, Any], words: list[str], forwards: Any
) -> None:
    runs = forwards(model)
    assert missing(words, refusal(cache, call=lambda cache, _, **asked: attribute_span(cache, **asked), **asked)) == ""
    assert runs == []


@pytest.mark.parametrize(
    ("last", "options", "words"),
    [
        *((last, {}, words) for last, words in ((121, ["target=121"]), ("Paris!", ["not a single token"]))),
        *(((5, 5), {}, ["itself"]), ([1], {}, ["token id"]), (PAIR, {"variant": "gn"}, ["contrast"])),
        (PAIR, {"variant": "ls", "layers": 3}, ["layers=3"]),
        (PAIR, {"mask": torch.zeros(3)}, ["3 entries"]),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_what_cannot_be_done_for_the_last_target_is_refused_before_long_work(
    model: Any, cache: Any, last: Any, options: dict[str, Any], words: list[str], forwards: Any
) -> None:
    runs = forwards(model)
    targets: list[Any] = [None] * (N - 5)
    assert missing(words, refusal(cache, 4, call=attribute_span, targets=[*targets, last], **options)) == ""
    assert len(runs) <= 2
