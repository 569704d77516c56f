"""Instances and the data sets they are made of: what they say of a text is where they say it stands."""

import ast
import csv
import json
import os
import random
import re
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import replace
from itertools import islice
from math import isnan
from pathlib import Path
from time import process_time
from typing import Any

import datasets
import pyarrow
import pyarrow.parquet
import pytest
from sklearn.metrics import cohen_kappa_score, f1_score, jaccard_score

from heta_lens.data import curated, longra, recalled, tellmewhy, wikibio
from heta_lens.data.annotation import FUNCTION_WORDS, agreement, annotated, answer_words, judged
from heta_lens.data.instance import SPANS, Instance, instance_of, read_jsonl, record_of, write_jsonl
from heta_lens.data.layout import Piece, laid_out, occurrences, split_sentences, words_within
from heta_lens.data.recall import stories
from heta_lens.data.records import load, read
from heta_lens.data.suites import SUITES, suite
from heta_lens.sources import END, sentences
from heta_lens.text import Span

pytestmark = pytest.mark.plain

SHARED = Path(__file__).parents[2] / "shared" / "data"
shared = pytest.mark.skipif(not SHARED.exists(), reason="the public data sets are not beside the repository")
unchecked = pytest.mark.usefixtures("unchecked")

STORY = "Nina put the key in the drawer. Karl left. Where is the key?"
NINA = Instance(
    id="nina",
    text=STORY,
    answer=" drawer",
    template="where",
    support=(Span(0, 31),),
    gold=(Span(24, 30), Span(0, 4)),
    distractor=(Span(32, 42),),
    question=(Span(43, 60),),
    choices=(" drawer", " trunk"),
    twin=Instance(id="nina-twin", text=STORY.replace("drawer", "trunk"), answer=" trunk"),
    paraphrase=Instance(id="nina-passive", text="The key was put in the drawer by Nina.", answer=None),
)


def changed(**fields: Any) -> Instance:
    return replace(NINA, **fields)


def written(path: Path, records: Iterable[Any]) -> Path:
    """A file with a record a line."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


# --------------------------------------------------------------------------------------------------------- instances
def test_spans_say_what_they_hold_in_the_order_of_the_text() -> None:
    assert NINA.words("support") == ["Nina put the key in the drawer."]
    assert NINA.words("gold") == ["Nina", "drawer"]
    assert changed(gold=(Span(0, 4), Span(0, 4))).gold == (Span(0, 4),)
    with pytest.raises(ValueError, match=r"name='glod' is not one of .*did you mean 'gold'"):
        NINA.words("glod")


def test_a_record_holds_only_what_is_known() -> None:
    record = record_of(NINA)
    assert record["twin"] == {"id": "nina-twin", "text": NINA.twin.text if NINA.twin else "", "answer": " trunk"}
    assert record["paraphrase"].keys() == {"id", "text", "answer"} and record["paraphrase"]["answer"] is None
    assert record["gold"] == [[0, 4], [24, 30]]
    assert list(record) == list(Instance.__dataclass_fields__)
    assert json.loads(json.dumps(record)) == record


ODD = 'Line one.\nA "quote", \u2028 a separator,\x0b\x1c\x85 more, é, 漢字, 🙂, \ttab.'


@pytest.mark.parametrize(
    "instance",
    [
        NINA,
        Instance(id="odd", text=ODD, answer=" \u2028x", support=(Span(0, len(ODD)),)),
        Instance(id="nested", text="a", answer=None, twin=replace(NINA, id="deep")),
        *islice(recalled.instances("dev", hops=2), 3),
    ],
    ids=lambda one: one.id,
)
def test_a_file_gives_back_what_was_written(instance: Instance, tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    write_jsonl(path, [instance, replace(instance, id="other")])
    back = list(read_jsonl(path))
    assert back == [instance, replace(instance, id="other")]
    assert [type(span) for one in back for name in SPANS for span in getattr(one, name)].count(Span) == sum(
        len(getattr(one, name)) for one in back for name in SPANS
    )
    assert path.read_bytes().count(b"\n") == 2


def test_a_file_written_elsewhere_is_read(tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"id": "a", "text": "One", "answer": null, "support": null, "twin": null}\r\n\r\n')
    assert list(read_jsonl(path)) == [Instance(id="a", text="One", answer=None)]


@unchecked
@pytest.mark.parametrize(
    ("fields", "kind", "message"),
    [
        ({"id": 12}, TypeError, "the id of an instance is 12, and must be text"),
        ({"id": ""}, ValueError, "the id of an instance is empty"),
        ({"text": " \n"}, ValueError, "the text of instance 'nina' is empty"),
        ({"text": b"bytes"}, TypeError, "the text of instance 'nina' is b'bytes', and must be text"),
        ({"text": "a \ud800"}, ValueError, "the text of instance 'nina' is no valid UTF-8 at character 2"),
        ({"answer": 3}, TypeError, "the answer of instance 'nina' is 3, and must be text"),
        ({"answer": " "}, ValueError, "the answer of instance 'nina' is empty"),
        ({"template": None}, TypeError, "template=None must be text"),
        ({"gold": (3, 7)}, TypeError, "gold holds 3, which is no pair of whole numbers"),
        ({"gold": "ab"}, TypeError, "gold='ab' must be several pairs"),
        ({"gold": 3}, TypeError, "gold=3 must be several pairs"),
        ({"gold": ["ab"]}, TypeError, "gold holds 'ab', which is no pair"),
        ({"gold": [(True, 3)]}, TypeError, r"gold holds \(True, 3\), which is no pair of whole numbers"),
        ({"gold": [(0.0, 3.0)]}, TypeError, r"gold holds \(0.0, 3.0\), which is no pair of whole numbers"),
        ({"gold": [(0, 1, 2)]}, TypeError, r"gold holds \(0, 1, 2\)"),
        ({"support": [(3, 3)]}, ValueError, r"the span \(3, 3\) of support is not within its text"),
        ({"support": [(-2, 3)]}, ValueError, r"the span \(-2, 3\) of support is not within its text"),
        ({"question": [(50, 61)]}, ValueError, r"\(50, 61\) of question .* which has 60 characters"),
        ({"distractor": [(4, 5)]}, ValueError, r"the span \(4, 5\) of distractor holds nothing but white space"),
        ({"choices": " drawer"}, TypeError, "choices=' drawer' must be several texts"),
        ({"choices": [" drawer", 2]}, TypeError, "a choice of instance 'nina' is 2, and must be text"),
        ({"choices": [" trunk"]}, ValueError, "the answer ' drawer' is none of its choices, ' trunk'"),
        ({"twin": {"id": "a"}}, TypeError, "its twin, {'id': 'a'}, must be an instance too"),
    ],
)
def test_what_is_no_instance_is_refused(fields: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        changed(**fields)


@unchecked
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"id": "b", "text": "One", "answer": null, "glod": []}', "no field 'glod' .did you mean 'gold'..; it has id"),
        ('{"id": "b", "text": "One"}', "an instance needs answer"),
        ('{"id": "b"}', "an instance needs text, answer"),
        ('{"id": "b", "text": null, "answer": null}', "the text of instance 'b' is None"),
        ("[1]", r"\[1\] is no instance: it must be an object with id, text and answer"),
        ('{"id": ', r"no JSON \(Expecting value at character 8\)"),
        ('{"id": "b", "text": "One", "answer": null, "twin": {"id": "c"}}', "an instance needs text, answer"),
        ('{"id": "a", "text": "One", "answer": null}', "its id 'a' is that of line 1 too"),
    ],
)
def test_a_wrong_line_is_named_by_its_number(line: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    path.write_text(f'{{"id": "a", "text": "One", "answer": null}}\n\n{line}\n')
    with pytest.raises(ValueError, match=f"some.jsonl, line 3: .*{message}"):
        list(read_jsonl(path))


def test_what_could_not_be_read_again_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="two instances have the id 'nina'"):
        write_jsonl(tmp_path / "some.jsonl", [NINA, NINA])
    assert not (tmp_path / "some.jsonl").exists()
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*nowhere to write some.jsonl in"):
        write_jsonl(tmp_path / "nowhere" / "some.jsonl", [NINA])
    with pytest.raises(FileNotFoundError, match=r"there is no file .*other.jsonl: give one with an instance a line"):
        list(read_jsonl(tmp_path / "other.jsonl"))


# ------------------------------------------------------------------------------------------------------------ layout
def test_pieces_stand_where_they_are_said_to() -> None:
    text, spans = laid_out([Piece(" One. ", "support"), Piece("| "), Piece("Two", "question"), Piece(" ", "gold")])
    assert text == " One. | Two "
    assert spans == {"support": (Span(1, 5),), "question": (Span(8, 11),)}


def test_words_and_occurrences_are_whole() -> None:
    text = "The sun's heat: sunny, SUN-dried sun. It's 3.5"
    assert [text[slice(*word)] for word in words_within(text, [Span(0, 21), Span(26, 37)])] == [
        *("The", "sun's", "heat", "sunny", "sun")
    ]
    assert [text[slice(*found)] for found in occurrences("sun", text)] == ["sun", "SUN", "sun"]
    assert occurrences("sun", text, Span(5, 36)) == [Span(23, 26), Span(33, 36)]
    assert occurrences("3.5", "315 3.5") == [Span(4, 7)]
    assert occurrences("sun", "unsun sun") == [Span(6, 9)]
    assert words_within("one two three", [Span(0, 5), Span(9, 13)]) == [Span(0, 3)]


def test_sentences_end_at_full_stops_but_not_after_titles_and_initials() -> None:
    text = 'Mr. Smith met J. R. Ewing. "Who is it?" He left! it rained... Then "Go." End'
    assert split_sentences(text) == [
        *("Mr. Smith met J. R. Ewing.", '"Who is it?"', "He left! it rained...", 'Then "Go."', "End")
    ]
    assert split_sentences("") == []


PARTS = [
    "J. R. ",
    "Mr. ",
    "xMr. ",
    "etc. ",
    "Dr.",
    "A",
    ".",
    "!",
    "?..",
    '"',
    "')",
    " ",
    "\n\n",
    "b c ",
    "Éa. ",
    'Prof." Q',
]


def random_texts(count: int) -> list[str]:
    generator = random.Random(0)
    return ["".join(generator.choices(PARTS, k=generator.randint(1, 30))) for _ in range(count)]


def sentences_by_definition(text: str) -> list[str]:
    """The whole sentence is searched at each of its full stops, for an abbreviation at its end."""
    abbreviated = re.compile(r"(?:\b(?:Mr|Mrs|Ms|Dr|St|Jr|Sr|Prof|Rev|Col|Capt|Gen|Lt|Sgt|vs|etc)|\b[A-Z])\.$")
    found, start = [], 0
    for end in re.finditer(r"(?<=[.!?])[\"'”’)]*\s+(?=[\"'“‘(]?[A-Z])", text):
        if not abbreviated.search(text[start : end.start()]):
            found.append(text[start : end.end()].strip())
            start = end.end()
    return [*found, text[start:]] if text[start:] else found


def ends_by_definition(text: str) -> list[int]:
    return [end.end() for end in re.finditer(r"[.!?]+[\"')\]”’»]*(?=\s|$)|\n+", text)]


def test_sentences_are_split_as_defined() -> None:
    for text in random_texts(400):
        assert split_sentences(text) == sentences_by_definition(text)
        assert [end.end() for end in END.finditer(text)] == ends_by_definition(text)


@pytest.mark.parametrize(
    ("split", "text"),
    [
        (split_sentences, "J. R. " * 10_000),
        (split_sentences, 'A." ' * 15_000),
        (sentences, "." * 60_000 + "x"),
        (sentences, "?!)" * 20_000 + "x"),
        (sentences, "A. " * 20_000),
    ],
    ids=["initials", "quotes", "dots", "brackets", "short"],
)
def test_splitting_a_long_text_takes_no_longer_than_reading_it(split: Callable[[str], Any], text: str) -> None:
    """60 kB; a quadratic search takes a minute."""
    started = process_time()
    split(text)
    assert process_time() - started < 3


def test_words_are_found_in_spans_that_overlap_and_in_any_order() -> None:
    generator, text = random.Random(0), "one two-three, four's 5 six " * 3
    whole = words_within(text, [Span(0, len(text))])
    for _ in range(200):
        spans = [Span(*sorted(generator.choices(range(len(text) + 1), k=2))) for _ in range(generator.randint(0, 4))]
        inside = [word for word in whole if any(start <= word.start and word.stop <= stop for start, stop in spans)]
        assert words_within(text, spans) == inside


# ---------------------------------------------------------------------------------------------------------- recalled
@pytest.mark.parametrize("knobs", [{}, {"hops": 2}, {"claim": True}], ids=str)
def test_stories_are_told_as_instances(knobs: dict[str, Any]) -> None:
    instances = list(recalled.instances("test", seed=3, count=20, **knobs))
    told = list(islice(stories("test", seed=3, **knobs), 20))
    assert [one.id for one in instances] == [f"recall-test-3-{number:05d}" for number in range(20)]
    for instance, story in zip(instances, told, strict=True):
        twin, paraphrase = instance.twin, instance.paraphrase
        assert twin is not None and paraphrase is not None
        assert [instance.text, twin.text, paraphrase.text] == [
            *(story.text, story.twin.text, story.paraphrase.text),
        ]
        assert (instance.answer, instance.choices) == (story.answer, story.choices)
        assert twin.answer != instance.answer == paraphrase.answer and twin.answer in twin.choices
        for one in (instance, twin, paraphrase):
            assert len(one.support) == len(story.evidence_at) and len(one.question) == 1
            for start, stop in one.gold:
                assert any(left <= start and stop <= right for left, right in one.support)
            told_again = sorted([*one.support, *one.distractor, *one.question])
            assert " ".join(one.text[slice(*span)] for span in told_again) == one.text
        carried = {story.sentences[at].slots["place"] for at in story.evidence_at}
        assert carried <= set(instance.words("gold"))
        assert story.asking.shape in instance.template
        assert all(story.sentences[at].shape in instance.template for at in story.evidence_at)


def test_claims_answer_true_or_false() -> None:
    for instance in recalled.instances(count=10, claim=True):
        assert instance.choices == (" true", " false") and instance.words("question")[0].startswith("Claim:")


@unchecked
def test_a_number_of_stories_is_whole() -> None:
    assert next(recalled.instances()).id == "recall-test-0-00000"
    with pytest.raises(TypeError, match=r"count=2.5 must be a whole number"):
        recalled.instances(count=2.5)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------------------ longra
LONG = "I landed in Norway. (I slept). I stayed in the capital,"
LONGRA = {
    "category": "capital",
    "text": LONG,
    "target": "Oslo",
    "antecedent": "Norway",
    "antecedent_span": [12, 18],
    "distractor_span": [20, 30],
}


def test_longra_marks_the_antecedent_and_the_remark() -> None:
    (instance,) = longra.instances([LONGRA])
    assert (instance.id, instance.answer, instance.template) == ("longra-000", " Oslo", "capital")
    assert instance.words("gold") == instance.words("support") == ["Norway"]
    assert instance.words("distractor") == ["(I slept)."]
    assert longra.without(instance.text, instance.distractor) == "I landed in Norway. I stayed in the capital,"


@pytest.mark.parametrize(
    ("text", "spans", "left"),
    [
        ("(a) b", [(0, 3)], "b"),
        ("b (a)", [(2, 5)], "b"),
        ("b\n(a)\nc", [(2, 5)], "b\nc"),
        ("x(a)y", [(1, 4)], "xy"),
        ("one (a) two (b) three", [(4, 7), (12, 15)], "one two three"),
        ("one", [], "one"),
        ("a. (x). b", [(3, 7), (3, 7)], "a. b"),
        ("a. (x y). b", [(3, 9), (4, 5), (6, 9)], "a. b"),
        ("a. (x y). b", [(3, 9), (4, 5)], "a. b"),
    ],
)
def test_a_distractor_leaves_clean_text(text: str, spans: list[Any], left: str) -> None:
    assert longra.without(text, [Span(*span) for span in spans]) == left


def test_kept_are_those_that_the_model_answers_with_and_without_the_distractor() -> None:
    (instance,) = longra.instances([LONGRA])
    short = "I landed in Norway. I stayed in the capital,"

    def kept(answers: dict[str, str]) -> bool:
        return list(longra.kept([instance], answers.__getitem__)) == [instance]

    assert kept({LONG: " Oslo", short: "Oslo"})
    assert not kept({LONG: " Oslo", short: " a"})
    assert not kept({LONG: " a", short: " Oslo"})
    assert not kept({LONG: " Os", short: " Os"})
    with pytest.raises(ValueError, match="'longra-000' has no answer that the model could be found to give"):
        list(longra.kept([replace(instance, answer=None)], lambda _: ""))


@unchecked
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target": None}, "record 0 of LongRA has no target: it has category, text"),
        ({"target": 3}, "record 0 of LongRA: its target is 3, and must be text"),
        ({"antecedent_span": [11, 18]}, "longra-000: antecedent_span says ' Norway', not 'Norway'"),
        ({"distractor_span": [20, 99]}, r"the span \(20, 99\) of distractor is not within"),
    ],
)
def test_a_wrong_record_of_longra_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        list(longra.instances([LONGRA | change]))


@shared
def test_all_of_longra_is_read() -> None:
    instances = suite("longra", SHARED / "longra" / "longra_reconstructed.jsonl")
    assert len({one.id for one in instances}) == 221 and len({one.template for one in instances}) == 13
    for one in instances:
        (remark,) = one.words("distractor")
        left = longra.without(one.text, one.distractor)
        assert remark.startswith("(") and remark.endswith(").") and one.answer == " " + (one.answer or "").strip()
        assert not any(dirt in left for dirt in ("  ", "(", ")", " ."))
        assert len(left) == len(one.text) - len(remark) - 1


# ----------------------------------------------------------------------------------------------------------- curated
CURATED = {
    "id": "heta_qa_7",
    "narrative_id": "narrative_1",
    "sciq_id": "sciq_2",
    "narrative_segment": "A sailor leaves his plant at home.",
    "sciq_support_segment": "Leaves make sugar: the leaves of a plant catch light.",
    "question": "Which part of a plant catches light?",
    "answer": "leaves",
    "input_text": "A sailor leaves his plant at home. <s> Leaves make sugar: the leaves of a plant catch light. <s> "
    "Question: Which part of a plant catches light?",
    "important_words": ["leaves", "plant", "light"],
}


def test_released_instances_are_read_with_their_labels() -> None:
    (instance,) = curated.released([CURATED])
    assert instance.text == (
        "A sailor leaves his plant at home. Leaves make sugar: the leaves of a plant catch light. "
        "Question: Which part of a plant catches light? Answer:"
    )
    assert (instance.id, instance.answer, instance.template) == ("heta_qa_7", " leaves", "sciq_2")
    assert instance.words("gold") == ["Leaves", "leaves", "plant", "light"]
    assert instance.words("support") == [CURATED["sciq_support_segment"]]
    assert instance.words("distractor") == [CURATED["narrative_segment"]]
    assert instance.words("question") == ["Question: Which part of a plant catches light? Answer:"]


def test_the_separator_and_the_cue_can_be_chosen() -> None:
    (instance,) = curated.released([CURATED], separator="<s>", cue=None)
    assert instance.text == CURATED["input_text"]
    assert instance.words("gold") == ["Leaves", "leaves", "plant", "light"]
    (instance,) = curated.released([CURATED], separator="\n", cue="A:")
    assert instance.text.count("\n") == 2 and instance.text.endswith("light? A:")
    with pytest.raises(ValueError, match="separator='' would run the segments together"):
        curated.released([CURATED], separator="")


def test_segments_keep_the_order_of_the_text() -> None:
    support, narrative = CURATED["sciq_support_segment"], CURATED["narrative_segment"]
    text = f"{support} <s> {narrative} <s> Question: {CURATED['question']}"
    (instance,) = curated.released([CURATED | {"input_text": text}])
    assert instance.text.startswith(f"{support} {narrative} Question:")
    assert instance.words("support") == [support] and instance.words("distractor") == [narrative]


def test_repeated_instances_are_left_out_by_the_number() -> None:
    records = [CURATED, CURATED | {"id": "again"}, CURATED | {"id": "other", "important_words": ["plant"]}]
    with pytest.warns(UserWarning, match="1 of 3 instances repeat another and are left out: give repeated=True"):
        assert [one.id for one in curated.released(records)] == ["heta_qa_7", "other"]
    assert len(curated.released(records, repeated=True)) == 3


@unchecked
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answer": None}, "record 0 of the curated data has no answer: it has id"),
        ({"question": 5}, "its question is 5, and must be text"),
        ({"narrative_segment": "Another."}, r"heta_qa_7.: its input_text does not hold the segment 'Another.'"),
        ({"important_words": ["lea"]}, "heta_qa_7: the important word 'lea' is no word of its support"),
        ({"important_words": ["sailor"]}, "heta_qa_7: the important word 'sailor' is no word of its support"),
    ],
)
def test_a_wrong_record_of_the_curated_data_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        curated.released([CURATED | change])


@shared
@pytest.mark.parametrize(("file", "left_out"), [("100_unique", 0), ("2000", 1900)])
def test_all_released_instances_are_read(file: str, left_out: int) -> None:
    path = SHARED / "heta_curated" / f"heta_qa_dataset_{file}.json"
    records = json.loads(path.read_text())["examples"]
    warned = pytest.warns(UserWarning, match=f"{left_out} of {len(records)} instances") if left_out else nullcontext()
    with warned:
        instances = suite("curated", path, separator="<s>", cue=None)
    texts = {record["input_text"]: record for record in records}
    assert len(instances) == len({one.text for one in instances}) == 100 and {one.text for one in instances} == set(
        texts
    )
    for one in instances:
        record = texts[one.text]
        assert one.words("support") == [record["sciq_support_segment"]]
        assert {word.lower() for word in one.words("gold")} == set(record["important_words"])
        # The release counts words of the support; so can we.
        words = one.words("support")[0].split()
        marked = {len(one.text[one.support[0].start : start].split()) for start, _ in one.gold}
        assert marked == set(record["important_word_indices_in_sciq_support"]) and max(marked) < len(words)


# -------------------------------------------------------------------------------------------------------------- made
def narrative(summary: str) -> dict[str, Any]:
    return {
        "document": {"id": "d", "summary": {"text": summary, "title": "T"}, "text": "…"},
        "question": {"text": "Who?"},
        "answers": [{"text": "Ann"}],
    }


def science(question: str = "What do plants catch?", answer: str = "light", support: str = "") -> dict[str, Any]:
    return {
        "question": question,
        "correct_answer": answer,
        "support": support or "Green plants catch light.\n\n They need  it.",
        **{"distractor1": "rain", "distractor2": "wind", "distractor3": "dust"},
    }


NARRATIVES = [
    narrative("Ann sails to a far island.  She finds a map. Then she leaves."),
    narrative("Ann sails to a far island.  She finds a map. Then she leaves."),
    narrative("He sails to a far island. It is cold there."),
    narrative("Bob reads by the light of a lamp. He is tired."),
    narrative("A heading."),
    narrative(""),
]


def test_pairs_join_a_story_and_a_passage() -> None:
    (instance,) = curated.pairs(NARRATIVES, [science()])
    assert instance.text == (
        "Ann sails to a far island. Green plants catch light. They need it. Question: What do plants catch? Answer:"
    )
    assert (instance.id, instance.answer) == ("curated-00000-narrative_first", " light")
    assert instance.words("distractor") == ["Ann sails to a far island."]
    assert instance.words("support") == ["Green plants catch light. They need it."]
    assert instance.words("gold") == ["plants", "catch", "light"]
    assert instance.choices == (" dust", " light", " rain", " wind")
    (longer,) = curated.pairs(NARRATIVES, [science()], sentences=2, cue=None)
    assert longer.words("distractor") == ["Ann sails to a far island. She finds a map."]
    assert longer.text.endswith("catch?")


def test_the_order_can_be_either_or_both() -> None:
    (one,) = curated.pairs(NARRATIVES, [science()], order="science_first", separator="<s>")
    assert one.text.startswith("Green plants catch light. They need it. <s> Ann sails to a far island. <s> Question:")
    first, second = curated.pairs(NARRATIVES, [science()], order="both")
    assert first.template == second.template == "sciq-00000" and first.id != second.id
    assert first.words("gold") == second.words("gold") and first.gold != second.gold
    assert [first.text < second.text, first.words("support"), first.words("distractor")] == [
        *(True, second.words("support"), second.words("distractor"))
    ]


@pytest.mark.parametrize(
    "record",
    [
        science(support=" "),
        science() | {"support": None},
        science(answer="sunlight"),
        science(answer="ligh"),
        science(question="Which light do plants catch?"),
    ],
    ids=["blank", "none", "elsewhere", "part of a word", "told by the question"],
)
def test_questions_whose_passage_is_not_what_tells_the_answer_are_skipped(record: dict[str, Any]) -> None:
    assert [one.id for one in curated.pairs(NARRATIVES, [record, science()])] == ["curated-00001-narrative_first"]


def test_stories_that_tell_the_answer_too_are_not_drawn() -> None:
    told = {
        one.words("distractor")[0]
        for seed in range(20)
        for one in curated.pairs(
            NARRATIVES, [science(), science(answer="catch", question="Plants do what?")], seed=seed
        )
        if one.answer == " light"
    }
    assert told == {"Ann sails to a far island."}
    assert list(curated.pairs(NARRATIVES[3:4], [science()])) == []


def test_seeds_draw_other_stories_and_the_same_again() -> None:
    people = ["Ann", "Bob", "Cleo", "Dan", "Eva", "Finn"]
    many = [narrative(f"{who} sails to a far island.") for who in people]
    draws = [[one.text for one in curated.pairs(many, [science()] * 8, seed=seed)] for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2] and len(set(draws[0])) > 1


@unchecked
def test_what_makes_no_pairs_is_refused() -> None:
    with pytest.raises(ValueError, match=r"order='both_ways' is not one of .*did you mean 'both'"):
        curated.pairs(NARRATIVES, [science()], order="both_ways")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="sentences=0 must be at least 1"):
        curated.pairs(NARRATIVES, [science()], sentences=0)
    with pytest.raises(ValueError, match="narratives hold no summary that begins with whole sentences"):
        curated.pairs(NARRATIVES[4:], [science()])
    with pytest.raises(ValueError, match="narratives hold no summary that begins with whole sentences"):
        curated.pairs([narrative("Ann sails to a far island.")], [science()], sentences=2)
    with pytest.raises(ValueError, match="the document of record 0 of NarrativeQA has no summary: it has id"):
        curated.pairs([{"document": {"id": "d"}}], [science()])
    with pytest.raises(TypeError, match="the document of record 0 of NarrativeQA is 'd', and must be an object"):
        curated.pairs([{"document": "d"}], [science()])
    with pytest.raises(ValueError, match="record 0 of SciQ has no correct_answer"):
        list(curated.pairs(NARRATIVES, [{"question": "What?"}]))


# -------------------------------------------------------------------------------------------------------- annotation
def marking(*phrases: str) -> Callable[[Instance], list[Span]]:
    """An annotator that marks these phrases, where each stands first."""

    def spans(instance: Instance) -> list[Span]:
        found = {phrase: occurrences(phrase, instance.text) for phrase in phrases}
        return [at[0] for at in found.values()]

    return spans


def test_annotations_are_joined_word_by_word() -> None:
    annotators = [marking("Nina", "the drawer."), marking("drawer", "key in"), marking("Nina", "key")]
    first = [replace(NINA, support=(Span(0, 31),))]
    gold = {agree: [one.words("gold") for one in annotated(first, annotators[:2], agree)] for agree in ("union",)}
    assert gold["union"] == [["Nina", "key", "in", "the", "drawer"]]
    assert next(annotated(first, annotators[:2])).words("gold") == ["drawer"]
    assert next(annotated(first, annotators, "majority")).words("gold") == ["Nina", "key", "drawer"]
    assert next(annotated(first, annotators)).words("gold") == []
    # Half is no majority.
    assert next(annotated(first, annotators[:2], "majority")).words("gold") == ["drawer"]


@unchecked
def test_wrong_annotations_are_refused() -> None:
    with pytest.raises(ValueError, match="annotators is empty: give one function or more"):
        annotated([NINA], [])
    with pytest.raises(ValueError, match="agree='both' is not one of 'intersection', 'majority', 'union'"):
        annotated([NINA], [answer_words], "both")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"\(32, 36\), 'Karl', marks no word in the support of instance 'nina'"):
        list(annotated([NINA], [marking("Karl")]))


def test_without_a_support_every_word_can_be_marked() -> None:
    bare = replace(NINA, support=(), gold=())
    assert len(judged(bare)) == 13 and len(judged(NINA)) == 7
    assert next(annotated([bare], [marking("Karl")])).words("gold") == ["Karl"]


def test_answer_words_are_those_of_answer_and_question() -> None:
    assert next(annotated([NINA], [answer_words])).words("gold") == ["key", "drawer"]
    capitals = replace(NINA, answer=" Drawer", choices=(), question=())
    assert next(annotated([capitals], [answer_words])).words("gold") == ["drawer"]
    small = replace(NINA, answer=" nina", choices=(), question=())
    assert next(annotated([small], [answer_words])).words("gold") == ["Nina"]
    function = replace(NINA, answer=" in the", choices=(), question=())
    assert {"in", "the"} <= FUNCTION_WORDS
    assert next(annotated([function], [answer_words])).words("gold") == ["the", "in", "the"]
    assert next(annotated([replace(function, answer=None)], [answer_words])).words("gold") == []


def test_agreement_is_that_of_scikit_learn_over_all_words() -> None:
    told = list(recalled.instances(count=6, hops=2))
    found = list(annotated(told, [answer_words]))
    left, right = ([word in one.gold for one in several for word in judged(one)] for several in (found, told))
    scores = agreement(found, told)
    assert scores.words == len(left) == sum(len(judged(one)) for one in told)
    assert scores.f1 == pytest.approx(f1_score(left, right)) and 0 < scores.f1 < 1
    assert scores.kappa == pytest.approx(cohen_kappa_score(left, right))
    assert scores.jaccard == pytest.approx(jaccard_score(left, right))


def test_agreement_by_hand() -> None:
    """Of seven words one annotator marks two, the other three, and two are the same."""
    one, two = replace(NINA, gold=(Span(0, 4), Span(24, 30))), replace(NINA, gold=(Span(0, 8), Span(24, 31)))
    found = agreement([one], [two])
    chance = (2 * 3 + 5 * 4) / 49
    assert found == pytest.approx((4 / 5, (6 / 7 - chance) / (1 - chance), 2 / 3, 7))
    assert agreement([one], [one]) == (1, 1, 1, 7)


def test_agreement_on_nothing_is_undefined() -> None:
    nothing = replace(NINA, gold=())
    assert [isnan(value) for value in agreement([nothing], [nothing])] == [True, True, True, False]
    whole = replace(NINA, gold=(Span(0, 31),))
    assert isnan(agreement([whole], [whole]).kappa) and agreement([whole], [whole]).f1 == 1
    assert agreement([nothing], [whole])[:3] == (0, 0, 0)
    with pytest.raises(ValueError, match="there is no word that both could judge"):
        agreement([], [])
    with pytest.raises(ValueError, match="1 instances and 0 are not two annotations of the same"):
        agreement([NINA], [])
    with pytest.raises(ValueError, match="'nina' and 'b' are not the same text and support"):
        agreement([NINA], [replace(NINA, id="b", support=(Span(0, 10),), gold=())])


# --------------------------------------------------------------------------------------------------------- tellmewhy
SENTENCES = ["Kim was cold.", "She saw a coat.", "She put it on."]
WHY: dict[str, Any] = {
    "narrative": " ".join(SENTENCES),
    "question": "Why did She put it on?",
    "is_ques_answerable": "Answerable",
    "answer": "She was cold.",
    "original_narrative_form": SENTENCES,
    "question_meta": "rocstories_narrative_7_sentence_2_question_0",
    "helpful_sentences": [0],
}


def test_the_answers_of_one_question_are_one_instance() -> None:
    votes = [[0], [0, 1], [], [2, 0]]
    (instance,) = tellmewhy.instances([WHY | {"helpful_sentences": vote} for vote in votes])
    assert instance.text == "Kim was cold. She saw a coat. She put it on. Why did She put it on?"
    assert (instance.answer, instance.template) == (None, "rocstories_narrative_7")
    assert instance.words("support") == ["Kim was cold."]
    assert instance.words("distractor") == ["She saw a coat.", "She put it on."]
    assert instance.words("question") == ["Why did She put it on?"]
    (alone,) = tellmewhy.instances([WHY | {"helpful_sentences": vote} for vote in ([1], [], [])])
    assert alone.words("support") == ["She saw a coat."]
    (halved,) = tellmewhy.instances([WHY, WHY | {"helpful_sentences": [1]}])
    assert halved.words("support") == ["Kim was cold.", "She saw a coat."]


def test_questions_of_one_story_are_apart_and_of_one_template() -> None:
    other = WHY | {"question": "Why was Kim cold?", "question_meta": "rocstories_narrative_7_sentence_0_question_1"}
    first, second = tellmewhy.instances([WHY, other | {"is_ques_answerable": "Not Answerable"}])
    assert first.template == second.template and first.id != second.id
    assert len(list(tellmewhy.instances([WHY, other]))) == 2
    only = tellmewhy.instances([WHY, other | {"is_ques_answerable": "Not Answerable"}], answerable=True)
    assert [one.id for one in only] == [first.id]


def test_a_given_answer_and_a_cue_can_be_asked_for() -> None:
    (instance,) = tellmewhy.instances([WHY, WHY | {"answer": "Cold."}], answer="given", cue="Answer:")
    assert instance.answer == " She was cold." and instance.text.endswith("on? Answer:")
    assert instance.words("question") == ["Why did She put it on? Answer:"]


@pytest.mark.parametrize(
    "change",
    [{"helpful_sentences": []}, {"helpful_sentences": None}, {"original_narrative_form": ["Another."]}],
    ids=str,
)
def test_where_no_sentence_is_known_to_help_none_is_marked(change: dict[str, Any]) -> None:
    (instance,) = tellmewhy.instances([WHY | change])
    assert instance.support == instance.distractor == ()
    assert instance.text == f"{WHY['narrative']} {WHY['question']}"


def test_bare_questions_are_enough() -> None:
    (instance,) = tellmewhy.instances([{"narrative": "Kim left.", "question": "Why did Kim leave?"}])
    assert (instance.id, instance.text) == ("tellmewhy-00000", "Kim left. Why did Kim leave?")


@unchecked
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"narrative": None}, "record 0 of TellMeWhy has no narrative"),
        ({"helpful_sentences": [3]}, "helpful_sentences name 3, but its sentences go from 0 to 2"),
        ({"helpful_sentences": "oh no"}, "rocstories_narrative_7_sentence_2_question_0: 'oh no' is no list"),
        ({"helpful_sentences": 3}, "3 is no list"),
    ],
)
def test_a_wrong_record_of_tellmewhy_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        list(tellmewhy.instances([WHY | change]))
    with pytest.raises(ValueError, match="answer='mine' is not one of 'model', 'given'"):
        tellmewhy.instances([WHY], answer="mine")  # type: ignore[arg-type]


# ----------------------------------------------------------------------------------------------------------- wikibio
PROSE = {"wiki_bio_text": "J. Doe (born 3 May 1950)\nis a pilot. She flew in Peru. She writes.", "gpt3_text": "…"}
TABLE = {
    "input_text": {
        "table": {
            "column_header": ["name", "birth_date", "nationality", "image", "language", "article_title"],
            "row_number": [1] * 6,
            "content": ["j. doe", "3 may 1950", "german", "<none>", "german and dutch", "j. doe\n"],
        },
        "context": "j. doe\n",
    },
    "target_text": "j. doe -lrb- born 1950 -rrb- is a german pilot , born 3 may 1950 .\n",
}


def test_a_biography_goes_on_after_its_first_sentences() -> None:
    (instance,) = wikibio.instances([PROSE])
    assert (instance.text, instance.answer) == ("J. Doe (born 3 May 1950) is a pilot.", None)
    assert [getattr(instance, name) for name in SPANS] == [()] * 4
    (longer,) = wikibio.instances([PROSE], sentences=2)
    assert longer.text.endswith("pilot. She flew in Peru.")


def test_a_table_tells_what_the_text_says_first() -> None:
    (instance,) = wikibio.instances([TABLE])
    assert instance.text == (
        "name: j. doe\nbirth date: 3 may 1950\nnationality: german\nlanguage: german and dutch\n"
        "j. doe -lrb- born 1950 -rrb- is a"
    )
    assert (instance.answer, instance.template) == (" german", "nationality")
    assert instance.words("support") == ["nationality: german", "language: german and dutch"]
    assert instance.words("gold") == ["german", "german"]
    assert instance.words("distractor") == ["name: j. doe", "birth date: 3 may 1950"]
    assert instance.words("question") == ["j. doe -lrb- born 1950 -rrb- is a"]


def test_of_two_rows_the_text_says_the_longer() -> None:
    table = {"column_header": ["nationality", "trade"], "content": ["german", "german pilot"]}
    (instance,) = wikibio.instances([TABLE | {"input_text": {"table": table}}])
    assert (instance.answer, instance.words("gold")) == (" german pilot", ["german pilot"])
    assert instance.words("distractor") == ["nationality: german"]


def test_a_text_that_says_nothing_of_its_table_is_left_out() -> None:
    assert [one.id for one in wikibio.instances([TABLE | {"target_text": "j. doe flies ."}, PROSE])] == [
        "wikibio-00001"
    ]


@unchecked
def first_said(contents: list[str], told: str) -> Span | None:
    """As the docstring of `wikibio.instances` says it, with a search for each row."""
    found = [spans[0] for content in contents if content and (spans := occurrences(content, told)) and spans[0].start]
    return min(found, key=lambda span: (span.start, -span.stop), default=None)


def test_the_first_row_that_is_said_is_found_as_by_a_search_for_each() -> None:
    draw = random.Random(0)
    for _ in range(2000):
        told = "".join(draw.choices("aAbBİſsSK-  .", k=draw.randrange(25)))
        contents = ["".join(draw.choices("abBİs -.", k=draw.randrange(5))) for _ in range(6)]
        assert wikibio._first_said(contents, told) == first_said(contents, told), (contents, told)


def test_long_tables_are_searched_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    searched = []

    def counted(phrase: str, text: str, span: Span | None = None) -> list[Span]:
        searched.append(len(text) if span is None else span.stop - span.start)
        return occurrences(phrase, text, span)

    monkeypatch.setattr(wikibio, "occurrences", counted)
    rows = [f"value {row} of it" for row in range(400)]
    table = {"column_header": ["row"] * 400, "content": rows}
    told = "he was born with " + " ".join(reversed(rows))
    (instance,) = wikibio.instances([{"input_text": {"table": table}, "target_text": told}])
    assert instance.answer == " value 399 of it"
    assert sum(searched) < 5 * len(told)


def test_a_wrong_record_of_wikibio_is_refused() -> None:
    with pytest.raises(ValueError, match="wikibio-00000 has no wiki_bio_text: it has text"):
        list(wikibio.instances([{"text": "…"}]))
    with pytest.raises(ValueError, match="the table of wikibio-00000 has no content"):
        list(wikibio.instances([TABLE | {"input_text": {"table": {"column_header": []}}}]))
    with pytest.raises(ValueError, match="sentences=0 must be at least 1"):
        wikibio.instances([PROSE], sentences=0)


# ----------------------------------------------------------------------------------------------------------- records
RECORDS = [{"a": "None", "b": [1, 2], "c": {"d": "é\u2028"}}, {"a": "", "b": [], "c": {"d": "2020-01-01"}}]


def test_files_of_every_kind_hold_the_same_records(tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text(json.dumps(RECORDS))
    (tmp_path / "object.json").write_text(json.dumps({"examples": RECORDS, "version": 1}))
    written(tmp_path / "lines.json", RECORDS)
    (tmp_path / "lines.jsonl").write_text("\n".join(json.dumps(one, ensure_ascii=False) for one in RECORDS), "utf-8")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(RECORDS), tmp_path / "table.parquet")
    for name in ("list.json", "object.json", "lines.json", "lines.jsonl", "table.parquet"):
        assert load("x", path=tmp_path / name, field="examples") == RECORDS, name
    (tmp_path / "one.jsonl").write_text(json.dumps({"examples": RECORDS}))
    assert read(tmp_path / "one.jsonl", field="examples") == [{"examples": RECORDS}]


def test_a_csv_file_is_read_as_text(tmp_path: Path) -> None:
    rows = [WHY | {"answer": "None"}, WHY | {"answer": "NA", "helpful_sentences": [0, 1]}]
    pyarrow_free = (
        ",".join(WHY)
        + "\n"
        + "".join(",".join('"' + str(value).replace('"', '""') + '"' for value in row.values()) + "\n" for row in rows)
    )
    (tmp_path / "why.csv").write_text(pyarrow_free)
    assert [record["answer"] for record in read(tmp_path / "why.csv")] == ["None", "NA"]
    (instance,) = suite("tellmewhy", tmp_path / "why.csv", answer="given")
    assert instance.answer == " None" and instance.words("support") == SENTENCES[:2]


SCIQ_ROW = {"question": "What is hot?", "correct_answer": "the sun", "support": "It is the sun."}
TOLD = {"document": {"summary": {"text": "Once there was a very old man who lived alone. He died."}}}


@unchecked
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("why.jsonl", json.dumps(WHY | {"question_meta": 7}), "line 1: its question_meta is 7, and must be text"),
        ("why.jsonl", "\n" + json.dumps(WHY | {"narrative": 7}), "line 2: its narrative is 7, and must be text"),
        ("why.jsonl", json.dumps(WHY | {"helpful_sentences": [[1]]}), "helpful_sentences holds .*a list of a whole"),
        ("why.jsonl", json.dumps(WHY | {"helpful_sentences": "[" * 5000}), "is no list, as helpful_sentences must be"),
        ("why.jsonl", json.dumps(WHY) + '\n{"a": 1, "a": 2}\n[]', r"line 2: the key 'a' is there twice .1 of those"),
        ("why.jsonl", json.dumps(WHY) + '\n{"a": "\\ud83d"}', "line 2: the text .* has half of a surrogate pair"),
        ("why.jsonl", "[" * 100_000, "line 1: it nests more than 64 levels deep"),
        ("why.json", "[" * 100_000, "it nests more than 64 levels deep"),
        ("why.json", f'[{{"a": {"1" * 5000}}}]', "the number 11111111111111111111… has 5000 digits"),
        ("why.json", '[\n{"a": 1},\n{"a": 2\n]', "line 4, is no JSON: Expecting ',' delimiter"),
        ("why.jsonl", json.dumps(WHY).encode("utf-16"), "line 1, is not UTF-8 but UTF-16: convert it, as by iconv"),
        ("why.json", b'[{"a": 1},\n{"a": "caf\xe9"}]', "line 2, is not UTF-8 .byte 0xe9., perhaps Latin-1: convert it"),
        ("why.csv", b"narrative,question\nKim left.,Why, caf\xe9?\n", "line 2, is not UTF-8"),
        ("why.csv", "narrative,question\nKim left.,Why?,more\n", "line 2, has 3 fields, and line 1 names 2 columns"),
        ("why.csv", "narrative,question,question\n", "line 1: the column 'question' is there twice"),
        ("why.csv", 'narrative,question\nKim,"left\n\n', "line 3, is no CSV: unexpected end of data"),
        ("why.csv", "narrative,question\nKim\0,Why?\n", "line 2, has a NUL byte"),
        ("why.parquet", b"PAR1 is not enough PAR1", "is no Parquet file that can be read: "),
        ("why.parquet", b"", "is no Parquet file that can be read: "),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_read_is_refused_by_its_place(
    tmp_path: Path, name: str, content: str | bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises((ValueError, TypeError), match=rf"^[^\n]*{name}.*{message}[^\n]*$") as caught:
        suite("tellmewhy", tmp_path / name)
    assert type(caught.value) in (ValueError, TypeError) and len(str(caught.value)) < 600


@unchecked
@pytest.mark.parametrize(
    ("name", "record", "message"),
    [
        ("wikibio", TABLE | {"input_text": {"table": {"column_header": [1], "content": ["a"]}}}, r"header\[0\] is 1"),
        ("wikibio", TABLE | {"input_text": {"table": {"column_header": ["a"], "content": 5}}}, "its content is 5, and"),
        ("wikibio", TABLE | {"input_text": {"table": {"column_header": ["a"], "content": []}}}, "1 column_head"),
        ("curated", CURATED | {"important_words": 5}, "its important_words is 5, and must be a list of text"),
        ("curated", CURATED | {"important_words": [5]}, r"its important_words\[0\] is 5, and must be text"),
        ("longra", LONGRA | {"antecedent_span": 5}, "gold holds 5|support holds 5"),
    ],
)  # fmt: skip
def test_a_field_of_another_type_is_named_with_its_line(
    tmp_path: Path, name: str, record: dict[str, Any], message: str
) -> None:
    (tmp_path / "x.jsonl").write_text("\n" + json.dumps(record))
    with pytest.raises((ValueError, TypeError), match=rf"x.jsonl, line 2.*({message})"):
        suite(name, tmp_path / "x.jsonl")


@unchecked
@pytest.mark.parametrize("name", ["support", "distractor1"])
def test_a_field_of_sciq_of_another_type_is_named_with_its_line(tmp_path: Path, name: str) -> None:
    written(tmp_path / "told.jsonl", [TOLD])
    written(tmp_path / "asked.jsonl", [SCIQ_ROW, SCIQ_ROW | {name: 5}, SCIQ_ROW | {name: 6}])
    message = f"asked.jsonl, line 2: its {name} is 5, and must be text .1 of those after it are wrong too.$"
    with pytest.raises(TypeError, match=message):
        suite("curated", narratives=tmp_path / "told.jsonl", questions=tmp_path / "asked.jsonl")


def test_a_csv_field_may_be_of_any_length(tmp_path: Path) -> None:
    before = csv.field_size_limit()
    (tmp_path / "a.csv").write_text(f"a,b\n{'a long word ' * 20_000},1\n")
    assert read(tmp_path / "a.csv") == [{"a": "a long word " * 20_000, "b": "1"}]
    assert csv.field_size_limit() == before


def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "loop.jsonl").symlink_to(tmp_path / "loop.jsonl")
    (tmp_path / "folder.jsonl").mkdir()
    for name, message in {"pipe": "is a pipe", "loop": "cannot be opened", "folder": "is a folder"}.items():
        for reader in (read, lambda path: list(read_jsonl(path))):
            with pytest.raises(OSError, match=rf"{name}.jsonl.*{message}"):
                reader(tmp_path / f"{name}.jsonl")


@pytest.mark.parametrize("name", ["template", "id"])
def test_text_that_no_file_can_hold_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is no valid UTF-8 at character 2"):
        changed(**{name: "a \ud800"})


@unchecked
@pytest.mark.parametrize(
    ("file", "content", "kind", "message"),
    [
        (
            "a.txt",
            "",
            ValueError,
            r"path='.*a.txt' must end in one of .json, .jsonl, .csv, .parquet, to be read as Some",
        ),
        ("a.json", None, FileNotFoundError, "path='.*a.json' is no file: give one with the records of Some"),
        ("a.json", "{]", ValueError, "a.json, line 1, is no JSON"),
        ("a.jsonl", '{"a": 1}\n{"a"}\n', ValueError, "a.jsonl, line 2, is no JSON"),
        ("a.json", "[]", ValueError, "a.json holds no records of"),
        ("a.jsonl", "\n", ValueError, "a.jsonl holds no records of"),
        ("a.csv", "id,text\n", ValueError, "a.csv holds no records of"),
        ("a.json", "3", ValueError, "a.json holds no list of records"),
        ("a.json", '{"examples": {"a": 1}}', ValueError, "a.json holds no list of records"),
        ("a.json", '[{"a": 1}, 2]', ValueError, "a.json: record 1 is no object but 2"),
    ],
)
def test_a_wrong_file_is_refused(
    file: str, content: str | None, kind: type[Exception], message: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / file).write_text(content)
    with pytest.raises(kind, match=message):
        load("Some", path=tmp_path / file, field="examples")


@pytest.mark.parametrize(
    "error",
    [
        ConnectionError("Couldn't reach it on the Hub (Offline)\nand more"),
        ValueError("Unknown split"),
        RuntimeError("Dataset scripts are no longer supported"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_hub_out_of_reach_is_one_sentence_with_the_way_out(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    reason = str(error).split("\n")[0]
    with pytest.raises(OSError) as caught:  # noqa: PT011
        suite("tellmewhy", split="dev")
    assert str(caught.value) == (
        f"the dev split of StonyBrookNLP/tellmewhy could not be had from the Hugging Face hub ({reason}): "
        "give path= a json, jsonl, csv or parquet file of its records"
    )
    with pytest.raises(OSError, match=r"deepmind/narrativeqa .*: give narratives= a json"):
        suite("curated")


def test_the_hub_is_asked_for_a_data_set_and_a_split(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    held = {
        tellmewhy.HUB: [WHY],
        wikibio.HUB: [PROSE],
        curated.NARRATIVES: NARRATIVES,
        curated.QUESTIONS: [science()],
    }

    def load_dataset(name: str, split: str) -> Any:
        asked.append((name, split))
        return datasets.Dataset.from_list(held[name])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert suite("tellmewhy", split="validation")[0].words("support") == ["Kim was cold."]
    assert suite("wikibio")[0].text.startswith("J. Doe")
    assert suite("curated", order="both")[1].words("gold") == ["plants", "catch", "light"]
    assert asked == [
        (tellmewhy.HUB, "validation"),
        (wikibio.HUB, "evaluation"),
        (curated.NARRATIVES, "test"),
        (curated.QUESTIONS, "test"),
    ]


def test_what_is_slow_to_import_is_only_imported_when_needed() -> None:
    """And nothing can be asked of a network before that."""
    modules = list(Path(curated.__file__).parent.glob("*.py"))
    assert len(modules) > 10
    for module in modules:
        at_import = [
            node for node in ast.parse(module.read_text()).body if isinstance(node, ast.Import | ast.ImportFrom)
        ]
        assert not any(name in ast.unparse(node) for node in at_import for name in ("datasets", "pyarrow")), module


# ------------------------------------------------------------------------------------------------------------ suites
def test_every_suite_can_be_had_by_its_name(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "own.jsonl", [NINA])
    many = [*NARRATIVES, narrative("Cleo walks to a far town.")]
    narratives, questions = written(tmp_path / "n.jsonl", many), written(tmp_path / "q.jsonl", [science()])
    found = {
        "recall": suite("recall", limit=3, seed=2, hops=2),
        "curated": suite("curated", written(tmp_path / "c.jsonl", [CURATED]), cue=None),
        "longra": suite("longra", written(tmp_path / "l.jsonl", [LONGRA])),
        "tellmewhy": suite("tellmewhy", written(tmp_path / "t.jsonl", [WHY]), cue="Answer:"),
        "wikibio": suite("wikibio", str(written(tmp_path / "w.jsonl", [TABLE]))),
        "jsonl": suite("jsonl", tmp_path / "own.jsonl"),
    }
    assert found.keys() == SUITES.keys()
    assert found["recall"] == list(recalled.instances(seed=2, count=3, hops=2, wordings="more"))
    assert found["curated"] == curated.released([CURATED], cue=None)
    assert found["longra"] == list(longra.instances([LONGRA]))
    assert found["tellmewhy"] == list(tellmewhy.instances([WHY], cue="Answer:"))
    assert found["wikibio"] == list(wikibio.instances([TABLE]))
    assert found["jsonl"] == [NINA]
    made = [suite("curated", narratives=narratives, questions=questions, cue=None, seed=seed) for seed in range(9)]
    assert made == [list(curated.pairs(many, [science()], cue=None, seed=seed)) for seed in range(9)]
    assert any(one != made[0] for one in made)
    assert suite("longra", tmp_path / "l.jsonl", says=lambda _: " Oslo") == found["longra"]
    assert suite("longra", tmp_path / "l.jsonl", says=lambda _: " Rome") == []


def test_the_recall_suite_has_many_templates_unless_told_otherwise() -> None:
    """With 15 templates, whatever is said of methods hangs on a few of them."""
    assert len({one.template for one in suite("recall", limit=64)}) == 64
    assert len({one.template for one in suite("recall", limit=300, facts=3)}) == 64
    assert suite("recall", limit=40, wordings="trained") == list(recalled.instances(count=40))
    assert suite("recall", limit=9, voice="active") == list(recalled.instances(count=9, voice="active"))


def test_a_limit_draws_by_the_seed_and_keeps_the_order(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    write_jsonl(path, [Instance(id=f"{at:02d}", text="One", answer=None) for at in range(50)])
    drawn = [[one.id for one in suite("jsonl", path, limit=10, seed=seed)] for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert all(len(set(ids)) == 10 and ids == sorted(ids) for ids in drawn)
    assert len(suite("jsonl", path, limit=99)) == len(suite("jsonl", path)) == 50


@unchecked
@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ({"name": "recal"}, ValueError, "suite='recal' is not one of 'recall', .*did you mean 'recall'"),
        ({"name": "longra"}, ValueError, "the longra suite is read from a file: give path=, a json or jsonl file of"),
        (
            {"name": "jsonl"},
            ValueError,
            "the jsonl suite is read from a file: give path=, a file with an instance a line",
        ),
        ({"name": "recall", "path": "x"}, ValueError, "path='x' is for suites that are read: recall is made"),
        ({"name": "recall"}, ValueError, "the recall suite has no end: give limit="),
        ({"name": "recall", "limit": 0}, ValueError, "limit=0 must be at least 1"),
        ({"name": "recall", "limit": 2, "rival": 1}, TypeError, "has no option 'rival' here .did you mean 'rivals'"),
        ({"name": "recall", "limit": 2, "split": "tset"}, ValueError, "split='tset' is not one of train, dev, test"),
        ({"name": "curated", "path": "x", "order": "both"}, TypeError, "the curated suite has no option 'order' here"),
        ({"name": "curated", "path": "x", "questions": "y"}, ValueError, "path= names the released instances"),
        (
            {"name": "curated", "repeated": True},
            TypeError,
            "no option 'repeated' here.*it has narratives, questions, o",
        ),
        (
            {"name": "curated", "narratives": "x.json"},
            FileNotFoundError,
            "narratives='x.json' is no file: give one with",
        ),
        ({"name": "longra", "sayz": 1}, TypeError, "no option 'sayz' here .did you mean 'says'..; it has says"),
        ({"name": "tellmewhy", "qu": 1}, TypeError, "no option 'qu' here"),
        ({"name": "wikibio", "sentence": 1}, TypeError, "no option 'sentence' here .did you mean 'sentences'"),
        ({"name": "jsonl", "cue": 1}, TypeError, "the jsonl suite has no option 'cue' here; it has none of its own"),
    ],
)
def test_what_no_suite_can_do_is_refused(given: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        suite(**given)


@unchecked
@pytest.mark.parametrize(
    ("name", "lines"),
    [("curated", CURATED), ("longra", LONGRA), ("tellmewhy", WHY), ("wikibio", TABLE), ("jsonl", record_of(NINA))],
)
def test_a_file_has_no_parts_to_ask_for(name: str, lines: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"split='test': what the {name} suite is read from has no parts"):
        suite(name, written(tmp_path / "f.jsonl", [lines]), split="test")


def test_the_hubs_wikibio_has_one_part_only() -> None:
    with pytest.raises(ValueError, match="split='test': what the wikibio suite is read from has no parts"):
        suite("wikibio", split="test")


def test_a_wrong_limit_of_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="limit=-1 must be at least 1"):
        suite("longra", written(tmp_path / "l.jsonl", [LONGRA]), limit=-1)


def test_every_line_of_json_is_an_instance_of_its_own(tmp_path: Path) -> None:
    assert instance_of(record_of(NINA)) == NINA
    path = tmp_path / "all.jsonl"
    every = [*curated.released([CURATED]), *longra.instances([LONGRA]), *wikibio.instances([TABLE, PROSE])]
    write_jsonl(path, every)
    assert list(read_jsonl(path)) == every
