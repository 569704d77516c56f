"""Train the demo model: ``make model``. Stopped and started again, the training goes on where it was.

Every word of the recall stories is one token. A lesson is passed when its running accuracy is high enough, and the
number of steps is fixed. The same seed gives the same stories everywhere; weights agree between machines as far as
their arithmetic does.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import typer
from jaxtyping import Bool, Int
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers import models as tokenizer_models
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from torch.optim import AdamW, Muon
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from benchmarks.demo_lessons import LAST, LESSONS, Page, page
from heta_lens.data import recall
from heta_lens.data.recall import PUNCTUATION, TRUTH, Draw
from heta_lens.model.loading import DEMO

SPECIAL = {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>"}


@cache
def vocabulary() -> dict[str, int]:
    """Return the id of every token: special tokens, punctuation, and words with a blank before them."""
    shapes = (*recall.FACTS, *recall.SENTENCE_LOCATIONS, *recall.FILLERS, *recall.QUESTIONS[1], *recall.QUESTIONS[2])
    shaped = {word for shape in (*shapes, recall.CLAIM) for word in shape.split() if not word.startswith("{")}
    listed = {word for words in recall.WORDS.values() for word in words}
    words = listed | shaped - {*PUNCTUATION} | {*TRUTH.values()}
    tokens = [*SPECIAL.values(), *PUNCTUATION, *(" " + word for word in sorted(words))]
    return {token: index for index, token in enumerate(tokens)}


def demo_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer whose tokens are words with a blank before them."""
    words = Tokenizer(tokenizer_models.WordLevel(vocabulary(), unk_token=SPECIAL["unk_token"]))
    blanks = [normalizers.Strip(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Prepend(" ")]
    words.normalizer = normalizers.Sequence(blanks)
    words.pre_tokenizer = pre_tokenizers.Split(Regex(r" ?\w+|[^\w\s]"), "isolated")
    words.decoder = decoders.Fuse()
    words.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A $B", special_tokens=[("<bos>", vocabulary()["<bos>"])]
    )
    how: dict[str, Any] = {"clean_up_tokenization_spaces": False, "model_max_length": 1024}
    return PreTrainedTokenizerFast(tokenizer_object=words, **how, **SPECIAL)


STEPS = 6_000
RATE = 3e-3
WARM, COOL = 100, 0.35  # steps of warming up; the share of steps in which the rate falls to 0
OFTEN = 0.8  # the share of steps that practise the newest lesson
FEWEST = 40  # steps a lesson takes at least
MEMORY = 0.9  # of the running accuracy
ANSWERS = 5.0  # how much more an answer counts than all other words
FOUND_BY = 4  # the layer after which the place should be found, so that the last two are left for its room
KEEP = 200  # steps between two checkpoints


class Batch(NamedTuple):
    ids: Int[Tensor, "page pos"]
    following: Int[Tensor, "page pos"]  # the next token; -1 where nothing is to be learnt
    part: Int[Tensor, "page pos"]  # 0 in the story, 1, 2 … in its questions, -1 in padding
    places: Int[Tensor, "page pos"]  # the position given to the model: every question follows the story
    answers: Bool[Tensor, "page pos"]
    found: Int[Tensor, "page pos"]  # the place that must be found on the way to an answer; -1 elsewhere

    @property
    def mask(self) -> Bool[Tensor, "page 1 pos pos"]:
        """The mask in which a question sees the story and itself."""
        seen = (self.part[:, None, :] == 0) | (self.part[:, :, None] == self.part[:, None, :])
        return (seen & torch.ones(seen.shape[1:], dtype=torch.bool).tril())[:, None]


@dataclass
class Progressed:
    step: int = 0
    lesson: int = 0
    since: int = 0  # steps of the newest lesson
    accuracy: dict[str, float] = field(default_factory=dict)


def main(
    folder: Annotated[Path, typer.Option(help="Where the model goes.")] = DEMO,
    checkpoint: Annotated[Path, typer.Option(help="Where training is kept until it ends.")] = Path("model.pt"),
    steps: int = STEPS,
    seed: int = 0,
) -> None:
    torch.manual_seed(seed)
    model = untrained()
    optimizers = optimizers_of(model)
    at, training = Progressed(), {"steps": steps, "seed": seed, "lessons": repr(LESSONS)}
    if checkpoint.exists():
        kept = torch.load(checkpoint)
        if any(kept[name] != value for name, value in training.items()):
            other = f"{kept['steps']} steps, seed {kept['seed']}, lessons of its own"
            raise SystemExit(f"{checkpoint} holds another training ({other}): remove it, or name another --checkpoint")
        model.load_state_dict(kept["model"])
        for optimizer, state in zip(optimizers, kept["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        at = Progressed(**kept["at"])
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn()
    with Progress(*columns) as bar:
        task = bar.add_task("", total=steps, completed=at.step)
        while at.step < steps:
            name, accuracy = practise(model, optimizers, at, seed, steps)
            bar.update(task, advance=1, description=f"{name}: {accuracy:.0%}")
            if passed(at, name, accuracy):
                bar.console.print(f"step {at.step}: {name!r} is learnt")
            if at.step % KEEP == 0:
                state = training | {"at": asdict(at), "model": model.state_dict()}
                new = checkpoint.with_suffix(".new")
                torch.save(state | {"optimizers": [one.state_dict() for one in optimizers]}, new)
                new.replace(checkpoint)
    folder.mkdir(parents=True, exist_ok=True)
    demo_tokenizer().save_pretrained(folder)
    model.eval().save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)


def untrained() -> LlamaForCausalLM:
    known = vocabulary()
    config = LlamaConfig(
        vocab_size=len(known), hidden_size=128, intermediate_size=352, num_hidden_layers=6, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=1024, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
        bos_token_id=known["<bos>"], eos_token_id=known["<eos>"], pad_token_id=known["<pad>"],
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        # A direction that all tokens share lets a head look a fixed way back, which a Llama without biases cannot
        # otherwise begin to learn.
        model.model.embed_tokens.weight += 0.02 * torch.randn(config.hidden_size)
    return model


def optimizers_of(model: LlamaForCausalLM) -> list[torch.optim.Optimizer]:
    matrices = [weight for weight in model.model.layers.parameters() if weight.ndim == 2]
    others = [model.model.embed_tokens.weight, *(weight for weight in model.parameters() if weight.ndim == 1)]
    return [
        Muon(matrices, lr=RATE, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        AdamW(others, lr=RATE, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def practise(
    model: LlamaForCausalLM, optimizers: Sequence[torch.optim.Optimizer], at: Progressed, seed: int, steps: int
) -> tuple[str, float]:
    """Take one step; return the lesson and the share of right answers."""
    draw = Draw(f"train {seed} {at.step}")
    name = lesson_of(draw, at.lesson)
    pages: list[Page] = []
    while sum(map(len, pages)) < LESSONS[name].tokens:
        pages.append(page(draw, LESSONS[name]))
    right = learn(model, batch_of(pages))
    take_step(optimizers, RATE * min(1.0, (at.step + 1) / WARM, (steps - at.step) / (COOL * steps)))
    at.step += 1
    return name, right


def take_step(optimizers: Sequence[torch.optim.Optimizer], rate: float) -> None:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad()


def learn(model: LlamaForCausalLM, batch: Batch) -> float:
    """Add the gradient of a batch; return the share of right answers."""
    with torch.autocast("cpu", torch.bfloat16):
        run = model.model(
            batch.ids, attention_mask=batch.mask, position_ids=batch.places, output_hidden_states=True, use_cache=False
        )
        learnt, finds = batch.following >= 0, batch.found >= 0
        logits = model.lm_head(run.last_hidden_state[learnt]).float()
        half_way = model.lm_head(model.model.norm(run.hidden_states[FOUND_BY][finds])).float()
    wanted, answers = batch.following[learnt], batch.answers[learnt]
    losses = cross_entropy(logits, wanted, reduction="none")
    finding = cross_entropy(half_way, batch.found[finds])
    (losses[answers].mean() + losses[~answers].mean() / ANSWERS + finding).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    return float((logits[answers].argmax(-1) == wanted[answers]).float().mean())


def lesson_of(draw: Draw, newest: int) -> str:
    """Return mostly the newest lesson, at times an earlier lesson; at the end, a lesson of the last ones."""
    names = list(LESSONS)
    if names[newest] == LAST[-1]:
        return draw.one(LAST)
    back = 0 if draw.random() < OFTEN else 1 + draw.below(3)
    return names[max(newest - back, 0)]


def passed(at: Progressed, name: str, accuracy: float) -> bool:
    """Keep account of a step, and go to the next lesson when the newest is learnt."""
    at.accuracy[name] = MEMORY * at.accuracy.get(name, 0.0) + (1 - MEMORY) * accuracy
    newest = list(LESSONS)[at.lesson]
    at.since += 1
    if name != newest or newest == LAST[-1] or at.since < FEWEST or at.accuracy[name] < LESSONS[name].enough:
        return False
    at.lesson, at.since = at.lesson + 1, 0
    return True


def batch_of(pages: Sequence[Page]) -> Batch:
    rows = [_row(one, vocabulary()) for one in pages]
    padding = (vocabulary()["<pad>"], -1, -1, 0, False, -1)
    columns = zip(zip(*rows, strict=True), padding, strict=True)
    return Batch(*(pad_sequence(list(column), batch_first=True, padding_value=value) for column, value in columns))


def _row(one: Page, known: dict[str, int]) -> list[Tensor]:
    ids = [known["<bos>"], *(known[piece] for piece in one.story)]
    start = len(ids)
    following, part, places = [*ids[1:], -1], [0] * start, list(range(start))
    answers, place_tokens = [False] * start, [-1] * start
    for number, question in enumerate(one.questions, 1):
        words = [known[piece] for piece in [*question.pieces, question.answer, ".", "<eos>"]]
        length = len(words) - 1
        ids += words[:-1]
        following += words[1:]
        part += [number] * length
        places += range(start, start + length)
        # The last word of a question is where its answer is read.
        read = [place == len(question.pieces) - 1 for place in range(length)]
        answers += read
        place_tokens += [known[question.place] if here else -1 for here in read]
    return [torch.tensor(column) for column in (ids, following, part, places, answers, place_tokens)]


if __name__ == "__main__":
    typer.run(main)
