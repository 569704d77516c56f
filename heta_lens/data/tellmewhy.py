"""TellMeWhy: a story of a few sentences, and why something in it was done."""

from ast import literal_eval
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

from heta_lens.data.instance import Instance
from heta_lens.data.layout import Piece, composed
from heta_lens.data.records import Record, texts
from heta_lens.options import check_choice

HUB = "StonyBrookNLP/tellmewhy"
Answer: TypeAlias = Literal["model", "given"]


def instances(
    records: Iterable[Mapping[str, Any]],
    *,
    answer: Answer = "model",
    cue: str | None = None,
    answerable: bool = False,
) -> Iterator[Instance]:
    """One a question: the records hold each with the answer of every annotator.

    Args:
        records: as the hub has them.
        answer: ``"model"`` leaves it to the model, since people answer in their own words, which begin otherwise each
            time; ``"given"`` takes what the first annotator says.
        cue: what the text ends with, such as ``"Answer:"``; None ends it with the question, as ReAGent does.
        answerable: only questions whose answer stands in the story, as most annotators find.
    """
    check_choice("answer", answer, get_args(Answer))
    asked: dict[tuple[str, str], list[Record]] = {}
    for number, record in enumerate(records):
        narrative, question = texts(record, ("narrative", "question"), f"record {number} of TellMeWhy")
        asked.setdefault((narrative, question), []).append(record)
    kept = [told for told in asked.values() if not answerable or told[0].get("is_ques_answerable") == "Answerable"]
    return (_instance(number, told, answer, cue) for number, told in enumerate(kept))


def _instance(number: int, told: Sequence[Record], answer: Answer, cue: str | None) -> Instance:
    first = told[0]
    meta = first.get("question_meta") or f"tellmewhy-{number:05d}"
    asking = Piece(" ".join([first["question"].strip(), *([cue] if cue else [])]), "question")
    said = f" {texts(first, ('answer',), meta)[0].strip()}" if answer == "given" else None
    # Questions about one story have its sentences in common.
    return composed(meta, [*_story(told, meta), Piece(" "), asking], said, template=meta.split("_sentence_")[0])


def _story(told: Sequence[Record], meta: str) -> list[Piece]:
    """The story in pieces, of which those that helped to answer are support, and the other sentences a distractor."""
    narrative = told[0]["narrative"].strip()
    sentences = _listed(told[0].get("original_narrative_form"), meta)
    helpful = _helpful(told, len(sentences), meta)
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


def _helpful(told: Sequence[Record], count: int, meta: str) -> set[int]:
    """The sentences, counted from 0, that at least half of those annotators name who name any."""
    votes = [votes for record in told if (votes := set(_listed(record.get("helpful_sentences"), meta)))]
    named = Counter(at for vote in votes for at in vote)
    if count and (outside := [at for at in named if at not in range(count)]):
        raise ValueError(f"{meta}: helpful_sentences name {outside[0]!r}, but its sentences go from 0 to {count - 1}")
    return {at for at, times in named.items() if 2 * times >= len(votes)}


def _listed(value: Any, meta: str) -> list[Any]:
    """A list, also as a csv file holds it: written out."""
    if not value:
        return []
    try:
        found = literal_eval(value) if isinstance(value, str) else value
        return list(found)
    except (ValueError, SyntaxError, TypeError):
        raise ValueError(f"{meta}: {value!r} is no list") from None
