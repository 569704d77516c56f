"""Whether the fields read from a file make an attribution that can be used like a fresh one."""

from collections.abc import Mapping, Sequence
from math import isnan
from typing import Any

import torch
from torch import Tensor

from heta_lens._util.files import brief, check_utf8
from heta_lens._util.options import check_types, fits
from heta_lens._util.target_kinds import Side, members, sides

FUNCTION = "function"  # under which a file names a target that has no ids
TYPES = {
    "tokens": tuple[str, ...],
    "text": str,
    "target": Side | tuple[Side, Side] | Mapping[str, str],
    "target_text": str | tuple[str, ...],
    "method": str,
    "parts": Mapping[str, Tensor],
    "options": Mapping[str, Any],
    "diagnostics": Mapping[str, Any],
    "signed": bool,
    "messages": Mapping[str, Any] | None,
}
SPELLED = ("other_spellings", "target_members")
OF_MESSAGES = ("roles", "places", "owners")
ONE_PER_TOKEN = ("balanced", "drop", "envelope", "cross_talk", "completeness_gaps")
KNOWN = {
    "chosen": Mapping[str, Any],
    "standard_errors": Mapping[str, Tensor | None],
    "left_out": int,
    "probes": int | Tensor,
    "effects": Tensor,
    "target_log_prob": float | tuple[float, float],
    "target_rank": int | tuple[int, int],
    "target_token": str | tuple[str, str],
    **dict.fromkeys(SPELLED, Sequence[Mapping[str, Any]]),
    "target_value": float,
    "completeness_cause": str,
    **dict.fromkeys(("sink_mass", "template_mass", "completeness_gap", "completeness_due"), float),
    **dict.fromkeys(ONE_PER_TOKEN, Tensor | Mapping[str, Any] | None),
    **dict.fromkeys(("forwards", "backwards", "hvps", "forwards_shared_by"), int),
}
"""Of the diagnostics, those that anything is computed from."""
WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
REAL = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
SPELLING = {"text": str, "id": int, "log_prob": float}
LIKELY = ("target_log_prob", "target_rank")


def check_shapes(fields: Mapping[str, Any]) -> None:
    """Refuse other types, dtypes and lengths; tensors need no contents for it."""
    check_types(TYPES, fields)
    check_types(KNOWN, fields["diagnostics"])
    count = len(fields["tokens"])
    if not count:
        raise ValueError("it has no tokens")
    _check_texts(fields)
    for name, kinds in {"ids": WHOLE, "positions": WHOLE, "special": (torch.bool,), "scores": REAL}.items():
        _check_tensor(name, fields[name], kinds, (count,))
    _check_tensor("offsets", fields["offsets"], WHOLE, (count, 2))
    for name, part in fields["parts"].items():
        _check_tensor(f"parts[{name!r}]", part, REAL, (count,))
    if fields.get("interactions") is not None:
        _check_tensor("interactions", fields["interactions"], REAL, (count, count))
    _check_target(fields["target"])
    _check_pair(fields)
    _check_messages(fields.get("messages"), count)
    _check_diagnostics(fields["diagnostics"], count)


def _check_texts(fields: Mapping[str, Any]) -> None:
    """Half of a surrogate pair is no text of a table."""
    target = fields["target_text"]
    for name, texts in ("tokens", fields["tokens"]), ("target_text", (target,) if isinstance(target, str) else target):
        for at, text in enumerate(texts):
            check_utf8(f"its {name}[{at}]", text)


def _check_tensor(name: str, value: Any, kinds: Sequence[torch.dtype], shape: tuple[int, ...]) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"its {name} is {brief(value)}, and must be a tensor")
    if value.dtype not in kinds or tuple(value.shape) != shape:
        raise ValueError(
            f"its {name} has shape {tuple(value.shape)} and {value.dtype}, and must have shape {shape} and "
            f"{' or '.join(map(str, kinds[:2]))}"
        )


def _check_target(target: Any) -> None:
    """Refuse ids below 0, sets that are no sets, sides of a contrast that share a token, and nameless functions."""
    if isinstance(target, Mapping):
        if target.keys() != {FUNCTION}:
            raise ValueError(f"its target is {brief(target)}, which names no {FUNCTION}")
        return
    both = sides(target)
    ids = [token for side in both for token in members(side)]
    if any(isinstance(side, frozenset) and len(side) < 2 for side in both) or len({*ids}) < len(ids):
        raise ValueError(f"its target is {brief(target)}: a set has at least 2 tokens, a contrast none of them twice")
    if min(ids) < 0:
        raise ValueError("its target is below 0")


def _check_pair(fields: Mapping[str, Any]) -> None:
    """A contrast has two of everything that is stored of a target."""
    paired, diagnostics = isinstance(fields["target"], tuple), fields["diagnostics"]
    names = {
        "target_text": fields["target_text"],
        "target_token": diagnostics.get("target_token"),
        **{name: diagnostics.get(name) for name in LIKELY},
    }
    if (LIKELY[0] in diagnostics) != (LIKELY[1] in diagnostics):
        raise ValueError(f"its diagnostics have only one of {' and '.join(LIKELY)}")
    if isinstance(fields["target"], Mapping) and LIKELY[0] in diagnostics:
        raise ValueError(f"its diagnostics have {' and '.join(LIKELY)}, which a function as the target has not")
    for name, value in names.items():
        if value is not None and (isinstance(value, tuple) != paired or (paired and len(value) != 2)):
            raise ValueError(f"its {name} is {brief(value)}, which does not fit the target {brief(fields['target'])}")


def _check_messages(messages: Mapping[str, Any] | None, count: int) -> None:
    """A chat has a message, or the template, for each token, and places for what messages say."""
    if messages is None:
        return
    if messages.keys() != {*OF_MESSAGES}:
        raise ValueError(f"its messages have {brief([*messages])}, and must have {', '.join(OF_MESSAGES)}")
    if not fits(messages["roles"], tuple[str, ...]):
        raise TypeError(f"its messages have the roles {brief(messages['roles'])}, and must have a list of text")
    for role in messages["roles"]:
        check_utf8("a role of its messages", role)
    _check_tensor("messages' owners", messages["owners"], WHOLE, (count,))
    places = messages["places"]
    rows = len(places) if isinstance(places, Tensor) and places.ndim else 0
    _check_tensor("messages' places", places, WHOLE, (rows, 3))


def _check_diagnostics(diagnostics: Mapping[str, Any], count: int) -> None:
    for name in SPELLED:
        for token in diagnostics.get(name, ()):
            if not token.keys() >= SPELLING.keys():
                raise ValueError(f"its {name} hold {brief(token)}, without {', '.join(SPELLING)}")
            check_types(SPELLING, token)
    if isinstance(diagnostics.get("probes"), Tensor):
        _check_tensor("probes", diagnostics["probes"], WHOLE, (count,))
    errors = diagnostics.get("standard_errors", {})
    for name, error in errors.items():
        if error is not None:
            shape = (count, count) if name == "interactions" else (count,)
            _check_tensor(f"standard_errors[{name!r}]", error, REAL, shape)
    if errors.get("scores") is not None and "probes" not in diagnostics:
        raise ValueError("its diagnostics have standard_errors but no probes")
    for name in ONE_PER_TOKEN:
        _check_rows(name, diagnostics.get(name), count)
    effects = diagnostics.get("effects")
    if effects is not None and (effects.ndim != 2 or effects.shape[1] != count):
        raise ValueError(f"its effects have shape {tuple(effects.shape)}, and must have {count} columns")


def _check_rows(name: str, value: Any, count: int) -> None:
    """A row for each token in every tensor."""
    if isinstance(value, Mapping):
        for inner, item in value.items():
            _check_rows(f"{name}[{inner!r}]", item, count)
    elif value is not None and not (isinstance(value, Tensor) and value.ndim and value.shape[0] == count):
        shown = tuple(value.shape) if isinstance(value, Tensor) else brief(value)
        raise ValueError(f"its {name} is or has shape {shown}, and must have a row for each of the {count} tokens")


def check_values(fields: Mapping[str, Any]) -> None:
    """Refuse scores that are not finite, and places that are not in the text or out of order."""
    named = {"scores": fields["scores"], **fields["parts"], "interactions": fields.get("interactions")}
    for name, values in named.items():
        if values is not None and not bool(values.isfinite().all()):
            at = (~values.isfinite()).nonzero()[0].tolist()
            raise ValueError(f"its {name} at {at} is {float(values[tuple(at)])}, and must be finite")
    _check_places(fields)
    _check_message_values(fields.get("messages"), len(fields["text"]))
    _check_probabilities(fields["diagnostics"])


def _check_places(fields: Mapping[str, Any]) -> None:
    if int(fields["ids"].min()) < 0:
        raise ValueError("its ids are below 0")
    positions = fields["positions"].to(torch.int64)
    if int(positions[0]) < 0 or bool((positions.diff() <= 0).any()):
        raise ValueError(f"its positions are {brief(positions.tolist())}, and must be in ascending order from 0 up")
    start, stop = fields["offsets"].to(torch.int64).unbind(1)
    wrong = (start < 0) | (stop < start) | (stop > len(fields["text"]))
    if bool(wrong.any()):
        at = int(wrong.nonzero()[0])
        raise ValueError(
            f"its offsets[{at}] are ({int(start[at])}, {int(stop[at])}), which is not a place in its text of "
            f"{len(fields['text'])} characters"
        )


def _check_message_values(messages: Mapping[str, Any] | None, length: int) -> None:
    if messages is None:
        return
    owners, count = messages["owners"].to(torch.int64), len(messages["roles"])
    if bool(((owners < -1) | (owners >= count)).any()):
        raise ValueError(
            f"its messages' owners are {brief(owners.tolist())}, and must be -1 or one of {count} messages"
        )
    number, start, stop = messages["places"].to(torch.int64).unbind(1)
    if bool(((number < 0) | (number >= count) | (start < 0) | (stop < start) | (stop > length)).any()):
        raise ValueError(
            f"its messages' places are {brief(messages['places'].tolist())}, and must be of {count} messages and in "
            f"its text of {length} characters"
        )


def _check_probabilities(diagnostics: Mapping[str, Any]) -> None:
    log_probs = diagnostics.get("target_log_prob", 0.0)
    for log_prob in log_probs if isinstance(log_probs, tuple) else (log_probs,):
        if not (isnan(log_prob) or log_prob <= 1e-3):
            raise ValueError(f"its target_log_prob is {log_prob}, and must be at most 0")
    probes = diagnostics.get("probes", 1)
    if int(torch.as_tensor(probes).min()) < 0:
        raise ValueError("its probes are below 0")
