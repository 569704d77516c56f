"""Suites by name, and the instances of every suite."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any, TypeAlias

from heta_lens._util.options import check_at_least, check_choice, check_count, hint
from heta_lens.data import curated, datasets, recall
from heta_lens.data.instance import Instance, read_jsonl
from heta_lens.data.recall import Draw, stories
from heta_lens.data.records import load, read

Source: TypeAlias = str | Path | None
Instances: TypeAlias = Iterable[Instance]


@dataclass(frozen=True)
class SuiteRequest:
    """The arguments of `suite`: the source, the split, the number of instances, and the suite's options."""

    name: str
    path: Source
    split: str | None
    limit: int | None
    seed: int
    options: Mapping[str, Any]

    def checked_options(self, make: Callable[..., Any], *more: str) -> Mapping[str, Any]:
        """Return the options; refuse an option unless named in ``more`` or a keyword of ``make``."""
        kinds = signature(make).parameters.values()
        known = [*more, *(kind.name for kind in kinds if kind.kind is kind.KEYWORD_ONLY and kind.name != "seed")]
        for option in self.options:
            if option not in known:
                raise TypeError(
                    f"the {self.name} suite has no option {option!r} here{hint(option, known)}; "
                    f"it has {', '.join(known) or 'none of its own'}"
                )
        return self.options

    def check_no_split(self) -> None:
        """Refuse a split of a source without splits."""
        if self.split is not None:
            raise ValueError(
                f"split={self.split!r}: what the {self.name} suite is read from has no parts, leave it out"
            )

    def file(self, kind: str) -> str | Path:
        """Return the path; refuse a request without a path, or with a split."""
        if self.path is None:
            raise ValueError(f"the {self.name} suite is read from a file: give path=, {kind}")
        self.check_no_split()
        return self.path

    def limited(self, instances: Instances) -> list[Instance]:
        """Draw the requested number of instances, in the original order."""
        every = list(instances)
        if self.limit is None:
            return every
        chosen = Draw(f"limit {self.seed}").some(range(len(every)), self.limit)
        return [every[number] for number in sorted(chosen)]


def suite(
    name: str,
    path: Source = None,
    *,
    split: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    **options: Any,
) -> list[Instance]:
    """Return the instances of a suite.

    Args:
        name: a name of `SUITES`.
        path: the file to read, in the format in which the suite is published; without it, suites on the Hugging Face
            hub are loaded from the hub.
        split: the split, of suites with splits: generated stories, and most suites on the hub. None is test.
        limit: the largest number of instances, drawn by ``seed``; None takes every instance.
        seed: the seed of draws and of generated stories.
        **options: the options of the suite, which its module documents.
    """
    check_choice("suite", name, SUITES)
    if limit is not None:
        check_at_least("limit", limit, 1, whole=True)
    return SUITES[name](SuiteRequest(name, path, split, limit, seed, options))


def _recall(request: SuiteRequest) -> list[Instance]:
    options = request.checked_options(stories)
    if request.path is not None:
        raise ValueError(f"path={str(request.path)!r} is for suites that are read: recall is made, and takes none")
    if request.limit is None:
        raise ValueError("the recall suite has no end: give limit=, the number of stories")
    check_count("limit", request.limit)
    split: Any = request.split or "test"
    # A voice is a single wording. Otherwise use more templates than the few that the demo model was trained on.
    knobs = {"wordings": "more" if options.get("voice") is None else "trained", **options}
    return list(recall.instances(split, seed=request.seed, count=request.limit, **knobs))


def _curated(request: SuiteRequest) -> list[Instance]:
    """Return the released instances from a path, or make instances from NarrativeQA and SciQ."""
    sources = ("narratives", "questions")
    if request.path is None:
        options = dict(request.checked_options(curated.pairs, *sources))
        names = (curated.NARRATIVES, curated.QUESTIONS)
        narratives, science = (
            load(name, request.split or "test", options.pop(source, None), option=source)
            for name, source in zip(names, sources, strict=True)
        )
        return request.limited(curated.pairs(narratives, science, seed=request.seed, **options))
    if {*sources} & request.options.keys():
        raise ValueError(
            "path= names the released instances: leave it out to make new ones of narratives= and questions="
        )
    request.check_no_split()
    options = request.checked_options(curated.released)
    return request.limited(curated.released(read(request.path, "the curated data", field="examples"), **options))


def _longra(request: SuiteRequest) -> list[Instance]:
    options = request.checked_options(datasets.longra_instances)
    path = request.file(f"a json or jsonl file of records with {', '.join(datasets.FIELDS)}")
    return request.limited(datasets.longra_instances(read(path, "LongRA"), **options))


def _from_hub(
    make: Callable[..., Instances], name: str, only_split: str | None = None
) -> Callable[[SuiteRequest], list[Instance]]:
    """Return a suite of a data set of the hub, or of a file without splits."""

    def made(request: SuiteRequest) -> list[Instance]:
        options = request.checked_options(make)
        if request.path is not None or only_split:
            request.check_no_split()
        records: Sequence[Mapping[str, Any]] = load(name, request.split or only_split or "test", request.path)
        return request.limited(make(records, **options))

    return made


def _jsonl(request: SuiteRequest) -> list[Instance]:
    request.checked_options(read_jsonl)
    return request.limited(read_jsonl(request.file("a file with an instance per line, as write_jsonl makes it")))


SUITES: Mapping[str, Callable[[SuiteRequest], list[Instance]]] = {
    "recall": _recall,
    "curated": _curated,
    "longra": _longra,
    "tellmewhy": _from_hub(datasets.tellmewhy_instances, datasets.TELLMEWHY_HUB),
    "wikibio": _from_hub(datasets.wikibio_instances, datasets.WIKIBIO_HUB, datasets.ONLY_SPLIT),
    "jsonl": _jsonl,
}
