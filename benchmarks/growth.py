"""Time and memory of explanations of SmolLM2 over the length of the prompt, and whether they find a needle there.

The prompt hides three facts in noise and asks for one of these. Every cell is a process of its own, so that its highest
resident size is the cell's. The arithmetic is counted in multiplications of a forward, which the two matrix products of
attention make grow faster than the prompt.
"""

import json
import math
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import torch

import heta_lens
from benchmarks import long_study, pages
from benchmarks.models import SMOLLM2
from benchmarks.outcomes import Outcomes
from benchmarks.pages import ROOT, Table, number, save_figure
from heta_lens.data.instance import Instance
from heta_lens.data.suites import suite
from heta_lens.methods.registry import method_of
from heta_lens.metrics.evidence import reciprocal_rank
from heta_lens.metrics.scores import evidence_positions

LENGTHS = (64, 256, 1_000, 4_000)
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "`fast`": ("fast", {}),
    "`careful`": ("careful", {}),
    "`heta`": ("heta", {}),
    "`heta variant=win`": ("heta", {"variant": "win"}),
    "`flash_trace`": ("flash_trace", {}),
    "`gradient_norm`": ("gradient_norm", {}),
    "`context_cite`": ("context_cite", {}),
}
MINUTES, GIB = 20, 20
NEEDLES, ENOUGH = 5, 60.0  # prompts of a cell, and the seconds after which no other is begun
OUT = "out of memory"
DRAWN = {
    "growth-seconds_of_the_processor.csv": "seconds of the processor",
    "growth-gib_beyond_the_model.csv": "GiB beyond the model",
}
COLUMNS = ["method", *(f"{length:,} tokens" for length in LENGTHS), "grows as", "the arithmetic as"]
OUTCOMES = Outcomes("growth")


def measure(setting: str, length: str) -> None:
    """Print the seconds, the memory beyond the model and the multiplications of an attribution and its cache."""
    torch.set_num_threads(1)
    model = heta_lens.load_model(SMOLLM2)
    method, options = SETTINGS[setting]
    held, begun, ranks = _resident("VmRSS"), time.process_time(), list[float]()
    multiplications, tokens = 0.0, 0
    while len(ranks) < NEEDLES and time.process_time() - begun < ENOUGH:
        instance, ids = needle(model, int(length), len(ranks))
        tokens = ids.shape[1]
        _, cache = model.run_with_cache(ids, names_filter=heta_lens.lean_names_filter)
        prediction = heta_lens.Prediction.from_cache(cache, tokens=ids)
        prediction = replace(prediction, target=prediction.spell(instance.answer or "")[0])
        found = method_of(method, options)(prediction)
        eligible, gold = (evidence_positions(instance, prediction, part) for part in ("eligible", "gold"))
        ranks.append(reciprocal_rank(found.scores, gold, candidates=eligible))
        cost = found.diagnostics.cost
        # A backward pass takes two forwards, a product four: a forward and a backward pass through both.
        passes = (cost.forwards or 0) + 2 * (cost.backwards or 0) + 4 * (cost.hvps or 0)
        multiplications = passes * _forward(model, ids)
        del cache, _, prediction, found  # before the next run
    seconds, most = (time.process_time() - begun) / len(ranks), _resident("VmHWM") - held
    sizes = {"seconds": seconds, "bytes": most, "multiplications": multiplications, "tokens": tokens, "ranks": ranks}
    print(json.dumps(sizes))  # noqa: T201


def needle(model: Any, length: int, number: int) -> tuple[Instance, torch.Tensor]:
    """Return the longest prompt that is no longer than ``length`` tokens."""
    for words in range(length, 0, -max(1, length // 64)):
        instance = suite("needle", split="test", limit=1, seed=number, words=words)[0]
        ids = model.to_tokens(instance.text)
        if ids.shape[1] <= length:
            return instance, ids
    raise ValueError(f"no needle has {length} tokens or fewer")


def _resident(of: str) -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(of))
    return int(line.split()[1]) * 1024


def _forward(model: Any, ids: torch.Tensor) -> float:
    """Return the multiplications of a forward: by every matrix once a token, and by attention once a pair of tokens."""
    config, length = model.cfg, ids.shape[1]
    matrices = sum(
        weights.numel() for name, weights in model.named_parameters() if weights.ndim > 1 and "emb" not in name
    )
    return length * matrices + 2 * config.n_layers * config.n_heads * config.d_head * length**2


def run(*settings: str) -> None:
    for setting in settings or SETTINGS:
        OUTCOMES.measure([(setting, length) for length in LENGTHS], measured)
    if not settings:
        long_study.run()


def measured(setting: str, length: int) -> dict[str, Any]:
    """Measure a cell that the cells before it promise within the limits, or return what they promise."""
    known = [one for (name, _), one in OUTCOMES.read().items() if name == setting]
    promised = predicted(known, length)
    if promised["seconds"] > 60 * MINUTES or promised["bytes"] > GIB * 2**30:
        return promised | {"estimated": True}
    command = [sys.executable, "-m", "benchmarks.growth", setting, str(length)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode == -9:  # the machine ran out of memory
        return promised | {"estimated": True}
    done.check_returncode()
    return json.loads(done.stdout.splitlines()[-1])


def predicted(known: list[dict[str, Any]], length: int) -> dict[str, Any]:
    """Return the continuation of the last two lengths, on logarithmic scales."""
    if len(known) < 2:
        return {"seconds": 0.0, "bytes": 0.0, "tokens": length}
    before, last = known[-2:]
    beyond = math.log(length / last["tokens"]) / math.log(last["tokens"] / before["tokens"])
    sizes = {
        name: last[name] * (last[name] / before[name]) ** beyond for name in ("seconds", "bytes", "multiplications")
    }
    return {**sizes, "tokens": length}


# -------------------------------------------------------------------------------------------------------------- tables
def write() -> None:
    found = OUTCOMES.read()
    missing = sum((setting, length) not in found for setting in SETTINGS for length in LENGTHS)
    if missing:
        raise SystemExit(f"{missing} cells are not measured: make table-growth measures them")
    tables = [
        Table("Seconds of the processor", COLUMNS, [row(found, setting, "seconds", 1) for setting in SETTINGS]),
        Table("GiB beyond the model", COLUMNS[:-1], [row(found, setting, "bytes", 2**30) for setting in SETTINGS]),
        Table(
            "Found",
            COLUMNS[:-2],
            [[setting, *(hits(found[setting, length]) for length in LENGTHS)] for setting in SETTINGS],
        ),
    ]
    pages.write("growth", [*tables, *long_study.tables()])
    save_figure(figure(), ROOT / "docs" / "growth.webp")


def row(found: dict[Any, Any], setting: str, of: str, unit: float) -> list[str]:
    cells = [found[setting, length] for length in LENGTHS]
    shown = [
        OUT if killed(cell) else f"{number(cell[of] / unit)}{' (not run, estimated)' * ('estimated' in cell)}"
        for cell in cells
    ]
    real = [cell for cell in cells if "estimated" not in cell]
    slopes = [f"N^{slope(real, of):.1f}"]
    if of == "seconds":
        slopes.append(f"N^{slope(real, 'multiplications'):.1f}")
    return [setting, *shown, *slopes]


def killed(cell: dict[str, Any]) -> bool:
    """Return whether a cell was run, because the cells before it promised that it fits, and did not."""
    return "estimated" in cell and cell["seconds"] <= 60 * MINUTES and cell["bytes"] <= GIB * 2**30


def hits(cell: dict[str, Any]) -> str:
    """Return how many needles had the highest score, of how many."""
    return f"{sum(rank == 1 for rank in cell['ranks'])} of {len(cell['ranks'])}" if "ranks" in cell else "–"


def slope(cells: list[dict[str, Any]], of: str) -> float:
    """Return the exponent between the last two lengths."""
    before, last = cells[-2:]
    return math.log(last[of] / before[of]) / math.log(last["tokens"] / before["tokens"])


def figure() -> Any:
    """Draw the tables: a dotted line to an estimate, and no line to a cell that was out of memory."""
    drawn, axes = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
    for axis, (file, title) in zip(axes, DRAWN.items(), strict=True):
        out = list[str]()
        for place, (setting, *cells) in enumerate(pd.read_csv(pages.CSV / file, dtype=str).to_numpy().tolist()):
            name, shown = setting.strip("`"), cells[: len(LENGTHS)]
            fits = [(at, cell) for at, cell in zip(LENGTHS, shown, strict=True) if cell != OUT]
            points = [(at, float(cell.split()[0])) for at, cell in fits]
            real = sum("estimated" not in cell for _, cell in fits)
            rings = {"markersize": 10, "fillstyle": "none"} if name == "heta" else {}  # below the dots of its windows
            axis.plot(*zip(*points[:real], strict=True), "o-", color=f"C{place}", label=name, **rings)
            axis.plot(*zip(*points[real - 1 :], strict=True), ":", color=f"C{place}")
            out += [f"{name}, {at:,} tokens" for at, cell in zip(LENGTHS, shown, strict=True) if cell == OUT]
        axis.set(xscale="log", yscale="log", xlabel="tokens", title=title)
        axis.set_xticks(LENGTHS, [f"{length:,}" for length in LENGTHS])
        axis.minorticks_off()
        axis.text(0.03, 0.97, "\n".join([f"{OUT}:", *out]), transform=axis.transAxes, va="top", fontsize=8)
    drawn.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    return drawn


if __name__ == "__main__":
    measure(*sys.argv[1:])
