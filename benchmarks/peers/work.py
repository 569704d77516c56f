"""Work that a peer and heta_lens both do, each of which can be run, timed and have its memory measured."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor

import heta_lens
from benchmarks.peak_memory import peak
from benchmarks.report import number
from heta_lens._util.python import quietly
from heta_lens.diagnostics import rank_correlation

COLUMNS = ["work", "peer, s", "ours, s", "peer / ours", "peer, forwards", "ours, forwards", "peer, MiB", "ours, MiB",
           "largest difference", "ρ", "ρ of two seeds of ours"]  # fmt: skip

TRIED = 2  # runs of a batch size, of which the faster counts


class Ran(NamedTuple):
    """What a run found, how long it took, and how many rows it passed through the model."""

    scores: Tensor
    seconds: float
    rows: int


class Side(NamedTuple):
    """One who does the work, with a batch size: a peer, or we."""

    run: Callable[[int], Ran]
    peak: Callable[[int], float]


@dataclass(frozen=True, eq=False)
class Asked:
    """A prompt of a model, and its cache."""

    model: Any
    ids: Tensor
    cache: Any
    target: int

    @classmethod
    def of(cls, model: Any, ids: Tensor) -> "Asked":
        logits, cache = model.run_with_cache(ids, names_filter=heta_lens.names_filter)
        return cls(model, ids, cache, int(logits[0, -1].argmax()))


@dataclass(frozen=True, eq=False)
class Work:
    """The same work by a peer and by us, and whether both should find the same scores."""

    title: str
    peer: Side
    method: str
    options: dict[str, Any]
    exact: bool
    batches: tuple[int, ...] = (4, 16, 64)  # of which the peer's best is taken; ours chooses its own
    scores: Callable[[heta_lens.Attribution], Tensor] = field(default=lambda attribution: attribution.scores)


def ours(asked: Asked, work: Work) -> Side:
    """`attribute` as it is called, with its check of the cache."""
    explain = partial(heta_lens.attribute, asked.cache, asked.target, method=work.method, tokens=asked.ids)

    def run(_: int) -> Ran:
        begun = time.perf_counter()
        attribution = quietly(lambda: explain(**work.options))
        taken = time.perf_counter() - begun
        checks = attribution.diagnostics["checks"].values()
        rows = attribution.diagnostics["forwards"] + sum(counts.get("forwards", 0) for counts in checks)
        return Ran(work.scores(attribution), taken, rows)

    return Side(run, lambda batch: peak(partial(run, batch)))


def row(asked: Asked, work: Work, repeats: int) -> list[str]:
    """What both took, in runs that took turns."""
    own, peer = ours(asked, work), work.peer
    batch = work.batches[0]
    if len(work.batches) > 1:
        peer.run(batch)  # whose first run is its slowest
        batch = min(work.batches, key=lambda batch: min(peer.run(batch).seconds for _ in range(TRIED)))
    theirs, mine = peer.run(batch), own.run(batch)
    expected = torch.as_tensor(theirs.scores, dtype=torch.float64)
    found = torch.as_tensor(mine.scores, dtype=torch.float64)
    taken = [(peer.run(batch).seconds, own.run(batch).seconds) for _ in range(repeats)]
    ratios = [peers / our for peers, our in taken]
    gap = float((found - expected).abs().max() / expected.abs().max())
    return [
        work.title,
        *(number(median(times)) for times in zip(*taken, strict=True)),
        f"{number(median(ratios))} ({number(min(ratios))}–{number(max(ratios))})",
        str(theirs.rows),
        str(mine.rows),
        *(f"{side.peak(batch):.0f}" for side in (peer, own)),
        f"{gap:.0e}" if work.exact else "–",
        f"{rank_correlation(found, expected):.3f}",
        between_seeds(asked, work, found),
    ]


def between_seeds(asked: Asked, work: Work, found: Tensor) -> str:
    """How near ours is to itself with another seed: nearer, a peer that draws its own samples cannot be expected."""
    method = heta_lens.METHODS[work.method](**work.options)
    if not method.random:
        return "–"
    other = replace(work, options={**work.options, "seed": vars(method)["seed"] + 1})
    return f"{rank_correlation(found, ours(asked, other).run(1).scores.double()):.3f}"
