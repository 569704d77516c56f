"""Long prompts whose evidence is known: a document of real sentences with facts planted in it, and a question.

Prompts of the split ``dev`` may decide how a search goes; results are about ``test``, which is worded differently.
"""

import json
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from operator import itemgetter
from typing import Any, Literal, TypeAlias

from benchmarks.study_prompts import FILES
from heta_lens._util.text import sentences
from heta_lens.data.datasets import PROSE_END, Piece
from heta_lens.data.families import NAMES, PLACES, THINGS, Asked
from heta_lens.data.instance import Instance
from heta_lens.data.recall import Draw
from heta_lens.evaluation.prompt_evaluation import ask
from heta_lens.metrics.scores import evidence_positions
from heta_lens.prediction.prediction import Prediction

Split: TypeAlias = Literal["dev", "test"]

FACTS: dict[Split, dict[str, list[str]]] = {  # those that begin with "!" distract
    "dev": {
        "once": ["{who} keeps the {thing} in the {own}."],
        "twice": ["{who} keeps the {thing} in the {own}.", "The {thing} of {who} lies in the {own}."],
        "same form": [
            "{who} keeps the {thing} in the {own}.",
            "!{other} keeps the {toy} in the {false}.",
        ],
        "for and against": ["The {thing} of {who} is not in the {false} but in the {own}."],
        "two hops": ["{who} has the {thing}.", "{who} stays in the {own}."],
    },
    "test": {
        "once": ["{who} put the {thing} into the {own}."],
        "twice": ["{who} put the {thing} into the {own}.", "Since then the {thing} is in the {own}."],
        "same form": [
            "{who} put the {thing} into the {own}.",
            "!{other} put the {toy} into the {false}.",
        ],
        "for and against": ["{who} took the {thing} out of the {false}, and put it into the {own}."],
        "two hops": ["{who} carries the {thing}.", "{who} walked into the {own}."],
    },
}
QUESTIONS: dict[Split, tuple[str, str]] = {
    "dev": ("Question: Where is the {thing}?", "Answer: The {thing} is in the"),
    "test": ("Question: In which place is the {thing} now?", "Answer: It is in the"),
}
OF_A_PARAGRAPH = "paragraph"
KINDS = (*FACTS["dev"], OF_A_PARAGRAPH)


def answered(model: Any, split: Split, kind: str, length: int) -> Iterator[tuple[Instance, Prediction]]:
    """Yield prompts of at most so many tokens, without those in which another token of the document is likelier."""
    number = 0
    while True:
        instance = document(model, split, kind, length, number)
        prediction = ask(model, instance)
        number += 1
        assert isinstance(prediction.target, int)
        others = prediction.ids[evidence_positions(instance, prediction, "eligible")]
        likely = prediction.log_probs[prediction.target] >= prediction.log_probs[others].max()
        if likely and len(prediction) <= length:  # a paragraph alone may be longer
            yield instance, prediction


def document(model: Any, split: Split, kind: str, length: int, number: int) -> Instance:
    """Return a prompt with as many other sentences around the planted ones as fit into ``length`` tokens."""
    draw = Draw(f"{kind} {split} {length} {number}")
    record, *others = draw.some(records(split), 1 + length // 10)
    if kind == OF_A_PARAGRAPH:
        asked = of_a_paragraph(record)
        groups = [asked.context]
    else:
        asked = of_facts(split, kind, draw)
        groups = [[piece] for piece in asked.context]
    noise = [Piece(line) for other in others for line, _ in told(other)]
    places = [draw.random() for _ in groups]

    def made(count: int) -> Instance:
        lines = [[piece] for piece in noise[:count]]
        for place, group in sorted(zip(places, groups, strict=True), key=itemgetter(0), reverse=True):
            lines.insert(int(place * (count + 1)), [*group])
        pieces = [piece for line in lines for piece in line]
        spaced = [part for piece in pieces for part in (piece, Piece(" "))][:-1]
        whole = replace(asked, context=spaced, between="\n")
        return whole.instance(f"{kind} {split} {length} {number}", kind)

    def tokens(count: int) -> int:
        return model.to_tokens(made(count).text).shape[1]

    return made(max(0, bisect_right(range(len(noise) + 1), length, key=tokens) - 1))


def of_facts(split: Split, kind: str, draw: Draw) -> Asked:
    (who, other), (thing, toy), (own, false) = (draw.some(words, 2) for words in (NAMES, THINGS, PLACES))
    words = {"who": who, "other": other, "thing": thing, "toy": toy, "own": own, "false": false}
    pieces = [
        Piece(fact.removeprefix("!").format(**words), "distractor" if fact.startswith("!") else "support")
        for fact in FACTS[split][kind]
    ]
    question, opening = (part.format(**words) for part in QUESTIONS[split])
    return Asked(pieces, own, question, opening)


def of_a_paragraph(record: dict[str, Any]) -> Asked:
    pieces = [Piece(line, "support" if own else "distractor") for line, own in told(record)]
    return Asked(pieces, record["answer"], f"Question: {record['question'].strip()}", "Answer:")


def told(record: dict[str, Any]) -> list[tuple[str, bool]]:
    """Return the sentences of a paragraph, and whether the answer begins there."""
    text, (start, _) = record["context"], record["answer_span"]
    spans = sentences(text, PROSE_END)
    return [(text[first:stop].strip(), first <= start < stop) for first, stop in spans]


@cache
def records(split: Split) -> list[dict[str, Any]]:
    """Return a question of every paragraph; every second paragraph belongs to ``dev``."""
    path = FILES / "squad_subset.json"
    by_paragraph = {record["context"]: record for record in json.loads(path.read_text(encoding="utf-8"))}
    return [*by_paragraph.values()][split == "test" :: 2]
