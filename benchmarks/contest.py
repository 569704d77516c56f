"""A small model of another kind, which names the person with the highest number; training takes a few minutes.

    Anna 7, Bob 3, Carl 9, Dora 5. Highest: Carl

The model has learned positions and layer norms, where the demo model has rotary positions and root mean squares, and
it compares, where the other families of prompts copy. It had no part in the choice of a setting.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.progress import track
from torch.nn.functional import cross_entropy
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from benchmarks.demo_training import SPECIAL, word_tokenizer
from benchmarks.models import TRAINED
from heta_lens import load_model
from heta_lens._util.text import Span
from heta_lens.data.instance import Instance
from heta_lens.data.recall import Draw

FOLDER = TRAINED / "contest"
PEOPLE = "Anna Bob Carl Dora Eric Fred Gina Hugo Ines Jack Kate Luis Mary Nora Otto Paul"
NAMES = (*PEOPLE.split(" "),)
NUMBERS = tuple(str(number) for number in range(1, 13))
QUESTION = "Highest"
STEPS, BATCH, RATE, WARM = 4000, 128, 1e-3, 200
FEWEST, MOST = 2, 7  # who take part


class Contest(NamedTuple):
    names: tuple[str, ...]
    numbers: tuple[str, ...]

    @classmethod
    def drawn(cls, draw: Draw, size: int | None = None) -> "Contest":
        size = FEWEST + draw.below(MOST - FEWEST + 1) if size is None else size
        return cls(tuple(draw.some(NAMES, size)), tuple(draw.some(NUMBERS, size)))

    @property
    def order(self) -> list[int]:
        """Return the places from the highest number down; the second wins when the two best change numbers."""
        return sorted(range(len(self.names)), key=lambda at: -int(self.numbers[at]))

    @property
    def text(self) -> str:
        pairs = ", ".join(f"{name} {number}" for name, number in zip(self.names, self.numbers, strict=True))
        return f"{pairs}. {QUESTION}:"

    @property
    def answer(self) -> str:
        return f" {self.names[self.order[0]]}"

    @property
    def swapped(self) -> "Contest":
        """The two best change numbers, and so places."""
        numbers, (first, second, *_) = [*self.numbers], self.order
        numbers[first], numbers[second] = numbers[second], numbers[first]
        return self._replace(numbers=tuple(numbers))

    def instance(self, id: str, *, swapped: bool = True) -> Instance:
        winner = self.order[0]
        name, number = self.names[winner], self.numbers[winner]
        start = self.text.index(f"{name} {number}")
        stop = start + len(f"{name} {number}")
        other = self.swapped.instance(f"{id}-counterfactual", swapped=False) if swapped else None
        template = f"{len(self.names)} names, number {winner + 1}"
        gold = (Span(start, start + len(name)), Span(stop - len(number), stop))
        support = (Span(start, stop),)
        return Instance(id, self.text, self.answer, template, support=support, gold=gold, counterfactual=other)


def instances(split: str, seed: int = 0) -> Iterator[Instance]:
    """Endless contests of four to seven names."""
    draw = Draw(f"contest {split} {seed}")
    number = 0
    while True:
        yield Contest.drawn(draw, 4 + draw.below(4)).instance(f"contest-{split}-{seed}-{number:05d}")
        number += 1


def load_contest_model() -> Any:
    """Return the trained model, after training if the model is not on the disk."""
    if not FOLDER.exists():
        train(FOLDER)
    return load_model(FOLDER)


def tokenizer() -> PreTrainedTokenizerFast:
    words = [*SPECIAL.values(), ",", ".", ":", *(f" {word}" for word in (*NAMES, *NUMBERS, QUESTION)), *NAMES]
    return word_tokenizer({word: at for at, word in enumerate(words)}, length=64, single="<bos> $A")


def train(folder: Path = FOLDER, seed: int = 0) -> None:
    torch.manual_seed(seed)
    words, draw = tokenizer(), Draw(f"contest train {seed}")
    config = GPT2Config(
        vocab_size=len(words), n_positions=64, n_embd=64, n_layer=3, n_head=4,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, STEPS, pct_start=WARM / STEPS)
    for step in track(range(STEPS), "contest"):
        size = FEWEST + step % (MOST - FEWEST + 1)
        contests = [Contest.drawn(draw, size) for _ in range(BATCH)]
        ids = torch.tensor([words(one.text)["input_ids"] for one in contests])
        answers = torch.tensor([words.convert_tokens_to_ids(one.answer) for one in contests])
        logits = model(ids).logits[:, -1]
        optimizer.zero_grad()
        cross_entropy(logits, answers).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 500 == 499:
            print(f"step {step + 1}: {(logits.argmax(-1) == answers).float().mean():.0%} right")  # noqa: T201
    model.save_pretrained(folder)
    words.save_pretrained(folder)


if __name__ == "__main__":
    train()
