"""The cost of HETA before a run: forwards, graphs and HVPs, for the progress bar and for `estimate`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from heta_lens._util.work import Work
from heta_lens.methods.base import pattern_runs, value_runs
from heta_lens.methods.heta.curvature import Products
from heta_lens.methods.heta.diagnostics import SUBSETS
from heta_lens.methods.heta.options import CAREFUL, HetaOptions
from heta_lens.methods.heta.windows import Window
from heta_lens.model.batching import GRAPH, MASKED, PRODUCT, Batches, per_product
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.rerun import TAIL

GROUPS, WINDOWS = (16, 8), (512, 256, 128, 64)  # that are proposed
WORTHWHILE = 0.8  # of the runs: a change of options that saves less is not proposed by itself


def work_of(options: HetaOptions, predictions: Sequence[Prediction]) -> Work:
    """Return the work that lies ahead, with audits; predictions share masked forwards, and the longest is the last."""
    own = counts(options, predictions)
    work = Work(own.forwards, own.backwards, own.hvps)
    for prediction in predictions if options.audit else ():
        work += Work(audit_runs(prediction))
        if options.recipe.approximate:
            work += work_of(options.full, [prediction])
    return work


def masked_by_start(options: HetaOptions, window: Window) -> list[list[int]]:
    """Return the masked tokens by the start of the runs; a product also runs two clean copies per start."""
    groups = window.by_start(window.scored, MASKED) if options.weights[1] else []
    return [[group[0], *group, group[-1]] for group in groups] if options.combine == "geometric" else groups


def audit_runs(prediction: Prediction) -> int:
    return len(prediction) + SUBSETS


def products_of(options: HetaOptions, window: Window) -> Products | None:
    """Return the most products for the curvature of a window; None without a weight on the curvature."""
    return None if options.estimator is None else options.estimator.cost(window)


# ---------------------------------------------------------------------------------------------------- in positions
@dataclass
class Positions:
    """The numbers of positions that run in forwards, in graphs and in products."""

    forwards: float
    graphs: float = 0.0
    products: float = 0.0

    @property
    def runs(self) -> float:
        """The total, in forwards of a single position."""
        return self.forwards + GRAPH * self.graphs + PRODUCT * self.products


class Graph(NamedTuple):
    """A gradient graph from a place in a window on, and the number of products through the graph."""

    start: int
    products: float | int


def graphs_of(window: Window, products: Products) -> list[Graph]:
    if not products.per_token:
        return [Graph(0, products.hvps)]
    each = products.hvps / len(window.scored)
    return [Graph(group[0], each * len(group)) for group in window.by_start(window.scored, per_product(each))]


class Counts(NamedTuple):
    """The runs of the model, and the positions in these runs: an upper bound, unless tokens may stop early."""

    forwards: int
    backwards: int
    hvps: int
    ran: Positions


def counts(options: HetaOptions, predictions: Sequence[Prediction]) -> Counts:
    """Count the runs for scores and audits of predictions that share masked forwards (the longest is the last).

    The full method that an audit compares an approximation with is not included.
    """
    *_, longest = predictions
    ran, forwards, backwards, hvps = Positions(float(len(longest))), 1, 0, 0
    for window, length, calls in runs_of(options, longest):
        for group in masked_by_start(options, window):
            forwards += calls * len(group)
            ran.forwards += len(group) * (length - group[0])
    for prediction in predictions:
        forwards += read_and_settled(options, prediction)
        if options.audit:
            ran.forwards += len(prediction) * audit_runs(prediction)
        for window, length, calls in runs_of(options, prediction):
            products = products_of(options, window)
            if products is None:
                continue
            graphs = graphs_of(window, products)
            built = len(graphs) * products.rounds + products.bounds
            forwards, backwards, hvps = forwards + calls * built, backwards + built, hvps + products.hvps
            for graph in graphs:
                ran.graphs += length - graph.start
                ran.products += graph.products * (length - graph.start)
    return Counts(forwards, backwards, hvps, ran)


# ------------------------------------------------------------------------------------------------ runs of windows
def longest_run(options: HetaOptions, windows: Sequence[Window]) -> int:
    """Return the positions of the longest run: of a frozen window and the tail, if the model can continue a prefix."""
    span, prediction = max(len(window.span) for window in windows), windows[0].whole
    if not (options.recipe.windowed and options.window_mode == "frozen"):
        return span
    return len(prediction) if prediction.prompt.prefix().kept is None else min(span + TAIL, len(prediction))


def product_batches(options: HetaOptions, windows: Sequence[Window], free: int | None = None) -> Batches:
    """Choose how many products to take at once."""
    prompt, longest = windows[0].whole.prompt, longest_run(options, windows)
    return prompt.batches(options.batch, longest, products=True, checkpoint=options.checkpoint, free=free)


def held_between(window: Window) -> bool:
    """Whether positions between a frozen window and the tail stay clean."""
    return window.span.stop < len(window.whole) - TAIL


def runs_of(options: HetaOptions, prediction: Prediction) -> Iterator[tuple[Window, int, int]]:
    """Yield every window, the positions of a run, and the calls per run: one, or two with a separate tail."""
    windows, frozen = options.windows(prediction), options.recipe.windowed and options.window_mode == "frozen"
    longest = longest_run(options, windows)
    for window in windows:
        in_two_calls = frozen and held_between(window) and prediction.prompt.prefix().kept is not None
        yield window, min(longest, len(prediction) - window.span.start), 2 if in_two_calls else 1


def read_and_settled(options: HetaOptions, prediction: Prediction) -> int:
    """Count the other runs: activations missing from the cache, windows alone, states of a layer."""
    layers, windows = prediction.adapter.layers, options.windows(prediction)
    alone = len(windows) * windows[0].alone
    flows = (1 + alone * (options.window_gate == "per_window")) * (options.recipe.gate == "flow")
    read = pattern_runs(prediction, layers) + value_runs(prediction)
    inner = windows[0].layer is not None
    frozen = options.recipe.windowed and options.window_mode == "frozen"
    return flows * read + alone + inner * max(1, alone) + (frozen and put_back(options, windows))


def put_back(options: HetaOptions, windows: Sequence[Window]) -> bool:
    """Whether a run must read the clean states between a window and the tail, since the model cannot continue."""
    if not any(map(held_between, windows)):
        return False
    prediction, layer = windows[0].whole, windows[0].layer
    own = set[int]() if layer is None else {layer}
    lowest = 1 if options.weights[1] or layer is None else layer + 1
    return prediction.prompt.prefix().kept is None and bool({*range(lowest, prediction.adapter.layers)} - own)


# ------------------------------------------------------------------------------------------------ what is cheaper
Cheaper = TypeVar("Cheaper", bound=HetaOptions)


def cheaper_options(method: Cheaper, prediction: Prediction) -> Iterator[Cheaper]:
    """Yield cheaper options in the place of ``full``: for the same score first, then the preset ``careful``."""
    if method.variant != "full" or not method.weights[0] or method.norm != "hutchinson" or method.interactions:
        return
    unwanted = {"support", "groups", "tolerance", "prune"}
    unwanted |= method.without_effect.keys()
    kept: dict[str, Any] = {name: value for name, value in method.chosen.items() if name not in unwanted}
    with_options = type(method)
    if not method.checkpoint:
        own = {name: value for name, value in method.chosen.items() if name not in method.without_effect}
        yield with_options(**own, checkpoint=True)
    if method.support == "block":
        yield from (with_options(**kept, groups=few) for few in GROUPS if few < (method.groups or len(prediction)))
        yield with_options(**kept, support="row")
    kept.pop("checkpoint", None)  # which windows do not go with, and a squared gradient has no use for
    for window in (size for size in WINDOWS if size <= len(prediction) // 2):
        yield with_options(variant="win", window=window, **kept)
    if method.weights[1]:
        unread = {"probes", "seed", "balance", "flow", "value_norm", *CAREFUL}
        yield with_options(**{name: value for name, value in kept.items() if name not in unread}, **CAREFUL)


def cheaper_way(method: HetaOptions, prediction: Prediction) -> str:
    """Return a sentence on the nearest cheaper options and the share of the runs; empty without such options."""
    for other in cheaper_options(method, prediction):
        share = counts(other, [prediction]).ran.runs / counts(method, [prediction]).ran.runs
        if share < WORTHWHILE:
            names = (method.chosen.keys() | other.chosen.keys()) - other.without_effect.keys()
            changed = [name for name in sorted(names) if getattr(other, name) is not getattr(method, name)]
            written = ", ".join(f"{name}={getattr(other, name)!r}" for name in changed)
            written = "method='careful'" if CAREFUL.items() <= other.chosen.items() else written
            return f"{written} would take about {share:.0%} of this; heta_lens.estimate lists what is cheaper"
    return ""
