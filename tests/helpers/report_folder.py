"""A folder of made-up records, as an evaluation would leave it."""

import json
from collections.abc import Mapping, Sequence
from math import cos
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from heta_lens.evaluation.run_folder import RECORDS, RUN, Record, append

METRICS = {
    "dsa": {"title": "Sentence share", "better": "more", "low": -1, "high": 1, "cost": "nothing", "aggregate": "mean"},
    "error": {"title": "Error", "better": "less", "low": 0, "high": None, "aggregate": "mean"},
    "bias": {"title": "Bias", "better": "nearer 0", "aggregate": "mean", "variant": "of sums", "source": "ours."},
    "soft_nc": {"title": "Soft-NC", "better": "more", "aggregate": "log_ratio"},
    "absent": {"title": "", "better": "more", "aggregate": "mean"},
}
METHODS = {
    "lime samples=80": {"method": "lime", "options": {"samples": 80}},
    "ours": {"method": "heta", "options": {}},
    "half": {"method": "reagent", "options": {"top": 3}},
    "broken": {"method": "sea_cot", "options": {}},
    "a|b <i>": {"method": "random", "options": {}},
}
RUNS: dict[str, Any] = {
    "suite": "recall",
    "suite_options": {"hops": 1},
    "model": "demo",
    "split": "test",
    "methods": METHODS,
    "metrics": METRICS,
    "versions": {"torch": "2.6"},
    "seed": 0,
    "limit": 24,
}
DSA_ONLY = {**RUNS, "metrics": {"dsa": METRICS["dsa"]}}  # which is drawn faster
N = 24  # instances, of 8 templates
DSA = {"ours": 0.75, "lime samples=80": 0.5, "half": 0.7, "a|b <i>": 0.25}
BIAS = {"ours": -0.5, "lime samples=80": -0.125, "half": 0.25, "a|b <i>": -1.0}
OWN = {"ours": 0.8, "lime samples=80": 0.0, "half": 0.8, "a|b <i>": 0.2}


def record(method: str, number: int) -> Record:
    instance, template, seconds = f"story-{number}", f"told {number % 8}", 0.25 + number / 64
    if method == "broken":
        return Record(instance, method, template, failed="cannot be asked:\n no | words")
    wave = ((number * 7) % 5 - 2) / 32  # differs between instances, and is 0 on the whole of each 5
    wave += cos(number + len(method)) / 1024  # no two methods differ by as much everywhere
    dsa = None if number in (0, 8) else DSA[method] + wave
    return Record(
        instance,
        method,
        template,
        values={
            "dsa": dsa,
            "error": 1 - DSA[method] + wave,
            "bias": BIAS[method] + wave,
            "soft_nc": [OWN[method] * (1 + wave), 0.1],
            "absent": None,
        },
        reasons={"absent": "no gold words", **({"dsa": "no distractor"} if dsa is None else {})},
        degenerate=["dsa"] if method == "ours" and number < 4 else [],
        tokens=40,
        correct=number % 4 > 0,
        seconds=seconds * (3 if method == "ours" else 1),
        forwards=5,
        backwards=2,
        log_prob=-number / 8,
    )


def records() -> list[Record]:
    """Of all, but that half has only even instances of the first 12."""
    asked = [(method, number) for number in range(N) for method in METHODS]
    return [record(*one) for one in asked if one[0] != "half" or (one[1] < 12 and one[1] % 2 == 0)]


def folder_of(folder: Path, found: Sequence[Record], run: Mapping[str, Any] = RUNS) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / RUN).write_text(json.dumps(run))
    for one in found:
        append(folder, one)
    return folder


def mean_of(method: str, metric: str, numbers: Sequence[int] = range(N)) -> float:
    values = [record(method, number).values[metric] for number in numbers]
    known = [value for value in values if isinstance(value, float)]
    return sum(known) / len(known)


def texts(page: ElementTree.Element) -> str:
    return "".join(page.itertext())


def bytes_of(folder: Path) -> dict[str, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name not in (RUN, RECORDS)]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
