"""Bodies of any shape: each has an answer, or one sentence on its first fault."""

import copy
import json
import random
import re
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from safetensors.torch import save

from heta_lens.web.requests import Write
from heta_lens.web.server import App

BODIES = 2_000
PROMPT = "Alba kept the pan in the"
QUESTION = {"prompt": PROMPT, "written": [4], "at": 0, "target": None}
CHANGE = {"positions": [1], "how": "mask", "text": "jar", "counterfactual": PROMPT, "layer": 0, "results": [1]}
DIRECTION = b64encode(save({"probe": torch.ones(128)})).decode()  # as wide as the demo model
VALID: list[tuple[str, Any]] = [
    ("write", {"prompt": PROMPT, "tokens": 1}),
    ("explain", {"question": QUESTION, "methods": ["leave_one_out mask=mean"]}),
    ("explain", {"question": QUESTION | {"at": None}, "methods": ["recency"]}),
    ("explain", {"question": QUESTION | {"target": {"text": " jar", "against": " pan"}}, "methods": ["recency"]}),
    ("explain", {"question": QUESTION | {"target": {"hook": "blocks.1.mlp.hook_post", "index": 5}},
                 "methods": ["recency"]}),
    ("explain", {"question": QUESTION | {"target": {"hook": "blocks.0.attn.hook_z", "index": 1, "head": 1}},
                 "methods": ["recency"]}),
    ("explain", {"question": QUESTION | {"target": {"hook": "blocks.1.hook_resid_post", "direction": DIRECTION}},
                 "methods": ["recency"]}),
    *(("change", {"question": QUESTION, "change": CHANGE | {"how": how}}) for how in ("mask", "delete", "replace")),
    ("change", {"question": QUESTION, "change": CHANGE | {"how": "patch", "layer": 1}}),
    ("compare", {"results": [1, 2]}),
]  # fmt: skip
CHAT = {"role": "user", "content": PROMPT}  # the demo model has no chat template
OTHER = [
    *(None, True, False, 0, 1, 2, -1, 99, 10**9, 10**30, 1.5, float("nan"), float("inf"), float("-inf"), [], {}),
    *("", "x", " jar", "zebra", "\ud800", "a\nb", "heta probes=0", "os:system", "loo", "patch", "AAAA"),
    *([[[]]], [None], [1, "2"], ["recency", 5], {"a": {"b": [1]}}, {"role": "user"}, [{"role": "user"}], [{}], [CHAT]),
    *({"text": None}, {"text": ["x"]}, {"hook": "unembed"}, {"hook": "blocks.1.hook_resid_post", "index": 9999}),
]
RAW = [b"", b"null", b"5", b'"text"', b"[]", b"{", b'{"prompt":', b"\xff\xfe", b'{"a": 01}', b"[" * 5_000, b"{}{}"]
PYTHON = re.compile(
    r"Traceback|\w+Error: |object has no|has no attribute|NoneType|got an unexpected|positional argument|subscriptable"
    r"|iterable|unhashable|unpack|out of range|indices must|cannot be interpreted|unsupported operand"
)  # the words of Python itself


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a JSON value, the value itself excepted."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*at, key)
        yield from places(item, (*at, key))


def changed(body: Any, rng: random.Random) -> Any:
    """The body with one part removed, added, replaced or repeated."""
    at = [*places(body)]
    if not at or rng.random() < 0.05:
        return copy.deepcopy(rng.choice(OTHER))
    *path, key = rng.choice(at)
    holder = body
    for part in path:
        holder = holder[part]
    match rng.choice(["remove", "add", "replace", "replace", "replace", "repeat"]):
        case "remove":
            del holder[key]
        case "add" if isinstance(holder, dict):
            holder[rng.choice(["more", "text", "hook", "\ud800", "at"])] = copy.deepcopy(rng.choice(OTHER))
        case "repeat" if isinstance(holder, list):
            holder.append(copy.deepcopy(holder[key]))
        case _:
            holder[key] = copy.deepcopy(rng.choice(OTHER))
    return body


def cases(count: int) -> Iterator[tuple[str, bytes]]:
    rng = random.Random(0)
    for _ in range(count):
        path, body = copy.deepcopy(rng.choice(VALID))
        for _ in range(rng.choice([1, 1, 2, 3])):
            body = changed(body, rng)
        sent = json.dumps(body).encode()
        chance = rng.random()
        yield path, rng.choice(RAW) if chance < 0.02 else sent[: rng.randrange(len(sent))] if chance < 0.05 else sent


def errors_in(answer: httpx.Response) -> list[str]:
    told = [json.loads(line) for line in answer.text.splitlines()] if answer.status_code < 500 else []
    return [line["error"] for line in told if "error" in line]


def is_sentence(error: str) -> bool:
    return error != "" and "\n" not in error and not PYTHON.search(error)


@pytest.mark.slow
def test_a_body_of_any_shape_has_an_answer_or_one_sentence(running: App, capfd: pytest.CaptureFixture[str]) -> None:
    statuses, wrong = set[int](), list[Any]()
    with httpx.Client(base_url=running.address, timeout=300) as client:
        for path, body in VALID:  # and so there are results to compare
            assert errors_in(client.post(path, json=body)) == [], body
        for path, body in cases(BODIES):
            answer = client.post(path, content=body)
            statuses.add(answer.status_code)
            if answer.status_code not in (200, 400) or not all(map(is_sentence, errors_in(answer))):
                wrong.append((path, body, answer.status_code, errors_in(answer)))
    assert not wrong
    assert statuses == {200, 400}
    assert not any(point.fwd_hooks or point.bwd_hooks for point in running.answers.model.hook_dict.values())
    assert "Traceback" not in capfd.readouterr().err


QUESTIONED = {"question": QUESTION, "methods": ["recency"]}


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("write", {"prompt": PROMPT}, "tokens"),
        ("write", {"prompt": PROMPT, "tokens": "3"}, "tokens='3'"),
        ("write", {"prompt": PROMPT, "tokens": float("nan")}, "tokens=nan"),
        ("write", {"prompt": "\ud800", "tokens": 1}, "JSON"),
        ("write", [PROMPT], "Input should be an object"),
        ("write", {"prompt": [{"role": "user", "content": 5}], "tokens": 1}, "prompt.0.content=5"),
        ("explain", {"question": {}, "methods": []}, "question.prompt"),
        ("explain", QUESTIONED | {"methods": ["recency", "hetta"]}, "methods.1='hetta'"),
        ("explain", QUESTIONED | {"methods": ["os:system"]}, "methods.0='os:system'"),
        ("explain", QUESTIONED | {"more": 1}, "more=1: Unexpected keyword argument"),
        ("explain", QUESTIONED | {"\n" * 5_000: 1}, "Unexpected keyword argument"),
        ("explain", QUESTIONED | {"methods": []}, "methods=[]"),
        ("explain", {"question": QUESTION | {"target": {"text": " jar", "head": 2}}, "methods": ["recency"]}, "head"),
        ("explain", {"question": QUESTION | {"target": {"index": 3}}, "methods": []}, "question.target."),
        ("change", {"question": QUESTION, "change": CHANGE | {"how": "patch", "counterfactual": ""}}, "counterfactual"),
        ("explain", {"question": QUESTION | {"at": -1}, "methods": []}, "question.at=-1"),
        ("change", {"question": QUESTION, "change": CHANGE | {"positions": []}}, "change.positions=[]"),
        ("change", {"question": QUESTION, "change": CHANGE | {"how": "eat"}}, "change.how='eat'"),
        ("compare", {"results": [1]}, "results=[1]"),
    ],
)
def test_a_wrong_part_is_named(running: App, path: str, body: Any, named: str) -> None:
    answer = httpx.post(running.address + path, content=json.dumps(body), timeout=300)
    assert answer.status_code == 400 and answer.json().keys() == {"error"}
    assert named in answer.json()["error"] and len(answer.text) < 300


def test_one_fault_ends_the_check_of_a_long_list() -> None:
    with pytest.raises(ValidationError) as refused:
        TypeAdapter(Write).validate_json(json.dumps({"prompt": [1] * 100_000, "tokens": 1}))
    assert refused.value.error_count() == 2  # no text, and the first is no message
