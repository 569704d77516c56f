"""What models write after a context, against writing it one full run at a time; and SEA-CoT, which reads that."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from helpers import zoo
from helpers.asking import predict, relative
from helpers.writing import plain, plain_draw
from heta_lens._util.python import warn_once
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.batching import Batches
from heta_lens.model.key_values import BridgeReuse
from heta_lens.prediction.generation import Writer, beam_search, drawn_token, greedy, sample

WRITERS = pytest.mark.parametrize(
    "build", zoo.models("bridge-(gpt2|llama|gptj|mistral|native)$|hooked-(gpt2|llama|gptj)$")
)
FAMILIES = pytest.mark.parametrize("build", zoo.models("-(gpt2|llama|gptj)$"))
ONE_EACH = pytest.mark.parametrize("build", zoo.models("-gpt2$"))
N = 7


def plain_beams(model: Any, context: list[int], beams: int, tokens: int) -> list[tuple[float, list[int], Tensor]]:
    """Likelihood, tokens, and what may come after them."""
    found: list[tuple[float, list[int], Tensor]] = [(0.0, [], plain(model, context))]
    for _ in range(tokens):
        longer = [
            (likely + float(after[token]), [*written, token])
            for likely, written, after in found
            for token in range(len(after))
        ]
        best = sorted(longer, key=lambda one: -one[0])[:beams]
        found = [(likely, written, plain(model, context + written)) for likely, written in best]
    return found


def writer(model: Any, *, batch: int = 3, counts: list[int] | None = None, n: int = N) -> Writer:
    asked = predict(model, zoo.prompt(model, n))
    return Writer.after(asked, Batches(batch), [].append if counts is None else counts.append)


@WRITERS
def test_greedy_takes_the_likeliest_token_each_time(build: Callable[..., Any]) -> None:
    model = build()
    ids = zoo.prompt(model, N)[0].tolist()
    for _ in range(5):
        ids.append(int(plain(model, ids).argmax()))
    assert greedy(writer(model), 5).tolist() == ids[N:]


@WRITERS
def test_sampling_takes_the_token_where_the_draw_falls(build: Callable[..., Any]) -> None:
    model = build()
    context = zoo.prompt(model, N)[0].tolist()
    found = sample(writer(model), 4, 5, temperature=0.7, top_p=0.8, seed=3)
    for row, written in enumerate(found):
        ids = list(context)
        for draw in np.random.default_rng([3, row, *context]).random(5):
            ids.append(plain_draw(plain(model, ids), draw, 0.7, 0.8))
        assert written.tolist() == ids[N:]
    assert len({tuple(written.tolist()) for written in found}) > 1


@WRITERS
def test_beams_are_those_of_a_plain_search(build: Callable[..., Any]) -> None:
    model = build()
    found = beam_search(writer(model, batch=2), 3, 3)
    expected = plain_beams(model, zoo.prompt(model, N)[0].tolist(), 3, 3)
    assert found.ids.tolist() == [ids for _, ids, _ in expected]
    assert relative(found.log_probs, torch.tensor([likely for likely, _, _ in expected])) < 1e-6
    assert relative(found.following, torch.stack([after for _, _, after in expected])) < 1e-5


@ONE_EACH
def test_beams_without_end_find_the_likeliest_of_all_texts(build: Callable[..., Any]) -> None:
    model = build()
    context, size = zoo.prompt(model, N)[0].tolist(), model.cfg.d_vocab
    firsts = plain(model, context)
    every = torch.stack([firsts[token] + plain(model, [*context, token]) for token in range(size)])
    found = beam_search(writer(model, batch=64), size, 2)
    best = every.flatten().topk(size)
    assert relative(found.log_probs, best.values) < 1e-9
    assert found.ids.tolist() == [[place // size, place % size] for place in best.indices.tolist()]


@ONE_EACH
def test_more_beams_than_tokens_are_all_tokens(build: Callable[..., Any]) -> None:
    model = build()
    found = beam_search(writer(model), 10_000, 1)
    assert sorted(found.ids[:, 0].tolist()) == list(range(model.cfg.d_vocab))
    assert abs(float(found.log_probs.exp().sum()) - 1) < 1e-9


@WRITERS
def test_other_states_of_the_context_stay_while_it_is_continued(build: Callable[..., Any]) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    asked = predict(model, ids)
    states = asked.embeddings.clone()
    states[3] = 0

    def masked(activation: Tensor, hook: Any) -> Tensor:  # noqa: ARG001
        return torch.cat([states[None].to(activation), activation[:, N:]], 1)

    expected = ids[0].tolist()
    for _ in range(4):
        with torch.no_grad():
            logits = model.run_with_hooks(torch.tensor([expected]), fwd_hooks=[("hook_embed", masked)])
        expected.append(int(logits[0, -1].argmax()))
    after = Writer.after(asked, Batches(2), [].append, states=states)
    assert greedy(after, 4).tolist() == expected[N:]
    assert expected[N:] != greedy(writer(model), 4).tolist()


@FAMILIES
def test_more_ids_are_read_after_the_context(build: Callable[..., Any]) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    asked = predict(model, ids[:, :4])
    after = Writer.after(asked, Batches(2), [].append, more=ids[0, 4:].tolist())
    assert greedy(after, 3).tolist() == greedy(writer(model), 3).tolist()


@pytest.mark.parametrize("build", zoo.models("-(gpt2|llama)$|native"))
def test_neither_batches_nor_kept_keys_and_values_matter(build: Callable[..., Any]) -> None:
    model = build()
    one, many = writer(model, batch=1), writer(model, batch=50)
    again = Writer(one.adapter, one.ids, Batches(2), [].append, resumes=False)
    found = [beam_search(each, 4, 3) for each in (one, many, again)]
    for other in found[1:]:
        assert torch.equal(found[0].ids, other.ids)
        assert relative(other.following, found[0].following) < 1e-5
    texts = [sample(each, 4, 4, temperature=1, top_p=1, seed=0) for each in (one, many, again)]
    assert [[row.tolist() for row in text] for text in texts[1:]] == [[row.tolist() for row in texts[0]]] * 2


@ONE_EACH
def test_only_one_position_is_run_for_a_token_and_all_are_counted(
    build: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, counts, shapes = build(), [], []
    writing, run = writer(model, counts=counts), ModelAdapter.run
    monkeypatch.setattr(
        ModelAdapter,
        "run",
        lambda self, ids, *rest, **how: (shapes.append([*ids.shape]), run(self, ids, *rest, **how))[1],
    )
    sample(writing, 4, 3, temperature=1, top_p=1, seed=0)
    assert shapes == [[1, N], [3, 1], [1, 1], [3, 1], [1, 1]]
    assert counts == [1, 3, 1, 3, 1]


@ONE_EACH
def test_a_batch_that_does_not_fit_leaves_nothing_behind(
    build: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build()
    expected, run = beam_search(writer(model, batch=1), 5, 3), ModelAdapter.run

    def small(self: ModelAdapter, ids: Tensor, *rest: Any, **how: Any) -> Tensor:
        if len(ids) > 2:
            raise torch.OutOfMemoryError
        return run(self, ids, *rest, **how)

    monkeypatch.setattr(ModelAdapter, "run", small)
    found = beam_search(writer(model, batch=5), 5, 3)
    assert torch.equal(found.ids, expected.ids) and relative(found.following, expected.following) < 1e-9


@ONE_EACH
def test_a_text_ends_before_the_token_that_ends_it(build: Callable[..., Any]) -> None:
    model, counts = build(), []
    whole = [row.tolist() for row in sample(writer(model), 3, 6, temperature=1, top_p=1, seed=0)]
    end = whole[0][2]
    ended = [row.tolist() for row in sample(writer(model), 3, 6, temperature=1, top_p=1, seed=0, end=end)]
    assert ended == [row[: row.index(end)] if end in row else row for row in whole]
    assert len(ended[0]) <= 2
    first = greedy(writer(model), 1)
    assert greedy(writer(model, counts=counts), 6, end=int(first)).tolist() == [] and counts == [1]


def test_a_draw_falls_among_the_likeliest_tokens() -> None:
    """Of .5, .3, .15 and .05 the nucleus of .7 is the first two, which share all of the chance: .625 and .375."""
    log_probs = torch.tensor([0.15, 0.5, 0.05, 0.3], dtype=torch.float64).log()
    for draw, top_p, token in (
        (0.0, 0.7, 1), (0.62, 0.7, 1), (0.63, 0.7, 3), (1 - 2**-53, 0.7, 3), (0.79, 1, 3), (0.81, 1, 0), (0.99, 1, 2),
        (0.99, 0.5, 1), (0.99, 0.01, 1),
    ):  # fmt: skip
        found = drawn_token(log_probs[None], torch.tensor([draw], dtype=torch.float64), 1, top_p)
        assert found.tolist() == [token], (draw, top_p)
    cold, hot = (drawn_token(log_probs[None], torch.tensor([0.999]), heat, 1).tolist() for heat in (0.01, 100.0))
    assert cold == [1] and hot == [2]
    assert drawn_token(log_probs[None], torch.tensor([0.999]), 0, 1).tolist() == [1]


def test_a_cache_that_changes_what_is_written_is_not_used_and_named_once(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    """As TransformerLens 3.9 under transformers 5.24: a run that continues forgets what was before it."""
    model, resume = zoo.bridge("llama"), BridgeReuse.resume
    expected = greedy(writer(model), 5).tolist()

    def forgetful(self: BridgeReuse, kept: Any, *rest: Any) -> Any:
        return resume(self, [(keys, 0 * values) for keys, values in kept], *rest)

    monkeypatch.setattr(BridgeReuse, "resume", forgetful)
    warn_once.cache_clear()
    for _ in range(2):
        assert greedy(writer(model), 5).tolist() == expected
    assert [str(one.message).split(",")[0] for one in recwarn] == ["the model writes every token by a whole run"]
    resuming = replace(writer(model), resumes=True)
    assert greedy(resuming, 5).tolist() != expected
