"""Results of inseq and captum as records of scores."""

import base64
import gzip
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from heta_lens._util.file_reading import parse_json, read_text
from heta_lens._util.file_writing import write_atomically
from heta_lens._util.span_alignment import located_tokens

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
