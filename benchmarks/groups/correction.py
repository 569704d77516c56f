"""What taking out the cross-talk does to the error."""

from collections.abc import Iterator, Sequence
from typing import Any

from rich.progress import track

from benchmarks import pareto, stories3m
from benchmarks.groups.asked import Scores, cross_talk, found
from benchmarks.report import average
from benchmarks.speed.parts import spread

TITLE = "Cross-talk taken out, or left in"
NOTE = f"""\
On prompts of the suites of PARETO.md, against {pareto.REFERENCE["probes"]} probes of every token alone. The error of S
is Σ|Ŝ - S| / ΣS. *Before* is before the cross-talk is taken out. 95 % intervals over templates."""
COLUMNS = ["prompts", "of them", "L1", "L1 before", "error of S, %", "before, %", "ΣS, %", "ΣS before, %"]
HELD_OUT = 40  # prompts of a suite


def held_out() -> Iterator[tuple[str, list[pareto.Prompt]]]:
    suites = {"recall": pareto.recall} | ({"copied": pareto.copied} if stories3m.MODEL.is_dir() else {})
    for name, prompt_at in suites.items():
        yield name, [prompt_at(at) for at in spread(range(pareto.PROMPTS), HELD_OUT)]


def rows(name: str, prompts: Sequence[pareto.Prompt]) -> Iterator[list[str]]:
    """What taking out the cross-talk does to the error, on prompts that had no part in how it is done."""
    errors = [corrected(one.prediction) for one in track(prompts, name)]
    templates = [one.template for one in prompts]
    columns = zip(*errors, strict=True)
    yield [name, str(len(prompts)), *(average(column, templates, digits=3) for column in columns)]


def corrected(prediction: Any) -> list[float]:
    """L1 of the score, error of the curvature and of its sum, each without and with the cross-talk."""
    expected, one = found(prediction, **pareto.REFERENCE), found(prediction)
    score, curvature, own = Scores(expected), expected.parts["curvature"], one.parts["curvature"]
    both = (own, own + cross_talk(one))
    return [
        *(float((score.of(kind) - score.of(curvature)).abs().sum()) for kind in both),
        *(float((kind - curvature).abs().sum() / curvature.sum()) * 100 for kind in both),
        *(float(kind.sum() / curvature.sum() - 1) * 100 for kind in both),
    ]
