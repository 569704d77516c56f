"""What an exact score costs beside the paper's formulas taken literally, and what cheaper ways cost beside that.

`python -m benchmarks.speed` writes RESULTS.md and the table in the README; with `--model`, that model's tables in them;
with another option it only shows what it finds.
The literal loop is `benchmarks/reference.py`: one full-length product for each token and probe, one full run for each
masked token.

Long contexts would take hours, so a part of the work is measured and stands for the rest: the literal loop costs the
same for every token; the exact path costs a start for each group of neighbours and then as much for each of its tokens,
and both are interpolated over how many positions a run passes through.
"""

import gc
import json
import re
import runpy
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
import typer
from rich.console import Console
from rich.progress import track
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode
from transformer_lens.model_bridge import TransformerBridge

import heta_lens
from benchmarks.reference import block_curvature, gradient_graph, literal_information
from benchmarks.report import markdown, show
from heta_lens.batches import MASKED, Batches, per_product
from heta_lens.curvature import curvature, rademacher
from heta_lens.data.recall import stories
from heta_lens.diagnostics import agreement
from heta_lens.divergence import DIVERGENCES
from heta_lens.hessian import OVERSAMPLING, Columns
from heta_lens.information import information
from heta_lens.pieces import Piece, pieces
from heta_lens.prediction import versions
from heta_lens.windows import Window, windows

HERE = Path(__file__).parent
RESULTS = HERE / "RESULTS.md"
STORIES = HERE.parents[1] / "shared" / "models" / "stories3M"
LENGTHS = [32, 128, 512, 2048]
LONG, LONG_OF = 2048, {"gpt2-like"}  # contexts that are timed once, and whose
REPEATS, SEED, RANK = 2, 0, 64
SMALL = 10**7  # parameters; of a larger model, whole scores are asked of the shortest context alone

Table = tuple[str, list[str], list[list[str]]]
Read = Callable[[], float]
"""A meter: seconds passed so far, or FLOPs counted."""


# ------------------------------------------------------------------------------------------------------------- models
WIDE = {"n_layers": 8, "d_model": 512, "n_heads": 8, "d_head": 64, "d_vocab": 20_000, "n_ctx": 4096}
SIZES: dict[str, dict[str, Any]] = {
    "gpt2-like": {**WIDE, "d_mlp": 2048, "act_fn": "gelu_new", "normalization_type": "LN"},
    "llama-like": {
        **WIDE, "d_mlp": 1408, "act_fn": "silu", "gated_mlp": True, "n_key_value_heads": 2,
        "positional_embedding_type": "rotary", "normalization_type": "RMS", "final_rms": True,
    },
}  # fmt: skip


def random_model(sizes: dict[str, Any]) -> Any:
    """Weights at which predictions are neither flat nor sure, and every layer adds as much as it finds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            from transformer_lens import HookedTransformer, HookedTransformerConfig
        except ImportError:  # since TransformerLens 4
            model = TransformerBridge.boot_native(sizes, device="cpu")
        else:
            model = HookedTransformer(HookedTransformerConfig.from_dict({**sizes, "device": "cpu"}))
    generator = torch.Generator().manual_seed(SEED)
    scale = sizes["d_model"] ** -0.5
    for name, weights in model.named_parameters():
        if weights.ndim > 1 and not re.search(r"\bb_|_b_|bias", name):
            size = 4 * scale if re.search("unembed|head", name) else 0.5 if "embed" in name else scale
            weights.data.normal_(std=size, generator=generator)
    return model.eval()


def stories_model() -> Any:
    return runpy.run_path(str(STORIES / "load.py"))["load_hooked"](str(STORIES))


MODELS: dict[str, Callable[[], Any]] = {
    **{name: lambda sizes=sizes: random_model(sizes) for name, sizes in SIZES.items()},
    "demo": heta_lens.load_demo_model,
    "stories3M": stories_model,
}


def prompt(name: str, model: Any, n: int) -> Tensor:
    """What the model was trained on, as much of it as is asked for; random ids for random weights."""
    if name == "demo":
        told = (model.to_tokens(story.text)[0].tolist() for story in stories("test"))
    elif name == "stories3M":
        lines = (HERE / "copied_words" / "prompts.jsonl").read_text().splitlines()
        told = (json.loads(line)["ids"] for line in lines)
    else:
        return torch.randint(model.cfg.d_vocab, (1, n), generator=torch.Generator().manual_seed(SEED))
    first = next(told)  # only one of them begins the text
    return torch.tensor([[*islice(chain(first, *(ids[1:] for ids in islice(told, n))), n)]])


# --------------------------------------------------------------------------------------------------- what is measured
class Plan(NamedTuple):
    """Probes a token, and how many tokens of the literal loop and groups of the exact path are measured; None for all.

    Of a group, as many tokens are measured as are done at once.
    """

    probes: int
    literal: int | None
    groups: int | None
    batch: int | Literal["auto"] = "auto"


PLANS = {32: Plan(10, 4, 6), 128: Plan(10, 2, 4), 512: Plan(10, 2, 4), 2048: Plan(2, 1, 3)}


def plan_of(n: int, parameters: int, probes: int | None) -> Plan:
    if parameters < SMALL and n <= LENGTHS[0]:
        plan = Plan(10, None, None)
    else:
        plan = PLANS[max((length for length in PLANS if length <= n), default=min(PLANS))]
    return plan._replace(probes=probes or plan.probes)


class Case(NamedTuple):
    model: Any
    ids: Tensor
    prediction: heta_lens.Prediction
    plan: Plan

    @classmethod
    def of(cls, model: Any, ids: Tensor, plan: Plan) -> "Case":
        _, cache = model.run_with_cache(ids, names_filter=heta_lens.names_filter)
        return cls(model, ids, heta_lens.Prediction.from_cache(cache, tokens=ids), plan)

    @property
    def whole(self) -> Piece:
        return pieces(self.prediction, [Window(0, len(self.prediction))], "frozen", None)[0]

    @property
    def target(self) -> int:
        assert isinstance(self.prediction.target, int)
        return self.prediction.target


class Measured(NamedTuple):
    """What all tokens cost, and the parts of the score that were found on the way, by position."""

    total: float
    found: dict[int, float]


def spread(items: Sequence[Any], count: int | None) -> list[Any]:
    """So many of them, evenly, the first and the last among them."""
    if count is None or count >= len(items):
        return [*items]
    return [items[round(at)] for at in np.linspace(0, len(items) - 1, count)] if count > 1 else [items[0]]


def grouped(piece: Piece, start_cost: float, plan: Plan) -> tuple[list[list[int]], list[list[int]]]:
    """All groups of tokens that a piece scores, and those that are measured."""
    groups = piece.groups(range(*piece.scored), start_cost)
    return groups, spread(groups, plan.groups)


def at_once(case: Case, piece: Piece, products: bool = False) -> Batches:
    return case.prediction.prompt.batches(case.plan.batch, len(piece.states), products=products)


def extrapolated(measured: dict[int, tuple[float, float]], passed: Sequence[int], counts: Sequence[int]) -> float:
    """What groups of so many tokens cost, by the positions their runs pass through: a start, and then each token."""
    at = sorted(measured)
    starts, tokens = (np.interp(passed, at, [measured[reach][k] for reach in at]) for k in range(2))
    return float((starts + tokens * np.array(counts)).sum())


def reach(piece: Piece, group: Sequence[int]) -> int:
    return len(piece.states) - group[0]


def literal_s(case: Case, read: Read) -> Measured:
    groups = grouped(case.whole, per_product(case.plan.probes), case.plan)[1]
    tokens = spread([group[0] for group in groups] if case.plan.literal else range(len(case.ids[0])), case.plan.literal)
    begun = read()
    graph = gradient_graph(case.model, case.ids, case.target)
    built = read()
    found = {i: float(block_curvature(graph, i, case.plan.probes, SEED)) for i in tokens}
    return Measured(built - begun + (read() - built) / len(tokens) * case.ids.shape[1], found)


def literal_i(case: Case, read: Read) -> Measured:
    groups = grouped(case.whole, MASKED, case.plan)[1]
    tokens = spread([group[0] for group in groups] if case.plan.literal else range(len(case.ids[0])), case.plan.literal)
    begun = read()
    found = literal_information(case.model, case.ids, tokens).tolist()
    each = (read() - begun) / (1 + len(tokens))
    return Measured(each * (1 + case.ids.shape[1]), dict(zip(tokens, found, strict=True)))


def exact_s(case: Case, read: Read, piece: Piece | None = None) -> Measured:
    """S of a few tokens of some groups, as `Heta` finds it."""
    piece = piece or case.whole
    batches, states = at_once(case, piece, products=True), piece.states
    columns_from = piece.columns_from(False, batches, lambda _: None)
    measured: dict[int, tuple[float, float]] = {}
    found: dict[int, float] = {}
    starts: list[float] = []

    def watched(at: int) -> Columns:
        begun = read()
        columns = columns_from(at)
        starts.append(read() - begun)
        return columns

    def signs(i: int) -> Tensor:
        return rademacher(SEED, piece.window.start + i, case.plan.probes, states.shape[1]).to(states)

    groups, chosen = grouped(piece, per_product(case.plan.probes), case.plan)
    for group in chosen:
        copies = batches.of(reach(piece, group))
        some = spread(group, case.plan.groups and max(1, copies // case.plan.probes))
        begun = read()
        bent = curvature(watched, states, signs, groups=[some])
        each = (read() - begun - starts[-1]) / len(some)
        measured[reach(piece, group)] = starts[-1], each
        found |= zip(some, bent.samples.mean.tolist(), strict=True)
    return Measured(extrapolated(measured, [reach(piece, group) for group in groups], [*map(len, groups)]), found)


def row_s(case: Case, read: Read) -> Measured:
    """S of all tokens at once."""
    piece, probes = case.whole, case.plan.probes
    states = piece.states
    columns_from = piece.columns_from(False, at_once(case, piece, products=True), lambda _: None)
    begun = read()
    curvature(
        columns_from,
        states,
        lambda i: rademacher(SEED, i, probes, states.shape[1]).to(states),
        support="row",
        groups=[[*range(len(states))]],
    )
    return Measured(read() - begun, {})


@torch.no_grad()
def exact_i(case: Case, read: Read, piece: Piece | None = None) -> Measured:
    """I of some groups, as `Heta` finds it; of each as many tokens as are run at once."""
    piece = piece or case.whole
    asked, batches = piece.prediction, at_once(case, piece)
    measured: dict[int, tuple[float, float]] = {}
    found: dict[int, float] = {}
    groups, chosen = grouped(piece, MASKED, case.plan)
    for group in chosen:
        some = spread(group, case.plan.groups and batches.of(reach(piece, group)))
        begun = read()
        moved = information(
            lambda at: asked.prompt.log_probs_from(piece.start + at, read=[len(asked) - 1], stop=piece.stop),
            asked.embeddings[piece.start : piece.stop],
            torch.zeros_like(asked.embeddings[0]),
            asked.log_probs[None],
            [asked.objective],
            DIVERGENCES["orig_masked"],
            groups=[some],
            batches=batches,
            done=lambda _: None,
        )
        measured[reach(piece, group)] = 0.0, (read() - begun) / len(some)
        found |= zip(some, moved.divergence[0, some].tolist(), strict=True)
    return Measured(extrapolated(measured, [reach(piece, group) for group in groups], [*map(len, groups)]), found)


# ------------------------------------------------------------------------------------------------------ FLOPs, memory
def peak(run: Callable[[], Any]) -> float:
    """The most MiB that tensors held at once beyond those that were there: what torch's own allocator reports.

    One token, or one batch, from where runs are longest shows the most there is: nothing grows from token to token. The
    process's size says less on a CPU: freed memory stays with it, and is there for whoever comes next.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as seen:
        run()
    results: Any = seen.profiler.kineto_results  # type: ignore[union-attr]
    events = [(event.start_ns(), event.nbytes()) for event in results.events() if event.name() == "[memory]"]
    held = np.cumsum([size for _, size in sorted(events, key=lambda event: event[0])])
    return float(held.max(initial=0)) / 2**20


def counted(run: Callable[[Read], Any]) -> Any:
    with FlopCounterMode(display=False) as counter:
        return run(lambda: float(counter.get_total_flops()))


@torch.no_grad()
def forward_flops(case: Case) -> float:
    """Of one clean run of the whole prompt, every position unembedded: a forward-equivalent."""

    def forward(read: Read) -> float:
        case.model(case.ids)
        return read()

    return counted(forward)


def suffix_flops(cfg: Any, q: int, n: int, read: int = 1) -> float:
    """A run of the last q of n positions by hand: what matrices multiply, attention over all keys as it is computed."""
    heads, values = (count * cfg.d_head for count in (cfg.n_heads, getattr(cfg, "n_key_value_heads", 0) or cfg.n_heads))
    weights = cfg.d_model * (2 * heads + 2 * values + (3 if cfg.gated_mlp else 2) * cfg.d_mlp)
    return cfg.n_layers * (2 * q * weights + 4 * q * n * heads) + 2 * cfg.d_model * cfg.d_vocab * read


def floors(cfg: Any, n: int, probes: int) -> dict[str, float]:
    """What these products and runs cost at the least: each over the token's own suffix alone, a start for nothing."""
    runs = sum(suffix_flops(cfg, n - i, n) for i in range(n))
    return {"curvature": 2 * probes * runs, "information": runs, ROW: 2 * probes * suffix_flops(cfg, n, n)}


# ------------------------------------------------------------------------------------------------------- first table
class Cost(NamedTuple):
    """Of one part of the score, literal and exact: seconds of each repeat, FLOPs, MiB; and how far the parts differ."""

    seconds: list[tuple[float, float]]
    flops: tuple[float, float]
    memory: tuple[float, float]
    floor: float
    difference: float

    @property
    def literal(self) -> float:
        return median(seconds for seconds, _ in self.seconds)

    @property
    def exact(self) -> float:
        return median(seconds for _, seconds in self.seconds)


PARTS: dict[str, tuple[Any, Any]] = {"curvature": (literal_s, exact_s), "information": (literal_i, exact_i)}
ROW = 'curvature, support="row"'


def costs(case: Case, repeats: int) -> dict[str, Cost]:
    """The first rounds warm up, count FLOPs and watch memory, and are not timed; then both are timed in turn."""
    floor = floors(case.model.cfg, case.ids.shape[1], case.plan.probes)
    ways = {**PARTS, ROW: (literal_s, row_s)}
    return {part: cost(case, literal, exact, floor[part], repeats) for part, (literal, exact) in ways.items()}


def cost(case: Case, literal: Any, exact: Any, floor: float, repeats: int) -> Cost:
    def running(asked: Case, read: Read) -> Measured:
        gc.collect()  # graphs that nobody asks for any more
        with asked.prediction.running():
            return exact(asked, read)

    both, little = (literal, running), case._replace(plan=Plan(case.plan.probes, 1, 1))
    seen = [counted(lambda read, one=one: one(case, read)) for one in both]
    memory = [peak(lambda one=one: one(little, time.perf_counter)) for one in both]
    seconds = []
    for _ in range(repeats):
        first, second = (one(case, time.perf_counter).total for one in both)
        seconds.append((first, second))
    expected, found = (one.found for one in seen)
    shared = expected.keys() & found.keys()
    gap = max((abs(found[i] - expected[i]) for i in shared), default=np.nan)
    gap /= max((abs(expected[i]) for i in shared), default=1)
    return Cost(seconds, (seen[0].total, seen[1].total), (memory[0], memory[1]), floor, gap)


COSTS = [
    "N", "probes", "part", "literal, s", "exact, s", "literal / exact", "literal, forwards", "exact, forwards",
    "exact / floor", "literal, MiB", "exact, MiB", "difference",
]  # fmt: skip


def cost_rows(case: Case, found: dict[str, Cost]) -> Iterator[list[str]]:
    forward, about = forward_flops(case), "" if case.plan.literal is None else "~"
    parts = [found[part] for part in PARTS]
    taken = zip(*(part.seconds for part in parts), strict=True)
    together = Cost(
        [(sum(literal), sum(exact)) for literal, exact in (zip(*both, strict=True) for both in taken)],
        (sum(p.flops[0] for p in parts), sum(p.flops[1] for p in parts)),
        (max(p.memory[0] for p in parts), max(p.memory[1] for p in parts)),
        sum(p.floor for p in parts),
        max(p.difference for p in parts),
    )
    for part, one in {**{part: found[part] for part in PARTS}, "together": together, ROW: found[ROW]}.items():
        ratios = [literal / exact for literal, exact in one.seconds]
        yield [
            str(case.ids.shape[1]),
            str(case.plan.probes),
            part,
            *(f"{about}{number(seconds)}" for seconds in (one.literal, one.exact)),
            f"{about}{number(median(ratios))} ({number(min(ratios))}–{number(max(ratios))})",
            *(f"{about}{number(flops / forward)}" for flops in one.flops),
            f"{about}{one.flops[1] / one.floor:.2f}",
            *(f"{memory:.0f}" for memory in one.memory),
            "–" if np.isnan(one.difference) else f"{one.difference:.0e}",
        ]


def number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


# ------------------------------------------------------------------------------------------------------ second table
WAYS: dict[str, dict[str, Any]] = {  # 0 stands for half of the layers, and for a quarter of the context
    'support="row"': {"support": "row"},
    "tolerance=0.05": {"tolerance": 0.05},
    "tolerance=0.05, prune=0.001": {"tolerance": 0.05, "prune": 1e-3},
    'variant="lr"': {"variant": "lr", "rank": RANK},
    'variant="ls", half the layers': {"variant": "ls", "layers": 0},
    'variant="gs"': {"variant": "gs"},
    'variant="gn"': {"variant": "gn"},
    'variant="win", window N/4': {"variant": "win", "window": 0},
}
WAY_COLUMNS = ["N", "way", "s", "literal / this", "exact / this", "HVPs", "ρ", "L1", "top ten in common"]


def way_rows(case: Case, literal: float) -> Iterator[list[str]]:
    """Whole scores, each found once; ``literal`` are the seconds of the literal loop."""
    n, drawn = case.ids.shape[1], {"probes": case.plan.probes}
    exact, whole = explained(case, drawn)
    for way, options in {"exact": {}, **WAYS}.items():
        sizes = {"layers": case.prediction.lens.layers // 2, "window": n // 4}
        filled = {name: sizes[name] if name in sizes and not value else value for name, value in options.items()}
        probes = {} if filled.get("variant") == "gs" else drawn
        found, seconds = explained(case, probes | filled) if options else (exact, whole)
        agreed = agreement(found.scores, exact.scores)
        top, expected = (set(one.scores.topk(min(10, n)).indices.tolist()) for one in (found, exact))
        yield [
            str(n),
            way,
            number(seconds),
            number(literal / seconds),
            number(whole / seconds),
            str(found.diagnostics["hvps"]),
            f"{agreed['rank_correlation']:.3f}",
            f"{agreed['l1']:.3f}",
            f"{len(top & expected)} of {len(expected)}",
        ]


def explained(case: Case, options: dict[str, Any]) -> tuple[heta_lens.Attribution, float]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        begun = time.perf_counter()
        found = heta_lens.Heta(progress=False, **options)(case.prediction)
        return found, time.perf_counter() - begun


# ------------------------------------------------------------------------------------------------------- third table
LONG_COLUMNS = ["N", "way", "curvature, s", "information, s", "full / this"]


def long_rows(case: Case, found: dict[str, Cost]) -> Iterator[list[str]]:
    """Of windows, the middle one is measured and stands for all; of a low rank, a few of its products."""
    n = case.ids.shape[1]
    full = found["curvature"].exact, found["information"].exact
    ways = {"full": full}
    with case.prediction.running():
        for size in (512, 128):
            placed = pieces(case.prediction, windows(n, size, 0.5), "frozen", None)
            middle = placed[len(placed) // 2]
            times = n / len(range(*middle.scored))
            part = [one(case, time.perf_counter, middle).total * times for one in (exact_s, exact_i)]
            ways[f"win, frozen windows of {size}"] = part[0], part[1]
        ways[f"lr, rank {RANK}"] = low_rank_seconds(case), full[1]
    for way, seconds in ways.items():
        yield [str(n), way, *(f"~{number(part)}" for part in seconds), f"~{number(sum(full) / sum(seconds))}"]


def low_rank_seconds(case: Case) -> float:
    piece = case.whole
    batches, states = at_once(case, piece, products=True), piece.states
    begun = time.perf_counter()
    columns = piece.columns_from(False, batches, lambda _: None)(0)
    built = time.perf_counter()
    copies = batches.of(len(states))
    columns(slice(None), torch.ones(copies, *states.shape))
    each = (time.perf_counter() - built) / copies
    return built - begun + each * (2 * (RANK + OVERSAMPLING) + case.plan.probes)


COLUMNS = {"costs": COSTS, "ways": WAY_COLUMNS, "long": LONG_COLUMNS}
TELLING = ("the literal loop and the exact path", "cheaper ways, whole scores", "a long context", "what memory holds")

# ------------------------------------------------------------------------------------------------ the README's table
WAITED, SHOWN = "gpt2-like", (32, 128, 512)
WAIT_TITLE = "What you wait for"
WAIT_COLUMNS = ["tokens of context", "probes", "the formulas one by one", "`attribute(cache)`", '`support="row"`']
README = HERE.parent / "README.md"
MARKS = "<!-- what you wait for -->", "<!-- until here -->"


def wait_row(n: int, probes: int, found: dict[str, Cost]) -> list[str]:
    literal, exact = (sum(getattr(found[part], of) for part in PARTS) for of in ("literal", "exact"))
    row = found[ROW].exact + found["information"].exact
    said = (f"{number(literal / seconds)} times as fast ({number(seconds)} s)" for seconds in (exact, row))
    return [str(n), str(probes), f"{number(literal)} s", *said]


def rewritten(readme: str, table: Table) -> str:
    before, after = readme.split(MARKS[0])[0], readme.split(MARKS[1])[1]
    return f"{before}{MARKS[0]}\n{markdown(*table[1:])}\n{MARKS[1]}{after}"


# ---------------------------------------------------------------------------------------------------------------- all
LEGEND = """\
**literal** is [`reference.py`](reference.py): the formulas as they stand. **exact** is what `Heta()` does: the same
numbers (*difference* is the largest, relative to the largest entry, in float32). Not counted, once a prompt: the run
that filled the cache, the one that checks it, and those that keep keys and values. Ratios are of runs that took turns,
the median with the least and the most (N = 2048 once).

**~** a part of the work was measured and stands for the rest: a few tokens of the literal loop, where all cost the
same; of the exact path a few groups of neighbours, over whose positions costs are interpolated.

**forwards** are FLOPs that torch counted, in units of one clean run of the prompt with every position unembedded. The
**floor** is worked out from the model's sizes: a product costs two runs of the token's own suffix, a masked run one,
attention is over all keys, as it is computed, and one position is unembedded. **MiB** are what tensors held at most,
beyond the model and the prediction. (A product with H costs two runs' worth of multiplying by weights, but six runs'
worth of attention, which is not linear: narrow models and long contexts stay further above the floor.)

Cheaper ways are whole scores, each found once, and only where that takes minutes. ρ (rank correlation) and L1 (0 to 2,
of scores that sum to 1) are against the exact score with the same probes. "What memory holds" is written by
`python -m benchmarks.long`. On a GPU: not measured."""


def main(
    length: Annotated[list[int] | None, typer.Option(help="Context lengths.")] = None,
    model: Annotated[list[str] | None, typer.Option(help=f"Of {', '.join(MODELS)}.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="How often both are timed in turn.")] = REPEATS,
    probes: Annotated[int | None, typer.Option(min=1, help="Probes a token, instead of what suits a length.")] = None,
) -> None:
    console = Console(stderr=True)
    for name in model or MODELS:
        if name == "stories3M" and not STORIES.is_dir():
            console.print(f"no stories3M model at {STORIES}: skipped")
            continue
        latest: dict[str, Table] = {}
        for table in measured(name, length or LENGTHS, repeats, probes, console):
            latest[table[0]] = table
            if (length, repeats, probes) == (None, REPEATS, None):
                keep(table)
        for table in latest.values():
            show(*table)


def keep(table: Table) -> None:
    """Write a table into its file, in place of the one that has its title."""
    if table[0] == WAIT_TITLE:
        README.write_text(rewritten(README.read_text(), table))
    else:
        RESULTS.write_text(page(RESULTS.read_text() if RESULTS.exists() else "", table))


def measured(name: str, lengths: list[int], repeats: int, probes: int | None, console: Console) -> Iterator[Table]:
    """One model's tables, as they are after each length."""
    model = MODELS[name]()
    parameters = sum(weights.numel() for weights in model.parameters())
    rows: dict[str, list[list[str]]] = {"costs": [], "ways": [], "long": [], "waits": []}
    for n in track(lengths, name, console=console):
        if n > model.cfg.n_ctx or (n >= LONG and name not in LONG_OF):
            console.print(f"{name}: N = {n} skipped, it reads {model.cfg.n_ctx} tokens")
            continue
        case = Case.of(model, prompt(name, model, n), plan_of(n, parameters, probes))
        found = costs(case, repeats if n < LONG else 1)
        rows["costs"] += cost_rows(case, found)
        if name == WAITED and n in SHOWN:
            rows["waits"].append(wait_row(n, case.plan.probes, found))
        if n <= (128 if parameters < SMALL else 32):
            rows["ways"] += way_rows(case, sum(found[part].literal for part in PARTS))
        if n >= LONG:
            rows["long"] += long_rows(case, found)
        for telling, of in zip(TELLING, COLUMNS, strict=False):
            if rows[of]:
                yield f"{name}: {telling}", COLUMNS[of], rows[of]
        if rows["waits"]:
            yield WAIT_TITLE, WAIT_COLUMNS, rows["waits"]


def page(before: str, table: Table) -> str:
    """The tables that there were and this one, by model and then by what they tell."""
    title, columns, rows = table
    where = f"{torch.get_num_threads()} threads, float32 on the CPU; " + ", ".join(map(" ".join, versions().items()))
    sections = dict(section.split("\n\n", 1) for section in before.strip().split("\n## ")[1:])
    sections[title] = f"{where}.\n\n{markdown(columns, rows)}"
    order = [*MODELS]
    titles = sorted(sections, key=lambda title: (order.index(title.split(":")[0]), TELLING.index(title.split(": ")[1])))
    parts = [f"## {title}\n\n{sections[title].strip()}" for title in titles]
    return "\n\n".join(["# Speed", f"Written by `python -m benchmarks.speed`.\n\n{LEGEND}", *parts]) + "\n"


if __name__ == "__main__":
    typer.run(main)
