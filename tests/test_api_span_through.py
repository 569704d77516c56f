"""Spans followed through the model's own reasoning: the same answers, passed on to the prompt."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import chats, zoo
from helpers.asking import cache_of, relative
from helpers.attributions import same
from heta_lens import SpanAttribution, attribute, attribute_span, chat

pytestmark = [pytest.mark.both_lines, pytest.mark.filterwarnings("ignore:.*has no effect with:UserWarning")]
N, A, B, START = 13, 5, 8, 10
WAYS: dict[str, dict[str, Any]] = {
    "heta": {"probes": 2},
    "row": {"support": "row", "probes": 2},
    "windows": {"variant": "win", "window": 6, "probes": 2},
    "mean": {"mask": "mean", "probes": 2},
    "signed": {"method": "input_x_gradient"},
    "lrp": {"method": "attn_lrp"},
    "left out": {"method": "leave_one_out"},
}


@pytest.fixture
def ids(model: Any) -> Tensor:
    return zoo.prompt(model, N)


@pytest.fixture
def span(cache: Any, ids: Tensor) -> SpanAttribution:
    return attribute_span(cache, START, through=(A, B), tokens=ids, probes=2)


def one_after_the_other(total: Tensor, written: list[Tensor]) -> Tensor:
    """As the documentation has it: from the last token of the reasoning to the first, each hands all it has on."""
    mass = total.double().tolist()
    for place in reversed(range(A, B)):
        own, given = written[place - A].double().tolist(), mass[place]
        mass[place] = 0.0
        for source, score in enumerate(own):
            mass[source] += given * score / sum(map(abs, own))
    return torch.tensor(mass).to(total)


@pytest.mark.parametrize("build", zoo.models("-(gpt2|llama)$"))
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.sample(quick=0, test=3)
def test_every_token_is_explained_as_if_it_were_alone_and_hands_on_by_that(build: Any, way: str) -> None:
    model, options = build(), WAYS[way]
    ids = zoo.prompt(model, N)
    cache = cache_of(model, ids)
    found = attribute_span(cache, START, 12, through=(A, B), tokens=ids, targets=[(7, 9), None], **options)
    plain = attribute_span(cache, START, 12, tokens=ids, targets=[(7, 9), None], **options)
    assert relative(found.total, plain.total) < 1e-6
    assert relative(found.matrix, plain.matrix) < 1e-6
    assert (found.tokens, found.targets, found.start, len(found)) == (plain.tokens, plain.targets, START, 2)
    written = [attribute(cache, position=place, tokens=ids, **options) for place in range(A, B)]
    for step, alone in zip(found.reasoning, written, strict=True):
        assert step.target == int(ids[0, len(step)])
        assert relative(step.scores, alone.scores) < 1e-6
    assert relative(found.through, one_after_the_other(plain.total, [step.scores for step in written])) < 1e-6
    torch.testing.assert_close(found.through, found.hops.sum(0))
    assert found.through.shape == (START,)
    assert (found.through[A:B] == 0).all()
    torch.testing.assert_close(found.through[B:], found.total[B:])  # given, between reasoning and answer
    if not found.steps[0].signed:
        torch.testing.assert_close(found.through.sum(), found.total.sum(), rtol=1e-6, atol=0)
        torch.testing.assert_close(found.hop_shares, found.hops.sum(1) / found.total.sum())
    assert float(found.hop_shares.sum()) == pytest.approx(1)


def test_messages_of_a_chat_have_what_came_to_them(tmp_path: Path) -> None:
    model = chats.bridge("llama3")
    made = chat(model, chats.CHAT)
    answer = model.generate(made.tokens, max_new_tokens=6, stop_at_eos=False, do_sample=False, verbose=False)
    cache, whole = cache_of(model, answer), made.followed_by(answer[:, len(made) :])
    found = attribute_span(cache, -2, through=(len(made), -2), tokens=whole, method="attention_rollout")
    roles = {role.text: role.score for role in found.by_role()}
    assert sum(roles.values()) == pytest.approx(float(found.total.sum()), rel=1e-6)
    assert roles["user"] > {role.text: role.score for role in found.direct.by_role()}["user"]
    found.save(tmp_path / "span")
    assert SpanAttribution.load(tmp_path / "span").by_role() == found.by_role()


@pytest.mark.parametrize(
    ("through", "error", "words"),
    [
        ((A, A), ValueError, [f"through=({A}, {A})", "is empty"]),
        ((0, B), ValueError, [f"through=(0, {B})", "first token", "nothing comes before"]),
        ((A, START + 1), ValueError, [f"through=({A}, {START + 1})", "before the answer", f"begins at {START}"]),
        ((A, 99), ValueError, ["before the answer"]),
        (A, TypeError, [f"through={A}", "pair (a, b)"]),
        ((A, B, START), TypeError, ["pair (a, b)"]),
        ((A, 7.5), TypeError, ["whole numbers"]),
        ("58", TypeError, ["through='58'", "pair (a, b)"]),
    ],
    ids=repr,
)
@pytest.mark.usefixtures("unchecked")
def test_what_is_no_reasoning_is_refused_before_any_run(
    model: Any, cache: Any, through: Any, error: type[Exception], words: list[str], forwards: Any
) -> None:
    runs = forwards(model)
    with pytest.raises(error) as refused:
        attribute_span(cache, START, through=through)
    assert all(word in str(refused.value) for word in words), refused.value
    assert runs == []


def test_what_is_read_is_about_what_was_followed(span: SpanAttribution) -> None:
    lines, best = repr(span).splitlines(), span.top(1, special=True)[0]
    assert f"through=({A}, {B})" in lines[0] and span.title == lines[0]
    assert best.score == float(span.through.max()) and f"{span.top(1)[0].score:.4g}" in lines[1]
    assert lines[-2].startswith(f"{float(span.hop_shares[0]):.0%} of the score came straight from the answer, ")
    assert lines[-1].startswith("by the reasoning tokens on the way: ")
    assert all(len(line) <= 80 for line in lines)
    text = "".join(span.tokens[:START])
    for words in (span.by_word(), span.by_spans([(0, len(text))])):
        assert sum(word.score for word in words) == pytest.approx(float(span.through.sum()))
    assert span.direct.top(1, special=True)[0].score == float(span.total.max())
    assert repr(span.direct).count("\n") == repr(span).count("\n") - 2
    assert len(span.to_frame()) == sum(map(len, span.steps))


def test_it_goes_through_a_file(span: SpanAttribution, tmp_path: Path) -> None:
    path = tmp_path / "span"
    span.save(path)
    loaded = SpanAttribution.load(path)
    assert torch.equal(loaded.through, span.through) and torch.equal(loaded.hops, span.hops)
    assert (repr(loaded), repr(loaded.direct)) == (repr(span), repr(span.direct))
    assert [same(one.scores, other.scores) for one, other in zip(loaded.reasoning, span.reasoning, strict=True)]
