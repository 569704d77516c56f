"""Generated families: what is told, asked and eligible; and published files, on records of our own making."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from helpers.dataset_records import written
from heta_lens.data import published
from heta_lens.data.families import FAMILIES, FORMS, family
from heta_lens.data.instance import Instance
from heta_lens.data.suites import suite

ASKING = ("key_value", "in_context_qa", "needle", "two_hop", "variable_tracking")


@pytest.mark.parametrize("split", ["dev", "test"])
@pytest.mark.parametrize("name", FAMILIES)
def test_the_support_tells_the_answer_and_the_counterfactual_another(name: str, split: Any) -> None:
    made = [*family(name, split, count=20)]
    assert made == [*family(name, split, count=20)] != [*family(name, split, count=20, seed=1)]
    assert len({one.id for one in made}) == 20
    for one in made:
        other = one.counterfactual
        assert other is not None and one.answer and other.answer and one.answer != other.answer
        assert one.template == other.template and one.support and one.words("gold") != other.words("gold")
        ((start, stop),) = one.eligible
        assert all(start <= span.start < span.stop <= stop for span in (*one.support, *one.distractor))
        if name != "agreement":  # whose evidence is a number
            assert one.words("gold") == [one.answer.strip()] and other.words("gold") == [other.answer.strip()]
            assert one.text.replace(one.answer, other.answer) == other.text
            assert one.answer not in one.text[stop:]


def test_dev_and_test_have_no_wording_in_common() -> None:
    for name in FAMILIES:
        dev, test = ({one.template for one in family(name, split, count=40)} for split in ("dev", "test"))
        assert not dev & test or name == "agreement"
        forms = [*map(str, FORMS[name]["dev"]), *map(str, FORMS[name]["test"])]
        assert len(forms) == len(set(forms))


def test_options_say_how_much_stands_around_the_evidence() -> None:
    (long,) = family("needle", count=1, words=300)
    assert 300 <= len(long.text.split()) < 350
    (three,) = family("variable_tracking", count=1, hops=2, chains=3)
    assert len(three.support) == 3 and len(three.distractor) == 6
    (many,) = family("key_value", count=1, pairs=9)
    assert len(many.support) == 1 and len(many.distractor) == 8


@pytest.mark.parametrize("name", ASKING)
def test_a_chat_asks_the_same_of_the_assistant(name: str) -> None:
    (plain,), (chat,) = (family(name, count=1, chat=chat) for chat in (False, True))
    user, assistant = chat.messages
    assert plain.text.startswith(chat.text) and plain.text.endswith(assistant["content"])
    assert (user["role"], assistant["role"], user["content"]) == ("user", "assistant", chat.text)
    assert chat.words("gold") == plain.words("gold") and chat.eligible == plain.eligible


# ------------------------------------------------------------------------------------------------------ published files
CONTEXT = "Dr. Ada lived in Oslo. She moved to Rome in 1900. There she met Leo."
FLAT = {"id": "1", "question": "Where did she move?", "context": CONTEXT, "answer": "Rome", "answer_span": [36, 40]}
ON_THE_HUB = {"id": "1", "question": FLAT["question"], "context": CONTEXT,
              "answers": {"text": ["Rome"], "answer_start": [36]}}  # fmt: skip
QA = {
    "id": "1",
    "question": FLAT["question"],
    "answers": [{"text": "Rome", "answer_start": 36}],
    "is_impossible": False,
}
PUBLISHED = {"data": [{"paragraphs": [{"context": CONTEXT, "qas": [QA, {**QA, "id": "2", "answers": []}]}]}]}


@pytest.mark.parametrize("record", [FLAT, ON_THE_HUB, PUBLISHED], ids=["flat", "hub", "published"])
def test_squad_is_read_in_every_form_in_which_it_is_published(record: Any, tmp_path: Path) -> None:
    (one,) = suite("squad", written(tmp_path / "squad.jsonl", [record]))
    assert one.text == f"{CONTEXT}\nQuestion: Where did she move?\nAnswer:"
    assert (one.answer, one.words("support"), one.words("gold")) == (" Rome", ["She moved to Rome in 1900."], ["Rome"])
    assert one.words("distractor") == ["Dr. Ada lived in Oslo.", "There she met Leo."]
    assert one.template == "paragraph 0" and one.words("eligible") == [one.text.partition("\nQuestion")[0]]
    if record is FLAT:
        assert [*published.squad([{**FLAT, "answer": "ROME"}])] == [*published.squad([FLAT])]
    (near,) = published.squad([record], neighbours=0)
    assert near.text.startswith("She moved") and "Leo" not in near.text and near.words("gold") == ["Rome"]
    (chat,) = published.squad([record], chat=True)
    assert chat.messages[1]["content"] == "Answer:" and chat.words("gold") == ["Rome"]


def test_questions_on_a_paragraph_are_one_cluster() -> None:
    records = [FLAT, {**FLAT, "id": "2", "answer": "Oslo", "answer_span": [17, 21]}, {**FLAT, "context": CONTEXT + " "}]
    assert [one.template for one in published.squad(records)] == ["paragraph 0", "paragraph 0", "paragraph 1"]


FACT = {"known_id": 4, "prompt": "Mount Ida is in", "subject": "Mount Ida", "attribute": "Crete", "relation_id": "P1"}
GIVEN = {"case_id": 2, "prompt": "Then, Ann and Bob sat in the park. Bob gave a ring to", "answer": "Ann"}
PAIR = {"clean_prefix": "The uncles behind the dog", "patch_prefix": "The uncle behind the dog", "clean_answer": " do",
        "patch_answer": " does"}  # fmt: skip


def test_facts_people_and_verbs_are_read(tmp_path: Path) -> None:
    def read(name: str, record: Any) -> Instance:
        (one,) = suite(name, written(tmp_path / f"{name}.jsonl", [record]))
        return one

    fact = read("known_facts", FACT)
    assert (fact.answer, fact.words("gold"), fact.template) == (" Crete", ["Mount Ida"], "P1")
    given = read("ioi", GIVEN)
    assert (given.answer, given.words("gold"), given.words("distractor")) == (" Ann", ["Ann"], ["Bob", "Bob"])
    assert given.template == "Then, A and B sat in the …. B gave a … to"
    pair = read("agreement", PAIR)
    assert pair.counterfactual is not None and pair.counterfactual.text == PAIR["patch_prefix"]
    assert (pair.answer, pair.words("gold"), pair.counterfactual.answer) == (" do", ["uncles"], " does")


def test_squads_questions_without_an_answer_are_left_out() -> None:
    odd = None, [], {"text": [], "answer_start": []}
    assert [*published.squad([{"question": "Where?", "context": CONTEXT, "answers": none} for none in odd])] == []


WRONG = [
    (published.squad, {**FLAT, "answer": "Paris"}, "SQuAD's record 0: the answer 'Paris' does not stand at"),
    (published.squad, {**FLAT, "context": "", "answer": ""}, "SQuAD's record 0: the answer '' does not stand at"),
    (published.squad, {**ON_THE_HUB, "answers": {"text": ["Rome"]}}, "record 0: it has no answer_start, but text"),
    (published.squad, {"paragraphs": [{"qas": []}]}, "it has no context, but qas"),
    (published.known_facts, {**FACT, "subject": "Etna"}, "the subject 'Etna' does not stand in the prompt"),
    (published.indirect_objects, {**GIVEN, "answer": "Eve"}, "does not name 'Eve' once and somebody else twice"),
    (published.agreement, {**PAIR, "patch_prefix": "The uncle"}, "must differ in one word"),
]


@pytest.mark.parametrize(("read", "record", "message"), WRONG, ids=lambda value: getattr(value, "__name__", ""))
def test_a_wrong_record_is_named(read: Any, record: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        [*read([record])]


def test_a_chat_with_evidence_says_its_text() -> None:
    (chat,) = family("key_value", count=1, chat=True)
    with pytest.raises(ValueError, match="has support, gold, distractor, eligible, but none of its messages says"):
        replace(chat, messages=[{"role": "user", "content": "Hello"}])
