"""Effects of masking with few runs: every number against a plain run with the same span masked."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import heta_lens
from helpers import chats, zoo
from helpers.asking import cache_of, explain, plain_embeddings, plain_log_probs, predict, relative
from heta_lens import Attribution
from heta_lens.methods.leave_one_out import LeaveOneOut
from heta_lens.prediction.search import first_spans

N, RUNS = 24, 13
METHODS = [("leave_one_out", {}), ("careful", {}), ("heta", {"variant": "kl_only"}), ("gilot", {})]


def plain_effects(model: Any, ids: Tensor, target: int) -> Callable[[int, int], tuple[float, float]]:
    """The divergence and the target's drop when the embeddings at ``start:stop`` are zeros: a whole run each."""
    embeddings, log_probs = plain_embeddings(model, ids), plain_log_probs(model, ids)
    clean = log_probs(embeddings).detach()

    def effects(start: int, stop: int) -> tuple[float, float]:
        masked = embeddings.clone()
        masked[start:stop] = 0
        after = log_probs(masked).detach()
        return float((clean.exp() * (clean - after)).sum()), float((clean - after)[target])

    return effects


@pytest.mark.parametrize("build", zoo.models())
def test_every_token_has_its_own_effect_or_a_share_of_its_spans(
    build: Any, forwards: Callable[[Any], list[Any]]
) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    asked = predict(model, ids)
    of, runs = plain_effects(model, ids, int(asked.target)), forwards(model)
    divergences, drops = (LeaveOneOut(effect=effect, forwards=RUNS)(asked) for effect in ("kl", "log_prob"))
    assert drops.diagnostics.cost.forwards in range(RUNS - 1, RUNS + 1)
    del runs
    together = drops.diagnostics.masked_together
    assert together and divergences.diagnostics.masked_together == together
    expected = torch.tensor([of(place, place + 1) for place in range(N)], dtype=torch.float64)
    for start, stop, moved in together:
        whole = of(start, stop)
        assert moved == pytest.approx(whole[0], rel=1e-5, abs=1e-7)
        expected[start:stop] = torch.tensor(whole, dtype=torch.float64) / (stop - start)
    assert relative(divergences.scores, expected[:, 0]) < 1e-5 and relative(drops.scores, expected[:, 1]) < 1e-5
    assert drops.measured.tolist() == [not any(a <= place < b for a, b, _ in together) for place in range(N)]
    assert 0 < int(drops.measured.sum()) < N


@pytest.mark.parametrize(("method", "options"), METHODS)
def test_enough_runs_measure_every_token(method: str, options: dict[str, Any]) -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    exact, searched = (explain(model, ids, method=method, **options, forwards=runs) for runs in (None, N))
    assert torch.equal(exact.scores, searched.scores) and searched.measured.all()


@pytest.mark.parametrize(("method", "options"), METHODS)
def test_a_search_takes_the_runs_that_it_is_given(method: str, options: dict[str, Any]) -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    exact, searched = (explain(model, ids, method=method, **options, forwards=runs) for runs in (None, RUNS))
    assert exact.diagnostics.cost.forwards - searched.diagnostics.cost.forwards >= N - RUNS
    found = heta_lens.estimate(cache_of(model, ids), tokens=ids, method=method, **options, forwards=RUNS)
    assert searched.diagnostics.cost.forwards <= found.forwards


@pytest.mark.parametrize(
    "target",
    [{6, 7}, (6, 7), (6, {7, 8}), lambda logits: logits[2], heta_lens.activation("blocks.1.hook_resid_post", index=1)],
    ids=["set", "contrast", "sets", "function", "activation"],
)
def test_every_kind_of_target_is_searched(target: Any) -> None:
    model = zoo.bridge("gpt2")
    ids, options = zoo.prompt(model, N), {"method": "leave_one_out"}
    exact, searched = (explain(model, ids, target, **options, forwards=runs) for runs in (None, RUNS))
    alone = searched.measured
    assert 0 < int(alone.sum()) < N and relative(searched.scores[alone], exact.scores[alone]) < 1e-6


def test_the_prompts_of_a_batch_have_searches_of_their_own() -> None:
    model = zoo.bridge("gpt2")
    ids = torch.cat([zoo.prompt(model, N, seed) for seed in (0, 1)])
    options = {"method": "leave_one_out", "forwards": RUNS}
    batch = heta_lens.attribute_batch(cache_of(model, ids), tokens=ids, **options)
    for own, found in zip(ids, batch, strict=True):
        alone = explain(model, own[None], **options)
        assert relative(found.scores, alone.scores) < 1e-6
        assert found.diagnostics.cost.forwards == alone.diagnostics.cost.forwards


def test_one_search_serves_a_span() -> None:
    model = zoo.bridge("llama")
    ids = zoo.prompt(model, N)
    found = heta_lens.attribute_span(cache_of(model, ids), N - 3, tokens=ids, method="leave_one_out", forwards=RUNS)
    for step in found.steps:
        assert step.diagnostics.cost.forwards_shared_by == 3 and step.diagnostics.cost.forwards <= RUNS
        of = plain_effects(model, ids[:, : len(step)], int(step.target))
        for place in step.measured.nonzero()[:, 0].tolist():
            assert float(step.scores[place]) == pytest.approx(of(place, place + 1)[1], rel=1e-5, abs=1e-7)
        for start, stop, moved in step.diagnostics.masked_together or ():
            assert moved == pytest.approx(of(start, stop)[0], rel=1e-5, abs=1e-7)
            assert float(step.scores[start:stop].sum()) == pytest.approx(of(start, stop)[1], rel=1e-5, abs=1e-7)


def test_a_span_says_what_was_measured_alone_for_every_target() -> None:
    model = zoo.bridge("llama")
    ids, options = zoo.prompt(model, N), {"method": "leave_one_out", "mask": "mean", "forwards": N - 3}
    found = heta_lens.attribute_span(cache_of(model, ids), N - 3, tokens=ids, **options)
    searched = [step.diagnostics.masked_together is not None for step in found.steps]
    assert searched == [False, True, True]  # the first context is no longer than the budget
    alone = torch.stack([step.measured[: N - 3] for step in found.steps]).all(0)
    assert torch.equal(found.summed.measured, alone) and not alone.all()


def test_the_runs_of_a_span_go_to_the_prompt_before_the_answer() -> None:
    model = zoo.bridge("llama")
    ids, options = zoo.prompt(model, N), {"method": "leave_one_out", "forwards": 18}
    found = heta_lens.attribute_span(cache_of(model, ids), N // 3, tokens=ids, **options)
    assert found.summed.measured.all() and not found.steps[-1].measured.all()


def test_exact_effects_on_a_span_share_their_runs() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    span = heta_lens.attribute_span(cache_of(model, ids), N - 3, tokens=ids, method="leave_one_out")
    for step in span.steps:
        alone = explain(model, ids[:, : len(step)], int(step.target), method="leave_one_out")
        assert relative(step.scores, alone.scores) < 1e-6
        assert step.diagnostics.cost.forwards_shared == N - 1


def test_spans_are_sentences_and_lines_and_are_joined_where_few_are_wanted() -> None:
    model = heta_lens.load_demo_model()
    text = (
        "Mia put the key in the drawer. Leo put the key in the box. Question: Where did Leo put the key? Answer: in the"
    )
    asked = predict(model, model.to_tokens(text))
    written, offsets = asked.located

    def words(most: int) -> list[str]:
        return [written[offsets[span[0]].start : offsets[span[-1]].stop].strip() for span in first_spans(asked, most)]

    bos, *sentences = words(N)
    assert bos == "<bos>" and " | ".join(sentences) == text.replace(". ", ". | ").replace("? ", "? | ")
    assert len(words(3)) <= 3 and len(words(1)) == 2  # a special token stands alone
    assert [place for span in first_spans(asked, 3) for place in span] == [*range(len(asked))]
    bare = predict(model, model.to_tokens(text, prepend_bos=False))
    assert [*map(len, first_spans(bare, 1))] == [len(bare)] and len(first_spans(bare, 3)) in (2, 3)
    one = predict(model, model.to_tokens(text.replace(".", "").replace("?", ""), prepend_bos=False))
    lengths = [*map(len, first_spans(one, 4))]
    assert len(lengths) == 4 and max(lengths) <= min(lengths) + 2  # equal pieces of the text


@pytest.mark.parametrize("name", chats.FAMILIES)
def test_a_chats_template_is_kept_and_no_span_leaves_a_message(name: str) -> None:
    model = next(iter(chats.MODELS.values()))(name)
    chat = heta_lens.chat(model, chats.CHAT)
    cache = cache_of(model, chat.tokens)
    asked = heta_lens.Prediction.from_cache(cache, tokens=chat)
    spans = first_spans(asked, 1)
    assert sorted(place for span in spans for place in span) == (~chat.template).nonzero()[:, 0].tolist()
    assert all(len({chat.owners[place] for place in span}) == 1 for span in spans)
    found = heta_lens.attribute(cache, tokens=chat, method="leave_one_out", forwards=len(spans) + 8)
    assert not found.scores[chat.template].any() and not found.measured[chat.template].any()
    exact = heta_lens.attribute(cache, tokens=chat, method="leave_one_out")
    own = int((~chat.template).sum())
    for runs in (own, len(asked) + 1):  # enough for every token but the template's
        whole = heta_lens.attribute(cache, tokens=chat, method="leave_one_out", forwards=runs)
        assert torch.equal(whole.measured, ~chat.template) and whole.diagnostics.cost.forwards == own
        assert relative(whole.scores, exact.scores * ~chat.template) < 1e-5
    with pytest.raises(ValueError, match=f"forwards={len(spans) - 1} .* give {len(spans)} or more"):
        heta_lens.attribute(cache, tokens=chat, method="leave_one_out", forwards=len(spans) - 1)


def test_a_context_of_the_template_alone_is_kept_as_it_is() -> None:
    model = next(iter(chats.MODELS.values()))("qwen2.5")
    chat = heta_lens.chat(model, chats.CHAT)
    begun = chat.owners.index(0)
    cache = cache_of(model, chat.tokens)
    found = heta_lens.attribute(cache, tokens=chat, position=begun, method="leave_one_out", forwards=2)
    assert len(found) == begun > 2 and not found.scores.any() and not found.measured.any()


@pytest.mark.parametrize(("method", "beside"), [("leave_one_out", 0), ("careful", 2)])
def test_no_more_runs_are_taken_than_asked_for(method: str, beside: int) -> None:
    """Beside the information, `careful` runs the clean context for its gradient, and the wholly masked one."""
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, 12)
    for runs in range(2, 12):
        try:
            found = explain(model, ids, method=method, forwards=runs)
        except ValueError as error:
            assert f"forwards={runs} are too few" in str(error) and runs < 4  # noqa: PT017
        else:
            assert found.diagnostics.cost.forwards <= runs + beside


def test_what_was_measured_is_kept_in_files_and_frames(tmp_path: Any) -> None:
    model = zoo.bridge("gpt2")
    found = explain(model, zoo.prompt(model, N), method="leave_one_out", forwards=RUNS)
    found.save(tmp_path / "found.safetensors")
    loaded = Attribution.load(tmp_path / "found.safetensors")
    assert torch.equal(loaded.measured, found.measured) and loaded.to_frame()["measured"].sum() == found.measured.sum()
    alone, spans = int(found.measured.sum()), len(found.diagnostics.masked_together or ())
    said = f"{alone} of {N} tokens measured alone; the rest in {spans} spans, the largest moves "
    assert [note for note in found.notes if note.startswith(said) and note.endswith(" nats")]
    assert torch.equal(found.without([3]).measured, found.measured[torch.arange(N) != 3])
    exact = explain(model, zoo.prompt(model, N), method="leave_one_out")
    assert exact.measured.all() and "measured" not in exact.to_frame()


def test_windows_and_a_search_contradict_each_other() -> None:
    with pytest.raises(ValueError, match=r"forwards= .*variant=.win."):
        heta_lens.Heta(variant="win", window=8, forwards=RUNS)
