"""Every method on the demo model's stories, where it is known which sentence tells the answer.

    python -m benchmarks.methods run [--method NAME ...]    measure; an interrupted run resumes
    python -m benchmarks.methods write                      write METHODS.md from what was measured

Prompts are of the test split, the same for all methods. A method that takes more than a second for a prompt gets fewer
of them.

The second table has every method with budgets of 3, 30 and 100 forwards. The third compares methods that run many
contexts with a loop that runs them one by one, on one prompt.
"""

import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Annotated, Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
import typer
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import heta_lens
from benchmarks import report
from benchmarks.outcomes import FOLDER, Folder, Key, Outcomes
from benchmarks.report import average, intervals_over, proportion
from heta_lens.data.recall import Story, stories
from heta_lens.methods.cost import within_budget
from heta_lens.metrics import evidence_mass
from heta_lens.model.adapter import ModelAdapter

RESULTS = Path(__file__).with_name("METHODS.md")
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
    """One method on one prompt."""

    first: bool
    mass: float
    seconds: float
    worth: float


AS_THEY_ARE = "As they are"
app = typer.Typer(add_completion=False)


@app.command()
def run(
    method: Annotated[list[str] | None, typer.Option(help="Only these.")] = None,
    prompts: Annotated[int, typer.Option(help="Fewer, for a quick look, with --outcomes.")] = PROMPTS,
    folder: Folder = FOLDER,
) -> None:
    """Measure every method on the same prompts."""
    if prompts != PROMPTS and folder == FOLDER:
        raise typer.BadParameter("--prompts is for a quick look: give a folder of its own with --outcomes")
    torch.set_num_threads(1)  # more only slow down a model of this size
    model, test_stories = heta_lens.load_demo_model(), list(islice(stories("test"), prompts))
    wanted = [key for key in keys() if method is None or name_of(str(key[1])) in method]
    Outcomes("methods", folder).measure(wanted, lambda key: measured(model, test_stories, *map(str, key)))
    loops = [(name,) for name in LOOPED if method is None or name in method]
    Outcomes("methods_loops", folder).measure(loops, lambda key: one_by_one(model, test_stories[0], str(key[0])))


def keys() -> list[Key]:
    return [(how, label) for how in (AS_THEY_ARE, *BUDGETS) for label in AS_IT_IS]


def measured(model: Any, prompts: Sequence[Story], how: str, label: str) -> dict[str, Any]:
    budget = BUDGETS.get(how)
    outcomes = outcomes_of(model, prompts if budget is None else prompts[:SLOW], label, budget)
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    if isinstance(outcomes, str):
        return {"refused": outcomes}
    return {"templates": [story.template for story in prompts[: len(outcomes)]], "evaluated": outcomes, "load": load}


@app.command()
def write(folder: Folder = FOLDER) -> None:
    """Write METHODS.md from what was measured."""
    tables = [as_they_are(folder), at_budgets(folder), loops(folder)]
    for one in tables:
        report.show(one.title, one.columns, one.rows)
    if folder == FOLDER:
        report.write(RESULTS, LEGEND, tables, level=3)


def as_they_are(folder: Path) -> report.Table:
    outcomes, missing = Outcomes("methods", folder).of([key for key in keys() if key[0] == AS_THEY_ARE])
    ran = [one for one in outcomes.values() if "refused" not in one]
    note = f"{intervals_over(one['templates'] for one in ran)} {busy([one['load'] for one in ran])}" if ran else ""
    rows = [row(str(label), one) for (_, label), one in outcomes.items()]
    return report.Table(AS_THEY_ARE, COLUMNS, rows, missing, note)


def at_budgets(folder: Path) -> report.Table:
    """A row for each method that some budget is enough for, with a column for each."""
    outcomes, missing = Outcomes("methods", folder).of([key for key in keys() if key[0] != AS_THEY_ARE])
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
    return report.Table("At equal compute", columns, rows, missing, note)


def cell(measurement: Mapping[str, Any] | None) -> str:
    if measurement is None:
        return "–"
    first, mass, *_ = zip(*measurement["evaluated"], strict=True)
    templates = measurement["templates"]
    return f"{proportion(first, templates)}; {average(mass, templates, (0, 1))}"


def busy(loads: Sequence[float]) -> str:
    """How far seconds can be trusted."""
    return f"Seconds were taken on a machine with {min(loads):.1f} to {max(loads):.1f} running processes per core."


def loops(folder: Path) -> report.Table:
    outcomes, missing = Outcomes("methods_loops", folder).of([(name,) for name in LOOPED])
    title = f"Against one run at a time (median of {TURNS} turns, least and most)"
    return report.Table(title, LOOP_COLUMNS, [loop_row(str(name), *one) for (name,), one in outcomes.items()], missing)


def name_of(label: str) -> str:
    """A row may say more than which method it is of."""
    return label.split(",")[0]


def question(story: Story) -> tuple[tuple[int, int], ...]:
    return ((story.question.tokens.start, story.question.tokens.stop),)


def outcomes_of(model: Any, prompts: Sequence[Story], label: str, budget: int | None) -> list[Outcome] | str:
    """A method's outcomes, or the reason why it refuses."""
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
    """Seconds are of processor time, which other programs hardly change, without the FLOP counter and without the runs
    that fill and check the cache."""
    prediction = prepared(model, story)
    method: Any = heta_lens.METHODS[name_of(label)](progress=False, **AS_IT_IS[label](story))
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
    """How many contexts a method runs; seconds of a loop that runs each alone and whole, and its own, in turn."""
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


LEGEND = f"""{report.TOY_MODELS}

Written by `make bench`: all methods on stories of the demo model's test split, with what they do if
nothing is said, and at budgets of 3, 30 and 100 forwards. Every method sees the same
{PROMPTS} prompts, of one hop; one that takes more than {PATIENCE:.0f} s per prompt, the first {SLOW}.

*first is evidence*: the highest score is on a token of the sentence that tells the answer; *evidence mass*: the share
of the scores above 0 that lies on that sentence. Neither looks at the token that begins the text. *s*: the median of
seconds of processor time a prompt, on one thread; *forwards' worth*: FLOPs, in clean runs of the prompt, on the first
{COUNTED} prompts.

The authors of methods that leave out sentences keep the question; no other method here knows which part that is. So
these methods have two rows: *with the question*, where it is kept, and as they are."""


if __name__ == "__main__":
    app()
