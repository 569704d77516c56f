"""Suites × methods × metrics: an evaluation, whose results are recorded as soon as they are finished."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from hashlib import sha256
from os import PathLike
from pathlib import Path
from time import perf_counter
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from heta_lens.data.instance import Instance
from heta_lens.data.instance import record_of as as_json
from heta_lens.data.prompt_sources import Source, prompts
from heta_lens.evaluation.prompt_evaluation import Methods, Task, explainers
from heta_lens.evaluation.run_folder import Shard, opened
from heta_lens.evaluation.saved_scores import SCORES, SavedScores, load_scores
from heta_lens.evaluation.workers import Workers, loaded, working
from heta_lens.metrics import METRICS, Metric
from heta_lens.metrics.registry import metric_named
from heta_lens.model.tokenizer import next_word

NEEDS_MODEL = "longra"  # the prompts of this suite depend on the answers of the model
HERE = Workers()
EVERY = 15.0  # seconds between two lines of `ProgressLines`


@dataclass(eq=False)
class ProgressLines:
    """Lines about the number of items done out of ``total``, and the remaining time.

    Items ``kept`` from an earlier run took no time; the remaining items are expected to take as long as the others.
    """

    total: int
    say: Callable[[str], None]
    clock: Callable[[], float] = perf_counter
    kept: int = 0
    done: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.start = self.last = self.clock()
        if self.total > self.kept:
            self.say(f"{self.kept} of {self.total} done")

    def advance(self, count: int) -> None:
        self.done += count
        now, left = self.clock(), self.total - self.kept - self.done
        if now - self.last >= EVERY and left > 0:
            self.last = now
            time_left = timedelta(seconds=round((now - self.start) * left / self.done))
            self.say(f"{self.kept + self.done} of {self.total} done, about {time_left} left")


def drawn(source: Any, model: Any, workers: Workers, draw: "partial[list[Instance]]") -> tuple[list[Instance], Any]:
    """Draw the prompts of a source, and return the model too: loaded, if drawing needs it and the work is done here."""
    if source != NEEDS_MODEL or "says" in draw.keywords:
        return draw(), model
    ready = loaded(model)
    return draw(says=partial(next_word, ready)), ready if workers.here else model


def evaluate(
    model: Any,
    instances: Sequence[Instance],
    methods: Methods,
    metrics: str | Metric | Sequence[str | Metric],
    folder: str | PathLike[str],
    *,
    facts: Mapping[str, Any] | None = None,
    progress: bool = True,
    retry_failed: bool = False,
    workers: Workers = HERE,
    shard: Shard | None = None,
) -> None:
    """Explain every instance by every method, evaluate the explanations by every metric, and save results in a folder.

    The folder also gets the scores, which `load_scores` reads. Results that the folder has already are not computed
    again, so that an interrupted evaluation resumes and methods can be added. A folder with another evaluation is
    refused: with other prompts or metrics, or with another model by its `fingerprint` (unless everything failed). So
    is a folder that another evaluation is writing into.

    Args:
        model: a model, its name, a folder, or a function that loads the model. Several workers load a model each, and
            cannot take a loaded model.
        instances: the prompts.
        methods: names with options, as ``"lime samples=200"``; method objects, as ``Heta(probes=20)``; or functions
            ``(prediction) -> scores``.
        metrics: names, or `Metric` objects, which are named by their titles; without metrics, only scores are saved.
        folder: the folder of the results.
        facts: more entries of ``run.json``, such as the names of the suite and of the model.
        progress: show a progress bar, or lines of progress where a bar cannot be drawn.
        retry_failed: repeat methods and metrics that raised an error or gave no finite number.
        workers: the number and the kind of workers; by default the work is done in this process.
        shard: evaluate only the prompts of this shard, in a folder inside ``folder``. `merge` joins the shards.
    """
    entries, folder = explainers(methods), Path(folder)
    by_name = [*map(metric_named, [metrics] if isinstance(metrics, str | Metric) else metrics)]
    names = [name for name, _ in by_name]
    ids, labels = [instance.id for instance in instances], [entry.label for entry in entries]
    for kind, given in {"instances": ids, "methods": labels, "metrics": names}.items():
        if not given and kind != "metrics":
            raise ValueError(f"there are no {kind} to evaluate")
        if repeated := [name for name, count in Counter(given).items() if count > 1]:
            raise ValueError(f"{kind} {', '.join(repeated)} are there more than once")
    request = {
        **(facts or {}),
        "instances": len(instances),
        "texts": digest(instances),
        "methods": {entry.label: entry.recipe for entry in entries},
        "metrics": {name: metric.about for name, metric in by_name},
    }
    numbered = [*enumerate(instances)]
    if shard is not None:
        numbered, folder, request = shard.of(numbered), folder / shard.folder, {**request, "shard": str(shard)}
    with (
        working(model, {entry.label: entry for entry in entries}, workers, len(numbered)) as work,
        opened(folder, request, request["methods"], work.identity.fingerprint, retry_failed=retry_failed) as results,
    ):
        users = {name: metric for name, metric in by_name if name not in METRICS}
        tasks = [Task(number, instance, results.left(instance.id, names), users) for number, instance in numbered]
        tasks = [task for task in tasks if task.pending]
        pending = {task.instance.id: task.pending for task in tasks}
        total = len(numbered) * len(entries)
        with _progress(total, total - sum(map(len, pending.values())), progress) as advance:
            for record, scores in work.outcomes(tasks):
                results.append(record, pending[record.instance][record.method], scores)
                advance(1)


def digest(instances: Sequence[Instance]) -> str:
    """Compute a digest that two lists of instances share only if the lists are equal."""
    texts = json.dumps([as_json(instance) for instance in instances], sort_keys=True)
    return sha256(texts.encode()).hexdigest()[:16]


@contextmanager
def _progress(total: int, finished: int, shown: bool) -> Iterator[Callable[[int], None]]:
    """Show a bar, or lines, of ``total`` explanations, of which an earlier run ``finished`` a part."""
    columns = TextColumn("evaluating"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    console = Console(stderr=True)
    if shown and not (console.is_terminal or console.is_jupyter):
        say = partial(console.print, markup=False, highlight=False, soft_wrap=True)
        yield ProgressLines(total, say, kept=finished).advance
        return
    with Progress(*columns, console=console, disable=not shown) as bar:
        task = bar.add_task("", total=total, completed=finished)
        yield lambda count: bar.advance(task, count)


def attribute_dataset(
    model: Any,
    source: Source,
    methods: Methods = "heta",
    *,
    out: str | PathLike[str],
    fields: Mapping[str, str] | None = None,
    split: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    retry_failed: bool = False,
    progress: bool = True,
    facts: Mapping[str, Any] | None = None,
    workers: Workers = HERE,
    shard: Shard | None = None,
    **options: Any,
) -> SavedScores:
    """Explain every prompt by every method; a forward per prompt serves all methods.

    The scores go to ``scores.jsonl`` in the folder ``out`` as soon as they are computed; failures are recorded in
    ``records.jsonl`` and stop nothing. Interrupted runs resume. The explained token of a prompt is the first token of
    the answer, or without an answer the model's own next token.

    Args:
        model: a TransformerLens model, its name, a folder, or a function that loads the model. Several workers load a
            model each, and cannot take a loaded model.
        source: a suite, a file, ``hf:NAME`` or prompts; see `data.prompts`.
        methods: names with options, as ``"lime samples=200"``; method objects; or functions of the user.
        out: the folder of the scores; it is made if it does not exist.
        fields: the columns of the fields, as in ``{"text": "question"}``.
        split: the split of a suite or data set.
        limit: the largest number of prompts.
        seed: the seed that draws the prompts of a suite.
        retry_failed: repeat methods that raised an error.
        progress: show a progress bar, or lines of progress where a bar cannot be drawn.
        facts: more entries of ``run.json``, such as the name of the model.
        workers: the number and the kind of workers; by default the work is done in this process.
        shard: explain only the prompts of this shard, in a folder inside ``out``. `merge` joins the shards.
        options: options of the suite, and ``path``, the file of the suite.

    Example:
        scores = heta_lens.attribute_dataset(model, "prompts.csv", ["heta", "leave_one_out"], out="scores")
        scores["prompts-0", "heta"].plot()
    """
    entries = explainers(methods)  # refuses a wrong name before a model is loaded
    draw = partial(prompts, source, fields=fields, split=split, limit=limit, seed=seed, **options)
    instances, model = drawn(source, model, workers, draw)
    folder = Path(out).expanduser()
    how = {"facts": facts, "progress": progress, "retry_failed": retry_failed, "workers": workers, "shard": shard}
    evaluate(model, instances, entries, (), folder, **how)
    folder = folder / shard.folder if shard else folder
    return load_scores(folder) if (folder / SCORES).exists() else SavedScores(())
