"""Every method on the demo model in half precision, with 8-bit weights, and split over two devices.

A method's scores are compared with its scores on the model in single precision on one device. A cell is the sum of the
differences, relative to the sum of the scores, on average over the stories; or a refusal. Run it with each release of
TransformerLens, with `PYTHONPATH=tests`.
"""

import warnings
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib.metadata import version
from itertools import islice, product
from statistics import mean
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import heta_lens
from benchmarks import pages
from benchmarks.outcomes import Key, Outcomes
from helpers import quantised
from helpers.second_device import bridge_on_two_devices, second_device
from heta_lens.data.recall import stories
from heta_lens.model.loading import DEMO

STORIES = 2


def words_shared(explanation: str, claim: str) -> float:
    """Return the share of a claim's words in an explanation; the demo model cannot judge entailment."""
    words = set(claim.split())
    return len(words & {*explanation.split()}) / max(len(words), 1)


ESTIMATORS: dict[str, dict[str, Any]] = {
    "": {"probes": 2},
    ", each token alone": {"groups": None, "probes": 2},
    ", row": {"support": "row", "probes": 4},
    ", lr": {"variant": "lr", "rank": 4},
    ", ls": {"variant": "ls", "layers": 2, "probes": 2},
    ", gs": {"variant": "gs", "probes": 4},
    ", gn": {"variant": "gn", "probes": 4},
    ", win": {"variant": "win", "window": 16, "probes": 2},
}
METHODS: dict[str, dict[str, Any]] = {
    "heta": {"probes": 2},
    "heta, kl_only": {"variant": "kl_only"},
    "heta, transition_only": {"variant": "transition_only"},
    **{f"heta, curvature{name}": {**options, "gamma": 0.0} for name, options in ESTIMATORS.items()},
    **{name: {} for name in heta_lens.METHODS if name != "heta"},
    "sea_cot": {"length": 20, "explanations": 2, "entail": words_shared},
}
FLOATS, INTEGERS = ("bfloat16", "float16"), ("8 bits", "8 bits, unpacked")
COMPARED = dict.fromkeys((*FLOATS, *INTEGERS, "two devices"), "float32") | {"8 bits, unpacked": "same weights"}
COLUMNS = [*FLOATS, "8 bits (bitsandbytes)", "8 bits, to the same weights unpacked", "two devices"]


@cache
def model(setting: str) -> Any:
    if setting == "same weights":
        return quantised.bitsandbytes_plain(model("8 bits"))
    if setting.startswith("8 bits"):
        return heta_lens.load_model("demo", quantization_config="8bit")
    if setting == "two devices":
        whole = AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.float32, attn_implementation="eager")
        with second_device():
            return bridge_on_two_devices(whole, AutoTokenizer.from_pretrained(DEMO))
    return heta_lens.load_model("demo", dtype=setting)


@cache  # each is compared with several
def scores(setting: str, method: str, number: int) -> torch.Tensor:
    loaded = model(setting)
    text = next(islice(stories("test", facts=2), number, None)).text
    devices: AbstractContextManager[Any] = second_device() if setting == "two devices" else nullcontext()
    with devices, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ids = loaded.to_tokens(text)
        _, cached = loaded.run_with_cache(ids, names_filter=heta_lens.names_filter)
        name = method.split(",")[0]
        return heta_lens.attribute(cached, tokens=ids, method=name, **METHODS[method]).scores.float()


def difference(_: str, setting: str, method: str, number: int) -> float | str:
    """Return the relative difference of a method's scores, or the reason of a refusal."""
    expected = scores(COMPARED[setting], method, number)
    try:
        found = scores(setting, method, number)
    except ValueError as refused:
        return str(refused)
    return float((found - expected).abs().sum() / expected.abs().sum())


def keys(line: str) -> Iterable[Key]:
    return product([line], COMPARED, METHODS, range(STORIES))


def run() -> None:
    line = ".".join(version("transformer-lens").split(".")[:2])
    Outcomes("precision").measure(keys(line), difference)


def write() -> None:
    pages.write("precision", map(table, ("3.9", "4.3")), level=3)


def table(measured: str) -> pages.Table:
    outcomes, missing = Outcomes("precision").of(keys(measured))
    refusals: list[str] = []
    rows = [[one, *(cell(outcomes, measured, setting, one, refusals) for setting in COMPARED)] for one in METHODS]
    notes = "\n\n".join(f"({place}) {sentence}" for place, sentence in enumerate(refusals, 1))
    return pages.Table(f"TransformerLens {measured}", ["method", *COLUMNS], rows, missing, notes)


def cell(outcomes: Mapping[Key, Any], measured: str, setting: str, method: str, refusals: list[str]) -> str:
    found = [outcomes.get((measured, setting, method, number)) for number in range(STORIES)]
    refused = [outcome for outcome in found if isinstance(outcome, str)]
    if refused:
        refusals += [refused[0]] if refused[0] not in refusals else []
        return f"refused ({refusals.index(refused[0]) + 1})"
    numbers = [outcome for outcome in found if outcome is not None]
    if not numbers:
        return "–"
    average = mean(numbers)
    return "0" if average == 0 else f"{average:.0e}" if average < 1e-3 else f"{average:.2%}"
