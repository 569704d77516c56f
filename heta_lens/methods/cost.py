"""What an attribution will cost, in runs, seconds and bytes, and what would be cheaper or within a budget."""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from timeit import repeat as timed
from typing import Any, NamedTuple, TypeVar

import torch
from einops import repeat

from heta_lens._util.options import check_at_least, chosen
from heta_lens._util.work import Work, counting
from heta_lens.methods.base import Method
from heta_lens.methods.gradients import WithCheckpoint
from heta_lens.methods.heta.cost import cheaper_options, longest_run, work_and_positions
from heta_lens.methods.heta.heta import Heta
from heta_lens.methods.heta.windows import spans_over
from heta_lens.methods.registry import FunctionMethod, as_written, method_of
from heta_lens.model.batching import GIB, Batches, Sizes, available, choose_batches
from heta_lens.model.loading import absent_model
from heta_lens.model.lock import one_at_a_time
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.rerun import TAIL

MINUTE, HOUR = 60, 3600
TRIED = 8  # copies at once whose forwards are timed: shorter runs would fit into caches


@dataclass(frozen=True)
class Estimate:
    """The cost of ``attribute(cache, **options)``, or of all ``predictions`` of a span or batch together.

    Runs are counted as if no token stopped early; work other than runs, such as GiLOT's transports, is not counted.
    ``tokens`` is the length of the longest context, and ``runs`` the work in forwards of that context. ``seconds``
    follow from trial runs. ``memory`` is in bytes, without the model and the cache, with ``batch`` copies at once.
    ``cheaper`` are other options with their costs, the cheapest last.
    """

    method: str
    options: dict[str, Any]
    tokens: int
    predictions: int
    forwards: int
    backwards: int
    hvps: int
    runs: float
    seconds: float
    memory: int
    batch: int
    free: int
    cheaper: tuple["Estimate", ...] = ()

    def __repr__(self) -> str:
        what = "on" if self.predictions == 1 else f"of {self.predictions} predictions on up to"
        counts = {"Hessian–vector product": self.hvps, "forward": self.forwards, "backward": self.backwards}
        work = ", ".join(f"{count:,} {kind}{'s' * (count > 1)}" for kind, count in counts.items() if count) or "no runs"
        lines = [
            f"{as_written(self.method, self.options)} {what} {self.tokens} tokens: {work}; by their length worth "
            f"{self.runs:,.0f} plain forwards; about {self._time_and_memory}"
        ]
        if self.memory > self.free:
            lines.append(f"this is more memory than the {self.free / GIB:.1f} GiB that are to spare")
        for other in self.cheaper:
            lines.append(f"  {as_written(other.method, other.options)}: about {other._time_and_memory}")
        return "\n".join(lines)

    @property
    def _time_and_memory(self) -> str:
        return f"{_duration(self.seconds)}, {self.memory / GIB:.1f} GiB"


def _duration(seconds: float) -> str:
    if seconds < MINUTE:
        return f"{seconds:.1f} s"
    return f"{seconds / MINUTE:.0f} min" if seconds < HOUR else f"{seconds / HOUR:.1f} h"


@one_at_a_time("predictions")
def estimated(
    method: Method,
    predictions: Sequence[Prediction],
    memory: float | int | None = None,
    *,
    together: bool = False,
) -> Estimate:
    """The cost of a method, and of cheaper ones that fit into so much memory (by default, half of what is free).

    ``together``: the predictions are of one prompt, and may share runs.
    """
    refuse_functions(method)
    for prediction in predictions:
        method.check(prediction)
    if memory is not None:
        check_at_least("memory", memory, 1)
    longest = max(predictions, key=len)
    n, free = len(longest), available(longest.adapter.device) // 2 if memory is None else int(memory)
    each = seconds_per_position(longest)

    def cost(method: Method) -> Estimate:
        groups = method.sharing_runs(predictions) if together else [[prediction] for prediction in predictions]
        runs = [work_and_positions(method, group) for group in groups]
        work, positions = sum((work for work, _ in runs), Work()), sum(positions for _, positions in runs)
        run = longest_run(method.windows(longest)) if isinstance(method, Heta) else n
        batches = partial(longest.prompt.batches, free=free)
        steps = steps_of(method, longest.adapter.sizes, n, run, batches, free, max(map(len, groups)))
        largest = max(steps.values(), key=lambda step: step.needed)
        return Estimate(
            method=method.name,
            options=chosen(method),
            tokens=n,
            predictions=len(predictions),
            **vars(work),
            runs=positions / n,
            seconds=positions * each,
            memory=largest.needed,
            batch=steps.get("curvature", largest).copies,
            free=free,
        )

    own, *others = map(cost, [method, *cheaper_options(method, min(map(len, predictions)))])
    if memory is not None:  # of which the method itself would know nothing
        others = [replace(other, options=other.options | {"batch": other.batch}) for other in others]
    fits = own.memory <= free
    better = [other for other in others if other.memory <= free and (not fits or other.seconds < own.seconds)]
    return replace(own, cheaper=tuple(sorted(better, key=lambda other: -other.seconds)))


def refuse_functions(method: Method) -> None:
    if isinstance(method, FunctionMethod):
        raise ValueError("what a function takes is not known beforehand: a Method says it by its work")


def seconds_per_position(prediction: Prediction) -> float:
    """Time two forwards of the whole context, after one that warms up, and return the faster one's seconds."""
    n = len(prediction)
    copies = min(TRIED, prediction.batches("auto", n).of(n))
    states = repeat(prediction.embeddings, "pos d -> copy pos d", copy=copies)
    with prediction.running(), counting(Counter()), torch.no_grad():
        rerun = prediction.rerun()

        def forward() -> float:
            return float(rerun.log_probs(states)[0, 0])  # waits for an accelerator

        forward()
        return min(timed(forward, number=1, repeat=2)) / (copies * n)


# -------------------------------------------------------------------------------------------------------------- memory
# The bytes of a method, by formulas from the sizes of a model; the model need not be there.


class Step(NamedTuple):
    """The bytes that a step of a method holds at most beside the weights and the cache, with so many copies at once."""

    needed: int
    copies: int


def steps_of(
    method: Method,
    sizes: Sizes,
    tokens: int,
    run: int,
    batches: Callable[..., Batches],
    free: int,
    predictions: int = 1,
) -> dict[str, Step]:
    """Return what each step holds, in runs of ``run`` positions of a context of so many tokens.

    ``batches(wanted, run, …)`` chooses the copies at once; every run reads the distributions that the method or several
    predictions need.
    """
    wanted, how = getattr(method, "batch", 1), {"checkpoint": bool(getattr(method, "checkpoint", False))}
    read = max(predictions, method.positions_read(tokens))

    def gradient(queries: int) -> int:
        """Return the bytes of a graph, or of one block's where the whole would not fit and the method can do it."""
        whole = sizes.gradient(queries, tokens)
        asked = getattr(method, "checkpoint", False)
        by_itself = not method.recipe.windowed if isinstance(method, Heta) else asked is None
        by_block = whole > free if by_itself else asked
        return sizes.gradient(queries, tokens, checkpoint=True) if by_block else whole

    def copies(products: bool) -> int:
        return batches(wanted, run, products=products, read=read, **how).of(run)

    if not isinstance(method, Heta):
        differentiates = method.differentiates or isinstance(method, WithCheckpoint)
        at_once, held = copies(differentiates), method.states_held(tokens) * sizes.d_model * sizes.itemsize
        each = gradient(tokens) if differentiates else sizes.forward(tokens, tokens, read)
        return {"runs": Step(at_once * each + held, at_once)}
    steps = {"gate": Step(sizes.forward(tokens, tokens), 1)}
    if method.weights[1]:
        at_once = copies(False)
        steps["information"] = Step(at_once * sizes.forward(run, tokens, read), at_once)
    if method.probed:
        if "layers" in method.recipe.reads:
            sizes = sizes._replace(layers=method.layers)
        at_once = copies(True)
        graph, product = (needs(run, tokens, **how) for needs in (sizes.graph, sizes.product))
        products = 0 if method.variant == "gn" else at_once * product  # of a gradient that has no second graph
        steps["curvature"] = Step(graph + products, at_once)
    elif method.estimator is not None:
        steps["curvature"] = Step(gradient(run), 1)
    return steps


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes that the tensors of a method take at once, on all devices together; allocators waste some more.

    ``steps`` holds the bytes of every step beside the ``weights`` and the ``cache``, and the copies of the prompt that
    run at once.
    """

    model: str
    method: str
    options: Mapping[str, Any]
    tokens: int
    weights: int
    cache: int
    steps: Mapping[str, Step]
    memory: int | None
    smaller: tuple["MemoryEstimate", ...] = ()

    @property
    def largest(self) -> str:
        """The step that holds the most."""
        return max(self.steps, key=lambda name: self.steps[name].needed)

    @property
    def needed(self) -> int:
        return self.weights + self.cache + self.steps[self.largest].needed

    @property
    def fits(self) -> bool | None:
        return None if self.memory is None else self.needed <= self.memory

    def __repr__(self) -> str:
        there = "" if self.memory is None else f" of {self.memory / GIB:.3g}"
        lines = [f"{self.model}, {self.tokens:,} tokens; GiB{there}, predicted"]
        for each in (self, *self.smaller):
            step = each.steps[each.largest]
            parts = {"weights": each.weights, "cache": each.cache, each.largest: step.needed}
            made_of = " + ".join(f"{name} {size / GIB:.3g}" for name, size in parts.items())
            needed = f"{each.needed / GIB:.3g}{', too much' if each.fits is False else ''}"
            lines.append(f"  {as_written(each.method, each.options)}: {needed} = {made_of} ({step.copies} at once)")
        return "\n".join(lines)


def estimate_memory(
    config: Any,
    tokens: int,
    *,
    memory: float | int | None = None,
    method: str | Method = "heta",
    dtype: torch.dtype | str | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    **options: Any,
) -> MemoryEstimate:
    """Predict the memory of a method from a model's configuration alone, and list options that need less.

    Nothing is loaded or run, and no device is needed. ``config`` is a folder with a config.json, a name on the Hugging
    Face hub, with a ``revision`` if needed, or a configuration of transformers; ``tokens`` is the length of the prompt,
    and ``memory`` the bytes of the devices, all together; without it, the least that the method needs is predicted,
    with one copy of the prompt at once. ``dtype`` is that of weights and activations, by default the
    configuration's; ``method`` and ``options`` are as in `attribute`.
    """
    check_at_least("tokens", tokens, 2, whole=True)
    if memory is not None:
        check_at_least("memory", memory, 1)
    wanted = method_of(method, options)
    model = absent_model(config, dtype, revision, trust_remote_code=trust_remote_code)
    most = getattr(model.config, "max_position_embeddings", None) or tokens
    if tokens > most:
        raise ValueError(f"tokens={tokens}: this model reads {most} at most")
    sizes = Sizes.of(model.config, model.dtype.itemsize)
    count, cache = sum(each.numel() for each in model.parameters()), sizes.cache(tokens)
    weights = sum(each.nbytes for each in (*model.parameters(), *model.buffers()))
    free = max(1, (int(memory or 0) - weights - cache) // 2)  # as `attribute` leaves the other half alone

    def batches(wanted: Any, queries: int, **how: Any) -> Batches:
        return choose_batches(wanted, sizes, torch.device("meta"), queries, tokens, free=free, **how)

    def predicted(method: Method) -> MemoryEstimate:
        run = tokens
        if isinstance(method, Heta) and method.recipe.windowed:
            span = max(map(len, spans_over(tokens, method.window, method.overlap)))
            run = min(span + TAIL, tokens) if method.window_mode == "frozen" else span
        return MemoryEstimate(
            model=f"{type(model).__name__} of {count:,} parameters in {str(model.dtype)[6:]}",
            method=method.name,
            options=chosen(method),
            tokens=tokens,
            weights=weights,
            cache=cache,
            steps=steps_of(method, sizes, tokens, run, batches, free),
            memory=None if memory is None else int(memory),
        )

    own = predicted(wanted)
    others = [] if own.fits else map(predicted, cheaper_options(wanted, tokens))
    smaller = sorted((other for other in others if other.needed < own.needed), key=lambda other: -other.needed)
    return replace(own, smaller=tuple(smaller))


# -------------------------------------------------------------------------------------------------------------- budget
# A method that costs no more than so many forwards: the option that its cost grows with is chosen for each prompt.


M = TypeVar("M", bound=Method)

LEAST, LARGEST = range(1, 9), 2**21  # sizes that are tried as the least one, and the end of all sizes


def within_budget(method: M, prediction: Prediction, budget: float | int) -> M:
    """The method with as much work as a budget of so many plain forwards allows, as `Work.worth` counts them.

    Of `Method.scaled_by`, the first option is made as large as the budget allows, and the others stay as they are. If
    even its least value is too much, it stays there, and the next is made smaller. A method without such an option is
    left as it is, if it costs no more.
    """
    refuse_functions(method)
    method.check(prediction)
    for name in (name for name in method.scaled_by if name not in method.without_effect):

        def worth(size: int, method: M = method, name: str = name) -> float | int:
            try:
                return replace(method, **{name: size}).work(prediction).worth
            except ValueError:  # a size that the option does not take
                return inf

        sizes = range(next((size for size in LEAST if worth(size) < inf), LARGEST), LARGEST)
        if not sizes:  # as forwards of windows
            continue
        affordable = bisect_right(sizes, budget, key=worth)
        size = sizes[max(0, affordable - 1)]
        size = sizes[bisect_left(sizes, worth(size), key=worth)]  # no more than is of use
        method = replace(method, **{name: size})
        if affordable:
            method.check(prediction)
            return method
    if (cost := method.work(prediction).worth) > budget:
        raise ValueError(f"at its cheapest it takes {cost} forwards, over the budget of {budget:g}")
    return method
