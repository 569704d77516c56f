"""The demo model, trained a little further so that it writes the fact it needs before it answers.

    … Question: In which room is the key of Nina? Answer: The key of Nina is in the drawer. The drawer is in the attic.

The demo model answers such questions at once, in a room's name. Given `The key of Nina is in the`, it knows the place;
given `The drawer is in the`, it names the right room less than half of the time.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from benchmarks.demo_training import Batch, learn, optimizers_of, padded, take_step, vocabulary
from benchmarks.models import TRAINED
from heta_lens.data.recall import (
    MOST_ROOMS,
    QUESTIONS,
    Draw,
    Fact,
    Sentence,
    drawn_facts,
    fact_sentence,
    filler_sentence,
    location_sentence,
)
from heta_lens.model.loading import DEMO, load_model

Piece = tuple[str, str]
WEIGHTS = TRAINED / "reasoning.safetensors"
ATTENTION = "self_attn"  # the weights that are trained further, and stored
STEPS, RATE, WARM = 200, 2e-3, 20
TOKENS = 2500  # a step, about
ASKED = 6  # questions of a story, each read as if it were the only one
ASKING = tuple(question.removesuffix(" in the") for question in QUESTIONS[2])
GIVEN = 0.4  # the share of questions whose first sentence is given
READ = ("place", "room")
REASONING = "The {what} of {who} is in the {place} . The {place} is in the"


def train(path: Path = WEIGHTS, steps: int = STEPS, seed: int = 0) -> None:
    """Train the demo model's attention further, and write it into a file: some minutes on two cores."""
    torch.manual_seed(seed)
    model = demo_weights("sdpa")  # which takes masks of True and False
    for name, weight in model.named_parameters():
        weight.requires_grad_(ATTENTION in name)
    optimizers = optimizers_of(model)
    accuracy = 0.0
    for step in track(range(steps), "training", console=Console(stderr=True)):
        accuracy = 0.9 * accuracy + 0.1 * learn(model, batch_of(Draw(f"reasoning {seed} {step}")))
        take_step(optimizers, RATE * min(1.0, (step + 1) / WARM, (steps - step) / steps * 2))
        if step % 25 == 24:
            Console(stderr=True).print(f"step {step + 1}: {accuracy:.1%} of the names are right")
    trained = {name: weight.detach().bfloat16() for name, weight in model.named_parameters() if weight.requires_grad}
    path.parent.mkdir(exist_ok=True)
    save_file(trained, path)


def load(path: Path = WEIGHTS) -> Any:
    """Return the trained model, a `TransformerBridge` in float32 on the CPU, after training if the weights are
    absent.
    """
    if not path.exists():
        train(path)
    model, trained = demo_weights("eager"), load_file(path)
    for name, weight in model.named_parameters():
        if name in trained:
            weight.data = trained[name].to(weight.dtype)
    return load_model(model.requires_grad_(False), tokenizer=AutoTokenizer.from_pretrained(DEMO))


def demo_weights(attention: str) -> LlamaForCausalLM:
    model = LlamaForCausalLM(LlamaConfig.from_pretrained(DEMO, attn_implementation=attention))
    model.tie_weights()
    model.load_state_dict(load_file(DEMO / "model.safetensors"), strict=False)
    return model.eval()


def batch_of(draw: Draw) -> Batch:
    """Return stories of the training split, with two hops and up to six facts.

    To be found are owners, things, places and rooms; half-way, the place before a place or its room.
    """
    rows: list[list[Tensor]] = []
    while sum(len(row[0]) for row in rows) < TOKENS:
        count = 2 + draw.below(5)
        rivals = min(draw.below(4), count - 1)
        facts, _ = drawn_facts(draw, "train", min(count, MOST_ROOMS), rivals, 2)
        sentences = [
            *(fact_sentence(draw, fact) for fact in facts),
            *(location_sentence(draw, fact) for fact in facts),
            *(filler_sentence(draw) for _ in range(draw.below(4))),
        ]
        rows.append(_row(draw, draw.shuffled(sentences), facts))
    return padded(rows)


def _row(draw: Draw, story: Sequence[Sentence], facts: Sequence[Fact]) -> list[Tensor]:
    known = vocabulary()
    ids = [known["<bos>"], *(known[piece] for sentence in story for piece, _ in sentence.pieces)]
    start = len(ids)
    following, named, found, part, places = [-1] * start, [False] * start, [-1] * start, [0] * start, [*range(start)]
    for number in range(1, ASKED + 1):
        asked, written, own = _asked(draw, facts)
        words = [known[piece] for piece, _ in [*asked, *written]]
        length, before = len(words) - 1, len(asked) - 1 + own
        ids += words[:-1]
        following += [-1] * before + words[before + 1 :]
        slots = [slot for _, slot in [*asked, *written]][1:]
        named += [at >= before and bool(slot) for at, slot in enumerate(slots)]
        place = known[next(piece for piece, slot in written if slot == "place")]
        found += [place if at >= before and slot in READ else -1 for at, slot in enumerate(slots)]
        part += [number] * length
        places += range(start, start + length)
    return [torch.tensor(column) for column in (ids, following, part, places, named, found)]


def _asked(draw: Draw, facts: Sequence[Fact]) -> tuple[list[Piece], list[Piece], int]:
    """Return a question, the text to write after it, and the length of the given part, which is not learnt.

    The given fact is often another than the asked one, so that the room is found by the written place, and not by the
    question again.
    """
    fact, given = draw.one(facts), draw.random() < GIVEN
    asked = Sentence(draw.one(ASKING), fact._asdict()).pieces
    written = Sentence(REASONING + " {room} .", (draw.one(facts) if given else fact)._asdict()).pieces
    place = next(at for at, (_, slot) in enumerate(written) if slot == "place")
    return asked, [*written, ("<eos>", "")], place + 1 if given else 0


if __name__ == "__main__":
    train()
