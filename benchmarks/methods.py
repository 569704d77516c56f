"""Every method on the demo model's stories, where it is known which sentence tells the answer.

`python -m benchmarks.methods` writes METHODS.md; with an option it only shows what it finds. Prompts are of the test
split, the same for all methods. A method that takes more than a second for a prompt gets fewer of them.

The second table gives every method that can spend more or less about as much as leave-one-out: a run for each token.
The third compares methods that run many contexts with a loop that runs them one by one, on one prompt.
"""

import json
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Annotated, Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
import typer
from rich.console import Console
from rich.progress import track
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import heta_lens
from benchmarks.report import average, markdown, proportion, show
from heta_lens.data.recall import stories
from heta_lens.data.story import Story
from heta_lens.lens import Lens
from heta_lens.metrics import evidence_mass

RESULTS = Path(__file__).with_name("METHODS.md")
PROMPTS, SLOW, PATIENCE, COUNTED = 200, 50, 1.0, 3  # prompts; of a slow method; seconds; whose FLOPs are counted
LOOPED, TURNS = ["leave_one_out", "lime", "kernel_shap", "context_cite"], 5
LOOP_COLUMNS = ["method", "runs", "a loop, s", "the method, s", "loop / method"]
COLUMNS = ["method", "prompts", "first is evidence", "evidence mass", "s", "forwards' worth"]

Options = Callable[[Story], dict[str, Any]]
AS_IT_IS: dict[str, Options] = {name: lambda _: {} for name in heta_lens.METHODS} | {
    "context_cite, told the question": lambda story: {"query": question(story)},
}
EQUAL: dict[str, Options] = {  # a backward counts as two forwards
    "heta": lambda story: {"support": "row", "probes": max(3, length(story) // 4)},
    "integrated_gradients": lambda story: {"steps": length(story) // 3},
    "sequential_integrated_gradients": lambda _: {"steps": 1},
    "discretized_integrated_gradients": lambda story: {"steps": length(story) // 3},
    "value_zeroing": lambda _: {},
    "leave_one_out": lambda _: {},
    "lime": lambda story: {"samples": length(story)},
    "kernel_shap": lambda story: {"samples": 2 * length(story)},  # the least it takes
    "context_cite": lambda story: {"samples": length(story) - 16},
    "context_cite, told the question": lambda story: {"samples": length(story) - 16, "query": question(story)},
    "progressive_inference": lambda story: {"passes": "multi", "samples": length(story)},
    "reagent": lambda story: {"probes": 2, "max_steps": length(story) // 4},
    "gilot": lambda _: {},
    "tdd": lambda _: {},
    "causal_tracing": lambda _: {"mode": "noise_one", "samples": 1},
    "faml": lambda story: {"steps": length(story) // 6},
    "sea_cot": lambda story: {"explanations": 2, "length": length(story) // 2},
}


class Judged(NamedTuple):
    """One method on one prompt."""

    first: bool
    mass: float
    seconds: float
    worth: float


def main(
    prompts: Annotated[int, typer.Option(help="Prompts of each kind.")] = PROMPTS,
    slow: Annotated[int, typer.Option(help="Prompts for a method that takes over a second.")] = SLOW,
    method: Annotated[list[str] | None, typer.Option(help="Only these.")] = None,
    keep: Annotated[Path | None, typer.Option(help="A folder for what is found, to go on from.")] = None,
) -> None:
    torch.set_num_threads(1)  # more only slow down a model of this size
    model = heta_lens.load_demo_model()
    told = list(islice(stories("test"), prompts))
    tables = []
    for title, ways in {"As they are": AS_IT_IS, "At equal compute": EQUAL}.items():
        asked = {label: way for label, way in ways.items() if method is None or name_of(label) in method}
        rows = []
        for label, way in track(asked.items(), title, console=Console(stderr=True), transient=True):
            verdicts = partial(judged, model, told, label, way, slow)
            rows.append(row(label, kept(keep and keep / f"{title}: {label}.json", verdicts)))
        tables.append((title, COLUMNS, rows))
        show(*tables[-1])
    loops = [one_by_one(model, told[0], name) for name in LOOPED if method is None or name in method]
    tables.append((f"Against one run at a time (median of {TURNS} turns, least and most)", LOOP_COLUMNS, loops))
    show(*tables[-1])
    if (prompts, slow, method) == (PROMPTS, SLOW, None):
        sections = [f"### {title}\n\n{markdown(columns, rows)}" for title, columns, rows in tables]
        RESULTS.write_text("\n\n".join([LEGEND, *sections]) + "\n")


def name_of(label: str) -> str:
    """A row may say more than which method it is of."""
    return label.split(",")[0]


def length(story: Story) -> int:
    """Of the context, with the token that begins it."""
    return 1 + len(story.pieces)


def question(story: Story) -> tuple[tuple[int, int], ...]:
    return ((story.question.tokens.start, story.question.tokens.stop),)


def kept(path: Path | None, find: Callable[[], list[Judged] | str]) -> list[Judged] | str:
    """What was found before, if it was kept."""
    if path is not None and path.exists():
        found = json.loads(path.read_text())
        return found if isinstance(found, str) else [Judged(*one) for one in found]
    found = find()
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found))
    return found


def judged(model: Any, told: Sequence[Story], label: str, way: Options, slow: int) -> list[Judged] | str:
    """A method's verdicts, or why it refuses."""
    found: list[Judged] = []
    for number, story in enumerate(told):
        if number == slow and np.median([one.seconds for one in found]) > PATIENCE:
            break
        try:
            found.append(judge(model, story, name_of(label), way, counting=number < COUNTED))
        except ValueError as refused:
            return str(refused)
    return found


def judge(model: Any, story: Story, name: str, way: Options, counting: bool) -> Judged:
    """Seconds are without the FLOP counter, and without the run that filled the cache and the one that checks it."""
    prediction = prepared(model, story)
    method = heta_lens.METHODS[name](progress=False, **way(story))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        worth = (
            counted(lambda: method(prediction)) / counted(lambda: model(prediction.ids[None])) if counting else np.nan
        )
        begun = time.perf_counter()
        scores = method(prediction).scores.clone()
        seconds = time.perf_counter() - begun
    scores[0] = 0  # the token that only begins the text, where what has nowhere to go collects
    evidence = {at for stretch in story.evidence for at in stretch.tokens}
    first = 1 + int(scores[1:].argmax())
    return Judged(first in evidence, evidence_mass(scores, evidence), seconds, worth)


def prepared(model: Any, story: Story) -> heta_lens.Prediction:
    ids = model.to_tokens(story.text)
    _, cache = model.run_with_cache(ids, names_filter=heta_lens.names_filter)
    return heta_lens.Prediction.from_cache(cache, story.answer, tokens=ids)


@torch.no_grad()
def counted(run: Callable[[], Any]) -> float:
    with FlopCounterMode(display=False) as counter:
        run()
    return float(counter.get_total_flops())


def one_by_one(model: Any, story: Story, name: str) -> list[str]:
    """A method, and a loop over the contexts it runs: each alone, whole, every position unembedded; in turn."""
    prediction, seen = prepared(model, story), []
    run, method = Lens.run, heta_lens.METHODS[name](progress=False)

    def watched(lens: Lens, ids: Tensor, *how: Any, read: Any = (-1,), **more: Any) -> Tensor:
        ends = read[:, 0] if isinstance(read, Tensor) else [ids.shape[1] - 1] * len(ids)
        seen.extend(one[: int(end) + 1] for one, end in zip(ids, ends, strict=True))
        return run(lens, ids, *how, read=read, **more)

    with patch.object(Lens, "run", watched):
        runs = method(prediction).diagnostics["forwards"]
    whole = name != "context_cite"  # which removes what it leaves out
    contexts = [prediction.ids] * runs if whole else seen[-runs:]
    seconds = [(timed(partial(loop, model, contexts)), timed(partial(method, prediction))) for _ in range(TURNS)]
    ratios = [alone / together for alone, together in seconds]
    means = (f"{median(some):.3g}" for some in zip(*seconds, strict=True))
    return [name, str(runs), *means, f"{median(ratios):.3g} ({min(ratios):.3g}–{max(ratios):.3g})"]


@torch.no_grad()
def loop(model: Any, contexts: Sequence[Tensor]) -> None:
    for ids in contexts:
        model(ids[None])[0, -1].log_softmax(-1)


def timed(run: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def row(name: str, verdicts: Sequence[Judged] | str) -> list[str]:
    if isinstance(verdicts, str):
        return [f"{name}: {verdicts}", "0", *["–"] * 4]
    first, mass, seconds, worth = (np.array(column) for column in zip(*verdicts, strict=True))
    spent = f"{np.nanmean(worth):.3g}"
    return [name, str(len(verdicts)), proportion(first), average(mass), f"{np.median(seconds):.3g}", spent]


LEGEND = f"""Written by `make bench`: all methods on stories of the demo model's test split, with what they do if
nothing is said, and once more with about as much compute as leave-one-out takes. Every method sees the same
{PROMPTS} prompts, of one hop; one that takes more than {PATIENCE:.0f} s a prompt, the first {SLOW}. Intervals are of
95 %.

*first is evidence*: the highest score is on a token of the sentence that tells the answer; *evidence mass*: the share
of the scores above 0 that lies on that sentence. Neither looks at the token that begins the text. *s*: the median of
seconds a prompt on one thread; *forwards' worth*: FLOPs, in clean runs of the prompt, on the first {COUNTED} prompts.

ContextCite's authors keep the question out of its sources, which no other method here is told: with it and without,
it has a row of its own."""


if __name__ == "__main__":
    typer.run(main)
