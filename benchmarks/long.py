"""A context whose patterns alone are gigabytes: what is proposed for it, and how much memory that takes.

`python -m benchmarks.long` writes its table into RESULTS.md. One window, the middle one, is measured and stands for
all; memory is the process's own, at its highest.
"""

import resource
import time

import torch

import heta_lens
from benchmarks.report import number, show
from benchmarks.speed.cases import Case, Plan
from benchmarks.speed.models import MODELS, prompt
from benchmarks.speed.pages import Table, keep
from benchmarks.speed.parts import exact_i, grouped_s
from heta_lens.methods.heta.curvature import segments_of
from heta_lens.methods.heta.windows import windows

MODEL, LENGTH = "gpt2-like", 4096
ROOM = 9 * 2**30  # bytes for attribution, of twelve that the whole process may have
COLUMNS = ["N", "patterns alone, GiB", "proposed for 9 GiB", "s", "foreseen, s", "process at most, GiB"]


def most() -> float:
    """GiB that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def measured() -> Table:
    model = MODELS[MODEL]()
    ids = prompt(MODEL, model, LENGTH)
    with torch.no_grad():
        _, cache = model.run_with_cache(ids, names_filter=heta_lens.lean_names_filter)
    advice = heta_lens.estimate(cache, tokens=ids, memory=ROOM)
    proposed = next(other for other in advice.cheaper if other.options.get("variant") == "win")
    method = heta_lens.Heta(**proposed.options)
    prediction = heta_lens.Prediction.from_cache(cache, tokens=ids)
    begun = time.perf_counter()
    heta_lens.Heta(variant="transition_only")(prediction)
    gate = time.perf_counter() - begun
    case = Case(model, ids, prediction, Plan(method.probes, None, 1, proposed.batch))
    placed = segments_of(prediction, windows(LENGTH, method.window, method.overlap))
    middle = placed[len(placed) // 2]
    with prediction.running():
        totals = [one(case, time.perf_counter, middle).total for one in (grouped_s, exact_i)]
    seconds = gate + sum(totals) * LENGTH / len(range(*middle.scored))
    patterns = model.cfg.n_layers * model.cfg.n_heads * LENGTH**2 * 4 / 2**30
    how = ", ".join(f"{name}={value!r}" for name, value in proposed.options.items())
    row = [str(LENGTH), number(patterns), how, f"~{number(seconds)}", number(proposed.seconds), f"{most():.1f}"]
    return f"{MODEL}: what memory holds", COLUMNS, [row]


if __name__ == "__main__":
    table = measured()
    keep(table)
    show(*table)
