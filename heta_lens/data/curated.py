"""The curated set: an irrelevant story, a passage with the answer, and a question about the passage.

The module reads the paper's released instances from their JSON, or makes instances from NarrativeQA and SciQ as the
paper describes, and marks the gold words: annotations go word by word, so that full stops and tokenizers make no
difference.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from heta_lens._util.files import brief
from heta_lens._util.python import warn
from heta_lens._util.text import Span
from heta_lens.data.datasets import WORD, Piece, composed, occurrences, one_line, split_sentences, words_within
from heta_lens.data.instance import Instance
from heta_lens.data.recall import Draw
from heta_lens.data.records import each, values_of

RELEASED = ("id", "sciq_id", "input_text", "narrative_segment", "sciq_support_segment", "question", "answer")
REFERS_BACK = re.compile(r"(?:He|She|It|They|His|Her|Hers|Its|Their|This|That|These|Those|Then|There|However)\b")
FEWEST_WORDS = 5

# Words of the structure of a sentence, not of its content; longer lists also hold nouns that answer questions.
_FUNCTION = """
    a about after all also an and another any are as at be because been before being both but by can could did do
    does doing during each either every few for from had has have having he her hers him his how i if in into is it its
    itself just may me might more most must my no nor not of off on once one only or other our out over own same she
    should so some such than that the their them then there these they this those through to too under until up upon us
    very was we were what when where whether which while who whom whose why will with would you your
    question answer
"""
FUNCTION_WORDS = frozenset(_FUNCTION.split())


# ---------------------------------------------------------------------------------------------------------- annotation
def answer_words(instance: Instance) -> list[Span]:
    """Mark the words of the answer and the question in the support (or in all of the text), except function words.

    An answer of nothing but function words is marked nevertheless.
    """
    in_question = {word for question in instance.words("question") for word in _forms(question)} - FUNCTION_WORDS
    answer = set(_forms(instance.answer or ""))
    wanted = in_question | (answer - FUNCTION_WORDS or answer)
    words = words_within(instance.text, instance.support or [Span(0, len(instance.text))])
    return [word for word in words if instance.text[slice(*word)].casefold() in wanted]


def _forms(text: str) -> list[str]:
    return [word.casefold() for word in WORD.findall(text)]


# -------------------------------------------------------------------------------------------------- released instances
def released(
    records: Iterable[Mapping[str, Any]], *, separator: str = " ", cue: str | None = "Answer:"
) -> list[Instance]:
    """Read the paper's released instances, each once: nineteen of twenty in its file of 2,000 repeat another.

    Args:
        records: the ``examples`` of the released JSON.
        separator: the text between the segments; ``"<s>"``, as in the release, is three characters of text.
        cue: the end of the text; None ends the text with the question.
    """
    instances = [*each(records, lambda _, record: _released(record, separator, cue), "the curated data's record")]
    once: dict[Instance, Instance] = {}
    for instance in instances:
        once.setdefault(replace(instance, id="-"), instance)
    if len(once) < len(instances):
        warn(f"{len(instances) - len(once)} of {len(instances)} instances repeat another and are left out")
    return [*once.values()]


def _released(record: Mapping[str, Any], separator: str, cue: str | None) -> Instance:
    known = values_of(record, **dict.fromkeys(RELEASED, str), important_words=Sequence[str] | None)
    id, template, text, narrative, support, question, answer, important = known
    at = {segment: text.find(segment) for segment in (narrative, support, question)}
    for segment, start in at.items():
        if start < 0:
            raise ValueError(f"its input_text does not hold the segment {brief(segment)}")
    segments = sorted([Piece(narrative, "distractor"), Piece(support, "support")], key=lambda piece: at[piece.text])
    # Instances of a science question share support, gold and answer: only the story differs.
    instance = _with_question(id, segments, question, answer, separator, cue, template=template)
    gold: list[Span] = []
    for word in important or ():
        spans = [span for within in instance.support for span in occurrences(word, instance.text, within)]
        if not spans:
            raise ValueError(f"the important word {brief(word)} is not a word of its support")
        gold += spans
    return replace(instance, gold=tuple(gold))


def _with_question(
    id: str, segments: Sequence[Piece], question: str, answer: str, separator: str, cue: str | None, **known: Any
) -> Instance:
    """Return the segments, followed by the question, as an instance."""
    between = Piece(f" {separator.strip()} " if separator.strip() else separator)
    asking = Piece(" ".join(["Question:", question, *([cue] if cue else [])]), "question")
    pieces = [piece for segment in segments for piece in (segment, between)]
    return composed(id, [*pieces, asking], " " + answer.strip(), **known)


# ------------------------------------------------------------------------------------------------------- new instances
def pairs(
    narratives: Iterable[Mapping[str, Any]],
    questions: Iterable[Mapping[str, Any]],
    *,
    cue: str | None = "Answer:",
    seed: int = 0,
) -> Iterator[Instance]:
    """Make an instance for every usable SciQ question, after the beginning of a random story.

    The gold words are those of `answer_words`.

    Args:
        narratives: records of NarrativeQA, of which only the summaries are read.
        questions: records of SciQ.
        cue: the end of the text; None ends the text with the question.
        seed: the seed of the pairs of stories and questions.
    """
    beginnings = map(beginning, each(narratives, _summary, "NarrativeQA's record"))
    stories = [*dict.fromkeys(filter(None, beginnings))]  # NarrativeQA repeats a document with each of its questions
    if not stories:
        raise ValueError("narratives hold no summary that begins with a whole sentence that refers to nothing before")
    draw = Draw(f"curated {seed}")
    asked = each(questions, _question, "SciQ's record")
    for number, (question, answer, support, choices) in enumerate(asked):
        # The paper requires the answer verbatim in the passage, because nothing could be marked otherwise.
        if not answer or not occurrences(answer, support) or occurrences(answer, question):
            continue
        at = draw.below(len(stories))
        # Only the passage may hold the answer.
        fitting = (story for story in (*stories[at:], *stories[:at]) if not occurrences(answer, story))
        if (story := next(fitting, None)) is None:
            continue
        segments = [Piece(story, "distractor"), Piece(support, "support")]
        known = {"template": f"sciq-{number:05d}", "choices": choices}
        instance = _with_question(f"curated-{number:05d}", segments, question, answer, " ", cue, **known)
        yield replace(instance, gold=tuple(answer_words(instance)))


def _question(_: int, record: Mapping[str, Any]) -> tuple[str, str, str, tuple[str, ...]]:
    """Return the question, the answer, the passage and the choices of a record of SciQ."""
    others: dict[str, Any] = {f"distractor{number}": str | None for number in (1, 2, 3)}
    known = values_of(record, question=str, correct_answer=str, support=str | None, **others)
    question, answer, support, *wrong = (one_line(text or "") for text in known)
    wrong = {text for text in wrong if text}
    # In alphabetical order, so that the order gives nothing away.
    return question, answer, support, tuple(" " + choice for choice in sorted({answer, *wrong})) if wrong else ()


def _summary(_: int, record: Mapping[str, Any]) -> str:
    (document,) = values_of(record, document=Mapping)
    (summary,) = values_of(document, summary=Mapping)
    return values_of(summary, text=str)[0]


def beginning(summary: str) -> str:
    """Return the first sentence if complete and without a reference to previous text; else an empty text.

    A sentence that begins with a pronoun refers back; a line of a few words is a heading.
    """
    first = next(iter(split_sentences(one_line(summary))), "")
    complete = first.rstrip("\"'”’)").endswith((".", "!", "?")) and len(first.split()) >= FEWEST_WORDS
    return first if complete and not REFERS_BACK.match(first) else ""
