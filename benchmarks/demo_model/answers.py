"""How many prompts the demo model answers, and whether the answer moves with the evidence."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from benchmarks.outcomes import Key, Outcomes
from benchmarks.report import INTERVALS, Table, intervals_over, proportion
from heta_lens.data.recall import Split, Story, stories

BATCH = 25
ANSWERED = 1000  # prompts of each kind
REWORDED = {"one hop": 100, "two hops": 25, "claims": 25}  # prompts of each template
KINDS: dict[str, dict[str, Any]] = {
    "one hop": {},
    "one hop, 2 facts": {"facts": 2},
    "one hop, 12 facts, 3 rivals": {"facts": 12, "rivals": 3},
    "one hop, all 6 are rivals": {"rivals": 5},
    "one hop, 40 facts": {"facts": 40},
    "one hop, 24 facts, 80 idle sentences": {"facts": 24, "filler": 80},
    "one hop, distractors before": {"distractors": "before"},
    "one hop, distractors after": {"distractors": "after"},
    "one hop, distractors around": {"distractors": "around"},
    "one hop, all passive": {"voice": "passive"},
    "two hops": {"hops": 2},
    "two hops, 4 facts": {"hops": 2, "facts": 4},
    "two hops, 12 facts, 3 rivals": {"hops": 2, "facts": 12, "rivals": 3},
    "two hops, 12 facts, 60 idle sentences": {"hops": 2, "facts": 12, "filler": 60},
    "claims": {"claim": True},
    "claims, 12 facts, 3 rivals": {"claim": True, "facts": 12, "rivals": 3},
}
IN_OTHER_WORDS: dict[str, dict[str, Any]] = {
    "one hop": {"wordings": "more"},
    "two hops": {"wordings": "more", "hops": 2},
    "claims": {"wordings": "more", "claim": True},
}


class Answered(NamedTuple):
    """One prompt: is the answer the most likely of all tokens, and the counterfactual's when the evidence names
    another?"""

    template: str
    tokens: int
    right: bool
    moved: bool
    guessed: Sequence[float]
    """How often guessing is right: among all facts, those of the owner, and those of the thing."""


def by_kind(kinds: Iterable[str]) -> list[Key]:
    return [(kind,) for kind in kinds]


def answered_of(
    model: Any, split: Split, counts: Mapping[str, int], kinds: Mapping[str, Any], key: Key
) -> list[Answered]:
    kind = str(key[0])
    prompts = list(islice(stories(split, **kinds[kind]), counts[kind]))
    right, moved = (
        [word == one.answer for word, one in zip(said(model, some), some, strict=True)]
        for some in (prompts, [story.counterfactual for story in prompts])
    )
    return [
        Answered(story.template, 1 + len(story.tokens), answered, follows, chances(story))
        for story, answered, follows in zip(prompts, right, moved, strict=True)
    ]


def chances(story: Story) -> list[float]:
    return [guess(story, by) for by in ((), ("who",), ("what",))]


def guess(story: Story, by: tuple[str, ...]) -> float:
    """How often guessing is right among the facts that agree with the question in these words."""
    if "place" in story.asking.slots:
        return 1 / len(story.choices)  # of a claim
    facts = [one.slots for one in story.sentences if {"who", "place"} <= one.slots.keys()]
    return 1 / sum(all(fact[word] == story.asking.slots[word] for word in by) for fact in facts)


@torch.no_grad()
def said(model: Any, prompts: Sequence[Story]) -> list[str]:
    """The most likely token after each prompt."""
    words: list[str] = []
    for some in (prompts[start : start + BATCH] for start in range(0, len(prompts), BATCH)):
        ids = [model.to_tokens(story.text)[0] for story in some]
        logits = model(pad_sequence(ids, batch_first=True))  # what is read never sees what follows it
        words += [model.tokenizer.decode(int(row[len(one) - 1].argmax())) for row, one in zip(logits, ids, strict=True)]
    return words


def answers(folder: Path) -> Table:
    outcomes, missing = Outcomes("demo_answers", folder).of(by_kind(KINDS))
    of = {str(kind): [Answered(*one) for one in prompts] for (kind,), prompts in outcomes.items()}
    columns = ["prompts", "tokens", "answered", "of these, moved with the evidence"]
    columns += ["chance", "knowing the owner", "knowing the thing"]
    note = intervals_over([one.template for one in prompts] for prompts in of.values())
    rows = [answers_row(kind, prompts) for kind, prompts in of.items()]
    return Table(f"Answers, {ANSWERED} prompts of each kind", columns, rows, missing, note)


def answers_row(kind: str, prompts: Sequence[Answered]) -> list[str]:
    guessed = [f"{share:.0%}" for share in np.mean([one.guessed for one in prompts], axis=0)]
    return [kind, f"{np.mean([one.tokens for one in prompts]):.0f}", *rates(prompts), *guessed]


def wordings(folder: Path) -> list[Table]:
    """Answers in wordings that the model was not trained on: of each kind, and of each template of one hop."""
    outcomes, missing = Outcomes("demo_wordings", folder).of(by_kind(IN_OTHER_WORDS))
    of = {str(kind): [Answered(*one) for one in prompts] for (kind,), prompts in outcomes.items()}
    columns = [
        "prompts",
        "number",
        "templates",
        "answered",
        "of these, moved with the evidence",
        "least answered template",
    ]
    note = intervals_over([one.template for one in prompts] for prompts in of.values())
    rows = [wordings_row(kind, prompts) for kind, prompts in of.items()]
    kinds = Table("Answers in wordings it was not trained on", columns, rows, missing, note)
    each = by_template(of.get("one hop", []))
    rows = [[template, str(len(prompts)), *rates(prompts)] for template, prompts in each.items()]
    columns = ["question / evidence", "prompts", "answered", "of these, moved with the evidence"]
    note = f"{INTERVALS} over the prompts of one template."
    return [kinds, Table("Answers in each of these wordings, one hop", columns, rows, missing, note)]


def wordings_row(kind: str, prompts: Sequence[Answered]) -> list[str]:
    each = by_template(prompts)
    least = min(float(np.mean([one.right for one in some])) for some in each.values())
    return [kind, str(len(prompts)), str(len(each)), *rates(prompts), f"{least:.0%}"]


def by_template(prompts: Sequence[Answered]) -> dict[str, list[Answered]]:
    each: dict[str, list[Answered]] = {}
    for one in prompts:
        each.setdefault(one.template, []).append(one)
    return dict(sorted(each.items()))


def rates(prompts: Sequence[Answered]) -> list[str]:
    """The share of right answers, and of those the share that moved with the evidence."""
    right = [one for one in prompts if one.right]
    answered = proportion([one.right for one in prompts], [one.template for one in prompts], 1)
    return [answered, proportion([one.moved for one in right], [one.template for one in right], 1)]
