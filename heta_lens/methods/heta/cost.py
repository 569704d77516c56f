"""The cost of HETA before a run: forwards, graphs and HVPs, for the progress bar and for `estimate`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from heta_lens._util.work import Work
from heta_lens.methods.base import pattern_runs, value_runs
from heta_lens.methods.heta.diagnostics import SUBSETS
from heta_lens.methods.heta.options import CAREFUL, HetaOptions, Own
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


def audit_runs(prediction: Prediction) -> int:
    return len(prediction) + SUBSETS


@dataclass
class Counts:
    """The runs of the model, an upper bound unless tokens may stop early, and the numbers of positions in these runs.

    Positions run ``in_forwards`` without gradients, ``in_graphs`` of the gradient, and ``in_products``.
    """

    forwards: int
    backwards: int
    hvps: int
    in_forwards: float
    in_graphs: float = 0.0
    in_products: float = 0.0

    @property
    def positions(self) -> float:
        """The total, in forwards of a single position."""
        return self.in_forwards + GRAPH * self.in_graphs + PRODUCT * self.in_products


def counts(options: HetaOptions, predictions: Sequence[Prediction]) -> Counts:
    """Count the runs for scores and audits of predictions that share masked forwards (the longest is the last).

    The full method that an audit compares an approximation with is not included, nor are the forwards of audits.
    """
    *_, longest = predictions
    ran = Counts(forwards=1, backwards=0, hvps=0, in_forwards=float(len(longest)))
    clean = 2 if options.combine == "geometric" else 0  # copies in each group, to measure the floor of the information
    for window, length, calls in runs_of(options, longest):
        for group in window.by_start(window.scored, MASKED) if options.weights[1] else ():
            ran.forwards += calls * (len(group) + clean)
            ran.in_forwards += (len(group) + clean) * (length - group[0])
    for prediction in predictions:
        ran.forwards += read_and_settled(options, prediction)
        if options.audit:
            ran.in_forwards += len(prediction) * audit_runs(prediction)
        if options.estimator is None:
            continue
        for window, length, calls in runs_of(options, prediction):
            products, each = options.estimator.cost(window), 0.0
            products_by_start: dict[int, float] = {0: products.hvps}
            if products.per_token:
                each = products.hvps / len(window.scored)
                groups = window.by_start(window.scored, per_product(each))
                products_by_start = {group[0]: each * len(group) for group in groups}
            built = len(products_by_start) * products.rounds + products.bounds
            ran.forwards += calls * built
            ran.backwards += built
            ran.hvps += products.hvps
            for start, count in products_by_start.items():
                ran.in_graphs += length - start
                ran.in_products += count * (length - start)
    return ran


# ------------------------------------------------------------------------------------------------ runs of windows
def longest_run(windows: Sequence[Window]) -> int:
    """Return the positions of the longest run: of a frozen window and the tail, if the model can continue a prefix."""
    span, prediction = max(len(window.span) for window in windows), windows[0].whole
    if windows[0].alone or span == len(prediction):
        return span
    return len(prediction) if prediction.prompt.prefix().kept is None else min(span + TAIL, len(prediction))


def product_batches(options: HetaOptions, windows: Sequence[Window]) -> Batches:
    how = {"products": True, "checkpoint": options.checkpoint}
    return windows[0].whole.prompt.batches(options.batch, longest_run(windows), **how)


def held_between(window: Window) -> bool:
    """Whether positions between a frozen window and the tail stay clean."""
    return not window.alone and window.span.stop < len(window.whole) - TAIL


def runs_of(options: HetaOptions, prediction: Prediction) -> Iterator[tuple[Window, int, int]]:
    """Yield every window, the positions of a run, and the calls per run: one, or two with a separate tail."""
    windows = options.windows(prediction)
    longest = longest_run(windows)
    for window in windows:
        in_two_calls = held_between(window) and prediction.prompt.prefix().kept is not None
        yield window, min(longest, len(prediction) - window.span.start), 2 if in_two_calls else 1


def read_and_settled(options: HetaOptions, prediction: Prediction) -> int:
    """Count the other runs: activations missing from the cache, windows alone, states of a layer.

    One more reads the clean states between a frozen window and the tail, where the model cannot continue a prefix.
    """
    layers, windows = prediction.adapter.layers, options.windows(prediction)
    alone, layer = len(windows) * windows[0].alone, windows[0].layer
    flows = (1 + alone * (options.window_gate == "per_window")) * (options.recipe.gate == "flow")
    read = pattern_runs(prediction, layers) + value_runs(prediction)
    inner = 0 if layer is None else max(1, alone)
    put_back = any(map(held_between, windows)) and prediction.prompt.prefix().kept is None
    if put_back:
        lowest = 1 if options.weights[1] or layer is None else layer + 1
        put_back = bool({*range(lowest, layers)} - {layer})
    return flows * read + alone + inner + put_back


# ------------------------------------------------------------------------------------------------ what is cheaper
def cheaper_options(method: Own, prediction: Prediction) -> Iterator[Own]:
    """Yield cheaper options in the place of ``full``: for the same score first, then the preset ``careful``."""
    if method.variant != "full" or not method.weights[0] or method.norm != "hutchinson" or method.interactions:
        return
    own: dict[str, Any] = {name: method.chosen[name] for name in method.effective}
    kept = {name: value for name, value in own.items() if name not in ("support", "groups", "tolerance", "prune")}
    with_options = type(method)
    if not method.checkpoint:
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
        share = counts(other, [prediction]).positions / counts(method, [prediction]).positions
        if share < WORTHWHILE:
            names = (method.chosen.keys() | other.chosen.keys()) - other.without_effect.keys()
            changed = [name for name in sorted(names) if getattr(other, name) is not getattr(method, name)]
            written = ", ".join(f"{name}={getattr(other, name)!r}" for name in changed)
            written = "method='careful'" if CAREFUL.items() <= other.chosen.items() else written
            return f"{written} would take about {share:.0%} of this; heta_lens.estimate lists what is cheaper"
    return ""
