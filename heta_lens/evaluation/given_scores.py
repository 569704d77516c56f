"""Scores that others made, evaluated beside our methods: matched by prompt, aligned by the characters of the text.

A file has a record per prompt and method. It has ``scores`` (or ``score``), and what they are of: ``tokens`` (or
``token``) in a ``text``, if possible with ``start`` and ``stop``, lists of where each token is in it; or the ``ids`` of
the model's own tokens. It may have ``prompt`` (the id of the instance; else the text is compared, or the ids),
``method`` (or else the file's name counts) and ``target`` (what is explained, which is then compared). What
`load_scores` reads is such a file.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import Any

import torch

from heta_lens._util.file_reading import brief, read_bytes
from heta_lens._util.span_alignment import located_tokens, shared_out
from heta_lens._util.text_spans import Span
from heta_lens._util.type_checks import check_types
from heta_lens.attribution import Attribution
from heta_lens.data.dataset_files import each, read
from heta_lens.data.instance import Instance
from heta_lens.evaluation.kept_scores import SCORES
from heta_lens.evaluation.score_converters import from_inseq, is_inseq
from heta_lens.metrics.robustness import Explain
from heta_lens.prediction.make_attribution import make_attribution
from heta_lens.prediction.prediction import Prediction

ALSO = {"score": "scores", "token": "tokens", "id": "ids", "target_text": "target"}  # as `load_scores` has them
TYPES = {
    **dict.fromkeys(("text", "prompt", "method", "target"), str),
    **dict.fromkeys(("ids", "start", "stop"), Sequence[int]),
    "tokens": Sequence[str],
    "scores": Sequence[float],
}


@dataclass(frozen=True)
class GivenScores:
    """Scores of the tokens of one prompt, however they were made."""

    scores: Sequence[float]
    text: str = ""
    tokens: Sequence[str] = ()
    ids: Sequence[int] = ()
    start: Sequence[int] = ()
    stop: Sequence[int] = ()
    prompt: str = ""
    method: str = ""
    target: str = ""

    def __post_init__(self) -> None:
        check_types(TYPES, vars(self))
        if not self.tokens and not self.ids:
            raise ValueError("it has neither tokens nor ids")
        if not self.text and not self.ids:
            raise ValueError("it has tokens, but no text that they are of")
        for name in ("tokens", "ids", "start", "stop"):
            values = getattr(self, name)
            if values and len(values) != len(self.scores):
                raise ValueError(f"it has {len(self.scores)} scores, and {len(values)} {name}")
        for number, score in enumerate(self.scores):
            if not isfinite(score):
                raise ValueError(f"its score {number} is {score}, and must be a finite number")
        if bool(self.start) != bool(self.stop):
            raise ValueError("it has only one of start and stop")
        _ = self.spans if self.text and self.tokens else ()

    @cached_property
    def spans(self) -> list[Span]:
        """Where the tokens are in the text."""
        if self.start or self.stop:
            spans = [Span(*ends) for ends in zip(self.start, self.stop, strict=True)]
            for span in spans:
                if not 0 <= span.start <= span.stop <= len(self.text):
                    raise ValueError(f"{tuple(span)} is no place in its text of {len(self.text)} characters")
            return spans
        return located_tokens(self.tokens, self.text)

    def on(self, prediction: Prediction) -> list[float]:
        """The scores on the tokens of a prediction: the same tokens', or shared out by characters."""
        if [*self.ids] == prediction.ids.tolist():
            return [*self.scores]
        if not self.text or not (self.tokens or self.start):
            raise ValueError("its ids are not those of the prompt: give the text and its tokens beside them")
        text, places = prediction.located[0], [Span(*place) for place in prediction.located[1]]
        begin = text.rfind(self.text.strip())
        whole = Span(begin, begin + len(self.text.strip()))
        if begin < 0 or _left_out(prediction, places, whole):
            raise ValueError(f"its text, {brief(self.text)}, is not the prompt's, {brief(text)}")
        shift = begin - (len(self.text) - len(self.text.lstrip()))
        moved = [Span(max(0, start + shift), max(0, stop + shift)) for start, stop in self.spans]
        return shared_out(self.scores, moved, places)


def is_given(recipe: Mapping[str, Any]) -> bool:
    """Whether a method of ``run.json`` was never run here, as `GivenMethod.recipe` says."""
    return {"scores", "digest"} <= (recipe.get("options") or {}).keys()


@dataclass(frozen=True)
class GivenMethod:
    """A method of which only scores are there: it is evaluated like one, as far as it need not run again."""

    label: str
    file: str
    digest: str
    rows: tuple[GivenScores, ...] = field(repr=False)

    def apart_from(self, labels: Collection[str]) -> "GivenMethod":
        """The same under a label that none of these is."""
        return replace(self, label=f"{self.label} (scores)") if self.label in labels else self

    @property
    def recipe(self) -> dict[str, Any]:
        return {"method": self.label, "options": {"scores": self.file, "digest": self.digest}}

    @cached_property
    def _by_prompt(self) -> Mapping[str, GivenScores]:
        return {row.prompt: row for row in self.rows if row.prompt}

    @cached_property
    def _others(self) -> Mapping[Any, GivenScores]:
        """Those that name no prompt, by their texts and ids."""
        others = [row for row in self.rows if not row.prompt]
        by_ids = {tuple(row.ids): row for row in others if row.ids}
        by_text = {row.text: row for row in others if row.text}
        bare = Counter(text.strip() for text in by_text)
        return {text.strip(): row for text, row in by_text.items() if bare[text.strip()] == 1} | by_text | by_ids

    def _of(self, instance: Instance, prediction: Prediction) -> GivenScores:
        keys = tuple(prediction.ids.tolist()), instance.text, instance.text.strip()
        row = self._by_prompt.get(instance.id) or next((self._others[key] for key in keys if key in self._others), None)
        if row is None:
            raise ValueError(f"{self.file} has no scores of {self.label} on {instance.id!r}")
        return row

    def ready(self, instance: Instance, prediction: Prediction) -> Explain:
        """Gives the scores of this prompt, and of no other."""
        row = self._of(instance, prediction)
        if row.target and not _same_start(row.target.strip(), str(prediction.target_text).strip()):
            explained = f"{self.file} explains {row.target!r} of {instance.id!r}"
            raise ValueError(f"{explained}, and the prediction is {prediction.target_text!r}")

        def explain(asked: Prediction) -> Attribution:
            if asked.ids.tolist() != prediction.ids.tolist() or asked.target != prediction.target:
                raise ValueError(f"{self.label} is there as scores only: it cannot be run on another prompt")
            return make_attribution(
                asked,
                self.label,
                torch.tensor(row.on(asked), dtype=torch.float64),
                {},
                {"scores": self.file},
                {},
                signed=min(row.scores) < 0,
            )

        return explain


def _left_out(prediction: Prediction, places: Sequence[Span], whole: Span) -> bool:
    """Whether a text lacks more of the prompt than special tokens, or what a chat template wrote around it."""
    if prediction.prompt.chat is not None:
        return False
    special = prediction.adapter.tokenizer.special(prediction.ids.tolist())
    text = prediction.located[0]
    return any(
        not is_special and text[slice(*place)].strip() and not (whole.start < place.stop and place.start < whole.stop)
        for place, is_special in zip(places, special, strict=True)
    )


def _same_start(one: str, other: str) -> bool:
    """Whether a token may be the beginning of what another tokenizer has as one."""
    return one.startswith(other) or other.startswith(one)


def given_methods(path: str | Path) -> list[GivenMethod]:
    """The methods whose scores are in a file: ours, inseq's JSON, or records as this module says."""
    path = Path(path).expanduser()
    path = path / SCORES if path.is_dir() else path
    raw = read_bytes(path, f"there is no file of scores {path}")
    records = from_inseq(path) if is_inseq(raw) else read(path, "scores", option="scores")
    rows = [*each(records, lambda _, record: _row(record, path.stem))]
    digest = sha256(raw).hexdigest()[:16]
    return [
        GivenMethod(label, path.name, digest, tuple(row for row in rows if row.method == label))
        for label in dict.fromkeys(row.method for row in rows)
    ]


def _row(record: Mapping[str, Any], otherwise: str) -> GivenScores:
    if isinstance(record.get("id"), str):  # as prompts have it
        record = {"prompt": record["id"], **{name: value for name, value in record.items() if name != "id"}}
    named = {ALSO.get(name, name): value for name, value in record.items() if value is not None}
    if "scores" not in named:
        raise ValueError(f"it has no scores, but {', '.join(map(brief, record))}")
    if not isinstance(named.get("target", ""), str):
        del named["target"]  # of a contrast, which a prediction of an answer is not compared with
    known = {name: value for name, value in named.items() if name in GivenScores.__dataclass_fields__}
    return GivenScores(**{"method": otherwise, **known})


def as_record(scores: GivenScores) -> dict[str, Any]:
    """A record of a file, without what is not known."""
    return {name: value for name, value in asdict(scores).items() if value}
