"""The cost of HETA before a run: forwards, gradients and HVPs, for the progress bar and for `estimate`."""

from collections.abc import Iterator, Sequence
from math import ceil

from heta_lens._util.presets import CAREFUL
from heta_lens._util.work import Work
from heta_lens.methods.base import Method
from heta_lens.methods.heta.options import HetaOptions
from heta_lens.methods.heta.windows import Window
from heta_lens.model.batching import GRAPH, MASKED, PRODUCT, Batches, per_product
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.rerun import TAIL

GROUPS, WINDOWS = (16, 8), (512, 256, 128, 64)  # that are proposed


def work_and_positions(options: HetaOptions | Method, predictions: Sequence[Prediction]) -> tuple[Work, int | float]:
    """Count the runs that lie ahead, and the positions in them, in forwards of a single position.

    Predictions share masked forwards, and the longest is the last.
    """
    longest = predictions[-1]
    if not isinstance(options, HetaOptions):
        work = options.work_together(predictions)
        return work, work.worth * len(longest)
    checkpoint = getattr(options.estimator, "checkpoint", False)
    work, positions = Work(2 if checkpoint else 1), float(len(longest))  # one for what enters the blocks
    clean = 2 if options.combine == "geometric" else 0  # copies in each group, to measure the floor of the information
    for window, length, calls in runs_of(options, longest):
        if options.weights[1] and options.forwards is not None:
            runs = min(len(longest), options.forwards)
            work, positions = work + Work(runs), positions + runs * len(longest)
        elif options.weights[1]:
            for group in window.by_start(window.scored, MASKED):
                work += Work(calls * (len(group) + clean))
                positions += (len(group) + clean) * (length - group[0])
    for prediction in predictions:
        work += Work(reads(options, prediction))
        if options.estimator is None:
            continue
        for window, length, calls in runs_of(options, prediction):
            products = options.estimator.cost(window)
            products_by_start: dict[int, float] = {0: products.hvps}
            if products.per_token:
                each = products.hvps / len(window.scored)
                groups = window.by_start(window.scored, per_product(each))
                products_by_start = {group[0]: each * len(group) for group in groups}
            graphs = len(products_by_start)
            work += Work(calls * graphs, graphs, products.hvps)
            for start, hvps in products_by_start.items():
                positions += (GRAPH + PRODUCT * hvps) * (length - start)
            if checkpoint:  # every batch runs all blocks twice more
                again = 2 * ceil(products.hvps / product_batches(options, [window]).of(length))
                work, positions = work + Work(again, again), positions + GRAPH * again * length
    return work, positions


# ------------------------------------------------------------------------------------------------ runs of windows
def longest_run(windows: Sequence[Window]) -> int:
    """Return the positions of the longest run: of a frozen window and the tail, if the model can continue a prefix."""
    span, prediction = max(len(window.span) for window in windows), windows[0].whole
    if windows[0].alone or span == len(prediction):
        return span
    return min(span + TAIL, len(prediction)) if prediction.resumes else len(prediction)


def product_batches(options: HetaOptions, windows: Sequence[Window]) -> Batches:
    prompt = windows[0].whole.prompt
    return prompt.batches(options.batch, longest_run(windows), products=True, checkpoint=options.checkpoint)


def runs_of(options: HetaOptions, prediction: Prediction) -> Iterator[tuple[Window, int, int]]:
    """Yield every window, the positions of a run, and the calls per run: one, or two with a separate tail."""
    windows, length = options.windows(prediction), len(prediction)
    longest = longest_run(windows)
    for window in windows:  # whether a prefix can be kept is tried only where it matters
        between = not window.alone and window.span.stop < length - TAIL
        apart = between and prediction.resumes
        yield window, min(longest, length - window.span.start), 2 if apart else 1


def reads(options: HetaOptions, prediction: Prediction) -> int:
    """Count the other runs: activations missing from the cache, windows alone, states of a layer or beside windows."""
    windows = options.windows(prediction)
    alone = len(windows) if windows[0].alone else 0
    runs = alone + (0 if windows[0].layer is None else max(1, alone)) + options.recipe.windowed
    if options.recipe.gate == "flow":
        gates = 1 + alone if options.window_gate == "per_window" else 1
        runs += gates * (prediction.pattern_runs(prediction.layers) + prediction.value_runs)
    return runs


def cheaper_options(method: Method, tokens: int) -> Iterator[Method]:
    """Yield options in the place of ``full`` that take less time or memory, the preset ``careful`` last."""
    if not isinstance(method, HetaOptions) or method.variant != "full":
        return
    if not method.weights[0] or method.norm != "hutchinson" or method.interactions:
        return
    if not method.checkpoint:
        yield method.changed(checkpoint=True)
    if method.support == "block":
        yield from (method.changed(groups=few) for few in GROUPS if few < (method.groups or tokens))
        yield method.changed(support="row")
    whole = method.changed(support="block", groups=HetaOptions.groups, checkpoint=False)
    yield from (whole.changed(variant="win", window=window) for window in WINDOWS if window <= tokens // 2)
    if method.weights[1]:
        yield whole.changed(**CAREFUL)
