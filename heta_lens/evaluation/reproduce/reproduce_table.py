"""`reproduce`: from the name of a printed table to its page."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from statistics import mean
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import track

from heta_lens._util.files import write_atomically
from heta_lens._util.options import check_at_least, check_choice, check_names
from heta_lens._util.text import legible
from heta_lens.data.instance import Instance
from heta_lens.data.suites import suite
from heta_lens.evaluation.prompt_evaluation import (
    Entry,
    Pending,
    description,
    explained,
    metric_values,
    record_of,
    records_of,
)
from heta_lens.evaluation.report import results
from heta_lens.evaluation.reproduce.cells import (
    RECIPES,
    Figure,
    Measure,
    Place,
    Printed,
    Recipe,
    Trial,
    figure,
    printed,
)
from heta_lens.evaluation.reproduce.pages import NEEDS, ReproducedTable, tidy, written
from heta_lens.evaluation.reproduce.rows import Effort, recombining
from heta_lens.evaluation.run_folder import Record, opened
from heta_lens.evaluation.runner import digest
from heta_lens.methods.heta.heta import Heta
from heta_lens.model import loading, tokenizer
from heta_lens.model.weights import fingerprint

# --------------------------------------------------------------------------------------------------------- prompt sets
# The prompts of the tables: the paper's data sets, and short stories where these cannot be read.


OWN_WORDS, PER_FILLER = 40, 6  # tokens of a story with two facts and its question, and of a filler sentence


@dataclass(frozen=True)
class Source:
    """A suite with options; ``instead``: it replaces a data set of the paper that is not available."""

    suite: str
    options: Mapping[str, Any] = field(default_factory=dict)
    instead: bool = False

    @property
    def label(self) -> str:
        return " ".join([self.suite, *(f"{name}={value}" for name, value in self.options.items())])


def _story(**options: Any) -> Source:
    return Source("recall", {"facts": 2, "wordings": "trained", **options}, instead=True)


READ: Mapping[str, Source] = {
    **{name: Source(name) for name in ("longra", "tellmewhy", "wikibio", "curated")},
    "voices": _story(voice="active"),
    "counterfactuals": _story(),
    "claims": _story(claim=True),
    "tools": _story(),
}
"""By the need of a column. The paper names no set of voices, counterfactuals, claims or tools."""

MADE: Mapping[str, Source] = {
    "longra": _story(distractors="after"),
    "tellmewhy": _story(voice="active"),
    "wikibio": _story(filler=1),
    **dict.fromkeys(("curated", "counterfactuals", "tools"), _story(distractors="before")),
    "voices": _story(voice="active"),
    "claims": _story(claim=True),
}
"""Stories that the demo model can read, in place of these."""

NAMES: Mapping[str, str] = {
    "longra": "LongRA",
    "tellmewhy": "TellMeWhy",
    "wikibio": "WikiBio",
    "curated": "the curated set",
    "voices": "active and passive pairs",
    "counterfactuals": "pairs with swapped evidence",
    "claims": "claims to check",
    "tools": "questions to a tool",
    "long": "long prompts",
}


def source(name: str, quick: bool, length: int) -> Source:
    """The source of prompts of this kind."""
    if name == "long":
        return _story(filler=max(1, round((length - OWN_WORDS) / PER_FILLER)))
    return (MADE if quick else READ)[name]


def loaded_prompts(one: Source, model: Any, path: Path | str | None, limit: int, seed: int) -> list[Instance]:
    options = dict(one.options)
    if one.suite == "longra":  # which is of what a model answers with the distraction and without
        options["says"] = partial(tokenizer.next_word, model)
    return suite(one.suite, path, limit=limit, seed=seed, **options)


# ---------------------------------------------------------------------------------------------------------- table runs
# Runs of a table: every prompt explained by every row's method and evaluated; interrupted runs resume.


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


TABLES: Mapping[str, Recipe] = RECIPES

QUICK = Effort(
    limit=3,
    heta={"probes": 4},
    smaller={"rank": 16, "window": 16, "layers": 2},
    shorter={"faml": {"steps": 50}, "reagent": {"max_steps": 40}, "causal_tracing": {"samples": 2}},
    length=46,
)
WHOLE = Effort(limit=100)
DEMO = "demo model"


def reproduce(
    table: str,
    *,
    quick: bool = False,
    model: str | None = None,
    load_options: Mapping[str, Any] | None = None,
    out: str | Path,
    limit: int | None = None,
    paths: Mapping[str, str | Path] | None = None,
    options: Mapping[str, Any] | None = None,
    seed: int = 0,
    progress: bool = True,
    retry_failed: bool = False,
) -> list[Path]:
    """Reproduce a table of the paper, and write it as Markdown and as CSV.

    Args:
        table: one of `TABLES`.
        quick: on the demo model and stories that it can read, in minutes.
        model: on this model (a name on the Hugging Face hub, or a folder) and the paper's data sets.
        load_options: how `load_model` loads it, such as ``{"dtype": "bfloat16"}``.
        out: a folder for the two files and the records behind them; interrupted runs resume there.
        limit: how many prompts of each data set; 3 with ``quick``, else 100.
        paths: the files of data sets, by name; those on the hub need none.
        options: options of HETA for all its rows, such as ``{"balance": "sum"}``.
        seed: which prompts are drawn.
        progress: show a progress bar.
        retry_failed: repeat what raised an error or was not finite.
    """
    check_choice("table", table, TABLES)
    if quick == (model is not None):
        raise ValueError(
            "give model=, a name on the Hugging Face hub or a folder, or quick=True for the demo model"
            if not quick
            else f"quick=True is of the demo model, and model={model!r} another: give one of them"
        )
    if quick and paths:
        raise ValueError(f"quick=True makes its own prompts: leave out paths= ({', '.join(paths)})")
    known = [name for name in READ if not READ[name].instead]
    for name in paths or {}:
        check_choice("a name in paths", name, known)
    effort = _effort(QUICK if quick else WHOLE, limit, options or {})
    making = Making(
        printed()[table], TABLES[table], effort, quick, model or "demo", Path(out), paths or {}, seed, retry_failed,
        load_options or {},
    )  # fmt: skip
    reproduced = making.reproduced(progress)
    texts = {f"{table}.md": written(reproduced), f"{table}.csv": tidy(reproduced)}
    Path(out).mkdir(parents=True, exist_ok=True)  # it may be that no data set could be read
    return [write_atomically(Path(out) / name, text) for name, text in texts.items()]


def _effort(usual: Effort, limit: int | None, options: Mapping[str, Any]) -> Effort:
    check_names(Heta, options)
    for name in options:
        if name in ("variant", "beta", "gamma", "batch"):
            raise ValueError(f"{name} is what the rows of tables say: leave it out of options=")
    if limit is not None:
        check_at_least("limit", limit, 1, whole=True)
    effort = replace(usual, limit=limit or usual.limit, heta={**usual.heta, **options})
    effort.full()  # refuses what does not go together
    return effort


@dataclass(frozen=True)
class Making:
    """A table in the making: its runs, its cells and its heading."""

    printed: Printed
    recipe: Recipe
    effort: Effort
    quick: bool
    model: str
    out: Path
    paths: Mapping[str, str | Path]
    seed: int
    retry_failed: bool = False
    loaded_with: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def entries(self) -> dict[str, Entry]:
        """The methods by their names in the paper."""
        methods = self.printed.columns if self.recipe.turned else self.printed.rows
        return {method: self.effort.entry(method, **self._extra) for method in methods}

    @property
    def _extra(self) -> dict[str, Any]:
        """Options of HETA in this table, and for this model."""
        layers = next((block.last_layers for block in self.printed.blocks if block.model == self._block), 0)
        return {**(self.recipe.extra or {}), **({"variant": "ls", "layers": layers} if layers else {})}

    @property
    def length(self) -> int:
        return self.effort.length or self.printed.length

    def reproduced(self, progress: bool) -> ReproducedTable:
        model = loading.load_model(self.model, **self.loaded_with)
        loaded = fingerprint(model)
        records: dict[str, dict[str, list[Record]]] = {}
        unread: dict[str, str] = {}
        for one, names in self._sources():
            try:
                prompts = loaded_prompts(one, model, self.paths.get(names[0]), self.effort.limit, self.seed)
            except Exception as error:
                unread |= {name: f"{NAMES[name]} could not be read: {description(error)}" for name in names}
                continue
            records |= dict.fromkeys(names, self._plan(names, one, prompts, loaded).records(model, progress))
        return ReproducedTable(
            printed=self.printed,
            ours=dict(self._figures(records, unread)),
            own=self._own,
            model=self._name,
            about=[*self._about(records, unread)],
            notes=[*dict.fromkeys(one.note for one in self.recipe.measures.values() if one.note)],
        )

    def _sources(self) -> list[tuple[Source, list[str]]]:
        """Each source once, with the names it stands for."""
        sources: dict[str, tuple[Source, list[str]]] = {}
        for name in dict.fromkeys(source for one in self.recipe.measures.values() for source in one.sources):
            one = source(name, self.quick, self.length)
            sources.setdefault(one.label, (one, []))[1].append(name)
        return [*sources.values()]

    def _plan(self, names: Sequence[str], one: Source, prompts: Sequence[Instance], loaded: Mapping[str, str]) -> Plan:
        metrics = [
            part
            for measure in self.recipe.measures.values()
            if {*names} & {*measure.sources}
            for part in (*_kept(measure.metric), *measure.beside.values())
        ]
        wide = self.effort.smaller.get("window", 512)
        how = {"loading": {name: str(value) for name, value in self.loaded_with.items()}} if self.loaded_with else {}
        request = {"model": self.model, **how, "suite": one.label, "texts": digest(prompts), "seed": self.seed}
        folder = self.out / "figures" / one.label.replace(" ", ",")
        entries = {entry.label: entry for entry in self.entries.values()}
        full = self.effort.full(**self._extra)
        names = [*dict.fromkeys(metrics)]
        return Plan(folder, prompts, [*entries.values()], names, full, wide, request, loaded, self.retry_failed)

    # ---------------------------------------------------------------------------------------------------- its cells
    @property
    def _block(self) -> str:
        """The block of this model: a printed one, or our own."""
        blocks = self.printed.blocks
        own = next((block.model for block in blocks if block.hub.lower() == self.model.lower()), "")
        return own or (self._name if self.printed.named else blocks[0].model)

    @property
    def _own(self) -> str:
        return "" if any(block.model == self._block for block in self.printed.blocks) else self._block

    @property
    def _name(self) -> str:
        return DEMO if self.model == "demo" else self.model

    def _figures(
        self, records: Mapping[str, Mapping[str, list[Record]]], unread: Mapping[str, str]
    ) -> Iterator[tuple[Place, Figure]]:
        for row in self.printed.rows:
            for column in self.printed.columns:
                method, column_name = (column, row) if self.recipe.turned else (row, column)
                measure: Measure = self.recipe.measures[column_name]
                label = self.entries[method].label
                of_method = {name: of[label] for name, of in records.items() if name in measure.sources}
                made = figure(measure, of_method, unread)
                if self.quick and all(record.failed for of in of_method.values() for record in of):
                    made = replace(made, notes=tuple(f"{NEEDS}: {note}" for note in made.notes))
                yield Place(self._block, row, column), made

    # ------------------------------------------------------------------------------------------------- its heading
    def _about(self, records: Mapping[str, Mapping[str, list[Record]]], unread: Mapping[str, str]) -> Iterator[str]:
        paper = ", ".join(dict.fromkeys(block.model for block in self.printed.blocks)) if self._own else self._block
        yield f"The paper's figures are for {paper}, ours for {'the ' * (self._name == DEMO)}{self._name}."
        if records:
            yield f"Prompts. {'; '.join(self._prompts(name, of) for name, of in records.items())}."
        for reason in unread.values():
            yield f"{reason}."
        rows = "; ".join(f"{row}: {entry.label}" for row, entry in self.entries.items())
        yield f"How the rows are made: {rows}."
        if layers := self._extra.get("layers"):
            yield f"Curvature is that of the last {layers} layers in all rows, as the paper has it for this model."
        if self.quick:
            yield (
                "This is the quick way: a small model, few prompts, and less of everything (windows, ranks, layers, "
                "steps) than rows name. It shows how the table is made, and tells nothing of the paper's models."
            )

    def _prompts(self, name: str, of: Mapping[str, list[Record]]) -> str:
        done = [record for records in of.values() for record in records]
        one = source(name, self.quick, self.length)
        prompts = {record.instance for record in done}
        tokens = [record.tokens for record in done if record.tokens]
        size = results.counted(len(prompts), "prompt") + (f", {mean(tokens):.0f} tokens on average" if tokens else "")
        kind = NAMES[name]
        if not one.instead:
            return f"{kind} ({size})"
        replaced = name in READ and not READ[name].instead
        return f"{one.label} in place of {kind} ({size})" if replaced else f"{kind}: {one.label} ({size})"


def _kept(metric: str) -> list[str]:
    """The metrics in a record that a figure is computed from."""
    settings, _, rest = metric.partition("_")
    return [f"{settings}_{name}" for name in ("soft_nc", "soft_ns", "dsa")] if rest == "all" else [metric]
