"""Suites × methods × metrics: every explanation is evaluated, and recorded as soon as it is finished."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from os import PathLike
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from heta_lens._util.progress_lines import ProgressLines
from heta_lens.data.instance import OTHERS, Instance
from heta_lens.data.instance import record_of as as_json
from heta_lens.evaluation.engines.workers import Workers, working
from heta_lens.evaluation.prompt_evaluation import Explainer, Methods, Task, explainers
from heta_lens.evaluation.resumable_run_folder import RunFolder, opened
from heta_lens.evaluation.shards import Shard
from heta_lens.metrics import METRICS, Metric
from heta_lens.metrics.metric_registry import named

HERE = Workers()


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
    """Explain every instance by every method, evaluate that by every metric, and keep the results in a folder.

    The scores are kept too: `load_scores` reads them. A folder that has some of the results already gets the others,
    of added methods too. One that holds another evaluation is refused: of other prompts or metrics, or of another
    model, by its `fingerprint` (unless all that is there failed). So is one that another evaluation is writing into.

    Args:
        model: which predictions are explained: a model, its name, a folder, or a function that loads it. Of several
            workers each loads its own, so that they cannot be given a model.
        instances: the prompts.
        methods: their names with options, as ``"lime samples=200"``; ready ones, as ``Heta(probes=20)``; or functions
            ``(prediction) -> scores``.
        metrics: names, or `Metric` objects of your own, whose titles name them; without any, only the scores are kept.
        folder: where the results are kept.
        facts: what else to keep about this evaluation, such as the names of the suite and of the model.
        progress: show a progress bar, or lines now and then where none can be drawn.
        retry_failed: repeat what raised an error or was not finite, instead of leaving it failed.
        workers: how many share the work, and where; by default it is done here.
        shard: do only the prompts of this shard, into a folder of its own inside ``folder``. `merge` joins them.
    """
    entries, folder = explainers(methods), Path(folder)
    chosen = [*map(named, [metrics] if isinstance(metrics, str | Metric) else metrics)]
    check_request(instances, entries, [name for name, _ in chosen])
    every = dict(chosen)
    request = {**(facts or {}), **_request(instances, entries, every)}
    by_label = {entry.label: entry for entry in entries}
    mine = [*enumerate(instances)]
    if shard is not None:
        mine, folder, request = shard.of(mine), folder / shard.folder, {**request, "shard": str(shard)}
    with (
        working(model, by_label, workers, len(mine)) as work,
        opened(folder, request, request["methods"], work.identity.fingerprint, retry_failed=retry_failed) as results,
    ):
        tasks, total = tasks_left(results, mine, every), len(mine) * len(entries)
        pending = {task.instance.id: task.pending for task in tasks}
        with _progress(total, total - sum(map(len, pending.values())), progress) as advance:
            for record, scores in work.outcomes(tasks):
                results.append(record, pending[record.instance][record.method], scores)
                advance(1)


def tasks_left(
    results: RunFolder, prompts: Iterable[tuple[int, Instance]], metrics: Mapping[str, Metric]
) -> list[Task]:
    """What a folder has no results of."""
    others = {name: metric for name, metric in metrics.items() if name not in METRICS}
    tasks = [Task(number, prompt, results.left(prompt.id, [*metrics]), others) for number, prompt in prompts]
    return [task for task in tasks if task.pending]


def _request(
    instances: Sequence[Instance], entries: Sequence[Explainer], metrics: Mapping[str, Metric]
) -> dict[str, Any]:
    return {
        "instances": len(instances),
        "texts": digest(instances),
        "methods": {entry.label: entry.recipe for entry in entries},
        "metrics": {name: metric.about for name, metric in metrics.items()},
    }


def digest(instances: Sequence[Instance]) -> str:
    """What two lists of instances share only if they are the same."""
    texts = json.dumps([_formerly(as_json(instance)) for instance in instances], sort_keys=True)
    return sha256(texts.encode()).hexdigest()[:16]


def _formerly(record: dict[str, Any]) -> dict[str, Any]:
    """The record as the first version wrote it, so that runs from then can be continued."""
    others = {name: _formerly(record[name]) for name in OTHERS if name in record}
    if (other := others.pop("counterfactual", None)) is not None:
        others["twin"] = other | {"id": re.sub("-counterfactual$", "-twin", other["id"])}
    return {name: value for name, value in record.items() if name not in OTHERS} | others


def check_request(instances: Sequence[Instance], entries: Sequence[Explainer], metrics: Sequence[str]) -> None:
    """Refuse, before any work, an empty list of prompts or methods, and a repeated name."""
    for what, names in (
        ("instances", [instance.id for instance in instances]),
        ("methods", [entry.label for entry in entries]),
        ("metrics", [*metrics]),
    ):
        if not names and what != "metrics":
            raise ValueError(f"there are no {what} to evaluate")
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"{what} {', '.join(repeated)} are there more than once")


@contextmanager
def _progress(total: int, kept: int, shown: bool) -> Iterator[Callable[[int], None]]:
    """A bar, or lines, of ``total`` explanations, of which some were ``kept`` from an earlier run."""
    columns = TextColumn("evaluating"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    console = Console(stderr=True)
    if shown and not (console.is_terminal or console.is_jupyter):
        say = partial(console.print, markup=False, highlight=False, soft_wrap=True)
        yield ProgressLines(total, say, kept=kept).advance
        return
    with Progress(*columns, console=console, disable=not shown) as bar:
        task = bar.add_task("", total=total, completed=kept)
        yield lambda count: bar.advance(task, count)
