"""The answers of the demo model, and the effect of masking their evidence.

All prompts are of the test split, which neither training nor any choice has seen.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby, islice, product
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

import heta_lens
from benchmarks import pages
from benchmarks.models import told
from benchmarks.outcomes import Outcomes
from benchmarks.pages import Table, intervals_over, proportion
from heta_lens.data.recall import WORDINGS, Story, Stretch, stories
from heta_lens.methods.heta import diagnostics

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
    """The answer to one prompt: is the true answer the most likely token, and the counterfactual's on the
    counterfactual?
    """

    template: str
    tokens: int
    right: bool
    moved: bool
    guessed: Sequence[float]  # the chance of a right guess among all facts, those of the owner, and those of the thing


def answered_of(model: Any, counts: Mapping[str, int], kinds: Mapping[str, Any], kind: str) -> list[Answered]:
    prompts = list(islice(stories("test", **kinds[kind]), counts[kind]))
    right, moved = (
        [word == one.answer for word, one in zip(said(model, some), some, strict=True)]
        for some in (prompts, [story.counterfactual for story in prompts])
    )
    return [
        Answered(
            story.template, 1 + len(story.tokens), true, follows, [guess(story, by) for by in ((), ("who",), ("what",))]
        )
        for story, true, follows in zip(prompts, right, moved, strict=True)
    ]


def guess(story: Story, by: tuple[str, ...]) -> float:
    """Return the chance of a right guess among the facts that agree with the question in these words."""
    if "place" in story.asking.slots:
        return 1 / len(story.choices)  # of a claim
    facts = [one.slots for one in story.sentences if {"who", "place"} <= one.slots.keys()]
    return 1 / sum(all(fact[word] == story.asking.slots[word] for word in by) for fact in facts)


@torch.no_grad()
def said(model: Any, prompts: Sequence[Story]) -> list[str]:
    words: list[str] = []
    for some in (prompts[start : start + BATCH] for start in range(0, len(prompts), BATCH)):
        ids = [model.to_tokens(story.text)[0] for story in some]
        logits = model(pad_sequence(ids, batch_first=True))  # what is read never sees what follows it
        words += [model.tokenizer.decode(int(row[len(one) - 1].argmax())) for row, one in zip(logits, ids, strict=True)]
    return words


MOVED = "of these, moved with the evidence"


def answered(name: str, kinds: Iterable[str]) -> tuple[dict[str, list[Answered]], int]:
    """Return the answers of each kind, and the number of kinds without outcomes."""
    outcomes, missing = Outcomes(name).of(product(kinds))
    return {kind: [Answered(*one) for one in prompts] for (kind,), prompts in outcomes.items()}, missing


def over_templates(of: Mapping[str, Sequence[Answered]]) -> str:
    return intervals_over([one.template for one in prompts] for prompts in of.values())


def answers() -> Table:
    of, missing = answered("demo_answers", KINDS)
    columns = ["prompts", "tokens", "answered", MOVED, "chance", "knowing the owner", "knowing the thing"]
    rows = []
    for kind, prompts in of.items():
        guessed = [f"{share:.0%}" for share in np.mean([one.guessed for one in prompts], axis=0)]
        rows.append([kind, f"{np.mean([one.tokens for one in prompts]):.0f}", *rates(prompts), *guessed])
    return Table(f"Answers, {ANSWERED} prompts of each kind", columns, rows, missing, over_templates(of))


def wordings() -> Table:
    """Return a table of answers in wordings outside the training."""
    of, missing = answered("demo_wordings", IN_OTHER_WORDS)
    rows = []
    for kind, prompts in of.items():
        each = by_template(prompts)
        least = min(float(np.mean([one.right for one in some])) for some in each.values())
        rows.append([kind, str(len(prompts)), str(len(each)), *rates(prompts), f"{least:.0%}"])
    columns = ["prompts", "number", "templates", "answered", MOVED, "least answered template"]
    return Table("Answers in wordings it was not trained on", columns, rows, missing, over_templates(of))


def by_template(prompts: Iterable[Answered]) -> dict[str, list[Answered]]:
    ordered = sorted(prompts, key=lambda one: one.template)
    return {template: [*some] for template, some in groupby(ordered, key=lambda one: one.template)}


def rates(prompts: Sequence[Answered]) -> list[str]:
    """Return the share of right answers, and the share of right answers that moved with the evidence."""
    right = [one for one in prompts if one.right]
    all_right = proportion([one.right for one in prompts], [one.template for one in prompts], 1)
    return [all_right, proportion([one.moved for one in right], [one.template for one in right], 1)]


EACH = 100  # prompts of each kind
EXPLAINED: dict[str, dict[str, Any]] = {
    "one hop": {},
    "two hops": {"hops": 2, "facts": 4},
    "true claims": {"claim": True},  # false ones can be told from another sentence as well
}


def explained_prompts() -> dict[str, list[Story]]:
    some = {kind: stories("test", **options) for kind, options in EXPLAINED.items()}
    return {
        kind: list(islice((one for one in prompts if one.answer != " false"), EACH)) for kind, prompts in some.items()
    }


class Drops(NamedTuple):
    """The drops of log p(answer) without a sentence of the evidence, and without stretches as long."""

    evidence: float
    story: list[float]
    question: list[float]


def masked(model: Any, story: Story) -> list[Drops]:
    """Return the drops for each sentence of the evidence, while the second sentence of two stays untouched."""
    prediction = told(model, story)
    evidence = _positions(story.evidence)
    drops = []
    for stretch in story.evidence:
        length, begins = len(stretch.tokens), story.question.tokens.start
        inside = [range(at, at + length) for at in range(1, begins - length + 1)]
        in_question = [range(at, at + length) for at in range(begins, len(prediction) - length + 1)]
        others = [some for some in inside if not evidence & set(some)]
        members = torch.zeros(1 + len(others) + len(in_question), len(prediction), dtype=torch.bool)
        for row, some in zip(members, [stretch.tokens, *others, *in_question], strict=True):
            row[list(some)] = True
        values = diagnostics.drops(prediction, "mean", members, "auto").tolist()
        drops.append(Drops(values[0], values[1 : 1 + len(others)], values[1 + len(others) :]))
    return drops


def masking() -> Table:
    outcomes, missing = Outcomes("demo_masking").of(product(EXPLAINED, range(EACH)))
    rows, clusters = list[list[str]](), list[list[str]]()
    for kind, some in groupby(outcomes, key=lambda key: key[0]):
        prompts = [outcomes[key] for key in some]
        drops = [[Drops(*hop) for hop in one["drops"]] for one in prompts]
        templates = [one["template"] for one in prompts]
        names = ["the evidence"] if len(drops[0]) == 1 else ["the evidence's first hop", "the evidence's second hop"]
        for name, hops in zip(names, zip(*drops, strict=True), strict=True):
            most = proportion([hop.evidence > max(hop.story) for hop in hops], templates)
            rows.append([kind, name, *_quantiles(hop.evidence for hop in hops), most])
        for name in ("story", "question"):
            values = [value for one in drops for hop in one for value in getattr(hop, name)]
            rows.append([kind, f"other stretches of the {name}", *_quantiles(values), ""])
        clusters.append(templates)
    columns = ["prompts", "masked", "5 %", "25 %", "median", "75 %", "95 %", "drops more than all others of the story"]
    title = f"Drop of log p(answer) in nats when a stretch is masked, {EACH} prompts of each kind"
    return Table(title, columns, rows, missing, intervals_over(clusters))


def _quantiles(values: Iterable[float]) -> list[str]:
    quantiles = np.quantile(np.fromiter(values, float), [0.05, 0.25, 0.5, 0.75, 0.95])
    return [f"{round(value, 2) + 0:.2f}" for value in quantiles]  # 0, not -0


def _positions(stretches: Iterable[Stretch]) -> set[int]:
    return {at for stretch in stretches for at in stretch.tokens}


def run() -> None:
    loaded = heta_lens.load_demo_model()
    counts = dict.fromkeys(KINDS, ANSWERED)
    Outcomes("demo_answers").measure(product(KINDS), partial(answered_of, loaded, counts, KINDS))
    counts = {kind: len(WORDINGS) * each for kind, each in REWORDED.items()}
    Outcomes("demo_wordings").measure(product(IN_OTHER_WORDS), partial(answered_of, loaded, counts, IN_OTHER_WORDS))
    prompts = explained_prompts()

    def drops(kind: str, at: int) -> dict[str, Any]:
        story = prompts[kind][at]
        return {"template": story.template, "drops": masked(loaded, story)}

    Outcomes("demo_masking").measure(product(EXPLAINED, range(EACH)), drops)


def write() -> None:
    pages.write("demo_model", [answers(), wordings(), masking()])
