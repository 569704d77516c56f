"""What the demo model can do, and where methods see it do it.

    python -m benchmarks.demo_model.measure run      measure; an interrupted run resumes
    python -m benchmarks.demo_model.measure write    write RESULTS.md from what was measured

All prompts are of the test split, which neither training nor any choice has seen; ``--split dev`` is for choosing, and
needs an ``--outcomes`` folder of its own.
"""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import islice, repeat
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
import typer
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

import heta_lens
from benchmarks import report
from benchmarks.outcomes import FOLDER, Folder, Key, Outcomes
from benchmarks.report import INTERVALS, Table, average, intervals_over, proportion
from heta_lens import faithfulness
from heta_lens.data.recall import Split, stories
from heta_lens.data.story import Story, Stretch
from heta_lens.data.wordings import WORDINGS
from heta_lens.metrics import dsa, evidence_mass, f1
from heta_lens.models import load_model

RESULTS = Path(__file__).with_name("RESULTS.md")
BATCH = 25
BOUNDS = [(0, 1), (-1, 1), (0, 1)]  # of evidence mass, DSA and F1
ANSWERED, EACH = 1000, 100  # prompts of each kind
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
EXPLAINED: dict[str, dict[str, Any]] = {
    "one hop": {},
    "two hops": {"hops": 2, "facts": 4},
    "true claims": {"claim": True},  # false ones can be told from another sentence as well
}


app = typer.Typer(add_completion=False)


@app.command()
def run(
    split: Annotated[Split, typer.Option(help="test, or dev for a look that chooses nothing on test.")] = "test",
    answered: Annotated[int, typer.Option(help="Prompts of each kind that the model answers.")] = ANSWERED,
    explained: Annotated[int, typer.Option(help="Prompts of each kind that are masked and explained.")] = EACH,
    model: Annotated[Path | None, typer.Option(help="A model other than the packaged one.")] = None,
    folder: Folder = FOLDER,
) -> None:
    """Measure answers, masking and attributions."""
    if folder == FOLDER and (split, answered, explained, model) != ("test", ANSWERED, EACH, None):
        raise typer.BadParameter("the tables are of the packaged model and the test split: give --outcomes for a look")
    loaded = heta_lens.load_demo_model() if model is None else load_model(str(model))
    counts = dict.fromkeys(KINDS, answered)
    Outcomes("demo_answers", folder).measure(by_kind(KINDS), partial(answered_of, loaded, split, counts, KINDS))
    counts = {kind: len(WORDINGS) * max(1, each * answered // ANSWERED) for kind, each in REWORDED.items()}
    reworded = partial(answered_of, loaded, split, counts, IN_OTHER_WORDS)
    Outcomes("demo_wordings", folder).measure(by_kind(IN_OTHER_WORDS), reworded)
    told = explained_of(split, explained)
    random = {kind: random_scores(some) for kind, some in told.items()}
    keys: list[Key] = [(kind, at) for kind, some in told.items() for at in range(len(some))]

    def drops(kind: str, at: int) -> dict[str, Any]:
        story = told[kind][at]
        return {"template": story.template, "drops": masked(loaded, story)}

    def verdicts(kind: str, at: int) -> dict[str, Any]:
        story = told[kind][at]
        scores = {**scored(loaded, story), "random": random[kind][at]}
        return {"template": story.template, "scores": {name: verdict(one, story) for name, one in scores.items()}}

    Outcomes("demo_masking", folder).measure(keys, lambda key: drops(str(key[0]), int(key[1])))
    Outcomes("demo_attributions", folder).measure(keys, lambda key: verdicts(str(key[0]), int(key[1])))


@app.command()
def write(folder: Folder = FOLDER) -> None:
    """Write RESULTS.md from what was measured."""
    tables = [answers(folder), *wordings(folder), masking(folder), *(attributions(kind, folder) for kind in EXPLAINED)]
    for table in tables:
        report.show(table.title, table.columns, table.rows)
    if folder == FOLDER:
        report.write(RESULTS, "Written by `make bench`.", tables)


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
    told = list(islice(stories(split, **kinds[kind]), counts[kind]))
    right, moved = (
        [word == one.answer for word, one in zip(said(model, some), some, strict=True)]
        for some in (told, [story.twin for story in told])
    )
    return [
        Answered(story.template, 1 + len(story.pieces), answered, follows, chances(story))
        for story, answered, follows in zip(told, right, moved, strict=True)
    ]


def chances(story: Story) -> list[float]:
    return [guess(story, by) for by in ((), ("who",), ("what",))]


def answers(folder: Path) -> Table:
    found, missing = Outcomes("demo_answers", folder).of(by_kind(KINDS))
    of = {str(kind): [Answered(*one) for one in prompts] for (kind,), prompts in found.items()}
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
    found, missing = Outcomes("demo_wordings", folder).of(by_kind(IN_OTHER_WORDS))
    of = {str(kind): [Answered(*one) for one in prompts] for (kind,), prompts in found.items()}
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


def guess(story: Story, by: tuple[str, ...]) -> float:
    """How often guessing is right among the facts that agree with the question in these words."""
    if "place" in story.asking.slots:
        return 1 / len(story.choices)  # of a claim
    facts = [one.slots for one in story.sentences if {"who", "place"} <= one.slots.keys()]
    return 1 / sum(all(fact[word] == story.asking.slots[word] for word in by) for fact in facts)


@torch.no_grad()
def said(model: Any, told: Sequence[Story]) -> list[str]:
    """The most likely token after each prompt."""
    found: list[str] = []
    for some in (told[start : start + BATCH] for start in range(0, len(told), BATCH)):
        ids = [_ids(model, story)[0] for story in some]
        logits = model(pad_sequence(ids, batch_first=True))  # what is read never sees what follows it
        found += [model.tokenizer.decode(int(row[len(one) - 1].argmax())) for row, one in zip(logits, ids, strict=True)]
    return found


def masking(folder: Path) -> Table:
    """How much less likely the answer is without a sentence of the evidence, and without any other stretch as long."""
    found, missing = Outcomes("demo_masking", folder).of(explained_keys())
    rows, templates = [], []
    for kind in EXPLAINED:
        prompts = [one for (name, _), one in found.items() if name == kind]
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


def explained_keys() -> list[Key]:
    return [(kind, at) for kind in EXPLAINED for at in range(EACH)]


class Drops(NamedTuple):
    """Of log p(answer), without one sentence of the evidence and without other stretches as long."""

    evidence: float
    story: list[float]
    question: list[float]


def masked(model: Any, story: Story) -> list[Drops]:
    """For each sentence of the evidence; the other one, if there is one, stays untouched throughout."""
    prediction = _prediction(model, story)
    told = _positions(story.evidence)
    found = []
    for stretch in story.evidence:
        length, begins = len(stretch.tokens), story.question.tokens.start
        inside = [range(at, at + length) for at in range(1, begins - length + 1)]
        asked = [range(at, at + length) for at in range(begins, len(prediction) - length + 1)]
        others = [some for some in inside if not told & set(some)]
        members = torch.zeros(1 + len(others) + len(asked), len(prediction), dtype=torch.bool)
        for row, some in zip(members, [stretch.tokens, *others, *asked], strict=True):
            row[list(some)] = True
        drops = faithfulness.drops(prediction, "mean", members, "auto", lambda _: None).tolist()
        found.append(Drops(drops[0], drops[1 : 1 + len(others)], drops[1 + len(others) :]))
    return found


def explained_of(split: Split, count: int) -> dict[str, list[Story]]:
    """The prompts that are masked and explained."""
    told = {kind: stories(split, **knobs) for kind, knobs in EXPLAINED.items()}
    return {kind: list(islice((one for one in some if one.answer != " false"), count)) for kind, some in told.items()}


class Judged(NamedTuple):
    """One score on one prompt."""

    in_five: bool
    mass: float
    dsa: float
    f1: float


def attributions(kind: str, folder: Path) -> Table:
    keys = [key for key in explained_keys() if key[0] == kind]
    found, missing = Outcomes("demo_attributions", folder).of(keys)
    templates = [one["template"] for one in found.values()]
    names = next(iter(found.values()))["scores"] if found else []
    rows = []
    for name in names:
        in_five, *values = zip(*(one["scores"][name] for one in found.values()), strict=True)
        rows.append([name, proportion(in_five, templates), *map(average, values, repeat(templates), BOUNDS)])
    columns = ["scores", "evidence in the top five", "evidence mass", "DSA", "F1"]
    title = f"Where scores lie: {kind}, {EACH} prompts"
    return Table(title, columns, rows, missing, intervals_over([templates]))


def random_scores(told: Sequence[Story]) -> list[Tensor]:
    """Of every prompt, whichever of them are still to be measured."""
    generator = torch.Generator().manual_seed(0)
    return [torch.rand(1 + len(story.pieces), generator=generator) for story in told]


def scored(model: Any, story: Story) -> dict[str, Tensor]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*makes up.*of this score", UserWarning)
        heta = heta_lens.Heta(progress=False)(_prediction(model, story))
    parts = {f"{name} alone": part for name, part in heta.parts.items()}
    return {"HETA": heta.scores, 'HETA, balance="sum"': heta.diagnostics["balanced"], **parts}


def verdict(scores: Tensor, story: Story) -> Judged:
    """Of all tokens but the one that begins the text, where attention with nowhere to go collects."""
    scores = scores.clone()
    scores[0] = 0
    evidence, gold, distractor = (_positions(some) for some in (story.evidence, story.gold, story.distractor))
    in_five = bool({1 + at for at in scores[1:].topk(5).indices.tolist()} & evidence)
    agreed = f1(scores, gold, candidates=range(1, len(scores)))
    return Judged(in_five, evidence_mass(scores, evidence), dsa(scores, evidence, distractor, gold), agreed)


def _prediction(model: Any, story: Story) -> heta_lens.Prediction:
    ids = _ids(model, story)
    _, cache = model.run_with_cache(ids, names_filter=heta_lens.names_filter)
    return heta_lens.Prediction.from_cache(cache, story.answer, tokens=ids)


def _ids(model: Any, story: Story) -> Tensor:
    return model.to_tokens(story.text)


def _positions(stretches: Iterable[Stretch]) -> set[int]:
    return {at for stretch in stretches for at in stretch.tokens}


def _quantiles(values: Iterable[float]) -> list[str]:
    found = np.quantile(np.fromiter(values, float), [0.05, 0.25, 0.5, 0.75, 0.95])
    return [f"{round(value, 2) + 0:.2f}" for value in found]  # 0, not -0


if __name__ == "__main__":
    app()
