"""Methods on real language models, which `make real-models` fetches: evidence and interventions.

The prompts are made here: the answer stands in the prompt, and the evidence is known. A prompt that a model answers
wrongly is counted and left out. The tables leave special tokens out, which are no evidence for an answer.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import islice, product
from math import isnan
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

import heta_lens
from benchmarks import pages
from benchmarks.outcomes import Outcomes
from benchmarks.pages import Table, average, proportion
from heta_lens.attribution import Attribution
from heta_lens.diagnostics import rank_correlation

MODELS = {"SmolLM2-135M-Instruct": 24, "gemma-3-270m": 20}  # how many prompts of each are measured
FOLDER = Path(__file__).parents[1] / "models"
OUTCOMES = Outcomes("real_prompts")
Setting = tuple[str, dict[str, Any]]
SLOW: dict[str, Setting] = {"heta": ("heta", {})}  # which takes a minute of processor time a prompt
SETTINGS: dict[str, Setting] = {
    "careful": ("careful", {}),
    "fast": ("fast", {}),
    "attn_lrp": ("attn_lrp", {}),
    "heta kl_only": ("heta", {"variant": "kl_only", "kl": "masked_orig"}),
    "heta gs": ("heta", {"variant": "gs"}),
    "leave_one_out mask=zero": ("leave_one_out", {"effect": "log_prob", "mask": "zero"}),
    "leave_one_out mask=mean": ("leave_one_out", {"effect": "log_prob", "mask": "mean"}),
    "gim": ("gim", {}),
    "gradient_norm": ("gradient_norm", {}),
    "input_x_gradient": ("input_x_gradient", {}),
    "ifr": ("ifr", {}),
    "flash_trace": ("flash_trace", {}),
    "attention_rollout": ("attention_rollout", {}),
    "random": ("random", {}),
}
FEW = 6  # prompts of each model for slow settings
AT_ONCE = 16  # copies of a prompt
DRAWS = 3  # replacements of each token that are drawn from the model
NAMES = "Anna Ben Clara David Emma Frank Grace Henry Laura Mark Nora Oscar Paul Rose Sam Tom"
PLACES = "kitchen garden garage office library museum hospital school station market church hotel"
THINGS = "key lamp book ball coat ring bag map drum rope"
WORDS = "river stone apple cloud tiger bread silver winter candle music horse paper"


class Prompt(NamedTuple):
    """A text, its answer with a blank in front, and the passages that are the evidence."""

    family: str
    text: str
    answer: str
    evidence: Sequence[str]


def prompts() -> Iterator[Prompt]:
    """Yield prompts of four families in turn, without end."""
    draw = random.Random(0)
    while True:
        first, second = draw.sample(NAMES.split(), 2)
        place, thing = draw.choice(["store", "park", "beach", "market"]), draw.choice(["drink", "book", "ring", "ball"])
        text = f"When {first} and {second} went to the {place}, {second} gave a {thing} to"
        yield Prompt("indirect objects", text, f" {first}", [f" {first}"])
        people, words = draw.sample(NAMES.split(), 4), draw.sample(WORDS.split(), 4)
        at, lines = draw.randrange(4), [f"{a}: {b}" for a, b in zip(people, words, strict=True)]
        yield Prompt("key-value", "\n".join([*lines, f"{people[at]}:"]), f" {words[at]}", [lines[at]])
        people, places = draw.sample(NAMES.split(), 3), draw.sample(PLACES.split(), 3)
        at, lines = draw.randrange(3), [f"{a} is in the {b}." for a, b in zip(people, places, strict=True)]
        text = " ".join([*lines, f"Question: Where is {people[at]}? Answer: in the"])
        yield Prompt("questions", text, f" {places[at]}", [lines[at][:-1]])
        people, places, things = (draw.sample(words.split(), 2) for words in (NAMES, PLACES, THINGS))
        at, lines = draw.randrange(2), []
        for person, where, what in zip(people, places, things, strict=True):
            lines += [f"{person} has the {what}.", f"{person} is in the {where}."]
        text = " ".join([*lines, f"Question: Where is the {things[at]}? Answer: The {things[at]} is in the"])
        yield Prompt("two hops", text, f" {places[at]}", [line[:-1] for line in lines[2 * at : 2 * at + 2]])


@cache
def model_of(name: str) -> Any:
    return heta_lens.load_model(FOLDER / name)


def answered(model: Any, count: int) -> list[int]:
    """Return the numbers of the first prompts that the model answers."""
    numbers = list[int]()
    for number, prompt in enumerate(prompts()):
        expected = int(model.tokenizer(prompt.answer, add_special_tokens=False).input_ids[0])
        if int(model(model.to_tokens(prompt.text))[0, -1].argmax()) == expected:
            numbers.append(number)
        if len(numbers) == count:
            return numbers
    raise AssertionError("prompts have no end")


def nth(number: int) -> Prompt:
    return next(islice(prompts(), number, None))


@torch.no_grad()
def effects(model: Any, ids: Int[Tensor, "pos"], special: Sequence[bool]) -> dict[str, list[float]]:
    """Measure how far the predicted token's log-probability moves as each token is deleted or resampled."""
    logits = model(ids[None])[0].float()
    target, clean = int(logits[-1].argmax()), logits[-1].log_softmax(-1).max()
    generator = torch.Generator().manual_seed(0)
    places = [at for at in range(1, len(ids)) if not special[at]]  # nothing predicts the first token
    shorter = torch.stack([torch.cat([ids[:at], ids[at + 1 :]]) for at in places])
    others = ids.repeat(len(places), DRAWS, 1)
    for row, at in enumerate(places):
        drawn = torch.multinomial(logits[at - 1].softmax(-1), DRAWS, replacement=True, generator=generator)
        others[row, :, at] = drawn

    def moved(rows: Int[Tensor, "copy pos"]) -> list[float]:
        final = torch.cat([model(batch)[:, -1].float().log_softmax(-1)[:, target] for batch in rows.split(AT_ONCE)])
        return (clean - final).abs().tolist()

    deleted, resampled = [0.0] * len(ids), [0.0] * len(ids)
    draws = torch.tensor(moved(others.flatten(0, 1))).view(-1, DRAWS).mean(1).tolist()
    for at, without, replaced in zip(places, moved(shorter), draws, strict=True):
        deleted[at], resampled[at] = without, replaced
    return {"deleted": deleted, "resampled": resampled}


def scored(name: str, number: int, settings: Mapping[str, Setting]) -> tuple[dict[str, list[float]], Attribution]:
    """Explain one prompt by every setting that the model allows; return the scores and the last attribution."""
    model = model_of(name)
    ids = model.to_tokens(nth(number).text)
    _, cached = model.run_with_cache(ids)
    explained = dict[str, Attribution]()
    for setting, (method, options) in settings.items():
        try:
            explained[setting] = heta_lens.attribute(cached, tokens=ids, method=method, progress=False, **options)
        except ValueError as error:
            print(f"{name}, {setting}: {error}")  # noqa: T201
    return {setting: own.scores.tolist() for setting, own in explained.items()}, [*explained.values()][-1]


def measured(name: str, number: int) -> dict[str, Any]:
    scores, explained = scored(name, number, SETTINGS)
    special, prompt = explained.special.tolist(), nth(number)
    evidence = sorted({place for passage in prompt.evidence for place in _first(explained, passage)})
    moved = {"zeroed": [abs(drop) for drop in scores["leave_one_out mask=zero"]]}
    moved |= effects(model_of(name), explained.ids, special)
    known = {"family": prompt.family, "special": special, "evidence": evidence}
    return known | {"scores": scores, "effects": moved}


def _first(attribution: Attribution, passage: str) -> list[int]:
    """Return the tokens of a passage where it first occurs."""
    start = attribution.text.index(passage)
    begin, end = start + len(passage) - len(passage.lstrip()), start + len(passage)
    return [row for row, (a, b) in enumerate(attribution.offsets.tolist()) if a < end and b > begin]


def run() -> None:
    for name, count in MODELS.items():
        numbers = answered(model_of(name), count)
        OUTCOMES.measure(product([name], numbers), measured)
    for name in MODELS:
        numbers = sorted(key[1] for key in OUTCOMES.read() if key[0] == name and len(key) == 2)
        OUTCOMES.measure(
            product([name], numbers[:FEW], ["slow"]), lambda name, number, _: scored(name, number, SLOW)[0]
        )


def write() -> None:
    pages.write("real", tables())


def tables() -> Iterator[Table]:
    outcomes = OUTCOMES.read()
    for name in MODELS:
        slow = {key[1]: outcome for key, outcome in outcomes.items() if key[0] == name and len(key) == 3}
        kept = {key[1]: outcome for key, outcome in outcomes.items() if key[0] == name and len(key) == 2}
        rows = [outcome | {"scores": outcome["scores"] | slow.get(number, {})} for number, outcome in kept.items()]
        if rows:
            note = f"{len(rows)} prompts, which it answers, of {max(map(int, kept)) + 1}."
            best_first = sorted(table(rows), key=lambda row: -float(row[1].partition("%")[0]))  # 91% [59%, 100%]
            yield Table(name, COLUMNS, best_first, note=note)


EFFECTS = ("zeroed", "deleted", "resampled")
COLUMNS = ("setting", "first is evidence", "without the last token", *EFFECTS)


def table(rows: Sequence[dict[str, Any]]) -> Iterator[list[str]]:
    for setting in (*SLOW, *SETTINGS):
        kept = [row for row in rows if row["scores"].get(setting) is not None]
        if not kept:
            continue
        prompts = range(len(kept))
        firsts = [[float(_first_is_evidence(row, setting, last)) for row in kept] for last in (True, False)]
        shares = [proportion(hits, prompts) for hits in firsts]
        agreements = [average([_agreement(row, setting, kind) for row in kept], prompts, (-1, 1)) for kind in EFFECTS]
        few = "" if len(kept) == len(rows) else f" ({len(kept)} prompts)"
        yield [f"`{setting}`{few}", *shares, *agreements]


def _eligible(row: dict[str, Any], last: bool = True) -> list[int]:
    places = [place for place, special in enumerate(row["special"]) if not special]
    return places if last else places[:-1]


def _first_is_evidence(row: dict[str, Any], setting: str, last: bool) -> bool:
    return max(_eligible(row, last), key=lambda place: row["scores"][setting][place]) in row["evidence"]


def _agreement(row: dict[str, Any], setting: str, kind: str) -> float:
    places = _eligible(row)
    scores, moved = torch.tensor(row["scores"][setting]), torch.tensor(row["effects"][kind])
    agreed = rank_correlation(scores[places].abs(), moved[places])
    return 0.0 if isnan(agreed) else agreed
