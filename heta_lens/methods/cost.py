"""What an attribution will cost, in runs, seconds and bytes, and what would be cheaper or within a budget."""

import timeit
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, inf
from statistics import fmean
from time import perf_counter
from typing import Any, Literal, NamedTuple, TypeVar

import psutil
import torch
from einops import repeat

from heta_lens._util.numerics import token_count
from heta_lens._util.options import check_at_least, chosen
from heta_lens._util.work import counting
from heta_lens.methods.base import FunctionMethod, Method
from heta_lens.methods.heta.cost import Counts, cheaper_options, counts, longest_run
from heta_lens.methods.heta.hessian import HessianOperator, hessian
from heta_lens.methods.heta.heta import Heta
from heta_lens.methods.heta.options import CAREFUL
from heta_lens.methods.heta.windows import spans_over
from heta_lens.methods.registry import as_written, method_of
from heta_lens.model.batching import Batches, Sizes, available, choose_batches
from heta_lens.model.loading import absent_model
from heta_lens.model.lock import one_at_a_time
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.rerun import TAIL

TRIED = 1 / 16  # of the prompt's tokens: so many copies are run at most, to see how long they take
HELD = 1.15  # bytes that the allocator holds for each that is in use
CHECKS = 3  # forwards' worth of making sure of the cache, of reusing a prefix and of second derivatives
MINUTE, HOUR, GIB = 60, 3600, 2**30
UNEQUAL, BUSY = 1.2, 0.75  # times longer that a range is printed from; processes a core that make a machine busy


@dataclass(frozen=True)
class Estimate:
    """The cost of ``attribute(cache, **options)``, or of all ``predictions`` of a span or batch together.

    What may stop early is counted as if it did not, and what a method works out beside its runs, such as GiLOT's
    transports, is not counted. ``tokens`` are those of the longest context, and ``runs`` says how many plain forwards
    of it the work is worth. ``seconds`` follow from trial runs, whose slowest took ``spread`` times the fastest.
    ``memory`` is in bytes, beside the model and the cache, with ``batch`` copies at once. ``cheaper`` are other options
    and what they would cost, the cheapest last.
    """

    options: dict[str, Any]
    tokens: int
    forwards: int
    hvps: int
    runs: float
    seconds: float
    memory: int
    batch: int
    free: int
    cheaper: tuple["Estimate", ...] = ()
    backwards: int = 0
    method: str = "heta"
    predictions: int = 1
    spread: float = 1.0

    def __repr__(self) -> str:
        alone = self.predictions == 1
        what = "on" if alone else f"of {self.predictions} predictions on up to"
        counts = {"Hessian–vector products": self.hvps, "forwards": self.forwards, "backwards": self.backwards}
        work = " and ".join(f"{count:,} {kind}" for kind, count in counts.items() if count) or "no runs"
        lines = [
            f"{as_written(self.method, self.options)} {what} {self.tokens} tokens: {work}, worth {self.runs:,.0f} "
            f"plain ones; about {self._time_and_memory}"
        ]
        if self.memory > self.free:
            lines.append(f"this is more memory than the {self.free / GIB:.1f} GiB that are to spare")
        load, cores = psutil.getloadavg()[0], psutil.cpu_count() or 1
        if load > BUSY * cores:
            lines.append(f"measured on a busy machine (load {load:.1f} on {cores} cores): when idle, it takes less")
        for other in self.cheaper:
            lines.append(f"  {as_written(other.method, other.options)}: about {other._time_and_memory}")
        return "\n".join(lines)

    @property
    def _time_and_memory(self) -> str:
        """The time, as a range where trial runs took unequally long, and the memory."""
        least = 2 * self.seconds / (1 + self.spread)
        ends = [_duration(self.seconds)] if self.spread < UNEQUAL else map(_duration, (least, self.spread * least))
        return f"{' to '.join(ends)}, {self.memory / GIB:.1f} GiB"


class Speed(NamedTuple):
    """Seconds that one position takes: in a forward without gradients, in a graph of g's gradient, in a product.

    ``spread`` is how many times longer the slowest trial took than the fastest.
    """

    forward: float
    graph: float = 0.0
    product: float = 0.0
    spread: float = 1.0

    def of(self, ran: Counts) -> float:
        return ran.in_forwards * self.forward + (ran.in_graphs * self.graph + ran.in_products * self.product)


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
    for prediction in predictions:
        method.check(prediction)
    if memory is not None:
        check_at_least("memory", memory, 1)
    shortest, longest = min(predictions, key=len), max(predictions, key=len)
    free = available(longest.adapter.device) // 2 if memory is None else int(memory)
    speed = timed(longest, products=isinstance(method, Heta))

    def cost(one: Method) -> Estimate:
        groups = one.sharing_runs(predictions) if together else [[prediction] for prediction in predictions]
        return _summed([_cost(one, group, speed, free) for group in groups])

    others = cheaper_options(method, shortest) if isinstance(method, Heta) else ()
    own, *others = map(cost, (method, *others))
    if memory is not None:  # of which the method itself would know nothing
        others = [replace(other, options=other.options | {"batch": other.batch}) for other in others]
    fits = own.memory <= free
    better = [other for other in others if other.memory <= free and (not fits or other.seconds < own.seconds)]
    return replace(own, cheaper=tuple(sorted(better, key=lambda other: -other.seconds)))


@one_at_a_time("prediction")
def timed(prediction: Prediction, products: bool = True) -> Speed:
    """Run the whole context in as many copies as the method will, as far as that is a small part of its work.

    Fewer or shorter ones would be too fast: they fit into caches, and into memory that is not given back in between.
    """
    states, prompt, n = prediction.embeddings, prediction.prompt, len(prediction)
    few = token_count(TRIED, n, "nearest", least=1)
    masked, probed = (min(few, prompt.batches("auto", n, products=kind).of(n)) for kind in (False, True))
    with prediction.running(), counting(Counter()):
        rerun = prediction.rerun()

        def forward(copies: int) -> float:
            with torch.no_grad():
                return float(rerun.log_probs(repeat(states, "pos d -> copy pos d", copy=copies))[0, 0])

        def graph() -> HessianOperator:
            return hessian(rerun, Batches(probed))

        def product(copies: int) -> float:
            return float(operator.matmat(torch.ones(copies, 1, states.shape[1]).to(states), slice(0, 1))[0, 0, 0])

        seconds = partial(timeit.repeat, timer=perf_counter, repeat=2, number=1)
        forward(1)  # the first run takes longer
        forwards = seconds(lambda: forward(masked))
        if not products:
            return Speed(fmean(forwards) / (masked * n), spread=_spread(forwards))
        operator = graph()
        product(1)
        graphs, taken = seconds(graph), seconds(lambda: product(probed))
        per_position = fmean(forwards) / (masked * n), fmean(graphs) / n, fmean(taken) / (probed * n)
        return Speed(*per_position, _spread(forwards, graphs, taken))


def _spread(*trials: Sequence[float]) -> float:
    fastest = sum(map(min, trials))
    return sum(map(max, trials)) / fastest if fastest else 1.0


def _summed(costs: Sequence[Estimate]) -> Estimate:
    """Of one attribution after another, in runs of the longest context."""
    longest = max(costs, key=lambda cost: cost.tokens)
    added = ("predictions", "forwards", "backwards", "hvps", "seconds")
    return replace(
        longest,
        runs=sum(cost.runs * cost.tokens for cost in costs) / longest.tokens,
        memory=max(cost.memory for cost in costs),
        **{name: sum(getattr(cost, name) for cost in costs) for name in added},
    )


def _cost(method: Method, predictions: Sequence[Prediction], speed: Speed, free: int) -> Estimate:
    """Of predictions that share masked forwards; the longest is the last.

    HETA's runs are counted in positions, with checks, and the full method's where an approximation is audited; other
    methods run the whole context, where a backward costs two forwards.
    """
    longest, n = predictions[-1], len(predictions[-1])
    heta = method if isinstance(method, Heta) else None
    if heta is None:
        work, run, checks = method.work(longest), n, 0
        ran = Counts(work.forwards, work.backwards, work.hvps, in_forwards=float(work.worth * n))
    else:
        ran, run, checks = counts(heta, predictions), longest_run(heta.windows(longest)), CHECKS
    batches = partial(longest.prompt.batches, free=int(free / HELD))
    most = max(1, ran.hvps or ran.forwards)
    steps = steps_of(method, longest.adapter.sizes, n, run, batches, most, len(predictions))
    largest = max(steps.values(), key=lambda step: step.needed)
    copies = steps.get("curvature", largest).copies
    if heta is not None and heta.checkpoint:
        again = [2 * ceil(counts(heta, [each]).hvps / copies) for each in predictions]
        ran.in_graphs += sum(runs * len(each) for runs, each in zip(again, predictions, strict=True))  # of every block
        ran.forwards += sum(again) + any(again)  # and once for what enters the blocks
        ran.backwards += sum(again)
    own = Estimate(
        options=chosen(method),
        tokens=n,
        forwards=ran.forwards,
        backwards=ran.backwards,
        hvps=ran.hvps,
        runs=ran.positions / n,
        seconds=speed.of(ran) + checks * n * speed.forward,
        memory=round(HELD * largest.needed),
        batch=copies,
        free=free,
        method=method.name,
        spread=speed.spread,
    )
    costs = [own]
    if heta is not None and heta.audit and heta.recipe.approximate:
        costs += [_cost(heta.full, [each], speed, free) for each in predictions]
    return replace(_summed(costs), options=own.options, batch=own.batch, predictions=len(predictions))


def _duration(seconds: float) -> str:
    if seconds < MINUTE:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / MINUTE:.0f} min" if seconds < HOUR else f"{seconds / HOUR:.1f} h"


# -------------------------------------------------------------------------------------------------------------- memory
# The bytes of a method, by formulas from the sizes of a model; the model need not be there.


MOST = 2**20  # copies at once
PARTS, WINDOWS = 4, (512, 128)  # proposed: the last quarter of the layers, and windows
SHARED = ("flow", "value_norm", "mask", "kl", "batch")  # options that every variant has


class Step(NamedTuple):
    """The bytes that a step of a method holds at most beside the weights and the cache, with so many copies at once."""

    needed: int
    copies: int


def steps_of(
    method: Method,
    sizes: Sizes,
    tokens: int,
    longest: int,
    batches: Callable[..., Batches],
    most: int = MOST,
    predictions: int = 1,
) -> dict[str, Step]:
    """Return what each step holds, in runs of ``longest`` positions of a context of so many tokens.

    ``batches(wanted, longest, …)`` chooses the copies at once, of which there are at most ``most``; every run reads the
    distributions that the method or several predictions need.
    """
    wanted, how = getattr(method, "batch", 1), {"checkpoint": getattr(method, "checkpoint", False)}
    read = max(predictions, method.positions_read(tokens))

    def copies(products: bool, most: int) -> int:
        return max(1, min(most, batches(wanted, longest, products=products, read=read, **how).of(longest)))

    if not isinstance(method, Heta):
        at_once = copies(method.differentiates, most)
        each = sizes.gradient(tokens, tokens) if method.differentiates else sizes.forward(tokens, tokens, read)
        return {"runs": Step(at_once * each, at_once)}
    steps = {"gate": Step(sizes.forward(tokens, tokens), 1)}
    if method.weights[1]:
        at_once = copies(False, tokens)
        steps["information"] = Step(at_once * sizes.forward(longest, tokens, read), at_once)
    if method.estimator is None:
        return steps
    if not method.probed:
        return {**steps, "curvature": Step(sizes.gradient(longest, tokens), 1)}
    if "layers" in method.recipe.reads:
        sizes = sizes._replace(layers=method.layers)
    at_once = copies(True, most)
    graph, product = (needs(longest, tokens, **how) for needs in (sizes.graph, sizes.product))
    products = 0 if method.variant == "gn" else at_once * product  # of a gradient that has no second graph
    return {**steps, "curvature": Step(graph + products, at_once)}


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
    memory: int
    smaller: tuple["MemoryEstimate", ...] = ()

    @property
    def largest(self) -> str:
        """The step that holds the most."""
        return max(self.steps, key=lambda name: self.steps[name].needed)

    @property
    def needed(self) -> int:
        return self.weights + self.cache + self.steps[self.largest].needed

    @property
    def fits(self) -> bool:
        return self.needed <= self.memory

    @property
    def name(self) -> str:
        """The method or preset, and its options; HETA by its options alone."""
        return as_written(self.method, self.options)

    @property
    def sum(self) -> str:
        """The parts of ``needed``."""
        step = self.steps[self.largest]
        parts = {"weights": self.weights, "cache": self.cache, self.largest: step.needed}
        return " + ".join(f"{name} {size / GIB:.3g}" for name, size in parts.items()) + f" ({step.copies} at once)"

    def __repr__(self) -> str:
        rows = [
            f"  {each.name}: {each.needed / GIB:.3g}{'' if each.fits else ', too much'} = {each.sum}"
            for each in (self, *self.smaller)
        ]
        title = f"{self.model}, {self.tokens:,} tokens; GiB of {self.memory / GIB:.3g}, predicted"
        return "\n".join([title, *rows])


def estimate_memory(
    config: Any,
    tokens: int,
    *,
    memory: float | int,
    method: str | Method = "heta",
    dtype: torch.dtype | str | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    **options: Any,
) -> MemoryEstimate:
    """Predict the memory of a method on a model of which only the configuration is there, and list what takes less.

    Nothing is loaded or run, and no device is needed.

    Args:
        config: a folder with a config.json, a name on the Hugging Face hub, or a configuration of transformers.
        tokens: the length of the prompt.
        memory: the bytes of the devices, all together.
        method: the name of a method or preset, or a ready method.
        dtype: of weights and activations; by default the configuration's.
        revision: a branch, tag or commit of the hub.
        trust_remote_code: run the code that comes with the model.
        options: options of the method.
    """
    check_at_least("tokens", tokens, 2, whole=True)
    check_at_least("memory", memory, 1)
    wanted = method_of(method, options)
    model = absent_model(config, dtype, revision, trust_remote_code=trust_remote_code)
    most = getattr(model.config, "max_position_embeddings", None) or tokens
    if tokens > most:
        raise ValueError(f"tokens={tokens}: this model reads {most} at most")
    sizes = Sizes.of(model.config, model.dtype.itemsize)
    count, cache = sum(each.numel() for each in model.parameters()), sizes.cache(tokens)
    weights = sum(each.nbytes for each in (*model.parameters(), *model.buffers()))
    free = max(1, (int(memory) - weights - cache) // 2)  # as `attribute` leaves the other half alone

    def batches(wanted: int | Literal["auto"], queries: int, **how: Any) -> Batches:
        return choose_batches(wanted, sizes, torch.device("meta"), queries, tokens, free=free, **how)

    def estimated(method: Method) -> MemoryEstimate:
        longest = tokens
        if isinstance(method, Heta) and method.recipe.windowed:
            span = max(map(len, spans_over(tokens, method.window, method.overlap)))
            longest = min(span + TAIL, tokens) if method.window_mode == "frozen" else span
        return MemoryEstimate(
            model=f"{type(model).__name__} of {_counted(count)} parameters in {str(model.dtype)[6:]}",
            method=method.name,
            options=chosen(method),
            tokens=tokens,
            weights=weights,
            cache=cache,
            steps=steps_of(method, sizes, tokens, longest, batches),
            memory=int(memory),
        )

    own = estimated(wanted)
    others = [] if own.fits else map(estimated, _smaller(wanted, sizes.layers, tokens))
    smaller = sorted((other for other in others if other.needed < own.needed), key=lambda other: -other.needed)
    return replace(own, smaller=tuple(smaller))


def _counted(parameters: int) -> str:
    if parameters >= 1e8:
        return f"{parameters / 1e9:.2f} billion"
    return f"{parameters / 1e6:.2f} million" if parameters >= 1e5 else f"{parameters:,}"


def _smaller(method: Method, layers: int, tokens: int) -> Iterator[Heta]:
    """Yield settings of HETA that take less memory than the full method."""
    if not isinstance(method, Heta) or method.variant != "full" or not method.weights[0] or method.interactions:
        return
    shared = {name: value for name, value in method.chosen.items() if name in SHARED}
    if not method.checkpoint:
        yield Heta(checkpoint=True, **{name: method.chosen[name] for name in method.effective})
    yield Heta(variant="ls", layers=max(1, layers // PARTS), **shared)
    yield from (Heta(variant="win", window=window, **shared) for window in WINDOWS if window <= tokens // 2)
    yield Heta(**CAREFUL, **{name: value for name, value in shared.items() if name not in ("flow", "value_norm")})
    yield Heta(variant="kl_only", **shared)


# -------------------------------------------------------------------------------------------------------------- budget
# A method that costs no more than so many forwards: the option that its cost grows with is chosen for each prompt.


M = TypeVar("M", bound=Method)

LEAST, LARGEST = range(1, 9), 2**21  # sizes that are tried as the least one, and the end of all sizes


class OverBudget(ValueError):
    """A method that costs more, however little of it is done."""


def within_budget(method: M, prediction: Prediction, budget: float | int) -> M:
    """The method with as much work as a budget of so many plain forwards allows, as `Work.worth` counts them.

    Of `Method.scaled_by`, the first option is made as large as the budget allows, and the others stay as they are. If
    even its least value is too much, it stays there, and the next is made smaller. A method without such an option is
    left as it is, if it costs no more.
    """
    if isinstance(method, FunctionMethod):
        raise OverBudget("what a function takes is not known beforehand: only a Method, by its work, keeps to a budget")
    method.check(prediction)
    for name in (name for name in method.scaled_by if name not in method.without_effect):
        worth = partial(_worth, method, prediction, name)
        least = next((size for size in LEAST if worth(size) < inf), None)
        if least is None:
            raise ValueError(f"{name} of {method.name} takes none of {LEAST.start} to {LEAST.stop - 1}")
        sizes = range(least, LARGEST)
        affordable = bisect_right(sizes, budget, key=worth)
        method = replace(method, **{name: sizes[max(0, affordable - 1)]})
        if affordable:
            try:
                method.check(prediction)
            except ValueError as error:
                left = f"{name}={getattr(method, name)}"
                raise OverBudget(f"a budget of {budget:g} forwards leaves it {left}: {error}") from None
            return method
    if (cost := method.work(prediction).worth) > budget:
        raise OverBudget(f"at its cheapest it takes {cost} forwards, over the budget of {budget:g}")
    return method


def _worth(method: Method, prediction: Prediction, name: str, size: int) -> float | int:
    """The work with an option of this size; infinite for a size that the option does not take."""
    try:
        return replace(method, **{name: size}).work(prediction).worth
    except ValueError:
        return inf
