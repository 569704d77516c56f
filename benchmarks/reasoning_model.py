"""The demo model, trained a little further so that it writes the fact it needs before it answers.

    … Question: In which room is the key of Nina? Answer: The key of Nina is in the drawer. The drawer is in the attic.

The demo model answers such questions at once, in a room's name. Given `The key of Nina is in the`, it knows the place;
given `The drawer is in the`, it names the right room less than half of the time.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Int
from rich.console import Console
from rich.progress import track
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from benchmarks.demo_training import ANSWERS, FOUND_BY, optimizers_of, visible, vocabulary
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


class Batch(NamedTuple):
    ids: Int[Tensor, "page pos"]
    following: Int[Tensor, "page pos"]
    """The token to write next; -1 for tokens that the model does not write."""
    named: Bool[Tensor, "page pos"]
    """Positions before an owner, a thing, a place or a room, which the model has to find."""
    found: Int[Tensor, "page pos"]
    """The place to find half-way, before a place or its room; -1 elsewhere."""
    part: Int[Tensor, "page pos"]
    """0 in the story, 1, 2 … in its questions, -1 in padding."""
    places: Int[Tensor, "page pos"]

    @property
    def mask(self) -> Bool[Tensor, "page 1 pos pos"]:
        return visible(self.part)


def train(path: Path = WEIGHTS, steps: int = STEPS, seed: int = 0) -> None:
    """Train the demo model's attention further, and write it into a file: some minutes on two cores."""
    torch.manual_seed(seed)
    model = demo_weights("sdpa")  # which takes masks of True and False
    for name, weight in model.named_parameters():
        weight.requires_grad_(ATTENTION in name)
    optimizers = optimizers_of(model)
    accuracy = 0.0
    for step in track(range(steps), "training", console=Console(stderr=True)):
        for group in (group for optimizer in optimizers for group in optimizer.param_groups):
            group["lr"] = RATE * min(1.0, (step + 1) / WARM, (steps - step) / steps * 2)
        accuracy = 0.9 * accuracy + 0.1 * practise(model, batch_of(Draw(f"reasoning {seed} {step}")))
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
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


def practise(model: LlamaForCausalLM, batch: Batch) -> float:
    """Add the gradient of one step; return the share of right names."""
    with torch.autocast("cpu", torch.bfloat16):
        run = model.model(
            batch.ids, attention_mask=batch.mask, position_ids=batch.places, output_hidden_states=True, use_cache=False
        )
        learnt, finds = batch.following >= 0, batch.found >= 0
        logits = model.lm_head(run.last_hidden_state[learnt]).float()
        half_way = model.lm_head(model.model.norm(run.hidden_states[FOUND_BY][finds])).float()
    wanted, named = batch.following[learnt], batch.named[learnt]
    losses = cross_entropy(logits, wanted, reduction="none")
    finding = cross_entropy(half_way, batch.found[finds])
    (losses[named].mean() + losses[~named].mean() / ANSWERS + finding).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    return float((logits[named].argmax(-1) == wanted[named]).float().mean())


def batch_of(draw: Draw) -> Batch:
    """Stories of the training split, with two hops and up to six facts."""
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
    columns = zip(zip(*rows, strict=True), (vocabulary()["<pad>"], -1, False, -1, -1, 0), strict=True)
    return Batch(*(pad_sequence(list(column), batch_first=True, padding_value=value) for column, value in columns))


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
    return [torch.tensor(column) for column in (ids, following, named, found, part, places)]


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
