"""Every prompt explained by every row's method and judged, in folders that are gone on from."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from heta_lens.data.instance import Instance
from heta_lens.evaluation.records import Record, append, begin, read_records
from heta_lens.evaluation.reproduce.judges import Trial
from heta_lens.evaluation.reproduce.ways import recombining
from heta_lens.evaluation.runner import Entry, case_of, figures, record_of, recorded
from heta_lens.heta import Heta


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

    def records(self, model: Any, progress: bool) -> dict[str, list[Record]]:
        """By the labels of methods. What the folder has already is not done again."""
        begin(self.folder, self.told)
        there = {record.key: record for record in read_records(self.folder)}
        shown = track(
            self.instances, self.folder.name, console=Console(stderr=True), disable=not progress, transient=True
        )
        for number, instance in enumerate(shown):
            left = {entry.label: wanted for entry in self.entries if (wanted := self._wanted(there, instance, entry))}
            for record in self._judged(model, instance, left, first=not number):
                before = there.get(record.key)
                if before is not None:
                    record = _joined(before, record)
                there[record.key] = record
                append(self.folder, record)
        return {entry.label: [there[instance.id, entry.label] for instance in self.instances] for entry in self.entries}

    def _wanted(self, there: Mapping[Any, Record], instance: Instance, entry: Entry) -> tuple[str, ...]:
        """Metrics that are not known yet."""
        before = there.get((instance.id, entry.label))
        known: Collection[str] = self.metrics if before and before.failed else before.values if before else ()
        return tuple(name for name in self.metrics if name not in known)

    def _judged(
        self, model: Any, instance: Instance, left: Mapping[str, Sequence[str]], first: bool
    ) -> Iterator[Record]:
        named = {entry.label: entry for entry in self.entries}

        def one(trial: Trial, label: str) -> Record:
            ready = recombining(named[label].ready, trial.full, trial.known)
            case = case_of(model, instance, trial.prediction, ready)
            return record_of(case, label, *figures(case, left[label], trial.judges))

        return recorded(instance, [*left], partial(Trial.of, model, instance, self.full, self.window, first), one)


def _joined(before: Record, after: Record) -> Record:
    if after.failed:
        return after
    values, reasons = {**before.values, **after.values}, {**before.reasons, **after.reasons}
    return replace(after, values=values, reasons=reasons, doubts=(*before.doubts, *after.doubts))
