"""Every method on the demo model's stories, whose evidence is known, as it is and with a budget of forwards.

All methods see the same prompts of the test split; a method of more than a second a prompt sees fewer. The last table
compares methods that run many contexts with a loop that runs the contexts one by one, on one prompt.
"""

import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice, product
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

import heta_lens
from benchmarks import pages
from benchmarks.models import counted_flops, told
from benchmarks.outcomes import Outcomes
from benchmarks.pages import average, intervals_over, proportion
from heta_lens.data.recall import Story, stories
from heta_lens.methods.cost import within_budget
from heta_lens.metrics import evidence_mass
from heta_lens.model.adapter import ModelAdapter

PROMPTS, SLOW, PATIENCE, COUNTED = 200, 50, 1.0, 3  # prompts; of a slow method; seconds; whose FLOPs are counted
LOOPED, TURNS = ["leave_one_out", "lime", "kernel_shap", "context_cite"], 5
LOOP_COLUMNS = ["method", "runs", "a loop, s", "the method, s", "loop / method"]
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
BUDGETS = {f"{budget} forwards": budget for budget in (3, 30, 100)}


def run() -> None:
    torch.set_num_threads(1)  # more only slow down a model of this size
    model, prompts = heta_lens.load_demo_model(), list(islice(stories("test"), PROMPTS))
    Outcomes("methods").measure(product([AS_THEY_ARE, *BUDGETS], AS_IT_IS), partial(measured, model, prompts))
    Outcomes("methods_loops").measure(product(LOOPED), partial(one_by_one, model, prompts[0]))


def measured(model: Any, prompts: Sequence[Story], how: str, label: str) -> dict[str, Any]:
    """Return a method's outcomes, or the reason of a refusal."""
    budget, outcomes = BUDGETS.get(how), list[Outcome]()
    for number, story in enumerate(prompts if budget is None else prompts[:SLOW]):
        if number == SLOW and np.median([seconds for *_, seconds, _ in outcomes]) > PATIENCE:
            break
        try:
            counting = budget is None and number < COUNTED
            outcomes.append(outcome(model, story, label, budget, counting=counting))
        except ValueError as refused:
            return {"refused": str(refused)}
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    return {"templates": [story.template for story in prompts[: len(outcomes)]], "evaluated": outcomes, "load": load}


def outcome(model: Any, story: Story, label: str, budget: int | None, counting: bool) -> Outcome:
    """Explain one prompt; seconds are of processor time, without the FLOP counter and the runs of the cache."""
    prediction = told(model, story)
    method: Any = heta_lens.METHODS[label.split(",")[0]](progress=False, **AS_IT_IS[label](story))
    if budget is not None:
        method = within_budget(method, prediction, budget)
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


def one_by_one(model: Any, story: Story, name: str) -> tuple[int, list[tuple[float, float]]]:
    """Return the number of runs of a method, and in turn the seconds of a loop of single runs and of the method."""
    prediction, seen = told(model, story), []
    run, method = ModelAdapter.run, heta_lens.METHODS[name](progress=False)

    def watched(adapter: ModelAdapter, ids: Tensor, *how: Any, read: Any = (-1,), **more: Any) -> Tensor:
        ends = read[:, 0] if isinstance(read, Tensor) else [ids.shape[1] - 1] * len(ids)
        seen.extend(one[: int(end) + 1] for one, end in zip(ids, ends, strict=True))
        return run(adapter, ids, *how, read=read, **more)

    with patch.object(ModelAdapter, "run", watched):
        runs = method(prediction).diagnostics["forwards"]
    whole = name != "context_cite"  # which removes what it leaves out
    contexts = [prediction.ids] * runs if whole else seen[-runs:]

    @torch.no_grad()
    def loop() -> None:
        for ids in contexts:
            model(ids[None])[0, -1].log_softmax(-1)

    return runs, [(timed(loop), timed(partial(method, prediction))) for _ in range(TURNS)]


def timed(run: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


# ------------------------------------------------------------------------------------------------------------ the page
def write() -> None:
    pages.write("methods", [as_they_are(), at_budgets(), loops()], level=3)


def as_they_are() -> pages.Table:
    outcomes, missing = Outcomes("methods").of(product([AS_THEY_ARE], AS_IT_IS))
    ran = [one for one in outcomes.values() if "refused" not in one]
    note = ""
    if ran:
        loads = [one["load"] for one in ran]
        note = (
            f"{intervals_over(one['templates'] for one in ran)} Seconds were taken on a machine with {min(loads):.1f} "
            f"to {max(loads):.1f} running processes per core."
        )
    return pages.Table(AS_THEY_ARE, COLUMNS, [row(label, one) for (_, label), one in outcomes.items()], missing, note)


def row(label: str, measurement: Mapping[str, Any]) -> list[str]:
    if "refused" in measurement:
        return [f"{label}: {measurement['refused']}", "0", *["–"] * 4]
    first, mass, seconds, worth = zip(*measurement["evaluated"], strict=True)
    templates, costs = measurement["templates"], (f"{np.median(seconds):.3g}", f"{np.nanmean(worth):.3g}")
    return [label, str(len(first)), proportion(first, templates), average(mass, templates, (0, 1)), *costs]


def at_budgets() -> pages.Table:
    """Return a row for each method that a budget is enough for, with a column for each budget."""
    outcomes, missing = Outcomes("methods").of(product(BUDGETS, AS_IT_IS))
    cells = {(how, label): cell(one) for (how, label), one in outcomes.items() if "refused" not in one}
    within = [label for label in AS_IT_IS if any((how, label) in cells for how in BUDGETS)]
    rows = [[label, *(cells.get((how, label), "–") for how in BUDGETS)] for label in within]
    note = (
        f"The first {SLOW} prompts. In each column: how often the highest score is on the evidence, and its mass. The "
        "option that a method's cost grows with is made as large as the budget allows, where a backward or an HVP "
        "counts as two forwards; a dash says that on some prompt even the cheapest setting costs more."
    )
    columns = ["method", *(f"at {how}" for how in BUDGETS)]
    return pages.Table("At equal compute", columns, rows, missing, note)


def cell(measurement: Mapping[str, Any]) -> str:
    first, mass, *_ = zip(*measurement["evaluated"], strict=True)
    templates = measurement["templates"]
    return f"{proportion(first, templates)}; {average(mass, templates, (0, 1))}"


def loops() -> pages.Table:
    outcomes, missing = Outcomes("methods_loops").of(product(LOOPED))
    rows = []
    for (name,), (runs, seconds) in outcomes.items():
        ratios = [alone / together for alone, together in seconds]
        medians = (f"{median(some):.3g}" for some in zip(*seconds, strict=True))
        rows.append([name, str(runs), *medians, f"{median(ratios):.3g} ({min(ratios):.3g}–{max(ratios):.3g})"])
    title = f"Against one run at a time (median of {TURNS} turns, least and most)"
    return pages.Table(title, LOOP_COLUMNS, rows, missing)
