"""Time and memory of explanations of SmolLM2 over the length of the prompt, beside those of a plain forward pass.

Every cell is a process of its own, so that its highest resident size is the cell's. A cell also times a plain forward
pass of its prompt, so that both are of one process.
"""

import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch

import heta_lens
from benchmarks import long_study, pages
from benchmarks.models import SMOLLM2
from benchmarks.outcomes import Key, Outcomes
from benchmarks.pages import ROOT, Table, number, save_figure
from heta_lens.data.suites import suite
from heta_lens.methods.registry import method_of

LENGTHS = (64, 256, 1_000, 4_000, 8_000)
FORWARD = "a forward pass"
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    FORWARD: ("", {}),
    "`fast`": ("fast", {}),
    "`attn_lrp`": ("attn_lrp", {}),
    "`gradient_norm`": ("gradient_norm", {}),
    "`flash_trace`": ("flash_trace", {}),
    "`leave_one_out`, 16 runs": ("leave_one_out", {"forwards": 16}),
    "`leave_one_out`, 64 runs": ("leave_one_out", {"forwards": 64}),
    "`attribot`": ("attribot", {}),
    "`context_cite`": ("context_cite", {}),
    "`leave_one_out`": ("leave_one_out", {}),
    "`careful`": ("careful", {}),
    "`heta`": ("heta", {}),
}
MINUTES, GIB = 35, 20
PROMPTS, ENOUGH = 5, 10.0  # prompts of a cell, and the seconds after which no other is begun
OUTCOMES = Outcomes("growth")


def measure(setting: str, length: str) -> None:
    """Print the seconds of an attribution with its cache, those of a forward pass, and the memory beyond the model."""
    torch.set_num_threads(1)
    model = heta_lens.load_model(SMOLLM2)
    method, options = SETTINGS[setting]
    held, seconds, forwards, tokens = _resident("VmRSS"), list[float](), list[float](), 0
    while len(seconds) < PROMPTS and sum(seconds) < ENOUGH:
        ids, answer = needle(model, int(length), len(seconds))
        tokens = ids.shape[1]
        begun = time.process_time()
        with torch.no_grad():
            model(ids, return_type=None)
        forwards.append(time.process_time() - begun)
        if setting == FORWARD:
            seconds.append(forwards[-1])
            continue
        begun = time.process_time()
        _, cache = model.run_with_cache(ids, names_filter=heta_lens.lean_names_filter)
        prediction = heta_lens.Prediction.from_cache(cache, tokens=ids)
        prediction = replace(prediction, target=prediction.spell(answer)[0])
        method_of(method, {**options, "progress": False})(prediction)
        seconds.append(time.process_time() - begun)
        del cache, _, prediction  # before the next run
    sizes = {
        "seconds": sum(seconds) / len(seconds),
        "forward": sum(forwards) / len(forwards),
        "bytes": _resident("VmHWM") - held,
        "tokens": tokens,
        "prompts": len(seconds),
    }
    print(json.dumps(sizes))  # noqa: T201


def needle(model: Any, length: int, number: int) -> tuple[torch.Tensor, str]:
    """Return the longest prompt that is no longer than ``length`` tokens, and its answer."""
    for words in range(length, 0, -max(1, length // 64)):
        instance = suite("needle", split="test", limit=1, seed=number, words=words)[0]
        ids = model.to_tokens(instance.text)
        if ids.shape[1] <= length:
            return ids, instance.answer or ""
    raise ValueError(f"no needle has {length} tokens or fewer")


def _resident(of: str) -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(of))
    return int(line.split()[1]) * 1024


def run(*settings: str) -> None:
    for length in LENGTHS:
        OUTCOMES.measure([(setting, length) for setting in settings or SETTINGS], measured)
    if not settings:
        long_study.run()


def measured(setting: str, length: int) -> dict[str, Any]:
    """Measure a cell that the cells before it promise within the limits, or return what they promise."""
    promised = promised_by(OUTCOMES.read(), setting, length)
    if promised["seconds"] > 60 * MINUTES or promised["bytes"] > GIB * 2**30:
        return {"estimated": True}
    command = [sys.executable, "-m", "benchmarks.growth", setting, str(length)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode == -9:  # the machine ran out of memory
        return promised | {"estimated": True, "killed": True}
    done.check_returncode()
    return json.loads(done.stdout.splitlines()[-1])


def promised_by(outcomes: Mapping[Key, dict[str, Any]], setting: str, length: int) -> dict[str, Any]:
    """Return what the measured cells of shorter prompts promise for a cell."""
    known = [one for (name, _), one in outcomes.items() if name == setting and "estimated" not in one]
    forward = outcomes.get((FORWARD, length), {})
    if setting != FORWARD and not forward:
        forward = promised_by(outcomes, FORWARD, length)
    return predicted(known, length, forward.get("seconds"))


def predicted(known: list[dict[str, Any]], length: int, forward: float | None = None) -> dict[str, Any]:
    """Return the continuation of the last two lengths, on logarithmic scales: the time by ``forward`` passes."""
    if len(known) < 2:
        return {"seconds": 0.0, "forward": 0.0, "bytes": 0.0, "tokens": length}
    before, last = known[-2:]
    beyond = math.log(length / last["tokens"]) / math.log(last["tokens"] / before["tokens"])
    sizes = {name: last[name] * (last[name] / before[name]) ** beyond for name in ("seconds", "forward", "bytes")}
    seconds = sizes["seconds"] / sizes["forward"] * (forward or sizes["forward"])
    return {**sizes, "seconds": seconds, "forward": forward or sizes["forward"], "tokens": length}


# -------------------------------------------------------------------------------------------------------------- tables
COLUMNS = ["method", *(f"{length:,} tokens" for length in LENGTHS)]


def write() -> None:
    save_figure(figure(cells()), ROOT / "docs" / "growth.webp")
    pages.write("growth", tables())


def cells() -> dict[str, list[dict[str, Any]]]:
    """Return the cells of every setting; one that was not run is estimated from shorter prompts."""
    found = OUTCOMES.read()

    def cell(setting: str, length: int) -> dict[str, Any]:
        own = found.get((setting, length), {"estimated": True})
        return {**promised_by(found, setting, length), **own} if own.keys() == {"estimated"} else own

    return {setting: [cell(setting, length) for length in LENGTHS] for setting in SETTINGS}


def tables() -> list[Table]:
    rows = {of: [[name, *map(form, own)] for name, own in cells().items()] for of, form in FORMS.items()}
    return [*(Table(of, COLUMNS, own) for of, own in rows.items()), *long_study.tables()]


def time_of(cell: dict[str, Any]) -> str:
    seconds, forwards = number(cell["seconds"]), number(cell["seconds"] / cell["forward"])
    return f"{seconds} s{marked(cell)}" if forwards == "1" else f"{seconds} s, {forwards} forwards{marked(cell)}"


def memory_of(cell: dict[str, Any]) -> str:
    if "estimated" in cell:  # memory depends on what fits, so shorter prompts tell little
        return "out of memory" if "killed" in cell else "–"
    return f"{number(cell['bytes'] / 2**30)} GiB"


FORMS: Mapping[str, Callable[[dict[str, Any]], str]] = {"Time": time_of, "Memory": memory_of}


def marked(cell: dict[str, Any]) -> str:
    return " (out of memory)" if "killed" in cell else " (estimated)" if "estimated" in cell else ""


SHOWN = ("`fast`", "`flash_trace`", "`leave_one_out`, 64 runs", "`context_cite`", "`leave_one_out`", "`heta`")


def figure(cells: dict[str, list[dict[str, Any]]]) -> Any:
    """Draw time and memory over the length; time that is estimated is dotted."""
    drawn, axes = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
    for axis, (of, unit, title) in zip(
        axes, [("seconds", 60, "minutes of one core"), ("bytes", 2**30, "GiB beyond the model")], strict=True
    ):
        for place, (setting, own) in enumerate((setting, cells[setting]) for setting in SHOWN):
            points = [(cell["tokens"], cell[of] / unit) for cell in own if "killed" not in cell]
            real = sum("estimated" not in cell for cell in own)
            axis.plot(*zip(*points[:real], strict=True), "o-", color=f"C{place}", label=setting.replace("`", ""))
            if of == "seconds":
                axis.plot(*zip(*points[max(real - 1, 0) :], strict=True), ":", color=f"C{place}")
        axis.set(xscale="log", yscale="log", xlabel="tokens", title=title)
        axis.set_xticks(LENGTHS, [f"{length:,}" for length in LENGTHS])
        axis.minorticks_off()
    drawn.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    return drawn


if __name__ == "__main__":
    measure(*sys.argv[1:])
