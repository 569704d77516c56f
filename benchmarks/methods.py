"""Every method on the demo model's stories, whose evidence is known: what it finds, and its cost.

All methods see the same prompts of the test split; a method of more than a second a prompt sees fewer.
"""

import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice, product
from typing import Any

import numpy as np
import torch

import heta_lens
from benchmarks import pages
from benchmarks.models import counted_flops, told
from benchmarks.outcomes import Outcomes
from benchmarks.pages import average, intervals_over, proportion
from heta_lens.data.recall import Story, stories
from heta_lens.metrics import evidence_mass

PROMPTS, SLOW, PATIENCE, COUNTED = 200, 50, 1.0, 3  # prompts; of a slow method; seconds; whose FLOPs are counted
COLUMNS = ["method", "prompts", "first is evidence", "evidence mass", "s", "forwards' worth"]

Outcome = tuple[bool, float, float, float]
"""Is the highest score on the evidence; its mass; seconds; forwards' worth."""
Options = Callable[[Story], dict[str, Any]]
OF_SENTENCES = ("context_cite", "arc_jsd", "attribot", "shapiq")
AS_IT_IS: dict[str, Options] = {name: lambda _: {} for name in heta_lens.METHODS} | {
    f"{name}, with the question": lambda story: {"query": ((story.question.tokens.start, story.question.tokens.stop),)}
    for name in OF_SENTENCES
}
AS_THEY_ARE = "As they are"


def run() -> None:
    torch.set_num_threads(1)  # more only slow down a model of this size
    model, prompts = heta_lens.load_demo_model(), list(islice(stories("test"), PROMPTS))
    Outcomes("methods").measure(product(AS_IT_IS), partial(measured, model, prompts))


def measured(model: Any, prompts: Sequence[Story], label: str) -> dict[str, Any]:
    """Return a method's outcomes, or the reason of a refusal."""
    outcomes = list[Outcome]()
    for number, story in enumerate(prompts):
        if number == SLOW and np.median([seconds for *_, seconds, _ in outcomes]) > PATIENCE:
            break
        try:
            outcomes.append(outcome(model, story, label, counting=number < COUNTED))
        except ValueError as refused:
            return {"refused": str(refused)}
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    return {"templates": [story.template for story in prompts[: len(outcomes)]], "evaluated": outcomes, "load": load}


def outcome(model: Any, story: Story, label: str, counting: bool) -> Outcome:
    """Explain one prompt; seconds are of processor time, without the FLOP counter and the runs of the cache."""
    prediction = told(model, story)
    method: Any = heta_lens.METHODS[label.split(",")[0]](progress=False, **AS_IT_IS[label](story))
    worth = np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        if counting:
            with torch.no_grad():
                forward = partial(model, prediction.ids[None])
                worth = counted_flops(partial(method, prediction)) / counted_flops(forward)
        begun = time.process_time()
        scores = method(prediction).scores.clone()
        seconds = time.process_time() - begun
    scores[0] = 0  # the token that only begins the text, where what has nowhere to go collects
    evidence = {at for stretch in story.evidence for at in stretch.tokens}
    first = 1 + int(scores[1:].argmax())
    return first in evidence, evidence_mass(scores, evidence), seconds, worth


# ------------------------------------------------------------------------------------------------------------ the page
def write() -> None:
    pages.write("methods", [as_they_are()], level=3)


def as_they_are() -> pages.Table:
    outcomes, missing = Outcomes("methods").of(product(AS_IT_IS))
    ran = [one for one in outcomes.values() if "refused" not in one]
    note = ""
    if ran:
        loads = [one["load"] for one in ran]
        note = (
            f"{intervals_over(one['templates'] for one in ran)} Seconds were taken on a machine with {min(loads):.1f} "
            f"to {max(loads):.1f} running processes per core."
        )
    return pages.Table(AS_THEY_ARE, COLUMNS, [row(label, one) for (label,), one in outcomes.items()], missing, note)


def row(label: str, measurement: Mapping[str, Any]) -> list[str]:
    if "refused" in measurement:
        return [f"{label}: {measurement['refused']}", "0", *["–"] * 4]
    first, mass, seconds, worth = zip(*measurement["evaluated"], strict=True)
    templates, costs = measurement["templates"], (f"{np.median(seconds):.3g}", f"{np.nanmean(worth):.3g}")
    return [label, str(len(first)), proportion(first, templates), average(mass, templates, (0, 1)), *costs]
