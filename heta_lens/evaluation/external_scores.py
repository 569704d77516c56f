"""Results of inseq and captum as records of scores."""

import base64
import gzip
import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import torch

from heta_lens._util.files import brief, parse_json, read_bytes, read_text, write_atomically
from heta_lens._util.options import check_types
from heta_lens._util.text import Span, located_tokens, shared_out
from heta_lens.attribution import Attribution
from heta_lens.data.instance import Instance
from heta_lens.data.records import each, read
from heta_lens.evaluation.saved_scores import SCORES
from heta_lens.methods.base import make_attribution
from heta_lens.metrics.robustness import Explain
from heta_lens.prediction.prediction import Prediction

INSEQ = b"inseq.data.attribution"


def is_inseq(raw: bytes) -> bool:
    """Whether this is JSON as ``FeatureAttributionOutput.save`` writes it."""
    return INSEQ in raw[:200]


def from_inseq(path: str | Path) -> list[dict[str, Any]]:
    """Records of what inseq saved, one per generated token: ``out.aggregate().save(path)``."""
    saved = parse_json(read_text(path))["attributes"]
    info = saved["info"]
    method, texts = f"inseq {info['attribution_method']}", info["generated_texts"]
    return [
        record
        for sequence, text in zip(saved["sequence_attributions"], texts, strict=True)
        for record in _steps(sequence["attributes"], text, method)
    ]


def _steps(sequence: Mapping[str, Any], text: str, method: str) -> list[dict[str, Any]]:
    """A record per generated token, of the tokens before it."""
    if sequence["source_attributions"] is not None:
        raise ValueError("this is of an encoder–decoder model: only decoders have a prompt that goes on")
    scores = _array(sequence["target_attributions"])
    if scores.ndim != 2:
        raise ValueError(
            f"inseq's scores have {scores.ndim} dimensions, one of them the embedding's: "
            "save them aggregated, as out.aggregate().save(path)"
        )
    tokens = [token["attributes"] for token in sequence["target"]]
    spans = located_tokens([token["token"] for token in tokens], text)
    return [
        {
            "method": method,
            "text": text[: spans[place - 1].stop],
            "ids": [token["id"] for token in tokens[:place]],
            "tokens": [token["token"] for token in tokens[:place]],
            "start": [span.start for span in spans[:place]],
            "stop": [span.stop for span in spans[:place]],
            "scores": scores[:place, step].astype(float).tolist(),
            "target": text[slice(*spans[place])],
        }
        for step, place in enumerate(range(sequence["attr_pos_start"], sequence["attr_pos_end"]))
    ]


def from_captum(result: Any, text: str, *, method: str = "captum", step: int | None = None) -> dict[str, Any]:
    """A record of captum's ``LLMAttributionResult``: of the whole answer, or of its token number ``step``.

    Args:
        result: what ``LLMAttribution.attribute`` returned, of a ``TextTokenInput``.
        text: the prompt it was given.
        method: what the scores are called.
        step: which generated token; by default the sum over all of them, ``seq_attr``.
    """
    chosen = result.seq_attr if step is None else result.token_attr[step]
    record = {"method": method, "text": text, "tokens": [*result.input_tokens], "scores": chosen.flatten().tolist()}
    return record if step is None else {**record, "target": result.output_tokens[step]}


def write_scores(path: str | Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Write records of scores as JSON lines, for ``heta-lens evaluate --scores``."""
    write_atomically(
        path, "".join(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n" for record in records)
    )


def _array(written: Any) -> np.ndarray:
    """An array as json_tricks writes it: base64, perhaps compressed, or nested lists."""
    values, dtype, shape = written["__ndarray__"], written["dtype"], written["shape"]
    if isinstance(values, str):
        kind, _, text = values.partition(":")
        raw = base64.b64decode(text)
        return np.frombuffer(gzip.decompress(raw) if kind.endswith("gz") else raw, dtype=dtype).reshape(shape)
    return np.array(values, dtype=dtype).reshape(shape)


# -------------------------------------------------------------------------------------------------------- given scores
# Scores that others made, evaluated beside our methods: matched by prompt, aligned by the characters of the text.
#
# A file has a record per prompt and method. It has ``scores`` (or ``score``), and what they are of: ``tokens`` (or
# ``token``) in a ``text``, if possible with ``start`` and ``stop``, lists of where each token is in it; or the ``ids``
# of
# the model's own tokens. It may have ``prompt`` (the id of the instance; else the text is compared, or the ids),
# ``method`` (or else the file's name counts) and ``target`` (what is explained, which is then compared). What
# `load_scores` reads is such a file.


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
