"""What models write after a context, against writing it one full run at a time; and SEA-CoT, which reads that."""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from asking import predict, relative
from torch import Tensor

import zoo
from heta_lens.baselines.sea_cot import SeaCot, content_words, overlap, weighed
from heta_lens.batches import Batches
from heta_lens.generation import Writer, beam_search, drawn_token, greedy, sample
from heta_lens.lens import Lens
from heta_lens.prediction import Prediction

WRITERS = pytest.mark.parametrize(
    "build", zoo.models("bridge-(gpt2|llama|gptj|mistral|native)$|hooked-(gpt2|llama|gptj)$")
)
FAMILIES = pytest.mark.parametrize("build", zoo.models("-(gpt2|llama|gptj)$"))
ONE_EACH = pytest.mark.parametrize("build", zoo.models("-gpt2$"))
N = 7


# ------------------------------------------------------------------------------------------ the same, slow and plain
def plain(model: Any, ids: Sequence[int]) -> Tensor:
    """What comes next."""
    with torch.no_grad():
        return model(torch.tensor([list(ids)]))[0, -1].log_softmax(-1)


def plain_draw(log_probs: Tensor, draw: float, temperature: float, top_p: float) -> int:
    """Walk through the tokens, likeliest first, until the draw is used up."""
    probs = (log_probs / temperature).softmax(-1).tolist()
    order = sorted(range(len(probs)), key=lambda token: (-probs[token], token))
    nucleus: list[int] = []
    while sum(probs[token] for token in nucleus) < top_p and len(nucleus) < len(order):
        nucleus.append(order[len(nucleus)])
    left = draw * sum(probs[token] for token in nucleus)
    for token in nucleus:
        left -= probs[token]
        if left < 0:
            return token
    return nucleus[-1]


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


# --------------------------------------------------------------------------------------------------------- writing on
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
        for draw in np.random.default_rng([3, row]).random(5):
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
    again = Writer(one.lens, one.ids, Batches(2), [].append, resumes=False)
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
    writing, run = writer(model, counts=counts), Lens.run
    monkeypatch.setattr(
        Lens, "run", lambda self, ids, *rest, **how: (shapes.append([*ids.shape]), run(self, ids, *rest, **how))[1]
    )
    sample(writing, 4, 3, temperature=1, top_p=1, seed=0)
    assert shapes == [[1, N], [3, 1], [1, 1], [3, 1], [1, 1]]
    assert counts == [1, 3, 1, 3, 1]


@ONE_EACH
def test_a_batch_that_does_not_fit_leaves_nothing_behind(
    build: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build()
    expected, run = beam_search(writer(model, batch=1), 5, 3), Lens.run

    def small(self: Lens, ids: Tensor, *rest: Any, **how: Any) -> Tensor:
        if len(ids) > 2:
            raise torch.OutOfMemoryError
        return run(self, ids, *rest, **how)

    monkeypatch.setattr(Lens, "run", small)
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


# ------------------------------------------------------------------------------------------------------------ SEA-CoT
SHORT: dict[str, Any] = {
    "think": ".", "conclude": " is", "entail": "{explanation} in {claim}?",
    "explanations": 12, "length": 6, "temperature": 3, "top_p": 1,
}  # fmt: skip
"""For models of 64 positions that know no words and repeat few."""


def text_of(tokenizer: Any, ids: Sequence[int]) -> str:
    return tokenizer.decode([token for token in ids if token not in tokenizer.all_special_ids])


def plain_entailment(model: Any, question: list[int]) -> float:
    """The odds of Yes to No, each spelled out token by token."""
    likely = []
    for answer in (" Yes", " No"):
        ids, total = list(question), 0.0
        for token in model.tokenizer.encode(answer, add_special_tokens=False):
            total += float(plain(model, ids)[token])
            ids.append(token)
        likely.append(np.exp(total))
    return likely[0] / (likely[0] + likely[1])


def plain_sea_cot(asked: Prediction, options: dict[str, Any]) -> dict[str, Any]:
    """Explanation by explanation, and character by character of the context."""
    model, ids, target = asked.lens.model, asked.ids.tolist(), asked.target
    tokenizer = model.tokenizer
    encode = partial(tokenizer.encode, add_special_tokens=False)
    written, kept, merits = [], [], []
    for row in range(options["explanations"]):
        so_far = [*ids, *encode(options["think"])]
        start = len(so_far)
        for draw in np.random.default_rng([0, row]).random(options["length"]):
            token = plain_draw(plain(model, so_far), draw, options["temperature"], options["top_p"])
            if token == tokenizer.eos_token_id:
                break
            so_far.append(token)
        written.append(so_far[start:])
    think, conclude = encode(options["think"]), encode(options["conclude"])
    hits = [int(plain(model, [*ids, *think, *each, *conclude]).argmax()) == target for each in written]
    for each, hit in zip(written, hits, strict=True):
        if not hit and any(hits):
            continue
        question = [*ids[:1], *each, *encode(" in "), *ids[1:], target, *encode("?")]
        said, claimed = (content_words(text_of(tokenizer, some)) for some in (each, [*ids, target]))
        shared = len(said & claimed) / len(said | claimed) if said | claimed else 0
        kept.append(said)
        merits.append(plain_entailment(model, question) + shared)
    weights = np.exp(merits) / np.exp(merits).sum()
    scores = np.zeros(len(ids))
    words, at = [], -1  # the word of each token: one starts at a token that starts with a space
    for place, token in enumerate(ids[1:], 1):
        piece = tokenizer.decode([token])
        if piece.startswith(" ") or at < 0:
            words.append("")
            at += 1
        words[-1] += piece
        scores[place] = at
    by_word = [sum(w for w, said in zip(weights, kept, strict=True) if content_words(word) & said) for word in words]
    return {
        "scores": torch.tensor([0.0, *(by_word[int(at)] for at in scores[1:])], dtype=torch.float64),
        "weights": torch.from_numpy(weights),
        "hit_rate": sum(hits) / len(hits),
    }


@pytest.mark.parametrize("build", zoo.models("-llama$|bridge-gptj$"))
def test_sea_cot_is_the_weight_of_the_explanations_that_mention_a_word(build: Callable[..., Any]) -> None:
    model = build()
    tokenizer = model.tokenizer
    ids = torch.tensor(
        [
            [
                tokenizer.bos_token_id,
                *tokenizer.encode(
                    "The cat dog tower Mary Rome Paris store France Italy capital drink", add_special_tokens=False
                ),
            ]
        ]
    )
    assert {"cat", "tower"} < content_words(tokenizer.decode(ids[0].tolist()))
    asked = predict(model, ids)
    options = SHORT | {"temperature": 30}
    found, expected = SeaCot(**options)(asked), plain_sea_cot(asked, options)
    assert relative(found.diagnostics["weights"], expected["weights"]) < 1e-5
    assert expected["scores"].max() > 0
    assert relative(found.scores, expected["scores"]) < 1e-5
    assert found.diagnostics["hit_rate"] == expected["hit_rate"]
    assert found.method == "sea_cot_adapted" and not found.signed


@ONE_EACH
def test_sea_cot_keeps_the_explanations_that_lead_to_the_target(build: Callable[..., Any]) -> None:
    model = build()
    ids = zoo.prompt(model, 8)
    asked = predict(model, ids)
    written = sample(
        Writer.after(asked, Batches(8), [].append, more=model.tokenizer.encode(".", add_special_tokens=False)),
        12, 6, temperature=3, top_p=1, seed=0, end=model.tokenizer.eos_token_id,
    )  # fmt: skip
    think = model.tokenizer.encode(".", add_special_tokens=False)
    ends = [int(plain(model, [*ids[0].tolist(), *think, *one.tolist()]).argmax()) for one in written]
    often, never = max(set(ends), key=ends.count), next(token for token in range(99) if token not in ends)
    options = SHORT | {"conclude": ""}
    hit, missed = (SeaCot(**options)(predict(model, ids, target)).diagnostics for target in (often, never))
    assert hit["hit_rate"] == ends.count(often) / 12 and len(hit["weights"]) == ends.count(often) < 12
    assert missed["hit_rate"] == 0 and len(missed["weights"]) == 12
    assert hit["forwards"] <= SeaCot(**options).work(asked)["forwards"]


@ONE_EACH
def test_sea_cot_can_ask_somebody_else_what_entails_the_claim(build: Callable[..., Any]) -> None:
    model, asked_of = build(), []

    def judge(premise: str, hypothesis: str) -> float:
        asked_of.append((premise, hypothesis))
        return float("e" in premise)

    asked = predict(model, zoo.prompt(model, 8), 30)
    found = SeaCot(**SHORT | {"entail": judge})(asked)
    texts = found.diagnostics["explanations"]
    claimed = text_of(model.tokenizer, [*asked.ids.tolist(), 30])
    assert asked_of == [(text, claimed) for text in texts]
    assert found.diagnostics["entailed"].tolist() == [float("e" in text) for text in texts]
    assert len(set(found.diagnostics["entailed"].tolist())) == 2
    assert "judge" in str(found.options["entail"])
    best = SeaCot(**SHORT | {"entail": judge, "weights": "argmax"})(asked).diagnostics
    merits = best["entailed"] + best["shared"]
    assert best["weights"].tolist() == [float(row == int(merits.argmax())) for row in range(len(merits))]


@ONE_EACH
@pytest.mark.filterwarnings("ignore:top_p=1.* has no effect with temperature=0")
def test_chance_and_batches_and_length_in_sea_cot(build: Callable[..., Any]) -> None:
    model = build()
    asked = predict(model, zoo.prompt(model, 8), 30)
    some = SHORT | {"explanations": 4}
    told = [
        SeaCot(**some | change)(asked).diagnostics["explanations"]
        for change in (
            {},
            {"batch": 1},
            {"seed": 1},
            {"temperature": 0},
            {"top_p": 0.05},
            {"think": " to"},
            {"length": 3},
        )
    ]
    assert told[0] == told[1] and all(told[0] != other for other in told[2:])
    assert len(set(told[3])) == 1
    assert max(map(len, told[6])) < max(map(len, told[0]))
    entailed = [
        SeaCot(**some | change)(asked).diagnostics["entailed"] for change in ({}, {"entail": "{claim}{explanation}"})
    ]
    assert not torch.equal(*entailed)


def test_words_that_two_texts_share() -> None:
    assert overlap({"cat", "sat", "mat"}, {"cat", "mat", "dog"}) == 0.5
    assert overlap(set(), set()) == 0
    assert content_words("The Cat's hat, and the DOG_2 -- (it) 'sat' there!") == {"cat's", "hat", "dog", "2", "sat"}
    assert weighed(torch.tensor([0.0, np.log(3.0)]), "softmax").tolist() == pytest.approx([0.25, 0.75])
    assert weighed(torch.tensor([0.0, 2.0, 1.0]), "argmax").tolist() == [0, 1, 0]


@ONE_EACH
def test_what_sea_cot_refuses(build: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    model = build()
    ids = zoo.prompt(model, 8)
    asked = predict(model, ids, 30)
    with pytest.raises(ValueError, match="'sea_cot' explains one token, and cannot contrast"):
        SeaCot(**SHORT)(predict(model, ids, (30, 31)))
    with pytest.raises(ValueError, match=r"'sea_cot' takes 170 positions, .*: make length=100 smaller"):
        SeaCot()(asked)
    for wrong in ("{explanation}", "{claim} {claim} {explanation}"):
        with pytest.raises(ValueError, match=r"must have \{explanation\} and \{claim\} in it, each once"):
            SeaCot(entail=wrong)
    for wrong in (1.5, -0.1, float("nan"), "yes", None):
        with pytest.raises(ValueError, match=f"entail gave {wrong!r} for '.*', which is no probability"):
            SeaCot(**SHORT | {"entail": lambda *_, wrong=wrong: wrong})(asked)
    monkeypatch.setattr("heta_lens.baselines.sea_cot.YES", " No")
    with pytest.raises(ValueError, match="' No' and ' No' alike"):
        SeaCot(**SHORT)(asked)
    monkeypatch.setattr(model, "tokenizer", None)
    with pytest.raises(ValueError, match="'sea_cot' reads and writes text, and the model has no tokenizer"):
        SeaCot(**SHORT)(asked)


@pytest.mark.usefixtures("unchecked")
def test_what_is_told_to_the_model_is_text() -> None:
    for name in ("think", "conclude", "entail"):
        with pytest.raises(TypeError, match=f"{name}=3 must be text"):
            SeaCot(**{name: 3})


@ONE_EACH
def test_sea_cot_refuses_hooks(build: Callable[..., Any]) -> None:
    model = build()
    model.add_hook("blocks.0.hook_resid_post", lambda activation, hook: activation * 0.9)  # noqa: ARG005
    try:
        with pytest.raises(ValueError, match=re.escape("method='sea_cot' writes after the context, which hooks")):
            SeaCot(**SHORT)(predict(model, zoo.prompt(model, 8), 30))
    finally:
        model.reset_hooks()
