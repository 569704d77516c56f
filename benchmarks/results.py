"""Every method by every metric: the tables of docs/results.md.

    python -m benchmarks.results run [PART ...]    evaluate methods, each part in its folder; interrupted runs resume
    python -m benchmarks.results write             write docs/results.md from the folders and the archive
    python -m benchmarks.results keep              put the folders into the archive, hours of work in three megabytes

The recall stories are of the test split, on the demo model. The copied words are the prompts of `copied_words`, on
the stories3M model, whose folder ``run copied`` needs.
"""

import json
import tarfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer

import heta_lens
from benchmarks.copied_words.table import PROMPTS
from benchmarks.report import TOY_MODELS
from benchmarks.stories3m import MODEL, load_stories3m
from benchmarks.tallies import by_method, by_metric, listed, meaningful_metrics, others
from heta_lens._util.text import Span
from heta_lens.data.datasets import occurrences, split_sentences
from heta_lens.data.instance import Instance
from heta_lens.data.suites import suite
from heta_lens.evaluation import Entry, evaluate
from heta_lens.evaluation.report import results as phrases
from heta_lens.evaluation.report.document import Block, Heading, Paragraph, Table, markdown
from heta_lens.evaluation.report.folder_report import overview
from heta_lens.evaluation.report.results import Summary, summary
from heta_lens.evaluation.run_folder import RECORDS, RUN
from heta_lens.metrics import METRICS

RESULTS = Path(__file__).parents[1] / "docs" / "results.md"
FOLDER, ARCHIVE = Path(__file__).with_name("evaluated"), Path(__file__).with_name("evaluated.tar.xz")
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

ABOUT = (
    f"{TOY_MODELS}\n\n"
    "Written by `python -m benchmarks.results write`: every method by every metric, as measured. The metrics are "
    "explained on [Evaluating methods](evaluation.md). Differences are reported where they are significant (p < .05 "
    "after Holm's correction for the number of methods)."
)

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
        evaluate(self.model(stories), self.prompts(), entries, self.metrics, folder, facts={"suite": self.title})


def demo(_: Path) -> Any:
    return heta_lens.load_demo_model()


def recall(count: int) -> Callable[[], Sequence[Instance]]:
    return lambda: suite("recall", limit=count, facts=3, wordings="trained")  # as they were measured


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
    support = [Span(start, stop) for start, stop in sentences if any(start <= at < stop for at, _ in gold)]
    return Instance(prompt["id"], text, word, prompt["template"], support=tuple(support), gold=tuple(gold))


PARTS = {
    "recall": Part("recall stories", demo, recall(300), [*FAST, *SLOW, *SETTINGS, ALONE], CHEAP),
    "copied": Part("copied words", load_stories3m, copied(100), [*COPIED, "causal_tracing", *SETTINGS, ALONE], CHEAP),
    "ablations": Part("recall stories (ablations)", demo, recall(50), ["heta", *ABLATIONS], CHEAP),
    "again": Part("recall stories (repeated runs)", demo, recall(50), FAST, AGAIN),
}


@app.command()
def run(
    parts: Annotated[list[str] | None, typer.Argument(help=f"Of {', '.join(PARTS)}; all, if none is named.")] = None,
    stories: Annotated[Path, typer.Option(help="The folder of the stories3M model.")] = MODEL,
) -> None:
    """Evaluate methods, each part in its own folder."""
    for name in parts or PARTS:
        PARTS[name].run(FOLDER / name, stories)


@app.command()
def keep() -> None:
    """Put the parts that are there into the archive that goes with the code."""
    with tarfile.open(ARCHIVE, "w:xz") as archive:
        for name in PARTS:
            for path in (FOLDER / name / RUN, FOLDER / name / RECORDS):
                if path.exists():
                    archive.add(path, path.relative_to(FOLDER).as_posix())


def unpack() -> None:
    """What was kept, unless a part has been begun anew."""
    if not ARCHIVE.exists():
        return
    begun = {path.name for path in FOLDER.iterdir()} if FOLDER.is_dir() else set()
    with tarfile.open(ARCHIVE) as archive:
        kept = [member for member in archive.getmembers() if Path(member.name).parts[0] not in begun]
        archive.extractall(FOLDER, kept, filter="data")


@app.command()
def write() -> None:
    """Write docs/results.md from the parts that are finished."""
    unpack()
    begun = {PARTS[name].title: summary(FOLDER / name) for name in PARTS if (FOLDER / name).is_dir()}
    summaries = {title: one for title, one in begun.items() if finished(one)}
    against = {title: one for title, one in summaries.items() if others(one)}
    parts = [f"# Results\n\n{ABOUT}{absent(summaries)}", wins(against), losses(against), settings(summaries)]
    tables: list[Block] = [Heading("HETA against the others"), tallied(against)]
    for title, one in summaries.items():
        if {*SETTINGS, *CONTROLS} <= {*one.methods} and {*PATCHED} <= {*one.metrics}:
            patched = narrowed(one, [one.reference, *SETTINGS, *CONTROLS], PATCHED)
            tables += [
                Heading(f"Causal validation: patching {title}"),
                Paragraph(read_out(title, patched)),
                *overview(patched),
            ]
    for title, one in summaries.items():
        tables += [Heading(title.capitalize()), Paragraph(described(one)), *overview(one)]
    RESULTS.write_text("\n\n".join([*parts, markdown(tables)]), encoding="utf-8")


def absent(summaries: Mapping[str, Summary]) -> str:
    """What is in none of the tables."""
    there = {name for one in summaries.values() for (name, _), cell in one.cells.items() if cell.estimate.n}
    titles = [metric.title for name, metric in METRICS.items() if name not in there]
    return f" Not measured yet: {'; '.join(titles)}." if titles else ""


def finished(results: Summary) -> bool:
    return not any(cell.pending for cell in results.cells.values())


def described(results: Summary) -> str:
    right = sum(results.correct.values())
    return (
        f"{len(results.templates)} prompts of {len(set(results.templates.values()))} templates; the explained token is "
        f"the model's own prediction in {right} of them. {len(results.methods)} methods, compared with "
        f"{results.reference}."
    )


# --------------------------------------------------------------------------------------------- who is better than whom
def tallied(summaries: Mapping[str, Summary]) -> Table:
    rows: dict[str, list[str]] = {}
    for number, one in enumerate(summaries.values()):
        for (metric, better, worse, of), measure in zip(by_metric(one), meaningful_metrics(one), strict=True):
            row = rows.setdefault(metric, [metric, *[""] * (2 * len(summaries))])
            row[2 * number + 1 : 2 * number + 3] = [f"{better} / {worse} of {of}", one.best.get(measure.name, "")]
    heads = [head for title in summaries for head in (f"{title}: HETA better / worse", "best of all")]
    return Table(["metric", *heads], [*rows.values()])


# -------------------------------------------------------------------------------------------------- causal validation
def narrowed(results: Summary, methods: Sequence[str], metrics: Sequence[str]) -> Summary:
    """Some of its methods and metrics; significance is still over all methods."""
    best = {metric: method for metric, method in results.best.items() if method in methods}
    return replace(
        results, methods=tuple(methods), metrics={name: results.metrics[name] for name in metrics}, best=best
    )


def read_out(title: str, results: Summary) -> str:
    """Two sentences: who agrees with patching, and who is better or worse than HETA."""
    agreed = results.metrics["patch_correlation"]
    order = results.ranked(agreed)
    value = {method: phrases.with_interval(results.cells[agreed.name, method].estimate) for method in results.methods}
    tallies = by_method(results, [method for method in results.methods if method != results.reference])
    better, worse = ([one for one in tallies if sign * (one.better - one.worse) > 0] for sign in (1, -1))
    sure = "significantly" if results.best.get(agreed.name) == order[0] else "though not significantly"
    summary_text = (
        f"On {title} the scores of {order[0]} agree best with the effects of patching single tokens, {sure} "
        f"({agreed.title} {value[order[0]]}), and those of {results.reference} are number "
        f"{order.index(results.reference) + 1} of {len(order)} ({value[results.reference]}; random {value['random']}). "
        f"Better than {results.reference} on more of these {len(results.metrics)} metrics than worse: "
        f"{listed([str(one) for one in better]) or 'none'}; worse on more: "
        f"{listed([str(one) for one in worse]) or 'none'}."
    )
    return summary_text.replace("`", "")


# ------------------------------------------------------------------------------------------------- in three paragraphs
def wins(summaries: Mapping[str, Summary]) -> str:
    sentences = []
    for title, one in summaries.items():
        tallies = by_metric(one)
        most = [tally for tally in tallies if tally.better > tally.of / 2]
        first = [f"*{one.metrics[name].title}*" for name, method in one.best.items() if method == one.reference]
        alone = f", and than all of them by {listed(first)}" if first else ""
        sentences.append(
            f"{title.capitalize()}: better than most others by {len(most)} of {len(tallies)} metrics{alone}."
        )
    return f"**Where HETA wins.** {' '.join(sentences)}"


def losses(summaries: Mapping[str, Summary]) -> str:
    sentences = []
    for title, one in summaries.items():
        few = [f"*{tally.name}*" for tally in by_metric(one) if tally.worse > tally.better]
        rivals = [str(tally) for tally in by_method(one, others(one)) if tally.better > tally.worse]
        sentences.append(
            f"{title.capitalize()}: on {listed(few) or 'no metric'}, more methods beat HETA than lose to it. Methods "
            f"that beat it on more metrics than they lose: {listed(rivals) or 'none'}."
        )
    return f"**Where it does not.** {' '.join(sentences)}"


def settings(summaries: Mapping[str, Summary]) -> str:
    """Configurations of HETA against the paper's."""
    tallied_settings, leads, tried = [], Counter({"the paper's setting": 0}), dict[str, list[str]]()
    for title, one in summaries.items():
        tallies = by_method(one, [method for method in one.methods if method.startswith("heta ")])
        tallied_settings += [f"{tally} on {title}" for tally in tallies]
        for tally in tallies:
            leads[tally.name] += tally.better - tally.worse
            tried.setdefault(tally.name, []).append(title)
    (best, _), *_ = leads.most_common(1)
    where = f", which was tried on {listed(tried[best])}" if best in tried else ""
    return (
        f"**Which setting.** By how many metrics other settings are better and worse than the paper's: "
        f"{listed(tallied_settings) or 'none was tried'}. By these we would use {best}{where}."
    )


if __name__ == "__main__":
    app()
