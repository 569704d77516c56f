"""The suites by name, and the instances of each as a list."""

from collections.abc import Callable, Iterable, Mapping
from inspect import signature
from pathlib import Path
from typing import Any, TypeAlias

from heta_lens.data import curated, longra, recalled, tellmewhy, wikibio
from heta_lens.data.instance import Instance, read_jsonl
from heta_lens.data.recall import Draw, stories
from heta_lens.data.records import load, read
from heta_lens.options import check_at_least, check_choice, hint

Source: TypeAlias = str | Path | None

FORMATS = {
    "longra": f"a json or jsonl file of records with {', '.join(longra.FIELDS)}",
    "jsonl": "a file with an instance a line, as write_jsonl makes it",
}


def suite(
    name: str, path: Source = None, *, split: str = "test", limit: int | None = None, seed: int = 0, **options: Any
) -> list[Instance]:
    """The instances of the suite of this name.

    Args:
        name: one of `SUITES`.
        path: the file they are read from, in the format in which the suite is published; without it, those that are on
            the Hugging Face hub are had from there.
        split: which part; a file is one part, whatever this says.
        limit: how many at most, drawn by ``seed``, in their old order; None takes all.
        seed: which ones, where any are drawn or made.
        **options: those of this suite alone, which its module documents.
    """
    check_choice("suite", name, SUITES)
    return SUITES[name](path=path, split=split, limit=limit, seed=seed, **options)


def _recall(
    path: Source = None, split: Any = "test", limit: int | None = None, seed: int = 0, **options: Any
) -> list[Instance]:
    _check_options("recall", options, stories)
    if path is not None:
        raise ValueError(f"path={str(path)!r} is for suites that are read: recall is made, and takes none")
    if limit is None:
        raise ValueError("the recall suite has no end: give limit=, the number of stories")
    check_at_least("limit", limit, 1, whole=True)
    return list(recalled.instances(split, seed=seed, count=limit, **options))


def _curated(
    path: Source = None,
    split: str = "test",
    limit: int | None = None,
    seed: int = 0,
    *,
    narratives: Source = None,
    questions: Source = None,
    **options: Any,
) -> list[Instance]:
    """The released instances where there is a path to them, and else new ones, of NarrativeQA and SciQ."""
    if path is None:
        _check_options("curated", options, curated.pairs, "narratives", "questions")
        told = load(curated.NARRATIVES, split, narratives, option="narratives")
        asked = load(curated.QUESTIONS, split, questions, option="questions")
        return _drawn(curated.pairs(told, asked, seed=seed, **options), limit, seed)
    if narratives is not None or questions is not None:
        raise ValueError(
            "path= names the released instances: leave it out to make new ones of narratives= and questions="
        )
    _check_options("curated", options, curated.released)
    return _drawn(curated.released(read(path, "the curated data", field="examples"), **options), limit, seed)


def _longra(
    path: Source = None,
    split: str = "test",  # noqa: ARG001
    limit: int | None = None,
    seed: int = 0,
    *,
    says: Callable[[str], str] | None = None,
    **options: Any,
) -> list[Instance]:
    _check_options("longra", options, _longra)
    made = longra.instances(read(_needed("longra", path), "LongRA"))
    return _drawn(made if says is None else longra.kept(made, says), limit, seed)


def _tellmewhy(
    path: Source = None, split: str = "test", limit: int | None = None, seed: int = 0, **options: Any
) -> list[Instance]:
    _check_options("tellmewhy", options, tellmewhy.instances)
    return _drawn(tellmewhy.instances(load(tellmewhy.HUB, split, path), **options), limit, seed)


def _wikibio(
    path: Source = None,
    split: str = "test",  # noqa: ARG001
    limit: int | None = None,
    seed: int = 0,
    **options: Any,
) -> list[Instance]:
    _check_options("wikibio", options, wikibio.instances)
    return _drawn(wikibio.instances(load(wikibio.HUB, wikibio.ONLY_SPLIT, path), **options), limit, seed)


def _jsonl(
    path: Source = None,
    split: str = "test",  # noqa: ARG001
    limit: int | None = None,
    seed: int = 0,
    **options: Any,
) -> list[Instance]:
    _check_options("jsonl", options, _jsonl)
    return _drawn(read_jsonl(_needed("jsonl", path)), limit, seed)


def _check_options(name: str, given: Iterable[str], make: Callable[..., Any], *more: str) -> None:
    """Refuse an option that neither stands in ``more`` nor can be given by name alone to what makes the instances."""
    kinds = signature(make).parameters.values()
    known = [*more, *(kind.name for kind in kinds if kind.kind is kind.KEYWORD_ONLY and kind.name != "seed")]
    for option in given:
        if option not in known:
            raise TypeError(
                f"the {name} suite has no option {option!r} here{hint(option, known)}; "
                f"it has {', '.join(known) or 'none of its own'}"
            )


def _needed(name: str, path: Source) -> str | Path:
    if path is None:
        raise ValueError(f"the {name} suite is read from a file: give path=, {FORMATS[name]}")
    return path


def _drawn(instances: Iterable[Instance], limit: int | None, seed: int) -> list[Instance]:
    if limit is None:
        return list(instances)
    check_at_least("limit", limit, 1, whole=True)
    there = list(instances)
    return [there[at] for at in sorted(Draw(f"limit {seed}").some(range(len(there)), limit))]


SUITES: Mapping[str, Callable[..., list[Instance]]] = {
    "recall": _recall,
    "curated": _curated,
    "longra": _longra,
    "tellmewhy": _tellmewhy,
    "wikibio": _wikibio,
    "jsonl": _jsonl,
}
