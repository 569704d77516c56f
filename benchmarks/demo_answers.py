"""The answers of the demo model, the effect of masking their evidence, and the place of scores on the prompts.

All prompts are of the test split, which neither training nor any choice has seen.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import islice, repeat
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

import heta_lens
from benchmarks import pages
from benchmarks.outcomes import Key, Outcomes
from benchmarks.pages import Table, average, intervals_over, proportion
from heta_lens.data.recall import WORDINGS, Story, Stretch, stories
from heta_lens.methods.heta import diagnostics
from heta_lens.metrics import dsa, evidence_mass, f1

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
    guessed: Sequence[float]
    """The chance of a right guess among all facts, those of the owner, and those of the thing."""


def by_kind(kinds: Iterable[str]) -> list[Key]:
    return [(kind,) for kind in kinds]


def answered_of(model: Any, counts: Mapping[str, int], kinds: Mapping[str, Any], key: Key) -> list[Answered]:
    kind = str(key[0])
    prompts = list(islice(stories("test", **kinds[kind]), counts[kind]))
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
    """Return the chance of a right guess among the facts that agree with the question in these words."""
    if "place" in story.asking.slots:
        return 1 / len(story.choices)  # of a claim
    facts = [one.slots for one in story.sentences if {"who", "place"} <= one.slots.keys()]
    return 1 / sum(all(fact[word] == story.asking.slots[word] for word in by) for fact in facts)


@torch.no_grad()
def said(model: Any, prompts: Sequence[Story]) -> list[str]:
    """Return the most likely token after each prompt."""
    words: list[str] = []
    for some in (prompts[start : start + BATCH] for start in range(0, len(prompts), BATCH)):
        ids = [model.to_tokens(story.text)[0] for story in some]
        logits = model(pad_sequence(ids, batch_first=True))  # what is read never sees what follows it
        words += [model.tokenizer.decode(int(row[len(one) - 1].argmax())) for row, one in zip(logits, ids, strict=True)]
    return words


def answers() -> Table:
    outcomes, missing = Outcomes("demo_answers").of(by_kind(KINDS))
    of = {str(kind): [Answered(*one) for one in prompts] for (kind,), prompts in outcomes.items()}
    columns = ["prompts", "tokens", "answered", "of these, moved with the evidence"]
    columns += ["chance", "knowing the owner", "knowing the thing"]
    note = intervals_over([one.template for one in prompts] for prompts in of.values())
    rows = [answers_row(kind, prompts) for kind, prompts in of.items()]
    return Table(f"Answers, {ANSWERED} prompts of each kind", columns, rows, missing, note)


def answers_row(kind: str, prompts: Sequence[Answered]) -> list[str]:
    guessed = [f"{share:.0%}" for share in np.mean([one.guessed for one in prompts], axis=0)]
    return [kind, f"{np.mean([one.tokens for one in prompts]):.0f}", *rates(prompts), *guessed]


def wordings() -> list[Table]:
    """Return tables of answers in wordings outside the training: by kind, and by template of one hop."""
    outcomes, missing = Outcomes("demo_wordings").of(by_kind(IN_OTHER_WORDS))
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
    note = "95 % intervals over the prompts of one template."
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
    """Return the share of right answers, and the share of right answers that moved with the evidence."""
    right = [one for one in prompts if one.right]
    answered = proportion([one.right for one in prompts], [one.template for one in prompts], 1)
    return [answered, proportion([one.moved for one in right], [one.template for one in right], 1)]


EACH = 100  # prompts of each kind
BOUNDS = [(0, 1), (-1, 1), (0, 1)]  # of evidence mass, DSA and F1
EXPLAINED: dict[str, dict[str, Any]] = {
    "one hop": {},
    "two hops": {"hops": 2, "facts": 4},
    "true claims": {"claim": True},  # false ones can be told from another sentence as well
}


def explained_keys() -> list[Key]:
    return [(kind, at) for kind in EXPLAINED for at in range(EACH)]


def explained_prompts() -> dict[str, list[Story]]:
    """Return the prompts that are masked and explained, by kind."""
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
    prediction = _prediction(model, story)
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
    """Return the table of drops without a sentence of the evidence, and without stretches as long."""
    outcomes, missing = Outcomes("demo_masking").of(explained_keys())
    rows, templates = [], []
    for kind in EXPLAINED:
        prompts = [one for (name, _), one in outcomes.items() if name == kind]
        if prompts:
            rows += masking_rows(kind, prompts)
            templates.append([one["template"] for one in prompts])
    columns = ["prompts", "masked", "5 %", "25 %", "median", "75 %", "95 %", "drops more than all others of the story"]
    title = f"Drop of log p(answer) in nats when a stretch is masked, {EACH} prompts of each kind"
    return Table(title, columns, rows, missing, intervals_over(templates) if rows else "")


def masking_rows(kind: str, prompts: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    drops = [[Drops(*hop) for hop in one["drops"]] for one in prompts]
    templates = [one["template"] for one in prompts]
    names = ["the evidence"] if len(drops[0]) == 1 else ["the evidence's first hop", "the evidence's second hop"]
    rows = []
    for name, hops in zip(names, zip(*drops, strict=True), strict=True):
        most = proportion([hop.evidence > max(hop.story) for hop in hops], templates)
        rows.append([kind, name, *_quantiles(hop.evidence for hop in hops), most])
    for name in ("story", "question"):
        values = [value for one in drops for hop in one for value in getattr(hop, name)]
        rows.append([kind, f"other stretches of the {name}", *_quantiles(values), ""])
    return rows


def _quantiles(values: Iterable[float]) -> list[str]:
    quantiles = np.quantile(np.fromiter(values, float), [0.05, 0.25, 0.5, 0.75, 0.95])
    return [f"{round(value, 2) + 0:.2f}" for value in quantiles]  # 0, not -0


class Evaluated(NamedTuple):
    in_five: bool
    mass: float
    dsa: float
    f1: float


def scored(model: Any, story: Story) -> dict[str, Tensor]:
    heta = heta_lens.Heta(progress=False)(_prediction(model, story))
    parts = {f"{name} alone": part for name, part in heta.parts.items()}
    return {"HETA": heta.scores, 'HETA, balance="sum"': heta.diagnostics["balanced"], **parts}


def random_scores(prompts: Sequence[Story]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.rand(1 + len(story.tokens), generator=generator) for story in prompts]


def verdict(scores: Tensor, story: Story) -> Evaluated:
    """Evaluate scores on all tokens but the first, which collects attention with nowhere to go."""
    scores = scores.clone()
    scores[0] = 0
    evidence, gold, distractor = (_positions(some) for some in (story.evidence, story.gold, story.distractor))
    in_five = bool({1 + at for at in scores[1:].topk(5).indices.tolist()} & evidence)
    agreed = f1(scores, gold, candidates=range(1, len(scores)))
    return Evaluated(in_five, evidence_mass(scores, evidence), dsa(scores, evidence, distractor, gold), agreed)


def attributions(kind: str) -> Table:
    keys = [key for key in explained_keys() if key[0] == kind]
    outcomes, missing = Outcomes("demo_attributions").of(keys)
    templates = [one["template"] for one in outcomes.values()]
    names = next(iter(outcomes.values()))["scores"] if outcomes else []
    rows = []
    for name in names:
        in_five, *values = zip(*(one["scores"][name] for one in outcomes.values()), strict=True)
        rows.append([name, proportion(in_five, templates), *map(average, values, repeat(templates), BOUNDS)])
    columns = ["scores", "evidence in the top five", "evidence mass", "DSA", "F1"]
    title = f"Where scores lie: {kind}, {EACH} prompts"
    return Table(title, columns, rows, missing, intervals_over([templates]))


def _prediction(model: Any, story: Story) -> heta_lens.Prediction:
    ids = model.to_tokens(story.text)
    _, cache = model.run_with_cache(ids, names_filter=heta_lens.names_filter)
    return heta_lens.Prediction.from_cache(cache, story.answer, tokens=ids)


def _positions(stretches: Iterable[Stretch]) -> set[int]:
    return {at for stretch in stretches for at in stretch.tokens}


def run() -> None:
    """Measure answers, masking and attributions."""
    loaded = heta_lens.load_demo_model()
    counts = dict.fromkeys(KINDS, ANSWERED)
    Outcomes("demo_answers").measure(by_kind(KINDS), partial(answered_of, loaded, counts, KINDS))
    counts = {kind: len(WORDINGS) * each for kind, each in REWORDED.items()}
    Outcomes("demo_wordings").measure(by_kind(IN_OTHER_WORDS), partial(answered_of, loaded, counts, IN_OTHER_WORDS))
    prompts = explained_prompts()
    random = {kind: random_scores(some) for kind, some in prompts.items()}

    def drops(key: Key) -> dict[str, Any]:
        story = prompts[str(key[0])][int(key[1])]
        return {"template": story.template, "drops": masked(loaded, story)}

    def verdicts(key: Key) -> dict[str, Any]:
        story = prompts[str(key[0])][int(key[1])]
        scores = {**scored(loaded, story), "random": random[str(key[0])][int(key[1])]}
        return {"template": story.template, "scores": {name: verdict(one, story) for name, one in scores.items()}}

    Outcomes("demo_masking").measure(explained_keys(), drops)
    Outcomes("demo_attributions").measure(explained_keys(), verdicts)


def write() -> None:
    pages.write("demo_model", [answers(), *wordings(), masking(), *map(attributions, EXPLAINED)])
