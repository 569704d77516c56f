"""Published prompts with known evidence, read as they are: SQuAD, known facts, indirect objects, agreement."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from heta_lens._util.files import brief
from heta_lens._util.options import check_at_least
from heta_lens._util.text import sentences
from heta_lens.data.datasets import PROSE_END, Piece, composed, occurrences
from heta_lens.data.families import Asked, in_lines
from heta_lens.data.instance import Instance
from heta_lens.data.records import each, values_of

Records = Iterable[Mapping[str, Any]]


def squad(records: Records, *, neighbours: int | None = None, chat: bool = False) -> Iterator[Instance]:
    """Make SQuAD instances: the support is the answer's sentence, the other sentences distract.

    Records are as published (articles with paragraphs), as on the hub (``answers``), or have ``answer`` and
    ``answer_span``. Questions without an answer are left out.

    Args:
        records: the records.
        neighbours: how many sentences before and after the answer's stay; None keeps the whole paragraph.
        chat: ask in a chat.
    """
    if neighbours is not None:
        check_at_least("neighbours", neighbours, 0, whole=True)
    paragraphs: dict[str, int] = {}  # instances of a paragraph are not independent

    def made(number: int, record: Mapping[str, Any]) -> Instance:
        context, question = values_of(record, context=str, question=str)
        answer, start = _answer_of(record)
        told = context[start : start + len(answer)]  # whose capitals may differ
        if not answer.strip() or told.lower() != answer.lower():
            raise ValueError(f"the answer {brief(answer)} does not stand at character {start} of its context")
        spans = sentences(context, PROSE_END)
        own = next(at for at, (_, stop) in enumerate(spans) if start < stop)
        first, last = (0, len(spans)) if neighbours is None else (max(0, own - neighbours), own + neighbours + 1)
        lines = [(context[begin:stop].strip(), at == own) for at, (begin, stop) in enumerate(spans)][first:last]
        asked = Asked(in_lines(lines), told, f"Question: {question.strip()}", "Answer:", between="\n")
        template = f"paragraph {paragraphs.setdefault(context, len(paragraphs))}"
        return asked.instance(f"squad-{record.get('id', number)}", template, chat)

    return each(_questions(records), made, "SQuAD's record")


def _questions(records: Records) -> Iterator[Mapping[str, Any]]:
    """Yield a record per question that has an answer."""
    for record in records:
        if "data" in record or "paragraphs" in record:
            for article in record.get("data", [record]):
                for paragraph in values_of(article, paragraphs=Sequence[Mapping])[0]:
                    context, asked = values_of(paragraph, context=str, qas=Sequence[Mapping])
                    yield from _questions({**one, "context": context} for one in asked)
        elif record.get("answers", "") not in (None, [], {"text": [], "answer_start": []}):
            yield record


def _answer_of(record: Mapping[str, Any]) -> tuple[str, int]:
    """Return the first answer, and the character of the context that it starts at."""
    if "answer_span" in record:
        answer, (start, _) = values_of(record, answer=str, answer_span=Sequence[int])
        return answer, start
    (answers,) = values_of(record, answers=Sequence[Any] | Mapping[str, Sequence[Any]])
    first = {name: each[0] for name, each in answers.items() if each} if isinstance(answers, Mapping) else answers[0]
    answer, start = values_of(first, text=str, answer_start=int)
    return answer, start


def known_facts(records: Records) -> Iterator[Instance]:
    """Make instances of ROME's known facts: a prompt whose continuation is known from its subject."""

    def made(number: int, record: Mapping[str, Any]) -> Instance:
        prompt, subject, attribute, relation = values_of(
            record, prompt=str, subject=str, attribute=str, relation_id=str
        )
        if not (spans := occurrences(subject, prompt)):
            raise ValueError(f"the subject {brief(subject)} does not stand in the prompt {brief(prompt)}")
        known = {"support": spans, "gold": spans, "template": relation}
        return Instance(f"fact-{record.get('known_id', number)}", prompt, f" {attribute}", **known)

    return each(records, made, "the fact")


def indirect_objects(records: Records) -> Iterator[Instance]:
    """Make instances of two people, of whom the one that is named once (the answer) receives something."""

    def made(number: int, record: Mapping[str, Any]) -> Instance:
        prompt, answer = values_of(record, prompt=str, answer=str)
        spans = occurrences(answer, prompt)
        names = re.findall(r"\b[A-Z]\w+", prompt)
        rival = next((name for name in names if name != answer and names.count(name) > 1), "")
        if not spans or not rival:
            raise ValueError(f"{brief(prompt)} does not name {brief(answer)} once and somebody else twice")
        shape = re.sub(r"\b(the|a|an) \w+", r"\1 …", prompt.replace(answer, "A").replace(rival, "B"))
        known = {"support": spans, "gold": spans, "distractor": occurrences(rival, prompt), "template": shape}
        return Instance(f"ioi-{record.get('case_id', number)}", prompt, f" {answer}", **known)

    return each(records, made, "the prompt")


def agreement(records: Records) -> Iterator[Instance]:
    """Make instances of subject–verb agreement from pairs of prefixes that differ in the subject's number."""

    def made(number: int, record: Mapping[str, Any]) -> Instance:
        clean, patch, answer, other = values_of(
            record, clean_prefix=str, patch_prefix=str, clean_answer=str, patch_answer=str
        )
        ours, theirs = clean.split(" "), patch.split(" ")
        places = [at for at, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]]
        if len(ours) != len(theirs) or len(places) != 1:
            raise ValueError(f"{brief(clean)} and {brief(patch)} must differ in one word")

        def one(words: list[str], answer: str, mark: str) -> Instance:
            pieces = [
                piece
                for at, word in enumerate(words)
                for piece in (Piece(" " if at else ""), Piece(word, "support" if at == places[0] else ""))
            ]
            made = composed(f"agreement-{number}{mark}", pieces, answer, template=ours[places[0]])
            return replace(made, gold=made.support)

        return replace(one(ours, answer, ""), counterfactual=one(theirs, other, "-other"))

    return each(records, made, "the pair")
