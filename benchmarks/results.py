"""Every method by every metric: the tables of docs/results.md.

    python -m benchmarks.results run [PART ...]    judge methods, each part in a folder of its own; stopped, it goes on
    python -m benchmarks.results write             write docs/results.md from what is there

The recall stories are of the test split, on the demo model. The copied words are the prompts of `copied_words`, on
the stories3M model, whose folder ``run copied`` needs.
"""

import json
import runpy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer

import heta_lens
from benchmarks.copied_words.table import MODEL, PROMPTS
from heta_lens.data.instance import Instance
from heta_lens.data.layout import occurrences, split_sentences
from heta_lens.data.suites import suite
from heta_lens.evaluation import Entry, evaluate
from heta_lens.metrics import METRICS

FOLDER = Path(__file__).with_name("judged")
SLOW = {"sequential_integrated_gradients", "reagent", "causal_tracing", "faml"}  # over two seconds a story
UNABLE = {"sea_cot"}  # the models at hand do not answer Yes or No
HETA = ["heta", "heta balance=sum"]
TOLD = "context_cite query=@question"
FAST = [*HETA, *sorted({*heta_lens.METHODS} - SLOW - UNABLE - {"heta"})]
VARIANTS = [
    f"heta variant={name}" for name in ("no_gate", "uniform_gate", "transition_only", "hessian_only", "kl_only")
]
ONCE = [method for method in [*FAST, TOLD] if method != HETA[1]]
COPIED = [method for method in FAST if method not in (HETA[1], "gilot")]  # whose programmes grow with the vocabulary
CHEAP = [name for name, metric in METRICS.items() if not metric.again]
AGAIN = [name for name, metric in METRICS.items() if metric.again]

app = typer.Typer(add_completion=False)


@dataclass(frozen=True)
class Part:
    """One table's figures: of these prompts, by these methods and metrics."""

    title: str
    model: Callable[[Path], Any]
    prompts: Callable[[], Sequence[Instance]]
    methods: Sequence[str]
    metrics: Sequence[str]

    def run(self, folder: Path, stories: Path) -> None:
        entries = [Entry.read(method) for method in self.methods]
        evaluate(self.model(stories), self.prompts(), entries, self.metrics, folder, told={"suite": self.title})


def demo(_: Path) -> Any:
    return heta_lens.load_demo_model()


def stories3m(folder: Path) -> Any:
    return runpy.run_path(str(folder / "load.py"))["load_hooked"](str(folder))


def recall(count: int) -> Callable[[], Sequence[Instance]]:
    return lambda: suite("recall", limit=count, facts=3)


def copied(count: int) -> Callable[[], Sequence[Instance]]:
    """Of all templates; the earlier places of the word that comes next are gold, and their sentences the support."""
    prompts = [json.loads(line) for line in PROMPTS.read_text(encoding="utf-8").splitlines()]
    spread = sorted(prompts, key=lambda prompt: int(prompt["id"].rpartition("-")[2]))
    return lambda: [copy_of(prompt) for prompt in spread[:count]]


def copy_of(prompt: dict[str, Any]) -> Instance:
    text, word = prompt["text"], prompt["target"]
    gold = occurrences(word.strip(), text)
    starts = [text.index(sentence) for sentence in split_sentences(text)]
    sentences = pairwise([*starts, len(text)])
    support = [(start, stop) for start, stop in sentences if any(start <= at < stop for at, _ in gold)]
    return Instance(prompt["id"], text, word, prompt["template"], support=support, gold=gold)


PARTS = {
    "recall": Part("recall stories", demo, recall(300), [*FAST, TOLD], CHEAP),
    "copied": Part("copied words", stories3m, copied(100), COPIED, CHEAP),
    "slow": Part("recall stories, slow methods", demo, recall(50), [*HETA, *VARIANTS, *sorted(SLOW)], CHEAP),
    "again": Part("recall stories, methods asked again", demo, recall(50), ONCE, AGAIN),
}


@app.command()
def run(
    parts: Annotated[list[str] | None, typer.Argument(help=f"Of {', '.join(PARTS)}; all, if none is named.")] = None,
    stories: Annotated[Path, typer.Option(help="The folder of the stories3M model.")] = MODEL,
) -> None:
    """Judge methods, each part in a folder of its own."""
    for name in parts or PARTS:
        PARTS[name].run(FOLDER / name, stories)


if __name__ == "__main__":
    app()
