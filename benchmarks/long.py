"""A context whose patterns alone are gigabytes: the options proposed for it, and the memory that they take.

The table is a part of SPEED.md. The middle window is measured and stands for all windows; memory is the process's own,
at its highest.
"""

import resource
import time

import torch

import heta_lens
from benchmarks import pages
from benchmarks.models import MODELS, prompt
from benchmarks.pages import Table, number
from benchmarks.speed import Case, Plan, exact_i, grouped_s
from heta_lens.methods.heta.windows import spans_over, windows_of

MODEL, LENGTH = "gpt2-like", 4096
ROOM = 9 * 2**30  # bytes for attribution, of twelve that the whole process may have
COLUMNS = ["N", "patterns alone, GiB", "proposed for 9 GiB", "s", "foreseen, s", "process at most, GiB"]


def most() -> float:
    """Return the GiB that this process has held at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def table() -> Table:
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
    placed = windows_of(prediction, spans_over(LENGTH, method.window, method.overlap))
    middle = placed[len(placed) // 2]
    with prediction.running():
        totals = [one(case, time.perf_counter, middle).total for one in (grouped_s, exact_i)]
    seconds = gate + sum(totals) * LENGTH / len(middle.scored)
    patterns = model.cfg.n_layers * model.cfg.n_heads * LENGTH**2 * 4 / 2**30
    how = ", ".join(f"{name}={value!r}" for name, value in proposed.options.items())
    row = [str(LENGTH), number(patterns), how, f"~{number(seconds)}", number(proposed.seconds), f"{most():.1f}"]
    return Table(f"{MODEL}: what memory holds", COLUMNS, [row])


def write() -> None:
    pages.write("speed", [table()])
