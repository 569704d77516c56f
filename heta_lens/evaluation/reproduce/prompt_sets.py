"""The prompts of the tables: the paper's data sets, and short stories where these cannot be read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from heta_lens.data.instance import Instance
from heta_lens.data.suites import suite
from heta_lens.model import prompt_encoding

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


def loaded(one: Source, model: Any, path: Path | str | None, limit: int, seed: int) -> list[Instance]:
    options = dict(one.options)
    if one.suite == "longra":  # which is of what a model answers with the distraction and without
        options["says"] = partial(prompt_encoding.next_word, model)
    return suite(one.suite, path, limit=limit, seed=seed, **options)
