"""Scores that other tools computed, evaluated beside the methods of this package on the same prompts.

A file of scores has a record per prompt and method:

- ``scores``: a list with a number per token.
- ``tokens`` in a ``text``, if possible with ``start`` and ``stop``, the places of the tokens in the text; or ``ids``,
  the ids of the model's own tokens.
- ``prompt``: the id of the instance. Without an id, the text or the ids find the instance.
- ``method``: the label of the method; by default the name of the file.
- ``target``: the explained token, compared with the prediction if given.

The folder of an evaluation serves too. `from_inseq` and `from_captum` make records of other tools' results.
"""

import base64
import gzip
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import torch

from heta_lens._util.files import RUN, brief, read_text, regular_file, write_atomically
from heta_lens._util.options import check_types
from heta_lens._util.text import Span
from heta_lens.attribution import Attribution
from heta_lens.data.instance import Instance
from heta_lens.data.records import each, read
from heta_lens.evaluation.run_database import reading
from heta_lens.methods.results import Scores, make_attribution
from heta_lens.metrics.robustness import Explain
from heta_lens.metrics.scores import evidence_positions, ordinary
from heta_lens.prediction.prediction import Prediction

INSEQ = b"inseq.data.attribution"  # at the beginning of files that FeatureAttributionOutput.save of inseq wrote


def from_inseq(path: str | Path) -> list[dict[str, Any]]:
    """Read the records of a file of inseq, one per generated token: ``out.aggregate().save(path)``."""
    saved = json.loads(read_text(path))["attributes"]
    info = saved["info"]
    method, texts = f"inseq {info['attribution_method']}", info["generated_texts"]
    return [
        record
        for sequence, text in zip(saved["sequence_attributions"], texts, strict=True)
        for record in _inseq_records(sequence["attributes"], text, method)
    ]


def _inseq_records(sequence: Mapping[str, Any], text: str, method: str) -> list[dict[str, Any]]:
    if sequence["source_attributions"] is not None:
        raise ValueError("the file is of an encoder–decoder model: only the prompts of decoders can be evaluated")
    scores = _inseq_array(sequence["target_attributions"])
    if scores.ndim != 2:
        raise ValueError(
            f"inseq's scores have {scores.ndim} dimensions, including the embedding's: "
            "save aggregated scores, as out.aggregate().save(path)"
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


def _inseq_array(saved: Any) -> np.ndarray:
    """Read an array of json_tricks: base64, perhaps compressed, or nested lists."""
    values, dtype, shape = saved["__ndarray__"], saved["dtype"], saved["shape"]
    if isinstance(values, str):
        kind, _, text = values.partition(":")
        raw = base64.b64decode(text)
        return np.frombuffer(gzip.decompress(raw) if kind.endswith("gz") else raw, dtype=dtype).reshape(shape)
    return np.array(values, dtype=dtype).reshape(shape)


def from_captum(result: Any, text: str, *, method: str = "captum", step: int | None = None) -> dict[str, Any]:
    """Make a record of captum's ``LLMAttributionResult``, for the whole answer or for a token of the answer.

    Args:
        result: the result of ``LLMAttribution.attribute`` for a ``TextTokenInput``.
        text: the prompt that captum explained.
        method: the label of the scores.
        step: the number of the generated token; by default the sum over the tokens, ``seq_attr``.
    """
    scores = result.seq_attr if step is None else result.token_attr[step]
    record = {"method": method, "text": text, "tokens": [*result.input_tokens], "scores": scores.flatten().tolist()}
    return record if step is None else {**record, "target": result.output_tokens[step]}


def write_scores(path: str | Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Write records of scores as JSON lines, for ``heta-lens evaluate --scores``."""
    lines = (json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n" for record in records)
    write_atomically(path, "".join(lines))


@dataclass(frozen=True)
class ExternalScores:
    """The scores of the tokens of a prompt, as a record of a file has the scores."""

    scores: Sequence[float]
    text: str = ""
    tokens: Sequence[str] = ()
    ids: Sequence[int] = ()
    start: Sequence[int] = ()
    stop: Sequence[int] = ()
    prompt: str = ""
    method: str = ""
    target: str = ""

    @classmethod
    def read(cls, record: Mapping[str, Any], method: str) -> "ExternalScores":
        """Read a record; ``method`` is the label of a record without a label."""
        kinds = get_type_hints(cls)
        known = {name: value for name, value in record.items() if name in kinds and value is not None}
        if "scores" not in known:
            raise ValueError(f"it has no scores, but {', '.join(map(brief, record))}")
        check_types(kinds, known)
        return cls(**{"method": method, **known})

    def __post_init__(self) -> None:
        for name in ("tokens", "ids", "start", "stop"):
            if (count := len(getattr(self, name))) not in (0, len(self.scores)):
                raise ValueError(f"it has {len(self.scores)} scores, and {count} {name}")
        if len(self.start) != len(self.stop):
            raise ValueError(f"it has {'start' if self.start else 'stop'} alone: give start and stop of every token")
        if not (self.ids or (self.text and self.tokens)):
            raise ValueError("it has neither ids nor a text with its tokens")
        if self.text and self.tokens:
            _ = self.spans  # refuses wrong places

    @cached_property
    def spans(self) -> list[Span]:
        """The places of the tokens in the text."""
        if not self.start:
            return located_tokens(self.tokens, self.text)
        spans = [Span(*ends) for ends in zip(self.start, self.stop, strict=True)]
        for span in spans:
            if not 0 <= span.start <= span.stop <= len(self.text):
                raise ValueError(f"{tuple(span)} is no place in its text of {len(self.text)} characters")
        return spans

    def on(self, prediction: Prediction, candidates: Collection[int] = ()) -> list[float]:
        """Return the scores of the tokens of a prediction; scores of other tokens are shared out by characters."""
        if [*self.ids] == prediction.ids.tolist():
            return [*self.scores]
        if not (self.text and self.tokens):
            raise ValueError("its ids are not the ids of the prompt: give the text and its tokens beside the ids")
        text, places = prediction.located[0], [Span(*place) for place in prediction.located[1]]
        begin = text.rfind(self.text.strip())
        if begin < 0:
            raise ValueError(f"its text, {brief(self.text)}, is not the prompt's, {brief(text)}")
        shift = begin - (len(self.text) - len(self.text.lstrip()))
        moved = [Span(max(0, start + shift), max(0, stop + shift)) for start, stop in self.spans]
        told = shared_out([1.0] * len(moved), moved, places)
        if untold := [token for at in candidates if not told[at] and (token := text[slice(*places[at])].strip())]:
            raise ValueError(f"it has no score of {', '.join(map(brief, untold[:5]))}: give scores of the whole prompt")
        return shared_out(self.scores, moved, places)


@dataclass(frozen=True)
class ExternalMethod:
    """A method with scores in a file, evaluated like a method by all metrics that need no other run of the method."""

    label: str
    file: str
    digest: str
    rows: tuple[ExternalScores, ...] = field(repr=False)

    @property
    def recipe(self) -> dict[str, Any]:
        """The method in a run's request: the label, the file and the digest."""
        return {"method": self.label, "options": {"scores": self.file, "digest": self.digest}}

    @cached_property
    def signed(self) -> bool:
        return any(min(row.scores) < 0 for row in self.rows)

    @cached_property
    def _found_by(self) -> Mapping[Any, ExternalScores]:
        """The rows by the ids of prompts; rows without one by texts and by ids of tokens."""
        unnamed = [row for row in self.rows if not row.prompt]
        return {
            **{row.text.strip(): row for row in unnamed if row.text},
            **{tuple(row.ids): row for row in unnamed if row.ids},
            **{("prompt", row.prompt): row for row in self.rows if row.prompt},
        }

    def ready(self, instance: Instance, prediction: Prediction) -> Explain:
        """Return a function that gives the scores of this prompt, and refuses any other prompt."""
        keys = ("prompt", instance.id), tuple(prediction.ids.tolist()), instance.text.strip()
        row = next((self._found_by[key] for key in keys if key in self._found_by), None)
        if row is None:
            raise ValueError(f"{self.file} has no scores of {self.label} on {instance.id!r}")
        target, predicted = row.target.strip(), str(prediction.target_text).strip()
        # A token may be the beginning of a token of another tokenizer.
        if row.target and not (target.startswith(predicted) or predicted.startswith(target)):
            explained = f"{self.file} explains {row.target!r} of {instance.id!r}"
            raise ValueError(f"{explained}, and the prediction is {prediction.target_text!r}")

        def explain(asked: Prediction) -> Attribution:
            if asked is not prediction:  # under noise too, which these scores know nothing of
                raise ValueError(f"{self.label} exists as scores only: it cannot be run on another prompt")
            candidates = evidence_positions(instance, asked, "eligible") if instance.eligible else ordinary(asked)
            scores = Scores(torch.tensor(row.on(asked, candidates), dtype=torch.float64))
            return make_attribution(asked, self.label, scores, {"scores": self.file}, signed=self.signed)

        return explain


def external_methods(path: str | Path) -> list[ExternalMethod]:
    """Read the methods of a file of scores: a file of this package, of inseq, or records as the module describes."""
    path = Path(path).expanduser()
    if path.is_dir() or path.suffix == Path(RUN).suffix:
        rows = [*_of_run(path)]
        raw = "".join(map(repr, rows)).encode()
    else:
        raw = regular_file(path, f"there is no file of scores {path}").read_bytes()
        records = from_inseq(path) if INSEQ in raw[:200] else read(path, "scores")
        rows = [*each(records, lambda _, record: ExternalScores.read(record, path.stem))]
    times = Counter((row.method, row.prompt or row.text or tuple(row.ids)) for row in rows)
    if twice := [f"{method} on {brief(of)}" for (method, of), count in times.items() if count > 1]:
        raise ValueError(f"{path} has several records of {twice[0]}: give each its own method or prompt")
    digest = sha256(raw).hexdigest()[:16]
    return [
        ExternalMethod(label, path.name, digest, tuple(row for row in rows if row.method == label))
        for label in dict.fromkeys(row.method for row in rows)
    ]


def _of_run(path: Path) -> Iterator[ExternalScores]:
    with reading(path) as run:
        for prompt, method in run.explained():
            made = run.attribution(prompt, method)
            scores, ids, (start, stop) = made.scores.tolist(), made.ids.tolist(), made.offsets.T.tolist()
            target = made.target_text if isinstance(made.target_text, str) else ""
            yield ExternalScores(scores, made.text, made.tokens, ids, start, stop, prompt, method, target)


# ------------------------------------------------------------------------------------- alignment of two tokenizations
BYTE = re.compile("<0x([0-9A-F]{2})>")  # a SentencePiece token for a single byte
# The bytes of the characters in byte-level vocabularies: printable characters stand for themselves.
PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
BYTE_OF = {chr(byte): byte for byte in PRINTABLE}
BYTE_OF |= {chr(256 + number): byte for number, byte in enumerate(sorted({*range(256)} - {*PRINTABLE}))}
SPECIAL = re.compile(r"<[^<>\s]+>|\[[A-Z]+\]|<｜[^<>]+｜>")


def shared_out(scores: Sequence[float], spans: Sequence[Span], places: Sequence[Span]) -> list[float]:
    """Share each score out over the characters of its span, and return the sum of shares in each place.

    The score of an empty span is left out, and equal places divide their sum: tokens for parts of one character.
    """
    begins, ends = np.array(places).reshape(-1, 2).T
    totals, alike = np.zeros(len(places)), Counter(places)
    for score, span in zip(scores, spans, strict=True):
        inside = (np.minimum(ends, span.stop) - np.maximum(begins, span.start)).clip(0)
        totals += score * (inside / max(span.stop - span.start, 1))
    return (totals / [alike[place] for place in places]).tolist()


def located_tokens(tokens: Sequence[str], text: str) -> list[Span]:
    """Locate tokens, written as in vocabularies, in the text of the tokens; special tokens may have no place.

    A token for a part of a character's bytes gets the whole character.
    """
    raw, at, spans = text.encode(), 0, list[Span]()
    owners = [number for number, character in enumerate(text) for _ in character.encode()]
    for number, token in enumerate(tokens):
        span = _next(token, raw, at)
        if span is None and not SPECIAL.fullmatch(token.strip()):
            done = owners[at - 1] + 1 if at else 0
            raise ValueError(
                f"its token {number}, {brief(token)}, is not what the text goes on with after {done} characters, "
                f"{brief(text[done : done + 20])}: give start and stop of every token"
            )
        span = span or Span(at, at)
        at = span.stop
        start = owners[span.start] if span.start < len(owners) else len(text)
        spans.append(Span(start, owners[span.stop - 1] + 1 if span.stop > span.start else start))
    return spans


def _next(token: str, raw: bytes, at: int) -> Span | None:
    """Return the bytes of a token from a place on, with or without white space before the token."""
    for written in _spellings(token):
        if written and raw.startswith(written, at):
            return Span(at, at + len(written))
        bare = written.strip()
        start = len(raw) - len(raw[at:].lstrip())
        if bare and raw.startswith(bare, start):
            return Span(start, start + len(bare))
    return None


def _spellings(token: str) -> Iterator[bytes]:
    """Yield the byte sequences that a token may stand for."""
    for text in (token, token.replace("▁", " "), token.removeprefix("##")):
        yield text.encode()
    if byte := BYTE.fullmatch(token):
        yield bytes([int(byte[1], 16)])
    if all(character in BYTE_OF for character in token):
        yield bytes(BYTE_OF[character] for character in token)
