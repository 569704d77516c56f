"""Short stories whose next word must be copied from earlier in the story, for the stories3M model.

A template of copied_words.txt is filled with words drawn at random from lists by kind; one of its slots is the answer.
In the counterfactual, every occurrence of the answer is replaced by another word of its kind. A filled template is kept
exactly when

- the answer is one token, and the context has 25 to 80 tokens;
- the answer occurs once or twice in the text, each time as that very token, never within the last 7 tokens;
- the model gives the answer p > 0.3, and at most a third of that p in the counterfactual.

No attribution takes part in the selection. Templates take turns, each giving its earliest draw with an answer that it
has not given yet.
"""

import json
import random
import re
import runpy
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch

from benchmarks.models import STORIES3M
from benchmarks.outcomes import FOLDER

STORIES, PROMPTS = Path(__file__).with_suffix(".txt"), FOLDER / "copied_words_prompts.jsonl"
DRAWS = 80  # fillings of a template
WANTED = 150
WORD_LIMIT = 6  # prompts that may share an answer
TOKENS, NEAREST = range(25, 81), 8
P_MIN, SWAP_RATIO = 0.3, 1 / 3
WORDS = {
    "girl": "Lily Mia Sue Anna Lucy Emma Sara Amy Jane Sally",
    "boy": "Tim Tom Ben Max Sam Jack Bob Mark Leo Billy",
    "pet": "Spot Fluffy Max Leo Buddy Bob",
    "thing": (
        "ball kite doll car truck book boat drum bell train balloon spoon blanket rope stick shell rock ring key map "
        "crown bike box"
    ),
    "wear": "hat shirt coat dress scarf",
    "animal": (
        "dog cat bird frog rabbit bunny bear fox duck mouse lion cow pig horse sheep goat monkey turtle squirrel bee "
        "butterfly snake"
    ),
    "colour": "red blue green yellow pink purple white black brown",
    "place": "park beach zoo farm forest garden store school river lake castle library cave pond hill market",
    "dish": "cake cookie pizza pie sandwich salad",
    "treat": "cake cookie pizza banana carrot sandwich pie lemon peach salad",
    "food": "soup bread milk juice honey cheese candy rice corn pasta popcorn",
}
KINDS = {kind: words.split() for kind, words in WORDS.items()}
PAUSES = (
    "",
    " It was a warm and sunny day.",
    " The sun was high in the sky.",
    " The trees were tall and the grass was soft.",
    " The wind was soft and the air was sweet.",
    " It was a very nice day and everyone was happy.",
    " A cloud came and it began to rain, but soon the rain stopped and the sun came out again.",
)


@dataclass(frozen=True)
class Template:
    """A story up to the word before the answer; `{thing1}` is a slot for a thing, `{pause}` for an idle sentence."""

    name: str
    answer: str
    story: str

    @property
    def kind(self) -> str:
        return self.answer.rstrip("0123456789")

    def filled(self, draw: random.Random) -> dict[str, str]:
        """Return a word for every slot, a pause, and the word (`swap`) in place of the answer."""
        words: dict[str, str] = {}
        for slot in [*dict.fromkeys(re.findall(r"{(\w+\d)}", self.story)), "swap"]:
            kind = self.kind if slot == "swap" else slot.rstrip("0123456789")
            words[slot] = draw.choice([word for word in KINDS[kind] if word not in words.values()])
        return words | {"pause": draw.choice(PAUSES)}


def templates() -> Iterator[Template]:
    for block in STORIES.read_text(encoding="utf-8").strip().split("\n\n"):
        head, text = block.split("\n", 1)
        name, answer = head.split(": ")
        yield Template(name, answer, " ".join(text.split()))


def prompts() -> list[dict[str, Any]]:
    """Return the prompts, after a draw with stories3M if no file holds them."""
    if not PROMPTS.exists():
        build()
    lines = PROMPTS.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines[:WANTED]]


def build() -> None:
    loaders = runpy.run_path(str(STORIES3M / "load.py"))
    tokenizer, model = loaders["load_tokenizer"](str(STORIES3M)), loaders["load_hf"](str(STORIES3M))
    chosen = choose([list(candidates(template, tokenizer, model)) for template in templates()])
    rows, numbers = list[dict[str, Any]](), Counter[str]()
    for prompt in chosen:
        numbers[prompt["template"]] += 1
        rows.append({"id": f"{prompt['template']}-{numbers[prompt['template']]}"} | prompt)
    PROMPTS.parent.mkdir(exist_ok=True)
    PROMPTS.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


def candidates(template: Template, tokenizer: Any, model: Any) -> Iterator[dict[str, Any]]:
    """Yield one kept prompt of a template for each answer."""
    draw, answers = random.Random(f"0 {template.name}"), set[str]()
    for words in [template.filled(draw) for _ in range(DRAWS)]:
        found = drawn(template, words, tokenizer)
        if found is None or found["target"] in answers:
            continue
        swapped = [found["swapped_id"] if id == found["target_id"] else id for id in found["ids"]]
        p, p_swapped = (probability(model, ids, found["target_id"]) for ids in (found["ids"], swapped))
        if p > P_MIN and p_swapped <= SWAP_RATIO * p:
            answers.add(found["target"])
            yield found | {"p": round(p, 6), "p_swapped": round(p_swapped, 6)}


def drawn(template: Template, words: dict[str, str], tokenizer: Any) -> dict[str, Any] | None:
    """Return a filled template, or None for one that breaks a rule without a model."""
    text, answer, swap = template.story.format(**words), words[template.answer], words["swap"]
    ids = tokenizer.encode(text)
    answer_id, swap_id = next_id(tokenizer, ids, answer), next_id(tokenizer, ids, swap)
    sources = [at for at, token in enumerate(ids) if token == answer_id]
    swapped_text = re.sub(rf"\b{answer}\b", swap, text)
    if (
        answer_id is None
        or swap_id is None
        or len(ids) not in TOKENS
        or len(sources) not in (1, 2)
        or mentions(text, answer) != len(sources)
        or len(ids) - sources[-1] < NEAREST
        or mentions(text, swap)
        or tokenizer.encode(swapped_text) != [swap_id if token == answer_id else token for token in ids]
    ):
        return None
    known = {"template": template.name, "kind": template.kind, "text": text, "target": f" {answer}"}
    tokens = {"target_id": answer_id, "ids": ids, "source_positions": sources}
    return known | tokens | {"swapped_word": swap, "swapped_id": swap_id}


def next_id(tokenizer: Any, ids: list[int], word: str) -> int | None:
    """Return the single token that continues the context with a blank and a word, or None."""
    token = tokenizer.encode(f"a {word}", add_special_tokens=False)[-1]
    return token if tokenizer.decode([*ids, token]) == f"{tokenizer.decode(ids)} {word}" else None


def mentions(text: str, word: str) -> int:
    """Return the number of times that a text has a word, in any case, plurals included."""
    return len(re.findall(rf"\b{word}(e?s)?\b", text, re.IGNORECASE))


@torch.no_grad()
def probability(model: Any, ids: list[int], token: int) -> float:
    return model(torch.tensor([ids])).logits[0, -1].double().softmax(-1)[token].item()


def choose(by_template: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return prompts in the order of templates, which take turns and pass over used-up answers."""
    chosen: list[dict[str, Any]] = []
    used: Counter[str] = Counter()
    for turn in zip_longest(*by_template):
        for prompt in turn:
            if prompt is not None and used[prompt["target"]] < WORD_LIMIT and len(chosen) < WANTED:
                used[prompt["target"]] += 1
                chosen.append(prompt)
    names = [template.name for template in templates()]
    return sorted(chosen, key=lambda prompt: names.index(prompt["template"]))
