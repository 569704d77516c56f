"""Every prompt explained by every row's method and judged, in folders that are gone on from."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import track

from heta_lens.data.instance import Instance
from heta_lens.evaluation.folder import opened
from heta_lens.evaluation.records import Record
from heta_lens.evaluation.reproduce.judges import Trial
from heta_lens.evaluation.reproduce.ways import recombining
from heta_lens.evaluation.runner import Entry, Left, case_of, measured, record_of, recorded
from heta_lens.heta import Heta
from heta_lens.text import legible


@dataclass(frozen=True)
class Plan:
    """What is asked of the prompts of one source: which methods, and what is to be known of each."""

    folder: Path
    instances: Sequence[Instance]
    entries: Sequence[Entry]
    metrics: Sequence[str]
    full: Heta
    window: int
    told: Mapping[str, Any]
    fingerprint: Mapping[str, str]
    retry_failed: bool = False

    def records(self, model: Any, progress: bool) -> dict[str, list[Record]]:
        """By the labels of methods. What the folder has already is not done again."""
        methods = {entry.label: {"method": entry.method, "options": dict(entry.options)} for entry in self.entries}
        shown = track(
            self.instances,
            escape(legible(self.folder.name)),
            console=Console(stderr=True),
            disable=not progress,
            transient=True,
        )
        with opened(self.folder, self.told, methods, self.fingerprint, retry_failed=self.retry_failed) as run:
            for number, instance in enumerate(shown):
                left = run.left(instance.id, self.metrics)
                for record in self._evaluated(model, instance, left, first=not number):
                    run.append(record, left[record.method])
        return {
            entry.label: [run.records[instance.id, entry.label] for instance in self.instances]
            for entry in self.entries
        }

    def _evaluated(self, model: Any, instance: Instance, left: Left, first: bool) -> Iterator[Record]:
        named = {entry.label: entry for entry in self.entries}

        def one(trial: Trial, label: str) -> Record:
            ready = recombining(named[label].ready, trial.full, trial.known)
            case = case_of(model, instance, trial.prediction, ready)
            return record_of(case, label, *measured(case, left[label], trial.judges))

        return recorded(instance, [*left], partial(Trial.of, model, instance, self.full, self.window, first), one)
