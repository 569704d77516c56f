"""Runs of a table: every prompt explained by every row's method and evaluated; interrupted runs resume."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import track

from heta_lens._util.printable_text import legible
from heta_lens.data.instance import Instance
from heta_lens.evaluation.method_with_options import Entry
from heta_lens.evaluation.metric_values import metric_values, record_of
from heta_lens.evaluation.prompt_evaluation import Pending, explained, records_of
from heta_lens.evaluation.reproduce.row_configurations import recombining
from heta_lens.evaluation.reproduce.table_metrics import Trial
from heta_lens.evaluation.resumable_run_folder import opened
from heta_lens.evaluation.run_records import Record
from heta_lens.methods.heta.heta import Heta


@dataclass(frozen=True)
class Plan:
    """What is run on the prompts of one source: which methods, and which metrics of each."""

    folder: Path
    instances: Sequence[Instance]
    entries: Sequence[Entry]
    metrics: Sequence[str]
    full: Heta
    window: int
    request: Mapping[str, Any]
    fingerprint: Mapping[str, str]
    retry_failed: bool = False

    def records(self, model: Any, progress: bool) -> dict[str, list[Record]]:
        """By the labels of methods. What the folder has already is not repeated."""
        methods = {entry.label: entry.recipe for entry in self.entries}
        shown = track(
            self.instances,
            escape(legible(self.folder.name)),
            console=Console(stderr=True),
            disable=not progress,
            transient=True,
        )
        with opened(self.folder, self.request, methods, self.fingerprint, retry_failed=self.retry_failed) as run:
            for number, instance in enumerate(shown):
                pending = run.left(instance.id, self.metrics)
                for record in self._evaluated(model, instance, pending, first=not number):
                    run.append(record, pending[record.method])
        return {
            entry.label: [run.records[instance.id, entry.label] for instance in self.instances]
            for entry in self.entries
        }

    def _evaluated(self, model: Any, instance: Instance, pending: Pending, first: bool) -> Iterator[Record]:
        named = {entry.label: entry for entry in self.entries}

        def record(trial: Trial, label: str) -> Record:
            ready = recombining(named[label].ready, trial.full, trial.known)
            case = explained(model, instance, trial.measurements, ready)
            return record_of(case, label, metric_values(case, pending[label], trial.metrics), trial.metrics)

        prepare = partial(Trial.of, model, instance, self.full, self.window, first)
        return records_of(instance, [*pending], prepare, record)
