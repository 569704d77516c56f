"""`reproduce`: from the name of a printed table to the runs of its rows' methods, and to its pages."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import pandas as pd

from heta_lens._util.files import write_atomically
from heta_lens._util.options import check_choice, check_names
from heta_lens._util.python import quietly
from heta_lens._util.text import counted
from heta_lens.data.instance import Instance
from heta_lens.data.suites import suite
from heta_lens.evaluation.prompt_evaluation import Entry, description
from heta_lens.evaluation.records import Record
from heta_lens.evaluation.report import document
from heta_lens.evaluation.report.results import with_interval
from heta_lens.evaluation.reproduce.cells import (
    TABLES,
    Figure,
    Place,
    Printed,
    Recipe,
    figure,
    printed,
    table_metrics,
)
from heta_lens.evaluation.run_database import read_records
from heta_lens.evaluation.runner import evaluate
from heta_lens.methods.heta.heta import Heta
from heta_lens.model import loading, tokenizer

# ---------------------------------------------------------------------------------------------------------------- rows
WEIGHTS = re.compile(r"β = ([\d.]+), γ = ([\d.]+)")

BASELINES: Mapping[str, str] = {
    "ContextCite": "context_cite",
    **dict.fromkeys(("Integrated Gradients", "IG"), "integrated_gradients"),
    **dict.fromkeys(("Peering (PML)", "PML"), "peering"),
    **dict.fromkeys(("TDD-backward", "TDD-bw"), "tdd"),
    **dict.fromkeys(("Attention Rollout", "AttnRoll"), "attention_rollout"),
    "fAML": "faml",
    **dict.fromkeys(("Progressive Inference", "ProgInf"), "progressive_inference"),
    "SEA-CoT": "sea_cot",
    **dict.fromkeys(("ReAgent", "ReAGent"), "reagent"),
    "GiLOT": "gilot",
    "Token Gradients": "gradient_norm",
    "Causal Tracing (baseline)": "causal_tracing",
}

OPTIONS: Mapping[str, Mapping[str, Any]] = {"context_cite": {"query": "@question"}}

RANK, WINDOW = {"rank": 64}, {"window": 512}
HETA: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
    (("HETA", "HETA (Ours)", "HETA (Full)", "Full HETA"), {}),
    (("Transition Only",), {"variant": "transition_only"}),
    (("Hessian Only", "HETA (w/o KL)"), {"variant": "hessian_only"}),
    (("KL Only", "HETA (w/o Hessian)"), {"variant": "kl_only"}),
    (("No Transition Gating", "HETA (w/o Transition)", "HETA-No-Gate"), {"gate": "none"}),
    (("Uniform Transition",), {"gate": "uniform"}),
    (("HETA-LR (rank=64)",), {"variant": "lr", **RANK}),
    (("HETA-LS (6 layers)", "HETA-LS (top 6 layers)", "HETA (Full, 6 layers)"), {"variant": "ls", "layers": 6}),
    (("HETA-LS (4 layers)",), {"variant": "ls", "layers": 4}),
    (("HETA-GS (grad-squared only)",), {"variant": "gs"}),
    (("HETA-WIN (512-window)", "HETA-WIN (W=512, 50% overlap)", "HETA-WIN (512/50%)"), {"variant": "win", **WINDOW}),
    (("HETA-LR+WIN", "HETA (LR+WIN)", "HETA-LR+WIN (r=64, W=512)"), {"variant": "lr+win", **RANK, **WINDOW}),
    (("HETA-LS+WIN",), {"variant": "ls+win", "layers": 6, **WINDOW}),
)
CONFIGURATIONS: Mapping[str, Mapping[str, Any]] = {row: options for rows, options in HETA for row in rows}


@dataclass(frozen=True)
class Effort:
    """The amount of work for the figures of a table."""

    limit: int  # the prompts of every data set
    heta: Mapping[str, Any] = field(default_factory=dict)  # options of HETA in all rows
    # values in place of a rank, a window or a number of layers that a row names
    smaller: Mapping[str, int] = field(default_factory=dict)
    shorter: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # options of baselines
    length: int | None = None  # the tokens of a prompt, if the paper's prompts would be too long

    def entry(self, row: str, **extra: Any) -> Entry:
        """Make the method that a printed row names."""
        if row in BASELINES:
            method = BASELINES[row]
            options = {**OPTIONS.get(method, {}), **self.shorter.get(method, {})}
        else:
            method, weights = "heta", WEIGHTS.fullmatch(row)
            named = {"beta": float(weights[1]), "gamma": float(weights[2])} if weights else CONFIGURATIONS[row]
            smaller = {name: size for name, size in self.smaller.items() if name in named}
            every = {**self.heta, **extra, **named, **smaller}
            without_effect = quietly(partial(Heta, **every)).without_effect
            options = {name: value for name, value in every.items() if name not in without_effect}
        return Entry(" ".join([method, *(f"{name}={value}" for name, value in options.items())]), method, options)

    def full(self, **extra: Any) -> Heta:
        """Make the method that windows and memory are compared with."""
        return Heta(**{**self.heta, **extra})


QUICK = Effort(
    limit=3,
    heta={"probes": 4},
    smaller={"rank": 16, "window": 16, "layers": 2},
    shorter={"faml": {"steps": 50}, "reagent": {"max_steps": 40}, "causal_tracing": {"samples": 2}},
    length=46,
)
WHOLE = Effort(limit=100)
DEMO, NEEDS = "demo model", "needs --model"
STORY_TOKENS, FILLER_TOKENS = 40, 6  # of a story with two facts and a question, and of a filler sentence


@dataclass(frozen=True)
class Source:
    """A suite with options; ``instead`` marks a replacement for prompts that the paper does not make available."""

    suite: str
    options: Mapping[str, Any] = field(default_factory=dict)
    instead: bool = False

    @property
    def label(self) -> str:
        return " ".join([self.suite, *(f"{name}={value}" for name, value in self.options.items())])


def _story(**options: Any) -> Source:
    return Source("recall", {"facts": 2, "wordings": "trained", **options}, instead=True)


# The paper names no set of voices, counterfactuals, claims or tools.
READ: Mapping[str, Source] = {
    **{name: Source(name) for name in ("longra", "tellmewhy", "wikibio", "curated")},
    "voices": _story(voice="active"),
    "counterfactuals": _story(),
    "claims": _story(claim=True),
    "tools": _story(),
}
# Stories that the demo model can read, in place of the data sets.
MADE: Mapping[str, Source] = {
    "longra": _story(distractors="after"),
    "tellmewhy": _story(voice="active"),
    "wikibio": _story(filler=1),
    **dict.fromkeys(("curated", "counterfactuals", "tools"), _story(distractors="before")),
    "voices": _story(voice="active"),
    "claims": _story(claim=True),
}
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
    """Reproduce a table of the paper, write the table as Markdown and as CSV, and return the files.

    Args:
        table: a name in `TABLES`.
        quick: use the demo model and stories that the demo model can read, in minutes.
        model: use this model (a name on the Hugging Face hub, or a folder) and the paper's data sets.
        load_options: options of `load_model`, such as ``{"dtype": "bfloat16"}``.
        out: the folder of the two files and of the records behind the files; interrupted runs resume.
        limit: the number of prompts of every data set; by default 3 with ``quick``, else 100.
        paths: the files of data sets, by name; data sets on the hub need no file.
        options: options of HETA in all rows, such as ``{"balance": "sum"}``.
        seed: the seed that draws the prompts.
        progress: show a progress bar.
        retry_failed: repeat methods and metrics that raised an error or gave no finite number.
    """
    check_choice("table", table, TABLES)
    if quick == (model is not None):
        raise ValueError("give model=, a name on the hub or a folder, or quick=True for the demo model, and not both")
    if quick and paths:
        raise ValueError(f"quick=True makes its own prompts: leave out paths= ({', '.join(paths)})")
    for name in paths or {}:
        check_choice("a name in paths", name, [known for known, source in READ.items() if not source.instead])
    options, usual = options or {}, QUICK if quick else WHOLE
    check_names(Heta, options)
    for name in options:
        if name in ("variant", "beta", "gamma", "batch", "rank", "window", "layers"):
            raise ValueError(f"{name} is what the rows of tables say: leave {name} out of options=")
    effort = replace(usual, limit=usual.limit if limit is None else limit, heta={**usual.heta, **options})
    effort.full()  # refuses options that do not go together
    made = Reproduction(
        printed=printed()[table],
        recipe=TABLES[table],
        effort=effort,
        quick=quick,
        model=model or "demo",
        load_options=load_options or {},
        out=Path(out),
        paths=paths or {},
        seed=seed,
        run_options={"progress": progress, "retry_failed": retry_failed},
    )
    texts = {"md": made.page(), "csv": made.sheet()}
    Path(out).mkdir(parents=True, exist_ok=True)  # without readable data sets, no run has made the folder
    return [write_atomically(Path(out) / f"{table}.{kind}", text) for kind, text in texts.items()]


@dataclass(frozen=True)
class Reproduction:
    """The reproduction of a table: the prompts, the runs of every row's method, the figures, and the pages."""

    printed: Printed
    recipe: Recipe
    effort: Effort
    quick: bool
    model: str
    load_options: Mapping[str, Any]
    out: Path
    paths: Mapping[str, str | Path]
    seed: int
    run_options: Mapping[str, Any]

    # --------------------------------------------------------------------------------------------------------- methods
    @cached_property
    def entries(self) -> dict[str, Entry]:
        """The methods, by their names in the paper."""
        methods = self.printed.columns if self.recipe.turned else self.printed.rows
        return {method: self.effort.entry(method, **self._extra) for method in methods}

    @property
    def _extra(self) -> dict[str, Any]:
        """Options of HETA in this table, and for this model."""
        layers = next((block.last_layers for block in self.printed.blocks if block.model == self._block), 0)
        return {**self.recipe.extra, **({"variant": "ls", "layers": layers} if layers else {})}

    @property
    def _block(self) -> str:
        """The block of this model: a printed block, or our own."""
        blocks = self.printed.blocks
        named = next((block.model for block in blocks if block.hub.lower() == self.model.lower()), "")
        return named or (self._name if self.printed.named else blocks[0].model)

    @property
    def _blocks(self) -> list[str]:
        """The printed blocks, after our own if none of them is ours."""
        return [*self._hubs] if self._block in self._hubs else [self._block, *self._hubs]

    @property
    def _hubs(self) -> dict[str, str]:
        return {block.model: block.hub for block in self.printed.blocks}

    @property
    def _name(self) -> str:
        return DEMO if self.model == "demo" else self.model

    # --------------------------------------------------------------------------------------------------------- prompts
    def _source(self, name: str) -> Source:
        if name == "long":
            length = self.effort.length or self.printed.length
            return _story(filler=max(1, round((length - STORY_TOKENS) / FILLER_TOKENS)))
        return (MADE if self.quick else READ)[name]

    def _sources(self) -> list[tuple[str, ...]]:
        """Return the names of the data sets, those that one source stands for together."""
        by_source: dict[str, list[str]] = defaultdict(list)
        for name in dict.fromkeys(name for measure in self.recipe.measures.values() for name in measure.sources):
            by_source[self._source(name).label].append(name)
        return [*map(tuple, by_source.values())]

    def _prompts(self, name: str, model: Any) -> list[Instance]:
        source = self._source(name)
        options = dict(source.options)
        if source.suite == "longra":  # its prompts depend on the answers of the model
            options["says"] = partial(tokenizer.next_word, model)
        return suite(source.suite, self.paths.get(name), limit=self.effort.limit, seed=self.seed, **options)

    @cached_property
    def _run(self) -> tuple[dict[str, dict[str, list[Record]]], dict[str, str]]:
        """The records by data set and method, and the reasons why data sets could not be read."""
        model = loading.load_model(self.model, **self.load_options)
        records: dict[str, dict[str, list[Record]]] = {}
        unread: dict[str, str] = {}
        for names in self._sources():
            try:
                prompts = self._prompts(names[0], model)
                if not prompts:
                    raise ValueError("the model answers none of its prompts")
            except Exception as error:
                unread |= {name: f"{NAMES[name]} could not be read: {description(error)}" for name in names}
            else:
                records |= dict.fromkeys(names, self._evaluated(names, prompts, model))
        return records, unread

    def _evaluated(self, names: Sequence[str], prompts: Sequence[Instance], model: Any) -> dict[str, list[Record]]:
        """Evaluate the methods of all rows on the prompts of a source, and return the records by label."""
        source = self._source(names[0])
        measures = [measure for measure in self.recipe.measures.values() if {*names} & {*measure.sources}]
        metrics = dict.fromkeys(name for measure in measures for name in (*measure.names, *measure.beside.values()))
        full = quietly(partial(self.effort.full, **self._extra))
        own = table_metrics(full, self.effort.smaller.get("window", 512), prompts[0].id)
        folder = self.out / "figures" / self.printed.name / source.label.replace(" ", ",")
        loaded = {name: str(value) for name, value in self.load_options.items()}
        facts = {"model": self.model, "suite": source.label, "seed": self.seed, "loading": loaded}
        entries = {entry.label: entry for entry in self.entries.values()}
        given = [own.get(name, name) for name in metrics]
        evaluate(model, prompts, [*entries.values()], given, folder, facts=facts, **self.run_options)
        records = {record.key: record for record in read_records(folder)}
        return {label: [records[instance.id, label] for instance in prompts] for label in entries}

    # --------------------------------------------------------------------------------------------------------- figures
    @cached_property
    def ours(self) -> dict[Place, Figure]:
        """Our figures, by place."""
        records, unread = self._run
        figures = {}
        for row, column in product(self.printed.rows, self.printed.columns):
            method, measured = (column, row) if self.recipe.turned else (row, column)
            measure, label = self.recipe.measures[measured], self.entries[method].label
            of_method = {name: of[label] for name, of in records.items() if name in measure.sources}
            figures[Place(self._block, row, column)] = figure(measure, of_method, unread)
        return figures

    @cached_property
    def paper(self) -> dict[Place, str]:
        """The printed figures, by place."""
        return dict(self.printed.figures())

    def _impossible(self, place: Place) -> list[str]:
        return [f"the printed figure cannot be: {reason}" for reason in self.printed.impossible.get(place, ())]

    # ----------------------------------------------------------------------------------------------------------- pages
    def page(self) -> str:
        """Write the table as Markdown, with the paper's figures beside ours."""
        notes = document.Footnotes()
        tables = [*self._tables(notes)]
        choices = dict.fromkeys(measure.note for measure in self.recipe.measures.values() if measure.note)
        return document.markdown(
            [
                document.Heading(self.printed.title, 1),
                document.Paragraph(self.printed.about),
                *map(document.Paragraph, self._about()),
                *tables,
                document.Notes([*self._legend(), *notes.lines(), *choices]),
            ]
        )

    def _legend(self) -> Iterator[str]:
        yield (
            "Ours: in brackets the 95 % interval, by the bootstrap over templates of prompts. An infinite end means "
            "that so few templates, or ones so alike, give no bound."
        )
        if hubs := dict.fromkeys(hub for model, hub in self._hubs.items() if model != self._block):
            yield f"{NEEDS}: only that model can fill the cell, as --model {', --model '.join(hubs)}."

    def _tables(self, notes: document.Footnotes) -> Iterator[document.Block]:
        if self.printed.across:
            (column,) = self.printed.columns
            yield self._table(notes, {model: (model, column) for model in self._blocks})
            return
        for model in self._blocks:
            yield document.Heading(model if self.printed.named else f"{model} in the paper, {self._name} here")
            yield self._table(notes, {column: (model, column) for column in self.printed.columns})

    def _table(self, notes: document.Footnotes, heads: Mapping[str, tuple[str, str]]) -> document.Table:
        """Make the table of a block, or of all blocks; ``heads`` are the models and columns under their headings."""
        frame = pd.DataFrame({"row": self.printed.rows})
        for head, (model, column) in heads.items():
            places = [Place(model, row, column) for row in self.printed.rows]
            if model in self._hubs:
                paper = [self.paper[place] + notes.marks(self._impossible(place)) for place in places]
                frame[f"{head}: paper"] = paper
            frame[f"{head}: ours"] = [self._shown(place, notes) for place in places]
        return document.Table([*frame.columns], frame.to_numpy().tolist())

    def _shown(self, place: Place, notes: document.Footnotes) -> str:
        if place not in self.ours:
            return NEEDS
        made = self.ours[place]
        return (with_interval(made.estimate) if made.estimate else "none") + notes.marks(made.notes)

    def sheet(self) -> str:
        """Write the table as CSV with a line per cell; the note of a cell without a number has the reason."""
        places = product(self._blocks, self.printed.rows, self.printed.columns)
        return document.sheet(pd.DataFrame([self._line(Place(*place)) for place in places]))

    def _line(self, place: Place) -> dict[str, object]:
        made = self.ours.get(place) or Figure(None, (f"{NEEDS} {self._hubs[place.model]}",))
        paper, estimate = self.paper.get(place, ""), made.estimate
        return {
            "block": place.model,
            "row": place.row,
            "column": place.column,
            "paper": paper,
            "ours": estimate and estimate.value,
            "low": estimate and estimate.low,
            "high": estimate and estimate.high,
            "n": estimate.n if estimate else 0,
            "note": "; ".join([*([] if paper else ["not in the paper"]), *self._impossible(place), *made.notes]),
        }

    def _about(self) -> Iterator[str]:
        records, unread = self._run
        paper = self._block if self._block in self._hubs else ", ".join(self._hubs)
        yield f"The paper's figures are for {paper}, ours for {'the ' * (self._name == DEMO)}{self._name}."
        if records:
            yield f"Prompts. {'; '.join(self._described(name, of) for name, of in records.items())}."
        for reason in unread.values():
            yield f"{reason}."
        rows = "; ".join(f"{row}: {entry.label}" for row, entry in self.entries.items())
        yield f"How the rows are made: {rows}."
        if self.quick:
            yield (
                "This is the quick way: a small model, few prompts, and less of everything (windows, ranks, layers, "
                "steps) than rows name. It shows how the table is made, and tells nothing of the paper's models."
            )

    def _described(self, name: str, by_label: Mapping[str, list[Record]]) -> str:
        """Describe the prompts of a source."""
        tokens = {record.instance: record.tokens for of_method in by_label.values() for record in of_method}
        size = f"{counted(len(tokens), 'prompt')}, {mean(tokens.values()):.0f} tokens on average"
        source = self._source(name)
        return f"{NAMES[name]}: {source.label} ({size})" if source.instead else f"{NAMES[name]} ({size})"
