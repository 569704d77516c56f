"""The app computes what Python computes: explanations, and predictions after a change of tokens."""

from base64 import b64encode
from typing import Any

import pytest
import torch
from safetensors.torch import save

import heta_lens
from helpers import chats
from heta_lens import causal
from heta_lens._util.presets import RECOMMENDED
from heta_lens._util.work import Cancelled, watcher
from heta_lens.web.answers import KEPT, Answers
from heta_lens.web.requests import Activation, Change, Question, Token

METHOD = "leave_one_out"


def results_of(answers: Answers, question: Question, *methods: str) -> list[Any]:
    lines: list[Any] = []
    answers.explain(question, methods, lines.append)
    return [line for line in lines if "html" in line]


@pytest.fixture
def written(answers: Answers, story: str) -> list[int]:
    lines: list[Any] = []
    answers.write(story, 2, lines.append)
    return [line["token"] for line in lines]


@pytest.fixture
def ids(demo: Any, story: str, written: list[int]) -> torch.Tensor:
    before = demo.to_tokens(story)
    return torch.cat([before, before.new_tensor([written])], 1)


@pytest.fixture
def cache(demo: Any, ids: torch.Tensor) -> Any:
    return demo.run_with_cache(ids, names_filter=heta_lens.names_filter)[1]


def test_the_answer_is_the_most_likely_one(demo: Any, story: str, written: list[int], answers: Answers) -> None:
    ids = demo.to_tokens(story)
    for token in written:
        with torch.no_grad():
            assert int(demo(ids)[0, -1].argmax()) == token
        ids = torch.cat([ids, ids.new_tensor([[token]])], 1)
    assert "".join(answers.texts(Question(story, written))) == demo.tokenizer.decode(written)


@pytest.mark.parametrize("method", ["fast", "heta", "leave_one_out"])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_explanations_are_those_of_python(
    answers: Answers, story: str, written: list[int], ids: Any, cache: Any, method: str, at: int
) -> None:
    place = None if at == len(written) else ids.shape[1] - len(written) + at
    expected = heta_lens.attribute(cache, position=place, tokens=ids, method=method)
    *_, last = results_of(answers, Question(story, written, at), method)
    found = answers.result(last["result"])
    assert last["whole"] and found.scores.equal(expected.scores) and found.target == expected.target
    assert last["html"] == expected.plot().fragment


@pytest.mark.parametrize("at", [0, None])
def test_a_long_wait_begins_when_it_is_asked_for(
    answers: Answers, story: str, written: list[int], at: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heta_lens.web.answers.PATIENT", 0.0)
    lines, question, both = list[Any](), Question(story, written, at), ["leave_one_out", "heta"]
    answers.explain(question, both, lines.append)
    assert not [line for line in lines if "html" in line]
    assert [line["method"] for line in lines if line.get("later")] == ["leave_one_out", "heta"]
    answers.explain(question, ["leave_one_out", "heta"], lines.append, ["leave_one_out"])
    assert [line["method"] for line in lines if "html" in line] == ["leave_one_out"] and lines[-1]["later"]
    assert not results_of(answers, question, "heta"), "a method alone waits, too"
    lines.clear()
    answers.explain(question, ["heta"], lines.append, both)
    assert len([line for line in lines if "html" in line]) == 1 + (at is not None)


def test_a_method_that_fails_leaves_those_behind_it(answers: Answers, story: str) -> None:
    lines: list[Any] = []
    question = Question(story, at=0, target=Token(" jar", " pan"))
    answers.explain(question, ["attention_rollout", "loo"], lines.append)
    assert [line["method"] for line in lines if "error" in line] == ["attention_rollout"] and lines[-1]["whole"]
    assert answers.result(lines[-1]["result"]).summed.method == "leave_one_out"


@pytest.mark.parametrize("method", RECOMMENDED)
def test_each_recommendation_can_be_chosen(answers: Answers, demo: Any, story: str, method: str) -> None:
    *_, last = results_of(answers, Question(story, at=0), method)
    found = answers.result(last["result"]).summed
    ids = demo.to_tokens(story)
    cache = demo.run_with_cache(ids, names_filter=heta_lens.names_filter)[1]
    expected = heta_lens.attribute(cache, tokens=ids, method=method)
    assert last["method"] == method and found.scores.equal(expected.scores)
    assert found.signed == expected.signed == (method not in ("peering", "heta"))


def test_components_are_those_of_python_and_a_long_wait_is_announced(
    answers: Answers, story: str, written: list[int], ids: Any, cache: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, lines = ids.shape[1] - len(written), list[Any]()
    answers.components(Question(story, written, 0), [14], False, lines.append)
    number = lines[-1]["result"]
    expected = causal.components(cache, [14], position=place, tokens=ids)
    assert repr(answers.results[number][0]) == repr(expected)
    with pytest.raises(ValueError, match="components rather than scores"):
        answers.result(number)
    assert lines[-1]["html"] == expected.plot().fragment and lines[-1]["files"] == [".html", *expected.plot().exports]
    monkeypatch.setattr("heta_lens.web.answers.PATIENT", 0.0)
    answers.components(Question(story, written, 0), [14], False, lines.append)
    assert lines[-1]["later"] > 0
    answers.components(Question(story, written, 0), [14], True, lines.append)
    assert repr(answers.results[lines[-1]["result"]][0]) == repr(expected)


def test_hetas_errors_shrink(answers: Answers, story: str) -> None:
    few, whole = results_of(answers, Question(story, at=0), "heta")
    first, second = (answers.result(line["result"]).summed.standard_errors["scores"] for line in (few, whole))
    assert (few["whole"], whole["whole"]) == (False, True)
    assert first is not None and second is not None and float(second.mean()) < float(first.mean())


def test_a_whole_answer_is_a_span(answers: Answers, story: str, written: list[int], ids: Any, cache: Any) -> None:
    (line,) = results_of(answers, Question(story, written), "fast")
    expected = heta_lens.attribute_span(cache, ids.shape[1] - len(written), tokens=ids, method="fast")
    found = answers.result(line["result"])
    assert isinstance(found, heta_lens.SpanAttribution) and found.total.equal(expected.total)


def test_other_targets_of_the_same_place(answers: Answers, demo: Any, story: str) -> None:
    ids = demo.to_tokens(story)
    logits, cache = demo.run_with_cache(ids, names_filter=heta_lens.names_filter)
    pair = [demo.tokenizer.decode([token]) for token in logits[0, -1].topk(2).indices.tolist()]
    direction = torch.randn(demo.cfg.d_model, generator=torch.Generator().manual_seed(0))
    packed = b64encode(save({"probe": direction})).decode()
    hook = "blocks.1.hook_resid_post"
    asked: list[tuple[Any, Any]] = [
        (Token(pair[1]), pair[1]),
        (Token(pair[0], against=pair[1]), tuple(pair)),
        (Activation(hook, index=3), heta_lens.activation(hook, index=3)),
        (Activation(hook, direction=packed), heta_lens.activation(hook, direction=direction)),
    ]
    for given, target in asked:
        question = Question(story, at=0, target=given)
        (line,) = results_of(answers, question, "fast")
        expected = heta_lens.attribute(cache, target, tokens=ids, method="fast")
        assert answers.result(line["result"]).summed.scores.equal(expected.scores)
        change = answers.change(question, Change([5], "mask"))
        patched = answers.change(question, Change([5], "patch", counterfactual=story))
        assert patched["drop"] == pytest.approx(0, abs=1e-5)
        drops = heta_lens.attribute(cache, target, tokens=ids, method=METHOD, effect="log_prob")
        assert change["drop"] == pytest.approx(float(drops.scores[5]), abs=1e-5)
        assert ("tokens" in change) is isinstance(given, Token)


def test_masking_shows_the_number_of_leave_one_out(answers: Answers, story: str, written: list[int], ids: Any) -> None:
    cache = answers.model.run_with_cache(ids, names_filter=heta_lens.names_filter)[1]
    start = ids.shape[1] - len(written)
    expected = heta_lens.attribute(cache, position=start + 1, tokens=ids, method=METHOD)
    question = Question(story, written, 1)
    for place in range(0, start + 1, 4):
        found = answers.change(question, Change([place], "mask"))
        assert found["kl"] == pytest.approx(float(expected.scores[place]), abs=1e-5)
    prediction = heta_lens.Prediction.from_cache(cache, position=start + 1, tokens=ids)
    together = float(heta_lens.causal.effects(prediction, how="input", groups=[[2, 3]])[0])
    assert answers.change(question, Change([2, 3], "mask"))["drop"] == pytest.approx(together, abs=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("how", ["delete", "replace"])
def test_deleting_and_replacing_show_a_plain_run(answers: Answers, demo: Any, story: str, how: Any) -> None:
    ids = demo.to_tokens(story)[0].tolist()
    word = story.split()[-3]
    put = demo.to_tokens(word, prepend_bos=False)[0].tolist() if how == "replace" else []
    edited = torch.tensor([[*ids[:4], *put, *ids[6:]]])
    clean, after = (demo(own)[0, -1].log_softmax(-1) for own in (torch.tensor([ids]), edited))
    found = answers.change(Question(story, at=0), Change([4, 5], how, text=word))
    best = int(clean.argmax())
    assert (found["before"], found["after"]) == pytest.approx((float(clean[best]), float(after[best])), abs=1e-5)
    expected = {demo.tokenizer.decode([id]).strip(): float(after[id].exp()) for id in after.topk(3).indices.tolist()}
    rows = {row["text"].strip(): row["after"] for row in found["tokens"]}
    assert {text: rows[text] for text in expected} == pytest.approx(expected, abs=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("layer", [0, 2])
def test_patching_shows_the_prediction_after_the_other_prompts_state(
    answers: Answers, demo: Any, story: str, layer: int
) -> None:
    words = story.split()
    other = story.replace(words[0], words[8], 1) if layer == 0 else " ".join([words[8], *words[1:]])
    ids, changed = demo.to_tokens(story), demo.to_tokens(other)
    assert ids.shape == changed.shape and not ids.equal(changed)
    place = int((ids != changed)[0].nonzero()[0])
    name = f"blocks.{layer}.hook_resid_pre"
    state = demo.run_with_cache(changed, names_filter=[name])[1][name][0, place]

    def put(stream: torch.Tensor, hook: Any) -> torch.Tensor:  # noqa: ARG001
        stream[0, place] = state
        return stream

    after = demo.run_with_hooks(ids, fwd_hooks=[(name, put)])[0, -1].log_softmax(-1)
    target = int(demo(ids)[0, -1].argmax())
    found = answers.change(Question(story, at=0), Change([place], "patch", counterfactual=other, layer=layer))
    assert found["after"] == pytest.approx(float(after[target]), abs=1e-5)


CHAT = [{"role": "user", "content": "the cat sat on the mat"}, {"role": "assistant", "content": "down"}]


def test_a_chat_is_explained_and_changed() -> None:
    model = chats.bridge()
    answers, chat = Answers(model), heta_lens.chat(model, CHAT)
    cache = model.run_with_cache(chat.tokens, names_filter=heta_lens.names_filter)[1]
    expected = heta_lens.attribute(cache, tokens=chat, method=METHOD)
    (line,) = results_of(answers, Question(CHAT, at=0), METHOD)
    found = answers.result(line["result"]).summed
    assert found.scores.equal(expected.scores) and found.messages is not None
    place, target = chat.messages[0].positions[1], found.target
    change = answers.change(Question(CHAT, at=0), Change([place], "mask"))
    assert change["drop"] == pytest.approx(float(expected.scores[place]), abs=1e-5)
    text = chat.text[slice(*chat.offsets[place])].replace("c", "d")
    put = model.tokenizer.encode(text, add_special_tokens=False)
    ids = chat.tokens[0].tolist()
    with torch.no_grad():
        after = model(torch.tensor([[*ids[:place], *put, *ids[place + 1 :]]]))[0, -1].log_softmax(-1)
    change = answers.change(Question(CHAT, at=0), Change([place], "replace", text=text))
    assert isinstance(target, int) and change["after"] == pytest.approx(float(after[target]), abs=1e-5)
    change = answers.change(Question(CHAT, at=0), Change([place], "patch", counterfactual=CHAT))
    assert change["drop"] == pytest.approx(0, abs=1e-5)


def test_a_hook_that_is_added_between_two_questions_is_seen(answers: Answers, demo: Any, story: str) -> None:
    (before,) = results_of(answers, Question(story, at=0), METHOD)
    demo.add_hook("blocks.0.hook_resid_post", lambda stream, hook: stream * 0.5)  # noqa: ARG005
    try:
        (after,) = results_of(answers, Question(story, at=0), METHOD)
    finally:
        demo.reset_hooks()
    first, second = (answers.result(line["result"]).summed for line in (before, after))
    assert not first.scores.equal(second.scores)


def test_the_scores_of_the_changed_tokens(answers: Answers, story: str) -> None:
    (line,) = results_of(answers, Question(story, at=0), "fast")
    found = answers.change(Question(story, at=0), Change([3, 5], "mask", results=[line["result"]]))
    scores = answers.result(line["result"]).summed.scores
    share = float(scores[[3, 5]].sum().abs() / scores.abs().sum())
    assert found["scores"][0]["share"] == pytest.approx(share)
    assert found["scores"][0]["score"] == pytest.approx(float(scores[[3, 5]].sum()))


def test_two_results_are_compared(answers: Answers, story: str) -> None:
    lines = results_of(answers, Question(story, at=0), "fast", METHOD)
    found = answers.compare([line["result"] for line in lines])
    both = [answers.result(line["result"]) for line in lines]
    assert found["html"] == heta_lens.compare(both).fragment


def test_only_the_latest_results_are_kept(answers: Answers, story: str) -> None:
    (line,) = results_of(answers, Question(story, at=0), "fast")
    for _ in range(KEPT):
        answers.keep(answers.result(line["result"]))
    assert len(answers.results) == KEPT
    with pytest.raises(ValueError, match="no longer kept"):
        answers.result(line["result"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (Change([999], "mask"), "positions must be tokens before the explained one"),
        (Change([0], "delete"), "mask this token rather than delete it"),
        (Change([3], "replace"), "there is no text to insert"),
        (Change([3], "patch", counterfactual="Anna ."), "write a prompt with"),
    ],
)
def test_changes_that_cannot_be_made(answers: Answers, story: str, change: Change, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        answers.change(Question(story, at=0), change)


def test_a_prompt_beyond_the_window_is_refused(answers: Answers, demo: Any, story: str) -> None:
    with pytest.raises(ValueError, match=f"this model reads {demo.cfg.n_ctx} at most"):
        answers.write(story, demo.cfg.n_ctx, print)


def test_ended_work_leaves_nothing_behind(answers: Answers, demo: Any, story: str) -> None:
    count = 0

    def watch(kind: str, rows: int) -> None:  # noqa: ARG001
        nonlocal count
        count += 1
        if count > 20:
            raise Cancelled

    token = watcher.set(watch)
    try:
        with pytest.raises(Cancelled):
            results_of(answers, Question(story, at=0), "heta")
    finally:
        watcher.reset(token)
    assert not [point for point in demo.hook_dict.values() if point.fwd_hooks or point.bwd_hooks]
    assert results_of(answers, Question(story, at=0), "fast")
