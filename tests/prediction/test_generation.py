"""What models write after a context, against writing it one full run at a time; and SEA-CoT, which reads that."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from helpers import zoo
from helpers.asking import plain, plain_draw, predict, relative
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.batching import Batches
from heta_lens.model.key_values import BridgeReuse
from heta_lens.prediction.generation import Writer, beam_search, continuation, greedy, sample

WRITERS = pytest.mark.parametrize(
    "build", zoo.models("bridge-(gpt2|llama|gptj|mistral|native)$|hooked-(gpt2|llama|gptj)$")
)
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


def writer(model: Any, *, batch: int = 3, n: int = N) -> Writer:
    return Writer.after(predict(model, zoo.prompt(model, n)), Batches(batch))


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


@pytest.mark.parametrize("build", zoo.models("-(gpt2|llama)$|native"))
def test_neither_batches_nor_kept_keys_and_values_matter(build: Callable[..., Any]) -> None:
    model = build()
    one, many = writer(model, batch=1), writer(model, batch=50)
    again = Writer(one.adapter, one.ids, Batches(2), resumes=False)
    found = [beam_search(each, 4, 3) for each in (one, many, again)]
    for other in found[1:]:
        assert torch.equal(found[0].ids, other.ids)
        assert relative(other.following, found[0].following) < 1e-5
    texts = [sample(each, 4, 4, temperature=1, top_p=1, seed=0) for each in (one, many, again)]
    assert [[row.tolist() for row in text] for text in texts[1:]] == [[row.tolist() for row in texts[0]]] * 2


def test_a_cache_that_changes_what_is_written_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """As TransformerLens 3.9 under transformers 5.24: a run that continues forgets what was before it."""
    model, resume = zoo.bridge("llama"), BridgeReuse.resume
    expected = greedy(writer(model), 5).tolist()

    def forgetful(self: BridgeReuse, kept: Any, *rest: Any) -> Any:
        return resume(self, [(keys, 0 * values) for keys, values in kept], *rest)

    monkeypatch.setattr(BridgeReuse, "resume", forgetful)
    assert greedy(writer(model), 5).tolist() == expected
    resuming = replace(writer(model), resumes=True)
    assert greedy(resuming, 5).tolist() != expected


def test_an_answer_ends_where_the_model_s_settings_say_so() -> None:
    model = zoo.NEW["llama"]()
    ids = zoo.prompt(model, N)
    first, second, *_ = continuation(ModelAdapter(model), ids, 6)
    model.original_model.generation_config.eos_token_id = [model.tokenizer.eos_token_id, second]
    assert continuation(ModelAdapter(model), ids, 6) == ([first] if first != second else [])
