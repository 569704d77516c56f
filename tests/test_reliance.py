"""Context reliance against plain runs of the model, as a user asks for it and as the command prints it."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers import chats, zoo
from helpers.asking import cache_of, missing, plain_logits, relative
from helpers.evaluating import demo, run
from heta_lens import attribute, context_reliance
from heta_lens.methods.leave_one_out import LeaveOneOut
from heta_lens.prediction.target import log_softmax

STORY = "Mia put the key in the drawer. Leo put the key in the box. Question: Where did Mia put the key? Answer: in the"
PASSAGE = "Mia put the key in the drawer."


@pytest.mark.usefixtures("unchecked")
@pytest.mark.both_lines
@pytest.mark.parametrize(("name", "build"), zoo.named(""))
def test_both_steps_are_those_of_plain_runs(name: str, build: Any) -> None:
    model, off = build(), zoo.tolerance(name)
    ids, n, (start, stop) = zoo.prompt(model, 9), 5, (1, 3)
    deleted = torch.cat([ids[:, :start], ids[:, stop:]], 1)
    with torch.no_grad():
        whole, before = (log_softmax(plain_logits(model, each)) for each in (ids, deleted))
    one, other = before[n - (stop - start) - 1 : -1], whole[n - 1 : -1]
    divergences = (one.exp() * (one - other)).sum(-1)
    least = min(divergences.mean() + 0.5 * divergences.std(), divergences.max())

    found = context_reliance(model, ids[:, :n], (start, stop), ids[:, n:], threshold=0.5, method="gradient_norm")
    assert relative(found.divergences, divergences) < 100 * off and found.threshold == pytest.approx(float(least))
    assert found.positions == tuple(n + at for at in range(4) if divergences[at] >= least)
    for step in found.steps:
        at, instead = len(step), int(one[len(step) - n].argmax())
        target = int(ids[0, at]) if instead == ids[0, at] else (int(ids[0, at]), instead)
        alone = attribute(cache_of(model, ids), target, position=at, tokens=ids, method="gradient_norm")
        assert step.target == target and relative(step.scores, alone.scores) < 10 * off


@pytest.mark.both_lines
def test_an_answer_that_the_model_writes_and_where_it_is_from(tmp_path: Path) -> None:
    found = context_reliance(demo(), STORY, PASSAGE, 2)
    assert found.answer == " drawer." and found.positions == (found.start,)
    assert "".join(found.tokens[slice(*found.context)]).strip() == PASSAGE
    assert found.instead[0] == " box" and found.steps[0].target_text == (" drawer", " box")
    (sources,) = found.sources(1).values()
    assert sources[0].text == " drawer"
    assert repr(found).startswith("1 of 2 tokens of the answer depend on the context at 1–8")
    assert "' box'" in repr(found) and "' drawer' at 7" in repr(found)
    frame = found.to_frame()
    assert frame.token.tolist() == [" drawer", "."] and frame.depends.tolist() == [True, False]
    page = found.plot().save(tmp_path / "page.html").read_text()
    assert "1 of 2 tokens of the answer depend on the context" in page and found._repr_html_() in page


@pytest.mark.parametrize("kind", ["text", "ids", "list"])
def test_the_answer_may_be_given(kind: str) -> None:
    ids = demo().to_tokens(" drawer.", prepend_bos=False)
    answer = {"text": " drawer.", "ids": ids, "list": ids[0].tolist()}[kind]
    found, wanted = (context_reliance(demo(), STORY, PASSAGE, each) for each in (answer, 2))
    assert torch.equal(found.divergences, wanted.divergences) and found.answer == wanted.answer


def test_places_mean_what_the_passage_does() -> None:
    places = PASSAGE, (1, 9), (-29, np.int64(-21))
    by_text, *others = (context_reliance(demo(), STORY, where, 1) for where in places)
    for by_place in others:
        assert by_text.context == by_place.context and torch.equal(by_text.divergences, by_place.divergences)
    assert by_text.start == 30


def test_tokens_below_the_threshold_whose_most_likely_form_changes_are_marked() -> None:
    answer = " drawer. Leo put the key in the drawer"
    found = context_reliance(demo(), STORY, PASSAGE, answer, threshold=2.0, method="gradient_norm")
    with torch.no_grad():
        whole, before = (demo()(text + answer).argmax(-1)[0] for text in (STORY, STORY.replace(PASSAGE, "")))
    changed = (whole[-10:-1] != before[-10:-1]).tolist()
    frame = found.to_frame()
    assert len(frame) == 9 and frame.changes.tolist() == changed
    below = frame[frame.changes & ~frame.depends]
    assert below.token.tolist() == [" key"] and below.divergence.max() < found.threshold
    assert "the most likely token changes at 1 more" in repr(found) and "changes at 1 more" in found._repr_html_()
    assert [row[0] for row in found.rows if row[3].endswith(" *")] == [str(place) for place in below.position]
    plain = context_reliance(demo(), STORY, PASSAGE, 2)
    assert plain.changes == (True, False) and "*" not in repr(plain)


@pytest.mark.usefixtures("unchecked")
def test_characters_of_several_tokens_are_whole_in_the_answer() -> None:
    found = context_reliance(chats.bridge(), "The fox ran. The box:", "fox", " 🦜a", method="gradient_norm")
    assert found.answer == " 🦜a" and len(found.divergences) > 2


def test_what_speaks_against_a_token_is_not_where_it_is_from() -> None:
    found = context_reliance(demo(), STORY, PASSAGE, 1, method=lambda asked: -torch.ones(len(asked)))
    assert found.rows[0][-1] == "" and found.sources(1)[30][0].score == -1


def test_a_chat_has_messages_in_every_attribution() -> None:
    model = chats.bridge()
    messages = [{"role": "user", "content": "The cat sat. The dog ran. What sat?"}]
    found = context_reliance(model, messages, "The cat sat.", 2, method="gradient_norm")
    assert [message.role for message in found.steps[0].by_message()][:1] == ["user"]
    assert found.steps[0].messages is not None and found.steps[0].messages.roles[-1] == "assistant"


def test_a_budget_names_the_tokens_that_were_masked_together() -> None:
    found = context_reliance(demo(), STORY, PASSAGE, 2, method=LeaveOneOut(forwards=8))
    assert re.search(r"at \d+–\d+ \(", repr(found))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"context": "Nobody was there."}, ["'Nobody was there.'", "occurs 0 times"]),
        ({"context": "the key"}, ["occurs", "it must occur once"]),
        ({"context": (0, 3)}, ["context=(0, 3)", "from 1 to"]),
        ({"context": (5, 5)}, ["context=(5, 5)", "start < stop, from 1 to 30"]),
        ({"context": 5}, ["context=5", "a passage of the prompt, or positions"]),
        ({"answer": ""}, ["answer=''", "the ids of one"]),
        ({"answer": 0}, ["answer", "0"]),
        ({"answer": 9999}, ["9999 more tokens"]),
        ({"answer": torch.tensor([9999])}, ["answer=9999", "not a token id"]),
        ({"answer": torch.tensor([183.7])}, ["answer=", "the ids of one"]),
        ({"answer": torch.tensor([True])}, ["answer=", "the ids of one"]),
        ({"prompt": torch.zeros(2, 5, dtype=torch.int64)}, ["the ids of one prompt", "(2, 5)"]),
        ({"answer": torch.ones(9999, dtype=torch.int64)}, ["prompt and answer are", "reads"]),
        ({"threshold": -1}, ["threshold=-1"]),
        ({"method": LeaveOneOut(effect="kl")}, ["'leave_one_out'", "cannot explain the contrast", "effect='kl'"]),
    ],
    ids=str,
)
def test_mistakes_get_a_sentence(asked: dict[str, Any], words: list[str]) -> None:
    with pytest.raises((TypeError, ValueError)) as raised:
        context_reliance(demo(), **{"prompt": STORY, "context": PASSAGE, "answer": 1, **asked})
    assert not missing(words, str(raised.value))


def test_the_command_prints_the_table_and_writes_the_page(tmp_path: Path) -> None:
    words = "attribute-context", STORY, "--context", PASSAGE, "--generate", "2"
    done = run(*words, "--html", str(tmp_path / "a.html"))
    assert done.exit_code == 0, done.output
    assert not missing(["written:  drawer.", "1 of 2 tokens", "' box'", "KL(without it ‖ with it)"], done.stdout)
    assert "1 of 2 tokens" in (tmp_path / "a.html").read_text()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "--context"),
        (("--context", PASSAGE, "-m", "fast,loo"), "this command takes one method"),
        (("--context", PASSAGE, "--answer", ""), "answer='' must be a text"),
        (("--context", PASSAGE, "--answer", " box", "--generate", "2"), "--answer gives the answer"),
    ],
)
def test_the_commands_mistakes_get_a_sentence(words: tuple[str, ...], sentence: str) -> None:
    done = run("attribute-context", STORY, *words)
    assert done.exit_code == 2 and sentence in done.stderr
