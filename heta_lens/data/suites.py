"""The suites by name, and the instances of each as a list."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any, TypeAlias

from heta_lens._util.options import check_at_least, check_choice, check_count, hint
from heta_lens.data import curated, datasets, recall
from heta_lens.data.datasets import load, read
from heta_lens.data.instance import Instance, read_jsonl
from heta_lens.data.recall import Draw, stories

Source: TypeAlias = str | Path | None
Instances: TypeAlias = Iterable[Instance]


@dataclass(frozen=True)
class SuiteRequest:
    """The arguments of `suite`: where to read from, which part, how many, and the options of this suite alone."""

    name: str
    path: Source
    split: str | None
    limit: int | None
    seed: int
    options: Mapping[str, Any]

    def checked_options(self, make: Callable[..., Any], *more: str) -> Mapping[str, Any]:
        """The options; refuses one that is neither in ``more`` nor a keyword of ``make``."""
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
        """Refuse a split of a source that has none."""
        if self.split is not None:
            raise ValueError(
                f"split={self.split!r}: what the {self.name} suite is read from has no parts, leave it out"
            )

    def limited(self, instances: Instances) -> list[Instance]:
        """A random choice of the requested number, in the original order."""
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
    """The instances of the suite of this name.

    Args:
        name: one of `SUITES`.
        path: the file to read, in the format in which the suite is published; without it, suites on the Hugging Face
            hub are loaded from there.
        split: which split, of suites that have some: generated stories, and most of those on the hub. None is test.
        limit: how many at most, drawn by ``seed``; None takes all.
        seed: the seed of what is drawn or generated.
        **options: those of this suite alone, which its module documents.
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
    # A voice is one wording. Otherwise use more templates than the few that the demo model was trained on.
    knobs = {"wordings": "more" if options.get("voice") is None else "trained", **options}
    return list(recall.instances(split, seed=request.seed, count=request.limit, **knobs))


def _curated(request: SuiteRequest) -> list[Instance]:
    """The released instances where a path is given, else new ones made from NarrativeQA and SciQ."""
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


def _read(
    make: Callable[..., Instances], records: Callable[[SuiteRequest], Sequence[Mapping[str, Any]]]
) -> Callable[[SuiteRequest], list[Instance]]:
    """A suite made from records."""

    def made(request: SuiteRequest) -> list[Instance]:
        options = request.checked_options(make)
        return request.limited(make(records(request), **options))

    return made


def _from_hub(name: str, only_split: str | None = None) -> Callable[[SuiteRequest], Sequence[Mapping[str, Any]]]:
    """Records from the hub or a file; a file, like a data set of one split, has no splits to choose from."""

    def records(request: SuiteRequest) -> Sequence[Mapping[str, Any]]:
        if request.path is not None or only_split:
            request.check_no_split()
        return load(name, request.split or only_split or "test", request.path)

    return records


def _longra(request: SuiteRequest) -> Sequence[Mapping[str, Any]]:
    path = _file(request, f"a json or jsonl file of records with {', '.join(datasets.FIELDS)}")
    return read(path, "LongRA")


def _jsonl(request: SuiteRequest) -> list[Instance]:
    request.checked_options(read_jsonl)
    return request.limited(read_jsonl(_file(request, "a file with an instance per line, as write_jsonl makes it")))


def _file(request: SuiteRequest, kind: str) -> str | Path:
    if request.path is None:
        raise ValueError(f"the {request.name} suite is read from a file: give path=, {kind}")
    request.check_no_split()
    return request.path


SUITES: Mapping[str, Callable[[SuiteRequest], list[Instance]]] = {
    "recall": _recall,
    "curated": _curated,
    "longra": _read(datasets.longra_instances, _longra),
    "tellmewhy": _read(datasets.tellmewhy_instances, _from_hub(datasets.TELLMEWHY_HUB)),
    "wikibio": _read(datasets.wikibio_instances, _from_hub(datasets.WIKIBIO_HUB, datasets.ONLY_SPLIT)),
    "jsonl": _jsonl,
}
