"""Writes PEERS.md: `python -m benchmarks.peers`."""

from pathlib import Path
from typing import Annotated

import captum
import torch
import typer

from benchmarks import stories3m
from benchmarks.peers.elsewhere import PYTHON, elsewhere, versions_elsewhere
from benchmarks.peers.here import by_captum, by_hand
from benchmarks.peers.work import COLUMNS, Asked, Work, row
from benchmarks.report import Table, show, write
from benchmarks.speed.models import MODELS, prompt
from heta_lens._util.versions import versions

PAGE = Path(__file__).parents[1] / "PEERS.md"
LENGTH, REPEATS = 67, 5
HERE = {"captum": captum.__version__}
LEGEND = """# Peers

Written by `python -m benchmarks.peers`. One prompt, the same model, baseline and target for both. Ours is
`attribute(cache, method=...)` as it is called, with its check of the cache; a peer is given the batch size at which it
is fastest. **peer / ours** is the median of runs that took turns, with the least and the most. **largest difference**
is relative to the largest score; methods that draw their own samples have none, nor has ContextCite, which tokenizes
what it keeps of a prompt again where we do not: ρ (the rank correlation) says how near these come. **MiB** are what
tensors held at most beyond the model and the cache. inseq, lxt and context-cite run in an environment of their own, on
the Hugging Face model that ours was converted from."""


def main(
    length: Annotated[int, typer.Option(min=2, help="Tokens of the prompt.")] = LENGTH,
    repeats: Annotated[int, typer.Option(min=1, help="How often both are timed in turn.")] = REPEATS,
) -> None:
    stories = stories3m.MODEL.is_dir()
    tables = list[Table]()
    for name in (["stories3M"] if stories else []) + ["demo"]:
        asked = asked_of(name, length)
        works = by_captum(asked) + by_hand(asked)
        tables.append(table(f"captum and the naive loop, {name}", asked, works, repeats, HERE))
    if stories and PYTHON.exists():
        asked = asked_of("stories3M", length)
        with elsewhere(stories3m.MODEL, asked) as works:
            title = "inseq, lxt and context-cite, stories3M"
            tables.append(table(title, asked, works, repeats, versions_elsewhere()))
    for one in tables:
        show(one.title, one.columns, one.rows)
    if (length, repeats) == (LENGTH, REPEATS):
        write(PAGE, LEGEND, tables)


def asked_of(name: str, length: int) -> Asked:
    model = MODELS[name]()
    return Asked.of(model, prompt(name, model, length))


def table(title: str, asked: Asked, works: list[Work], repeats: int, peers: dict[str, str]) -> Table:
    theirs, own = (", ".join(map(" ".join, used.items())) for used in (peers, versions()))
    note = f"{asked.ids.shape[1]} tokens, {torch.get_num_threads()} threads. Peers: {theirs}. Ours: {own}."
    return Table(title, COLUMNS, [row(asked, work, repeats) for work in works], note=note)


if __name__ == "__main__":
    typer.run(main)
