"""The suites by name, and the instances of each as a list."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any, TypeAlias

from heta_lens.data import curated, longra, recalled, tellmewhy, wikibio
from heta_lens.data.instance import Instance, read_jsonl
from heta_lens.data.recall import Draw, stories
from heta_lens.data.records import load, read
from heta_lens.options import check_at_least, check_choice, check_count, hint

Source: TypeAlias = str | Path | None
Instances: TypeAlias = Iterable[Instance]


@dataclass(frozen=True)
class Asked:
    """What is asked of a suite: where it is read from, which part, how many, and what it alone may be told."""

    name: str
    path: Source
    split: str | None
    limit: int | None
    seed: int
    options: Mapping[str, Any]

    def known_by(self, make: Callable[..., Any], *more: str) -> Mapping[str, Any]:
        """The options; one is refused that neither stands in ``more`` nor can be given to ``make`` by name alone."""
        kinds = signature(make).parameters.values()
        known = [*more, *(kind.name for kind in kinds if kind.kind is kind.KEYWORD_ONLY and kind.name != "seed")]
        for option in self.options:
            if option not in known:
                raise TypeError(
                    f"the {self.name} suite has no option {option!r} here{hint(option, known)}; "
                    f"it has {', '.join(known) or 'none of its own'}"
                )
        return self.options

    def whole(self) -> None:
        """Refuse to be asked for a part of what has none."""
        if self.split is not None:
            raise ValueError(
                f"split={self.split!r}: what the {self.name} suite is read from has no parts, leave it out"
            )

    def drawn(self, instances: Instances) -> list[Instance]:
        """As many as were asked for, in their old order."""
        there = list(instances)
        if self.limit is None:
            return there
        return [there[at] for at in sorted(Draw(f"limit {self.seed}").some(range(len(there)), self.limit))]


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
        path: the file they are read from, in the format in which the suite is published; without it, those that are on
            the Hugging Face hub are had from there.
        split: which part, of what has parts: stories that are made, and most of what is on the hub. None is test.
        limit: how many at most, drawn by ``seed``; None takes all.
        seed: which ones, where any are drawn or made.
        **options: those of this suite alone, which its module documents.
    """
    check_choice("suite", name, SUITES)
    if limit is not None:
        check_at_least("limit", limit, 1, whole=True)
    return SUITES[name](Asked(name, path, split, limit, seed, options))


def _recall(asked: Asked) -> list[Instance]:
    options = asked.known_by(stories)
    if asked.path is not None:
        raise ValueError(f"path={str(asked.path)!r} is for suites that are read: recall is made, and takes none")
    if asked.limit is None:
        raise ValueError("the recall suite has no end: give limit=, the number of stories")
    check_count("limit", asked.limit)
    split: Any = asked.split or "test"
    # A voice is one wording. Without, there should be more templates than the few that the demo model was trained on.
    knobs = {"wordings": "more" if options.get("voice") is None else "trained", **options}
    return list(recalled.instances(split, seed=asked.seed, count=asked.limit, **knobs))


def _curated(asked: Asked) -> list[Instance]:
    """The released instances where there is a path to them, and else new ones, of NarrativeQA and SciQ."""
    sources = ("narratives", "questions")
    if asked.path is None:
        options = dict(asked.known_by(curated.pairs, *sources))
        names = (curated.NARRATIVES, curated.QUESTIONS)
        told, science = (
            load(name, asked.split or "test", options.pop(source, None), option=source)
            for name, source in zip(names, sources, strict=True)
        )
        return asked.drawn(curated.pairs(told, science, seed=asked.seed, **options))
    if {*sources} & asked.options.keys():
        raise ValueError(
            "path= names the released instances: leave it out to make new ones of narratives= and questions="
        )
    asked.whole()
    options = asked.known_by(curated.released)
    return asked.drawn(curated.released(read(asked.path, "the curated data", field="examples"), **options))


def _read(
    make: Callable[..., Instances], records: Callable[[Asked], Sequence[Mapping[str, Any]]]
) -> Callable[[Asked], list[Instance]]:
    """A suite that is made of records."""

    def made(asked: Asked) -> list[Instance]:
        options = asked.known_by(make)
        return asked.drawn(make(records(asked), **options))

    return made


def _from_hub(name: str, only_split: str | None = None) -> Callable[[Asked], Sequence[Mapping[str, Any]]]:
    """Records that the hub has, or a file; and a file, like what is of one split alone, has no parts."""

    def records(asked: Asked) -> Sequence[Mapping[str, Any]]:
        if asked.path is not None or only_split:
            asked.whole()
        return load(name, asked.split or only_split or "test", asked.path)

    return records


def _longra(asked: Asked) -> Sequence[Mapping[str, Any]]:
    path = _file(asked, f"a json or jsonl file of records with {', '.join(longra.FIELDS)}")
    return read(path, "LongRA")


def _jsonl(asked: Asked) -> list[Instance]:
    asked.known_by(read_jsonl)
    return asked.drawn(read_jsonl(_file(asked, "a file with an instance a line, as write_jsonl makes it")))


def _file(asked: Asked, kind: str) -> str | Path:
    if asked.path is None:
        raise ValueError(f"the {asked.name} suite is read from a file: give path=, {kind}")
    asked.whole()
    return asked.path


SUITES: Mapping[str, Callable[[Asked], list[Instance]]] = {
    "recall": _recall,
    "curated": _curated,
    "longra": _read(longra.instances, _longra),
    "tellmewhy": _read(tellmewhy.instances, _from_hub(tellmewhy.HUB)),
    "wikibio": _read(wikibio.instances, _from_hub(wikibio.HUB, wikibio.ONLY_SPLIT)),
    "jsonl": _jsonl,
}
