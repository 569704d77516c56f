"""Every method on the demo model's stories, whose evidence is known, as it is and with a budget of forwards.

All methods see the same prompts of the test split; a method of more than a second a prompt sees fewer. The last table
compares methods that run many contexts with a loop that runs the contexts one by one, on one prompt.
"""

import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from statistics import median
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import heta_lens
from benchmarks import pages
from benchmarks.outcomes import Key, Outcomes
from benchmarks.pages import average, intervals_over, proportion
from heta_lens.data.recall import Story, stories
from heta_lens.methods.cost import within_budget
from heta_lens.metrics import evidence_mass
from heta_lens.model.adapter import ModelAdapter

PROMPTS, SLOW, PATIENCE, COUNTED = 200, 50, 1.0, 3  # prompts; of a slow method; seconds; whose FLOPs are counted
LOOPED, TURNS = ["leave_one_out", "lime", "kernel_shap", "context_cite"], 5
LOOP_COLUMNS = ["method", "runs", "a loop, s", "the method, s", "loop / method"]
COLUMNS = ["method", "prompts", "first is evidence", "evidence mass", "s", "forwards' worth"]

Options = Callable[[Story], dict[str, Any]]
OF_SENTENCES = ("context_cite", "arc_jsd", "attribot", "shapiq")
AS_IT_IS: dict[str, Options] = {name: lambda _: {} for name in heta_lens.METHODS} | {
    f"{name}, with the question": lambda story: {"query": question(story)} for name in OF_SENTENCES
}
BUDGETS = {f"{budget} forwards": budget for budget in (3, 30, 100)}


class Outcome(NamedTuple):
    first: bool
    mass: float
    seconds: float
    worth: float


AS_THEY_ARE = "As they are"


def run() -> None:
    """Measure every method on the same prompts."""
    torch.set_num_threads(1)  # more only slow down a model of this size
    model, prompts = heta_lens.load_demo_model(), list(islice(stories("test"), PROMPTS))
    Outcomes("methods").measure(keys(), lambda key: measured(model, prompts, *map(str, key)))
    Outcomes("methods_loops").measure(
        [(name,) for name in LOOPED], lambda key: one_by_one(model, prompts[0], str(key[0]))
    )


def keys() -> list[Key]:
    return [(how, label) for how in (AS_THEY_ARE, *BUDGETS) for label in AS_IT_IS]


def measured(model: Any, prompts: Sequence[Story], how: str, label: str) -> dict[str, Any]:
    budget = BUDGETS.get(how)
    outcomes = outcomes_of(model, prompts if budget is None else prompts[:SLOW], label, budget)
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    if isinstance(outcomes, str):
        return {"refused": outcomes}
    return {"templates": [story.template for story in prompts[: len(outcomes)]], "evaluated": outcomes, "load": load}


def write() -> None:
    pages.write("methods", [as_they_are(), at_budgets(), loops()], level=3)


def as_they_are() -> pages.Table:
    outcomes, missing = Outcomes("methods").of([key for key in keys() if key[0] == AS_THEY_ARE])
    ran = [one for one in outcomes.values() if "refused" not in one]
    note = f"{intervals_over(one['templates'] for one in ran)} {busy([one['load'] for one in ran])}" if ran else ""
    rows = [row(str(label), one) for (_, label), one in outcomes.items()]
    return pages.Table(AS_THEY_ARE, COLUMNS, rows, missing, note)


def at_budgets() -> pages.Table:
    """Return a row for each method that a budget is enough for, with a column for each budget."""
    outcomes, missing = Outcomes("methods").of([key for key in keys() if key[0] != AS_THEY_ARE])
    ran = {key: one for key, one in outcomes.items() if "refused" not in one}
    rows = [
        [label, *(cell(ran.get((how, label))) for how in BUDGETS)]
        for label in AS_IT_IS
        if any((how, label) in ran for how in BUDGETS)
    ]
    note = (
        f"The first {SLOW} prompts. In each column: how often the highest score is on the evidence, and its mass. The "
        "option that a method's cost grows with is made as large as the budget allows, where a backward or an HVP "
        "counts as two forwards; a dash says that on some prompt even the cheapest setting costs more."
    )
    columns = ["method", *(f"at {how}" for how in BUDGETS)]
    return pages.Table("At equal compute", columns, rows, missing, note)


def cell(measurement: Mapping[str, Any] | None) -> str:
    if measurement is None:
        return "–"
    first, mass, *_ = zip(*measurement["evaluated"], strict=True)
    templates = measurement["templates"]
    return f"{proportion(first, templates)}; {average(mass, templates, (0, 1))}"


def busy(loads: Sequence[float]) -> str:
    return f"Seconds were taken on a machine with {min(loads):.1f} to {max(loads):.1f} running processes per core."


def loops() -> pages.Table:
    outcomes, missing = Outcomes("methods_loops").of([(name,) for name in LOOPED])
    title = f"Against one run at a time (median of {TURNS} turns, least and most)"
    return pages.Table(title, LOOP_COLUMNS, [loop_row(str(name), *one) for (name,), one in outcomes.items()], missing)


def question(story: Story) -> tuple[tuple[int, int], ...]:
    return ((story.question.tokens.start, story.question.tokens.stop),)


def outcomes_of(model: Any, prompts: Sequence[Story], label: str, budget: int | None) -> list[Outcome] | str:
    """Return a method's outcomes, or the reason of a refusal."""
    outcomes: list[Outcome] = []
    for number, story in enumerate(prompts):
        if number == SLOW and np.median([one.seconds for one in outcomes]) > PATIENCE:
            break
        try:
            counting = budget is None and number < COUNTED
            outcomes.append(outcome(model, story, label, budget, counting=counting))
        except ValueError as refused:
            return str(refused)
    return outcomes


def outcome(model: Any, story: Story, label: str, budget: int | None, counting: bool) -> Outcome:
    """Explain one prompt; seconds are of processor time, without the FLOP counter and the runs of the cache."""
    prediction = prepared(model, story)
    method: Any = heta_lens.METHODS[label.split(",")[0]](progress=False, **AS_IT_IS[label](story))
    if budget is not None:
        method = within_budget(method, prediction, budget)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        worth = (
            counted(lambda: method(prediction)) / counted(lambda: model(prediction.ids[None])) if counting else np.nan
        )
        begun = time.process_time()
        scores = method(prediction).scores.clone()
        seconds = time.process_time() - begun
    scores[0] = 0  # the token that only begins the text, where what has nowhere to go collects
    evidence = {at for stretch in story.evidence for at in stretch.tokens}
    first = 1 + int(scores[1:].argmax())
    return Outcome(first in evidence, evidence_mass(scores, evidence), seconds, worth)


def prepared(model: Any, story: Story) -> heta_lens.Prediction:
    ids = model.to_tokens(story.text)
    _, cache = model.run_with_cache(ids, names_filter=heta_lens.names_filter)
    return heta_lens.Prediction.from_cache(cache, story.answer, tokens=ids)


@torch.no_grad()
def counted(run: Callable[[], Any]) -> float:
    with FlopCounterMode(display=False) as counter:
        run()
    return float(counter.get_total_flops())


def one_by_one(model: Any, story: Story, name: str) -> tuple[int, list[tuple[float, float]]]:
    """Return the number of runs of a method, and in turn the seconds of a loop of single runs and of the method."""
    prediction, seen = prepared(model, story), []
    run, method = ModelAdapter.run, heta_lens.METHODS[name](progress=False)

    def watched(adapter: ModelAdapter, ids: Tensor, *how: Any, read: Any = (-1,), **more: Any) -> Tensor:
        ends = read[:, 0] if isinstance(read, Tensor) else [ids.shape[1] - 1] * len(ids)
        seen.extend(one[: int(end) + 1] for one, end in zip(ids, ends, strict=True))
        return run(adapter, ids, *how, read=read, **more)

    with patch.object(ModelAdapter, "run", watched):
        runs = method(prediction).diagnostics["forwards"]
    whole = name != "context_cite"  # which removes what it leaves out
    contexts = [prediction.ids] * runs if whole else seen[-runs:]
    seconds = [(timed(partial(loop, model, contexts)), timed(partial(method, prediction))) for _ in range(TURNS)]
    return runs, seconds


def loop_row(name: str, runs: int, seconds: Sequence[Sequence[float]]) -> list[str]:
    ratios = [alone / together for alone, together in seconds]
    medians = (f"{median(some):.3g}" for some in zip(*seconds, strict=True))
    return [name, str(runs), *medians, f"{median(ratios):.3g} ({min(ratios):.3g}–{max(ratios):.3g})"]


@torch.no_grad()
def loop(model: Any, contexts: Sequence[Tensor]) -> None:
    for ids in contexts:
        model(ids[None])[0, -1].log_softmax(-1)


def timed(run: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def row(label: str, measurement: Mapping[str, Any]) -> list[str]:
    if "refused" in measurement:
        return [f"{label}: {measurement['refused']}", "0", *["–"] * 4]
    first, mass, seconds, worth = zip(*measurement["evaluated"], strict=True)
    templates, costs = measurement["templates"], (f"{np.median(seconds):.3g}", f"{np.nanmean(worth):.3g}")
    return [label, str(len(first)), proportion(first, templates), average(mass, templates, (0, 1)), *costs]
