"""Suites × methods × metrics: an evaluation, whose results are recorded as soon as they are finished."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from hashlib import sha256
from math import inf
from os import PathLike
from pathlib import Path
from time import perf_counter
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from heta_lens._util.work import EVERY
from heta_lens.data.instance import Instance
from heta_lens.data.instance import record_of as as_json
from heta_lens.data.suites import Source, prompts
from heta_lens.evaluation.prompt_evaluation import Methods, PromptEvaluator, code_of, explainers
from heta_lens.evaluation.run_database import RunDatabase, allows_many_writers, opened
from heta_lens.evaluation.saved_scores import SavedScores, load_scores
from heta_lens.evaluation.shards import Shard
from heta_lens.evaluation.workers import (
    Setup,
    Workers,
    loaded,
    loader,
    threads_limited,
    work,
    work_in_processes,
    work_on_ray,
)
from heta_lens.metrics import METRICS, Metric
from heta_lens.metrics.registry import metric_named
from heta_lens.model.tokenizer import next_word

NEEDS_MODEL = "longra"  # the prompts of this suite depend on the answers of the model
HERE = Workers()


def drawn(source: Any, model: Any, workers: Workers, draw: "partial[list[Instance]]") -> tuple[list[Instance], Any]:
    """Draw the prompts of a source, and return the model too: loaded, if drawing needs it and the work is done here."""
    if not isinstance(source, str) or source != NEEDS_MODEL or "says" in draw.keywords:
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
    refused: with other prompts or metrics, or with another model by its `fingerprint`. Several processes may evaluate
    the same in one folder, and share the prompts.

    Args:
        model: a model, its name, a folder, or a function that loads the model. Several workers load a model each, and
            cannot take a loaded model.
        instances: the prompts.
        methods: names with options, as ``"lime samples=200"``; method objects, as ``Heta(probes=20)``; or functions
            ``(prediction) -> scores``.
        metrics: names, or `Metric` objects, which are named by their titles; without metrics, only scores are saved.
        folder: the folder of the results.
        facts: more entries of the request, such as the names of the suite and of the model.
        progress: show a progress bar, or lines of progress where a bar cannot be drawn.
        retry_failed: repeat methods and metrics that raised an error or gave no finite number.
        workers: the number and the kind of workers; by default the work is done in this process.
        shard: evaluate only the prompts of this shard, in a folder inside ``folder``. `merge` joins the shards.
    """
    entries, folder = explainers(methods), Path(folder).expanduser()
    by_name = [*map(metric_named, [metrics] if isinstance(metrics, str | Metric) else metrics)]
    names = [name for name, _ in by_name]
    ids, labels = [instance.id for instance in instances], [entry.label for entry in entries]
    for kind, given in {"instances": ids, "methods": labels, "metrics": names}.items():
        if not given and kind != "metrics":
            raise ValueError(f"there are no {kind} to evaluate")
        if repeated := [name for name, count in Counter(given).items() if count > 1]:
            raise ValueError(f"{kind} {', '.join(repeated)} are there more than once")
    for name, metric in by_name:
        if all(unknown := [metric.unknown(instance) for instance in instances]):
            raise ValueError(
                f"the metric {name} needs {', '.join(metric.needs)}, and no prompt has all of it ({ids[0]!r} has no "
                f"{', '.join(unknown[0])}): add it to the prompts (spans of characters are [[start, stop]]), or leave "
                "the metric out"
            )
    texts = json.dumps([as_json(instance) for instance in instances], sort_keys=True)
    request = {
        **(facts or {}),
        "instances": len(instances),
        "texts": sha256(texts.encode()).hexdigest()[:16],
        "methods": {entry.label: entry.recipe for entry in entries},
        "metrics": {name: metric.about | code_of(metric.evaluate) for name, metric in by_name},
    }
    numbered = [*enumerate(instances)]
    if shard is not None:
        numbered = numbered[shard.index :: shard.count]
        folder, request = folder / shard.folder, {**request, "shard": str(shard)}
    if workers.count > 1 and workers.engine == "local" and not allows_many_writers(folder):
        raise ValueError(
            f"{folder} is on a file system over a network, where only one process can write: give --workers 1, a local "
            "folder, --engine ray, or --shard to jobs of their own"
        )
    own = {name: metric for name, metric in by_name if name not in METRICS}
    by_label, by_id = {entry.label: entry for entry in entries}, {each.id: each for _, each in numbered}
    load = partial(loaded, model) if workers.here else loader(model)
    setup = Setup(load, by_label, names, own, by_id, None if workers.here else workers.threads_each)
    with opened(folder, request, numbered, names, retry_failed=retry_failed) as run, progress_of(run, progress) as look:
        if workers.here:
            with threads_limited(workers.threads):
                work(run, setup, PromptEvaluator(load(), by_label), longest_first=False, look=look)
            return
        count = max(1, min(workers.count, len(numbered)))
        if workers.engine == "ray":
            work_on_ray(run, setup, workers, count, look)
        else:
            work_in_processes(run, setup, count, look)


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

    The scores go to ``run.sqlite`` in the folder ``out`` as soon as they are computed; failures are recorded there too,
    and the run continues. Interrupted runs resume. The explained token of a prompt is the first token of
    the answer, or without an answer the model's own next token.

    Args:
        source: a suite, a file, ``hf:NAME`` or prompts; see `data.prompts`.
        out: the folder of the scores; it is made if it does not exist.
        fields: the columns of the fields, as in ``{"text": "question"}``.
        split: the split of a suite or data set.
        limit: the largest number of prompts.
        seed: the seed that draws the prompts of a suite.
        options: options of the suite, and ``path``, the file of the suite.

    The other arguments are those of `evaluation.evaluate`.

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
    return load_scores(folder)


# ------------------------------------------------------------------------------------------------------------- progress
POWER = 1.5  # of the length of a prompt, by which seconds grow


@contextmanager
def progress_of(run: RunDatabase, shown: bool) -> Iterator[Callable[[], None]]:
    """Show the ended tasks of a run, of all its workers, when the function that is yielded is called now and then."""
    console, last = Console(stderr=True), -inf
    has_bar = console.is_terminal or console.is_jupyter
    columns = TextColumn("evaluating"), BarColumn(), TextColumn("{task.fields[done]}")
    bar = Progress(*columns, console=console, disable=not shown)
    task = bar.add_task("", total=None, done="")

    def show(every: float = 0.5 if has_bar else EVERY) -> None:
        nonlocal last
        if not shown or perf_counter() - last < every:
            return
        last, counts, seconds = perf_counter(), run.counts(), seconds_left(run)
        workers = max(1, len(run.rows("SELECT DISTINCT worker FROM tasks WHERE state = 'claimed'")))
        left = "" if seconds is None else f", about {timedelta(seconds=round(seconds / workers))} left"
        total = sum(counts.values())  # another command may add methods
        completed = total - counts.get("pending", 0) - counts.get("claimed", 0)
        done = f"{completed} of {total} done{left}"
        if not has_bar and done != bar.tasks[task].fields["done"]:
            console.print(done, markup=False, highlight=False, soft_wrap=True)
        bar.update(task, total=total, completed=completed, done=done)

    show()
    with bar if has_bar else nullcontext():
        yield show
        show(0.0)


def seconds_left(run: RunDatabase) -> float | None:
    """Predict the seconds of work that are left, one worker's, from the ended tasks; None without any.

    Seconds grow with a power of the length of a prompt, times a factor of the method.
    """
    seconds, done, left = (Counter[str]() for _ in range(3))
    rows = run.rows("SELECT method, size, state, waited FROM tasks JOIN prompts USING (prompt)")
    for method, size, state, waited in rows:
        if state == "done" and waited is not None:
            seconds[method] += waited
            done[method] += size**POWER
        elif state in ("pending", "claimed"):
            left[method] += size**POWER
    if not left:
        return 0.0
    if not done:
        return None
    paces = {method: seconds[method] / work for method, work in done.items()}
    usual = sum(paces.values()) / len(paces)
    return sum(paces.get(method, usual) * work for method, work in left.items())
