"""What taking out the cross-talk does to the error."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from rich.progress import track
from torch import Tensor

from benchmarks import pareto, stories3m
from benchmarks.groups.asked import Scores, cross_talk, found
from benchmarks.report import INTERVALS, average
from benchmarks.speed.parts import spread

TITLE = "Cross-talk taken out, or left in"
NOTE = f"""\
{INTERVALS} over templates.

On prompts of the suites of PARETO.md, which had no part in how cross-talk is taken out, against
{pareto.REFERENCE["probes"]} probes of every token alone. The error of S is Σ|Ŝ - S| / ΣS. The differences are of the
same products: below 0, taking cross-talk out is nearer."""
COLUMNS = ["prompts", "of them", "L1", "difference", "error of S, %", "difference", "ΣS, %", "ΣS, left in, %"]
HELD_OUT = 40  # prompts of a suite


def held_out() -> Iterator[tuple[str, list[pareto.Prompt]]]:
    suites = {"recall": pareto.recall} | ({"copied": pareto.copied} if stories3m.MODEL.is_dir() else {})
    for name, prompt_at in suites.items():
        yield name, [prompt_at(at) for at in spread(range(pareto.ALL), HELD_OUT)]


def rows(name: str, prompts: Sequence[pareto.Prompt]) -> Iterator[list[str]]:
    """What taking out the cross-talk does to the error, on prompts that had no part in how it is done."""
    both = [with_and_without(one.prediction) for one in track(prompts, name)]
    templates = [one.template for one in prompts]
    compared = [
        (out.l1, out.l1 - left.l1, out.curvature, out.curvature - left.curvature, out.total, left.total)
        for out, left in both
    ]
    columns = zip(*compared, strict=True)
    yield [name, str(len(prompts)), *(average(column, templates, digits=3) for column in columns)]


class Errors(NamedTuple):
    """L1 of the score; of the curvature, its error and that of its sum, in percent of the sum."""

    l1: float
    curvature: float
    total: float


def with_and_without(prediction: Any) -> tuple[Errors, Errors]:
    """With the cross-talk taken out, and left in."""
    expected, one = found(prediction, **pareto.REFERENCE), found(prediction)
    score, curvature, own = Scores(expected), expected.parts["curvature"], one.parts["curvature"]

    def errors(kind: Tensor) -> Errors:
        l1 = float((score.of(kind) - score.of(curvature)).abs().sum())
        apart = (kind - curvature) / curvature.sum() * 100
        return Errors(l1, float(apart.abs().sum()), float(apart.sum()))

    return errors(own), errors(own + cross_talk(one))
