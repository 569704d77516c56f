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

from heta_lens._util.work import ProgressLines
from heta_lens.data.instance import OTHERS, Instance
from heta_lens.data.instance import record_of as as_json
from heta_lens.data.prompt_sources import Source, prompts
from heta_lens.evaluation.prompt_evaluation import Explainer, Methods, Task, explainers
from heta_lens.evaluation.run_folder import RunFolder, Shard, opened
from heta_lens.evaluation.saved_scores import SCORES, KeptScores, load_scores
from heta_lens.evaluation.workers import Workers, loaded, working
from heta_lens.metrics import METRICS, Metric
from heta_lens.metrics.registry import metric_named
from heta_lens.model.tokenizer import next_word

# ------------------------------------------------------------------------------------------------------ prompt drawing
# Draws the prompts of a source, which may depend on what the model itself predicts.


NEEDS_MODEL = "longra"  # the suite of what a model answers with the distraction and without


def drawn(source: Any, model: Any, workers: Workers, draw: "partial[list[Instance]]") -> tuple[list[Instance], Any]:
    """The prompts, and the model: loaded, if that was needed and the work is done in this process."""
    if source != NEEDS_MODEL or "says" in draw.keywords:
        return draw(), model
    ready = loaded(model)
    return draw(says=partial(next_word, ready)), ready if workers.here else model


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
    chosen = [*map(metric_named, [metrics] if isinstance(metrics, str | Metric) else metrics)]
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


# ------------------------------------------------------------------------------------------------- dataset attribution
# The scores of many prompts by several methods, kept in a folder as they are computed.


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
) -> KeptScores:
    """Explain every prompt by every method; one forward per prompt serves all methods.

    The scores go to ``scores.jsonl`` in the folder ``out``, each as soon as it is finished; what failed is recorded in
    ``records.jsonl`` and stops nothing. Interrupted runs resume. What is explained of a prompt is the first token of
    its answer, or without one the model's own next token.

    Args:
        model: a TransformerLens model, the name of one, a folder, or a function that loads it. Of several workers
            each loads its own, so that they cannot be given a model.
        source: a suite, a file, ``hf:NAME`` or prompts; see `data.prompts`.
        methods: their names, with options as in ``"lime samples=200"``; ready ones; or functions of yours.
        out: the folder where scores are kept; it is made if it does not exist.
        fields: which column is which field, as in ``{"text": "question"}``.
        split: which split of a suite or data set.
        limit: how many prompts at most.
        seed: which prompts of a suite are drawn.
        retry_failed: repeat what raised an error, instead of leaving it failed.
        progress: show a progress bar, or lines now and then where none can be drawn.
        facts: what else to keep about this run, such as the name of the model.
        workers: how many share the work, and where; by default it is done here.
        shard: do only the prompts of this shard, into a folder of its own inside ``out``. `merge` joins them.
        options: those of the suite, and ``path``, the file that it is read from.

    Example:
        scores = heta_lens.attribute_dataset(model, "prompts.csv", ["heta", "leave_one_out"], out="scores")
        scores["prompts-0", "heta"].plot()
    """
    entries = explainers(methods)
    draw = partial(prompts, source, fields=fields, split=split, limit=limit, seed=seed, **options)
    instances, model = drawn(source, model, workers, draw)
    folder = Path(out).expanduser()
    how = {"facts": facts, "progress": progress, "retry_failed": retry_failed, "workers": workers, "shard": shard}
    evaluate(model, instances, entries, (), folder, **how)
    folder = folder / shard.folder if shard else folder
    return load_scores(folder) if (folder / SCORES).exists() else KeptScores(())
