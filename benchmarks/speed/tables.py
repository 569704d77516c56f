"""One model's tables, as they are after each length."""

from collections.abc import Iterator

from rich.console import Console
from rich.progress import track

from benchmarks.speed.cases import SMALL, Case, plan_of
from benchmarks.speed.cheaper_ways import WAY_COLUMNS, way_rows
from benchmarks.speed.costs import COSTS, FLOP_COLUMNS, WAIT_COLUMNS, cost_rows, costs, flop_row, wait_row
from benchmarks.speed.long_contexts import LONG_COLUMNS, long_rows
from benchmarks.speed.models import MODELS, prompt
from benchmarks.speed.pages import TELLING, WAIT_TITLE, Table
from benchmarks.speed.parts import PARTS

LONG, LONG_OF = 2048, {"gpt2-like"}  # contexts that are timed once, and whose
WAITED, SHOWN = "gpt2-like", (32, 128, 512)
COLUMNS = {"costs": COSTS, "flops": FLOP_COLUMNS, "ways": WAY_COLUMNS, "long": LONG_COLUMNS}


def measured(name: str, lengths: list[int], repeats: int, probes: int | None, console: Console) -> Iterator[Table]:
    """One model's tables, as they are after each length."""
    model = MODELS[name]()
    parameters = sum(weights.numel() for weights in model.parameters())
    rows: dict[str, list[list[str]]] = {"costs": [], "flops": [], "ways": [], "long": [], "waits": []}
    for n in track(lengths, name, console=console):
        if n > model.cfg.n_ctx or (n >= LONG and name not in LONG_OF):
            console.print(f"{name}: N = {n} skipped, it reads {model.cfg.n_ctx} tokens")
            continue
        case = Case.of(model, prompt(name, model, n), plan_of(n, parameters, probes))
        part_costs = costs(case, 1, long=True) if n >= LONG else costs(case, repeats)
        rows["costs"] += cost_rows(case, part_costs)
        rows["flops"].append(flop_row(case, part_costs))
        if name == WAITED and n in SHOWN:
            rows["waits"].append(wait_row(n, case.plan.probes, part_costs))
        if n <= (128 if parameters < SMALL else 32):
            rows["ways"] += way_rows(case, sum(part_costs[part].naive for part in PARTS))
        if n >= LONG:
            rows["long"] += long_rows(case, part_costs)
        for telling, of in zip(TELLING, COLUMNS, strict=False):
            if rows[of]:
                yield f"{name}: {telling}", COLUMNS[of], rows[of]
        if rows["waits"]:
            yield WAIT_TITLE, WAIT_COLUMNS, rows["waits"]
