"""Writes PEERS.md: `python -m benchmarks.peers`."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated

import captum
import torch
import typer
from torch import Tensor
from transformers import AutoModelForCausalLM

from benchmarks import stories3m
from benchmarks.peers.elsewhere import PYTHON, elsewhere, versions_elsewhere
from benchmarks.peers.here import by_captum, by_hand
from benchmarks.peers.work import COLUMNS, Asked, Work, row
from benchmarks.report import Table, number, show, write
from benchmarks.speed.models import MODELS, prompt
from heta_lens._util.python import versions
from heta_lens.model.hooks import EMBED
from heta_lens.model.lock import frozen_parameters

PAGE = Path(__file__).parents[1] / "PEERS.md"
LENGTH, REPEATS, COPIES = 67, 3, 16
HERE = {"captum": captum.__version__}
LEGEND = """# Peers

Written by `python -m benchmarks.peers`. One prompt, the same model, baseline and target for both. Ours is
`attribute(cache, method=...)` as it is called, with its check of the cache; a peer is given the batch size at which it
is fastest. **peer / ours** is the median of runs that took turns, with the least and the most. **largest difference**
is relative to the largest score; methods that draw their own samples have none, nor has ContextCite, which tokenizes
what it keeps of a prompt again where we do not: ρ (the rank correlation) says how near these come, and ρ of two seeds
of ours how near samples can come. **MiB** are what
tensors held at most beyond the model and the cache. inseq, lxt and context-cite run in an environment of their own, on
the Hugging Face model that ours was converted from; how fast that is by itself is said beside their table.

Where a peer is faster, the models are so small that our checks show: the check of the cache is a run more (of two, for
AttnLRP), and integrated gradients takes two for what is left of completeness. In the last table, the
rest is the model."""


def main(
    length: Annotated[int, typer.Option(min=2, help="Tokens of the prompt.")] = LENGTH,
    repeats: Annotated[int, typer.Option(min=1, help="How often both are timed in turn.")] = REPEATS,
) -> None:
    stories = stories3m.MODEL.is_dir()
    names = (["stories3M"] if stories else []) + ["demo"]
    made: dict[str, Callable[[str, int, int], Table]] = {
        f"captum, and the naive implementation of HETA, {name}": partial(with_captum, name) for name in names
    }
    if stories and PYTHON.exists():
        made["inseq, lxt and context-cite, stories3M"] = with_others
    tables = [Table(title, COLUMNS, [], missing=1) for title in made]
    for at, (title, table) in enumerate(made.items()):
        tables[at] = table(title, length, repeats)
        show(title, tables[at].columns, tables[at].rows)
        if (length, repeats) == (LENGTH, REPEATS):
            write(PAGE, LEGEND, tables)


def with_captum(name: str, title: str, length: int, repeats: int) -> Table:
    asked = asked_of(name, length)
    return table(title, asked, by_captum(asked) + by_hand(asked), repeats, HERE)


def with_others(title: str, length: int, repeats: int) -> Table:
    asked = asked_of("stories3M", length)
    with elsewhere(stories3m.MODEL, asked) as works:
        made = table(title, asked, works, repeats, versions_elsewhere())
    return replace(made, note=f"{made.note} {models_alone(asked)}")


def models_alone(asked: Asked) -> str:
    """How fast the models are that both sides run, whatever is done with them."""
    theirs, inputs = AutoModelForCausalLM.from_pretrained(stories3m.MODEL).eval(), asked.cache[EMBED]
    runs = {
        type(theirs).__name__: lambda states: theirs(inputs_embeds=states).logits,
        type(asked.model).__name__: lambda states: asked.model.run_with_hooks(
            asked.ids.expand(len(states), -1), fwd_hooks=[(EMBED, lambda *_, **__: states)]
        ),
    }
    for parameter in theirs.parameters():
        parameter.requires_grad_(False)

    def seconds(run: Callable[[Tensor], Tensor]) -> float:
        states = inputs.repeat(COPIES, 1, 1).requires_grad_()
        begun = time.perf_counter()
        with frozen_parameters(asked.model):
            torch.autograd.grad(run(states)[:, -1, asked.target].sum(), states)
        return time.perf_counter() - begun

    taken = [[seconds(run) for run in runs.values()] for _ in range(1 + 2 * REPEATS)][1:]
    medians = (
        f"{number(median(times))} s ({name})" for name, times in zip(runs, zip(*taken, strict=True), strict=True)
    )
    return f"A gradient of {COPIES} copies of the prompt, by the models alone: {', '.join(medians)}."


def asked_of(name: str, length: int) -> Asked:
    model = MODELS[name]()
    return Asked.of(model, prompt(name, model, length))


def table(title: str, asked: Asked, works: list[Work], repeats: int, peers: dict[str, str]) -> Table:
    theirs, own = (", ".join(map(" ".join, used.items())) for used in (peers, versions()))
    note = f"{asked.ids.shape[1]} tokens, {torch.get_num_threads()} threads. Peers: {theirs}. Ours: {own}."
    return Table(title, COLUMNS, [row(asked, work, repeats) for work in works], note=note)


if __name__ == "__main__":
    typer.run(main)
