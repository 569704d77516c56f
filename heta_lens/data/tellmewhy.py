"""TellMeWhy: a story of a few sentences, and why something in it was done."""

from ast import literal_eval
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

from heta_lens._util.file_reading import brief
from heta_lens._util.options import check_choice
from heta_lens._util.type_checks import described, fits
from heta_lens.data.dataset_files import Record, each, place_of, text_or_nothing, texts
from heta_lens.data.instance import Instance
from heta_lens.data.text_layout import Piece, composed

HUB = "StonyBrookNLP/tellmewhy"
Answer: TypeAlias = Literal["model", "given"]


def instances(
    records: Iterable[Mapping[str, Any]],
    *,
    answer: Answer = "model",
    cue: str | None = None,
    answerable: bool = False,
) -> Iterator[Instance]:
    """One instance per question, of which there is a record for every annotator.

    Args:
        records: as the hub has them.
        answer: ``"model"`` leaves it to the model, since people answer in their own words, which begin otherwise each
            time; ``"given"`` takes what the first annotator says.
        cue: what the text ends with, such as ``"Answer:"``; None ends it with the question, as ReAGent does.
        answerable: only questions whose answer stands in the story, as most annotators find.
    """
    check_choice("answer", answer, get_args(Answer))
    questions: dict[tuple[str, str], list[Record]] = {}
    for record, key in each(records, _with_key):
        questions.setdefault(key, []).append(record)
    kept = [
        group for group in questions.values() if not answerable or group[0].get("is_ques_answerable") == "Answerable"
    ]
    return each(kept, lambda number, group: _instance(number, group, answer, cue), lambda group: place_of(group[0], ""))


def _with_key(number: int, record: Record) -> tuple[Record, tuple[str, str]]:
    """A record and its key: the story and the question."""
    what = place_of(record, f"record {number} of TellMeWhy")
    narrative, question = texts(record, ("narrative", "question"), what)
    return record, (narrative, question)


def _instance(number: int, group: Sequence[Record], answer: Answer, cue: str | None) -> Instance:
    first = group[0]
    meta = (
        text_or_nothing(first, "question_meta", place_of(first, f"tellmewhy-{number:05d}")) or f"tellmewhy-{number:05d}"
    )
    asking = Piece(" ".join([first["question"].strip(), *([cue] if cue else [])]), "question")
    given = f" {texts(first, ('answer',), meta)[0].strip()}" if answer == "given" else None
    # Questions about one story share its sentences.
    return composed(meta, [*_story(group, meta), Piece(" "), asking], given, template=meta.split("_sentence_")[0])


def _story(group: Sequence[Record], meta: str) -> list[Piece]:
    """The story in pieces: sentences that helped to answer are support, the others a distractor."""
    narrative = group[0]["narrative"].strip()
    sentences = _listed(group[0], "original_narrative_form", str, meta)
    helpful = _helpful(group, len(sentences), meta)
    pieces, done = [], 0
    for at, sentence in enumerate(sentences):
        start = narrative.find(sentence.strip(), done)
        if start < 0 or not helpful:
            return [Piece(narrative)]  # which sentence is which is not known
        stop = start + len(sentence.strip())
        name = "support" if at in helpful else "distractor"
        pieces += [Piece(narrative[done:start]), Piece(narrative[start:stop], name)]
        done = stop
    return [*pieces, Piece(narrative[done:])]


def _helpful(group: Sequence[Record], count: int, meta: str) -> set[int]:
    """The sentences, counted from 0, that at least half of the annotators who name any name."""
    votes = [votes for record in group if (votes := set(_listed(record, "helpful_sentences", int, meta)))]
    named = Counter(at for vote in votes for at in vote)
    if count and (outside := [at for at in named if at not in range(count)]):
        raise ValueError(
            f"{meta}: helpful_sentences name {brief(outside[0])}, but its sentences go from 0 to {count - 1}"
        )
    return {at for at, times in named.items() if 2 * times >= len(votes)}


def _listed(record: Record, name: str, kind: type, meta: str) -> list[Any]:
    """A list of text or numbers, which a csv file holds as text."""
    value = record.get(name)
    if not value:
        return []
    try:
        items = literal_eval(value) if isinstance(value, str) else value
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        items = None
    if not isinstance(items, list | tuple):
        raise ValueError(f"{meta}: {brief(value)} is not a list, as {name} must be")
    for item in items:
        if not fits(item, kind):
            raise TypeError(f"{meta}: {name} holds {brief(item)}, and must be a list of {described(kind)}")
    return [*items]
