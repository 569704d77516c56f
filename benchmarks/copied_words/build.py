"""Build `prompts.jsonl`: short stories whose next word must be copied from earlier in the story.

The answer to "which context tokens made the model predict this one?" is known here before any method is asked: the next
token repeats a word that the story names once or twice, and the model stops expecting it when that word is replaced.

How a prompt is made. A template of `templates.py` is filled with words drawn at random (seeded) from lists by kind; one
of its slots is the answer. Its counterfactual is the same story with every occurrence of the answer replaced by another
word of the same kind, drawn before the model is asked, that the story does not contain. Both have the same token length
and differ at the source positions only.

Selection rule. A filled template is kept exactly when
- the answer is one token, and decoding the context with that token appended adds " " + answer to the decoded context;
- the context has 25 to 80 tokens, the beginning-of-story token included;
- the answer occurs in the text once or twice, each time as that very token, never within the last 7 tokens;
- the model gives the answer p > 0.3, and at most a third of that p in the counterfactual.
The model's probabilities are the only thing about it that is looked at; no attribution takes part. Of the stories kept,
templates take turns, each giving its earliest draw with an answer it has not given yet, passed over when that answer is
used up, until `WANTED` are chosen or none is left. The wording of the templates was settled beforehand by the same
probabilities: stories after which the model hardly ever copies were reworded or left out.

One JSON object per line:
    id, template, kind      the prompt's name, its template, the kind of word copied
    text, ids               the context, and its token ids (beginning-of-story token first)
    target, target_id       the answer with its leading space, and its token id
    source_positions        indices into `ids` of all occurrences of the answer
    distance                tokens from the last occurrence to the place of the answer: len(ids) - source_positions[-1]
    competitors             the other words like it (other names, other things, ...) that the story contains
    p                       the model's probability of the answer
    swapped_word, swapped_id, p_swapped
                            what replaces the answer in the counterfactual, its token id, and the probability there

`more_prompts.jsonl` has as many others, by the same rule from five times as many draws, for samples above 100.

Run `python -m benchmarks.copied_words.build [--more] [--model FOLDER]`, where FOLDER holds the model and its `load.py`.
"""

import argparse
import json
import random
import re
import runpy
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.copied_words.templates import KINDS, PAUSES, TEMPLATES, Template, kind_of, rivals
from benchmarks.stories3m import MODEL

OUTPUT, MORE = (Path(__file__).with_name(name) for name in ("prompts.jsonl", "more_prompts.jsonl"))
SEED = 0
DRAWS, MORE_DRAWS = 80, 400  # fillings tried per template
WANTED = 150
WORD_LIMIT = 6  # prompts that may share an answer
TOKENS = range(25, 81)
NEAREST = 8  # smallest distance
P_MIN = 0.3
SWAP_RATIO = 1 / 3


@dataclass(frozen=True)
class Candidate:
    """A filled template and its counterfactual."""

    template: Template
    text: str
    answer: str
    swapped: str
    competitors: list[str]
    ids: list[int]
    answer_id: int
    swapped_id: int

    @property
    def sources(self) -> list[int]:
        return [i for i, token in enumerate(self.ids) if token == self.answer_id]

    @property
    def counterfactual(self) -> list[int]:
        return [self.swapped_id if token == self.answer_id else token for token in self.ids]

    @property
    def distance(self) -> int:
        return len(self.ids) - self.sources[-1]


@dataclass(frozen=True)
class Scored:
    """A candidate with the answer's probability after the story and after its counterfactual."""

    candidate: Candidate
    p: float
    p_swapped: float


def fill(template: Template, rng: random.Random) -> dict[str, str]:
    """Draw a word for every slot, the pause, and the word (`swap`) in place of the answer in the counterfactual."""
    words: dict[str, str] = {}
    for slot in [*template.slots, "swap"]:
        kind = template.kind if slot == "swap" else kind_of(slot)
        words[slot] = rng.choice([word for word in KINDS[kind] if word not in words.values()])
    return words | {"pause": rng.choice(PAUSES)}


def next_id(tokenizer: Any, ids: list[int], word: str) -> int | None:
    """The id of the single token that continues the context with " " + word, if there is one."""
    token = tokenizer.encode(f"a {word}", add_special_tokens=False)[-1]
    return token if tokenizer.decode([*ids, token]) == f"{tokenizer.decode(ids)} {word}" else None


def draw(template: Template, tokenizer: Any, rng: random.Random) -> Candidate | None:
    """Fill the template once; None when the answer or its replacement is not one token."""
    words = fill(template, rng)
    text, answer, swapped = template.story.format(**words), words[template.answer], words["swap"]
    ids = tokenizer.encode(text)
    answer_id, swapped_id = next_id(tokenizer, ids, answer), next_id(tokenizer, ids, swapped)
    if answer_id is None or swapped_id is None:
        return None
    competitors = [word for word in rivals(template.kind) if word != answer and mentions(text, word)]
    return Candidate(template, text, answer, swapped, competitors, ids, answer_id, swapped_id)


def mentions(text: str, word: str) -> int:
    """How often the text has the word, in any case, plurals included."""
    return len(re.findall(rf"\b{word}(e?s)?\b", text, re.IGNORECASE))


def well_formed(candidate: Candidate, tokenizer: Any) -> bool:
    """The rules that need no model: length, occurrences, distance, and a counterfactual that tokenizes alike."""
    counterfactual_text = re.sub(rf"\b{candidate.answer}\b", candidate.swapped, candidate.text)
    return (
        len(candidate.ids) in TOKENS
        and mentions(candidate.text, candidate.answer) == len(candidate.sources)
        and len(candidate.sources) in (1, 2)
        and candidate.distance >= NEAREST
        and not mentions(candidate.text, candidate.swapped)
        and tokenizer.encode(counterfactual_text) == candidate.counterfactual
    )


@torch.no_grad()
def probability(model: Any, ids: list[int], token: int) -> float:
    logits = model(torch.tensor([ids])).logits[0, -1]
    return logits.double().softmax(-1)[token].item()


def score(candidates: Iterable[Candidate], model: Any) -> Iterator[Scored]:
    for candidate in candidates:
        both = candidate.ids, candidate.counterfactual
        p, p_swapped = (probability(model, ids, candidate.answer_id) for ids in both)
        yield Scored(candidate, p, p_swapped)


def eligible(scored: Scored) -> bool:
    return scored.p > P_MIN and scored.p_swapped <= SWAP_RATIO * scored.p


def candidates_of(template: Template, tokenizer: Any, draws: int, taken: Collection[str]) -> list[Candidate]:
    rng = random.Random(f"{SEED} {template.name}")
    drawn = (draw(template, tokenizer, rng) for _ in range(draws))
    formed = (candidate for candidate in drawn if candidate is not None and well_formed(candidate, tokenizer))
    return [candidate for candidate in formed if candidate.text not in taken]


def first_of_each_answer(kept: Iterable[Scored]) -> list[Scored]:
    first: dict[str, Scored] = {}
    for scored in kept:
        first.setdefault(scored.candidate.answer, scored)
    return list(first.values())


def choose(by_template: Iterable[list[Scored]]) -> list[Scored]:
    """Templates take turns; a story whose answer is used up is passed over."""
    chosen: list[Scored] = []
    used: Counter[str] = Counter()
    for turn in zip_longest(*by_template):
        for scored in turn:
            if scored is None or used[scored.candidate.answer] == WORD_LIMIT or len(chosen) == WANTED:
                continue
            used[scored.candidate.answer] += 1
            chosen.append(scored)
    return sorted(chosen, key=lambda scored: TEMPLATES.index(scored.candidate.template))


def record(scored: Scored, number: int) -> dict[str, Any]:
    candidate = scored.candidate
    return {
        "id": f"{candidate.template.name}-{number}",
        "template": candidate.template.name,
        "kind": candidate.template.kind,
        "text": candidate.text,
        "target": f" {candidate.answer}",
        "target_id": candidate.answer_id,
        "ids": candidate.ids,
        "source_positions": candidate.sources,
        "distance": candidate.distance,
        "competitors": candidate.competitors,
        "p": round(scored.p, 6),
        "swapped_word": candidate.swapped,
        "swapped_id": candidate.swapped_id,
        "p_swapped": round(scored.p_swapped, 6),
    }


def records(chosen: Iterable[Scored], taken: Mapping[str, int]) -> list[dict[str, Any]]:
    """Numbered within their templates, after those that are ``taken``."""
    numbers = Counter(taken)
    out = []
    for scored in chosen:
        name = scored.candidate.template.name
        numbers[name] += 1
        out.append(record(scored, numbers[name]))
    return out


def summary(rows: list[dict[str, Any]]) -> str:
    def spread(values: list[float]) -> str:
        return f"min {min(values):.4g}, median {median(values):.4g}, max {max(values):.4g}"

    def counts(key: str) -> str:
        return ", ".join(f"{name.strip()} {count}" for name, count in Counter(row[key] for row in rows).most_common())

    return "\n".join(
        [
            f"prompts     {len(rows)}",
            f"tokens      {spread([len(row['ids']) for row in rows])}",
            f"p           {spread([row['p'] for row in rows])}",
            f"p_swapped/p {spread([row['p_swapped'] / row['p'] for row in rows])}",
            f"distance    {spread([row['distance'] for row in rows])}",
            f"once        {sum(len(row['source_positions']) == 1 for row in rows)}",
            f"competitors {sum(bool(row['competitors']) for row in rows)}",
            f"kinds       {counts('kind')}",
            f"templates   {len({row['template'] for row in rows})}: {counts('template')}",
            f"words       {len({row['target'] for row in rows})}: {counts('target')}",
        ]
    )


def build(folder: Path, draws: int, taken: Collection[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Prompts that are not taken already."""
    loaders = runpy.run_path(str(folder / "load.py"))
    tokenizer, model = loaders["load_tokenizer"](str(folder)), loaders["load_hf"](str(folder))
    texts = {prompt["text"] for prompt in taken}
    by_template = []
    for template in TEMPLATES:
        kept = filter(eligible, score(candidates_of(template, tokenizer, draws, texts), model))
        by_template.append(first_of_each_answer(kept))
    return records(choose(by_template), Counter(prompt["template"] for prompt in taken))


def main() -> None:
    parser = argparse.ArgumentParser(description="Build prompts.jsonl, or more_prompts.jsonl, from templates.py.")
    parser.add_argument("--model", type=Path, default=MODEL, help="folder of the model and its load.py")
    parser.add_argument("--more", action="store_true", help="other prompts than those of prompts.jsonl")
    options = parser.parse_args()
    if options.more:
        taken = [json.loads(line) for line in OUTPUT.read_text(encoding="utf-8").splitlines()]
        path, rows = MORE, build(options.model, MORE_DRAWS, taken)
    else:
        path, rows = OUTPUT, build(options.model, DRAWS, ())
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    sys.stdout.write(f"{summary(rows)}\n")


if __name__ == "__main__":
    main()
