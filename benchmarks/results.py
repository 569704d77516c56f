"""Every method by every metric: the tables of docs/results.md, in parts that are evaluated apart.

The recall stories are of the test split, on the demo model. The copied words are prompts of `copied_words`, on the
stories3M model.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import heta_lens
from benchmarks import copied_words, pages
from benchmarks.models import load_stories3m
from benchmarks.pages import Table
from heta_lens._util.text import Span
from heta_lens.data.datasets import occurrences, split_sentences
from heta_lens.data.instance import Instance
from heta_lens.data.suites import suite
from heta_lens.evaluation import Entry, evaluate
from heta_lens.evaluation.report.document import markdown
from heta_lens.evaluation.report.folder_report import overview
from heta_lens.evaluation.report.results import Measure, Summary, summary
from heta_lens.metrics import METRICS

FOLDER = Path(__file__).with_name("evaluated")
SLOW = ["causal_tracing", "faml", "reagent", "sequential_integrated_gradients"]  # over two seconds a story
UNABLE = ["sea_cot"]  # the models at hand do not answer Yes or No
WITH_QUESTION = "context_cite query=@question"
RELP, ALONE = "attn_lrp rule=relp", "heta groups=None"
FAST = ["heta", *sorted({*heta_lens.METHODS} - {"heta", *SLOW, *UNABLE}), RELP, WITH_QUESTION]
SETTINGS = ["heta balance=sum", "heta variant=no_gate", "heta variant=transition_only"]
ABLATIONS = [f"heta variant={name}" for name in ("uniform_gate", "hessian_only", "kl_only")]
CONTROLS = ["attention_rollout", "gradient_norm", "integrated_gradients", "causal_tracing", "leave_one_out", "random"]
PATCHED = ["patch_correlation", "intervention_5", "mean_effect_5", "misattribution"]
# Not for copied words: there is no question, weights are fitted on stories, the vocabulary is too large.
UNFIT = [WITH_QUESTION, "at2", "gilot"]
COPIED = [method for method in FAST if method not in UNFIT]
CHEAP = [name for name, metric in METRICS.items() if not metric.again]
AGAIN = [name for name, metric in METRICS.items() if metric.again]
REFERENCES = {  # values that other metrics are compared with: no merit of a method
    *("verdict_change_random", "causal_pass_5_chance", "causal_pass_5_unpatched", "seed_variance")
}


@dataclass(frozen=True)
class Part:
    """The prompts, methods and metrics of one table."""

    title: str
    model: Callable[[], Any]
    prompts: Callable[[], Sequence[Instance]]
    methods: Sequence[str]
    metrics: Sequence[str]

    def run(self, folder: Path) -> None:
        entries = [Entry.read(method) for method in self.methods]
        evaluate(self.model(), self.prompts(), entries, self.metrics, folder, facts={"suite": self.title})


def recall(count: int) -> Callable[[], Sequence[Instance]]:
    return lambda: suite("recall", limit=count, facts=3, wordings="trained")


def copied(count: int) -> Callable[[], Sequence[Instance]]:
    """Return prompts of all templates."""
    return lambda: [copy_of(prompt) for prompt in sorted(copied_words.prompts(), key=copied_words.turn)[:count]]


def copy_of(prompt: dict[str, Any]) -> Instance:
    """Return a prompt whose gold are the earlier places of the next word, and its support their sentences."""
    text, word = prompt["text"], prompt["target"]
    gold = occurrences(word.strip(), text)
    starts = [text.index(sentence) for sentence in split_sentences(text)]
    sentences = pairwise([*starts, len(text)])
    support = [Span(start, stop) for start, stop in sentences if any(start <= at < stop for at, _ in gold)]
    return Instance(prompt["id"], text, word, prompt["template"], support=tuple(support), gold=tuple(gold))


demo = heta_lens.load_demo_model
PARTS = {
    "recall": Part("recall stories", demo, recall(300), [*FAST, *SLOW, *SETTINGS, ALONE], CHEAP),
    "copied": Part("copied words", load_stories3m, copied(100), [*COPIED, "causal_tracing", *SETTINGS, ALONE], CHEAP),
    "ablations": Part("recall stories (ablations)", demo, recall(50), ["heta", *ABLATIONS], CHEAP),
    "again": Part("recall stories (repeated runs)", demo, recall(50), FAST, AGAIN),
}


def run(*parts: str) -> None:
    """Evaluate methods, each part in its folder; an interrupted run resumes."""
    for name in parts or PARTS:
        PARTS[name].run(FOLDER / name)


def write() -> None:
    """Write the parts that are finished."""
    found = {PARTS[name].title: summary(FOLDER / name) for name in PARTS if (FOLDER / name).is_dir()}
    found = {title: one for title, one in found.items() if not any(cell.pending for cell in one.cells.values())}
    pages.write("results", sections(found))


def sections(found: Mapping[str, Summary]) -> Iterator[Table | tuple[str, str]]:
    if found:
        yield by_metric({title: one for title, one in found.items() if others(one)})
        yield by_method(found)
    for title, one in found.items():
        if {*SETTINGS, *CONTROLS} <= {*one.methods} and {*PATCHED} <= {*one.metrics}:
            # Fewer methods and metrics; significance is still over all methods.
            methods = (one.reference, *SETTINGS, *CONTROLS)
            best = {metric: method for metric, method in one.best.items() if method in methods}
            patched = replace(one, methods=methods, metrics={name: one.metrics[name] for name in PATCHED}, best=best)
            yield f"Causal validation: patching {title}", markdown([*overview(patched)])
    for title, one in found.items():
        note = (
            f"{len(one.templates)} prompts of {len(set(one.templates.values()))} templates; the explained token is the "
            f"model's own prediction in {sum(one.correct.values())} of them. {len(one.methods)} methods, compared with "
            f"{one.reference}."
        )
        yield title.capitalize(), f"{note}\n\n{markdown([*overview(one)])}"


# ------------------------------------------------------------------------------------------------- HETA and the others
def measured(results: Summary) -> list[Measure]:
    named = {name for (name, _), cell in results.cells.items() if cell.estimate.n} - REFERENCES
    return [metric for metric in results.metrics.values() if metric.name in named]


def others(results: Summary) -> list[str]:
    return [method for method in results.methods if not method.startswith("heta")]


def by_metric(found: Mapping[str, Summary]) -> Table:
    rows: dict[str, list[str]] = {}
    for number, one in enumerate(found.values()):
        for metric in measured(one):
            verdicts = [one.verdict(metric, method) for method in others(one)]
            row = rows.setdefault(metric.title, [metric.title, *[""] * (2 * len(found))])
            counts = f"{verdicts.count(-1)} / {verdicts.count(1)} of {len(verdicts)}"
            row[2 * number + 1 : 2 * number + 3] = [counts, one.best.get(metric.name, "")]
    heads = [head for title in found for head in (f"{title}: HETA better / worse", f"{title}: best of all")]
    return Table("HETA against the others", ["metric", *heads], [*rows.values()])


def by_method(found: Mapping[str, Summary]) -> Table:
    """Count the metrics by which every method is significantly better and worse than HETA."""
    names = [*dict.fromkeys(name for one in found.values() for name in one.methods if name != one.reference)]
    rows = {name: [f"`{name}`"] for name in names}
    for one in found.values():
        for name, row in rows.items():
            verdicts = [one.verdict(metric, name) for metric in measured(one)] if name in one.methods else []
            row.append(f"{verdicts.count(1)} / {verdicts.count(-1)} of {len(verdicts)}" if verdicts else "")
    columns = ["method", *(f"{title}: better / worse than HETA" for title in found)]
    return Table("The others against HETA", columns, [*rows.values()])
