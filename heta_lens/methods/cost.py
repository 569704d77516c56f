"""What an attribution will cost, before it is begun, and what would be cheaper."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, nan
from statistics import fmean
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

import psutil
import torch
from einops import repeat

from heta_lens._util.numerics import token_count
from heta_lens._util.options import check_at_least, chosen, written
from heta_lens._util.work import counting
from heta_lens.methods.base import FunctionMethod, Method
from heta_lens.methods.heta.cost import Positions, cheaper_options, counts, longest_run
from heta_lens.methods.heta.hessian import HessianOperator, hessian
from heta_lens.methods.heta.heta import Heta
from heta_lens.methods.memory import Step, steps_of
from heta_lens.methods.registry import named
from heta_lens.model.batching import Batches, available
from heta_lens.model.lock import one_at_a_time
from heta_lens.prediction.prediction import Prediction

TRIED = 1 / 16  # of the prompt's tokens: so many copies are run at most, to see how long they take
HELD = 1.15  # bytes that the allocator holds for each that is in use
CHECKS = 3  # forwards' worth of making sure of the cache, of reusing a prefix and of second derivatives
MINUTE, HOUR = 60, 3600
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
        lines = [f"{self._name} {self._what}: {self._size}", *self._advice]
        return "\n".join(lines)

    @property
    def _what(self) -> str:
        if self.predictions == 1:
            return f"on {self.tokens} tokens"
        return f"of {self.predictions} predictions on up to {self.tokens} tokens"

    @property
    def _name(self) -> str:
        """The method or preset, and its options; HETA by its options alone."""
        name, options = named(self.method, self.options)
        return written(options, "" if name == "heta" else name)

    @property
    def _size(self) -> str:
        counts = {
            "Hessian–vector products": self.hvps,
            "forwards": self.forwards,
            "backwards": self.backwards,
        }
        work = " and ".join(f"{count:,} {kind}" for kind, count in counts.items() if count) or "no runs"
        return f"{work}, worth {self.runs:,.0f} plain ones; about {self._time_and_memory}"

    @property
    def _time_and_memory(self) -> str:
        """The time, as a range where trial runs took unequally long, and the memory."""
        least = 2 * self.seconds / (1 + self.spread)
        ends = [_duration(self.seconds)] if self.spread < UNEQUAL else map(_duration, (least, self.spread * least))
        return f"{' to '.join(ends)}, {self.memory / 2**30:.1f} GiB"

    @property
    def _advice(self) -> Iterator[str]:
        if self.memory > self.free:
            yield f"this is more memory than the {self.free / 2**30:.1f} GiB that are to spare"
        load, cores = psutil.getloadavg()[0], psutil.cpu_count() or 1
        if load > BUSY * cores:
            yield f"measured on a busy machine (load {load:.1f} on {cores} cores): when idle, it takes less"
        for other in self.cheaper:
            yield f"  {other._name}: about {other._time_and_memory}"


class Speed(NamedTuple):
    """Seconds that one position takes: in a forward without gradients, in a graph of g's gradient, in a product.

    ``spread`` is how many times longer the slowest trial took than the fastest.
    """

    forward: float
    graph: float = nan
    product: float = nan
    spread: float = 1.0

    def of(self, work: Positions) -> float:
        products = work.graphs * self.graph + work.products * self.product if work.graphs else 0.0
        return work.forwards * self.forward + products


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
    if not isinstance(method, Heta):
        return _summed([_baseline_cost(method, prediction, speed, free) for prediction in predictions])

    def cost(one: Heta) -> Estimate:
        groups = one.sharing_runs(predictions) if together else [[prediction] for prediction in predictions]
        return _summed([_heta_cost(one, group, speed, free) for group in groups])

    own, *others = map(cost, (method, *cheaper_options(method, shortest)))
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

        forwards = _lasting(lambda: forward(1), lambda: forward(masked))
        if not products:
            return Speed(fmean(forwards) / (masked * n), spread=_spread(forwards))
        operator = graph()
        graphs = _lasting(lambda: product(1), graph)
        taken = _lasting(lambda: None, lambda: product(probed))
        per_position = fmean(forwards) / (masked * n), fmean(graphs) / n, fmean(taken) / (probed * n)
        return Speed(*per_position, _spread(forwards, graphs, taken))


def _lasting(before: Callable[[], Any], run: Callable[[], Any]) -> list[float]:
    """Return the seconds of two runs, after what makes the first run take longer."""
    before()
    seconds = []
    for _ in range(2):
        begun = perf_counter()
        run()
        seconds.append(perf_counter() - begun)
    return seconds


def _spread(*trials: Sequence[float]) -> float:
    fastest = sum(map(min, trials))
    return sum(map(max, trials)) / fastest if fastest else 1.0


def _summed(costs: Sequence[Estimate]) -> Estimate:
    """Of one attribution after another, in runs of the longest context."""
    longest = max(costs, key=lambda cost: cost.tokens)
    return replace(
        longest,
        predictions=sum(cost.predictions for cost in costs),
        forwards=sum(cost.forwards for cost in costs),
        backwards=sum(cost.backwards for cost in costs),
        hvps=sum(cost.hvps for cost in costs),
        runs=sum(cost.runs * cost.tokens for cost in costs) / longest.tokens,
        seconds=sum(cost.seconds for cost in costs),
        memory=max(cost.memory for cost in costs),
    )


def _heta_cost(method: Heta, predictions: Sequence[Prediction], speed: Speed, free: int) -> Estimate:
    """Of HETA, where these predictions share masked forwards; of an approximation's audit, with the full method's."""
    own, n = counts(method, predictions), len(predictions[-1])
    step = _largest_step(method, predictions[-1], max(1, own.hvps), free, len(predictions))
    again = [2 * ceil(counts(method, [each]).hvps / step.copies) * method.checkpoint for each in predictions]
    own.ran.graphs += sum(runs * len(each) for runs, each in zip(again, predictions, strict=True))  # of every block
    cost = Estimate(
        options=method.chosen,
        tokens=n,
        forwards=own.forwards + sum(again) + any(again),  # and once for what enters the blocks
        backwards=own.backwards + sum(again),
        hvps=own.hvps,
        runs=own.ran.runs / n,
        seconds=speed.of(own.ran) + CHECKS * n * speed.forward,
        memory=step.needed,
        batch=step.copies,
        free=free,
        spread=speed.spread,
    )
    full = [_heta_cost(method.full, [each], speed, free) for each in predictions] if _audits_full(method) else []
    return replace(_summed([cost, *full]), options=cost.options, batch=cost.batch, predictions=len(predictions))


def _audits_full(method: Heta) -> bool:
    return method.audit and method.recipe.approximate


def _largest_step(method: Method, prediction: Prediction, most: int, free: int, targets: int = 1) -> Step:
    """Return the step that holds the most, with what the allocator wastes; at most so many copies run at once."""
    prompt, n, room = prediction.prompt, len(prediction), int(free / HELD)
    longest, checkpoint = n, False
    if isinstance(method, Heta):
        longest, checkpoint = longest_run(method, method.windows(prediction)), method.checkpoint
    read = max(targets, method.positions_read(n))

    def batches(products: bool) -> Batches:
        wanted = getattr(method, "batch", 1)
        return prompt.batches(wanted, longest, products=products, checkpoint=checkpoint, read=read, free=room)

    steps = steps_of(method, prediction.adapter.sizes, n, longest, batches, read, most)
    largest = max(steps.values(), key=lambda step: step.needed)
    copies = steps["curvature"].copies if "curvature" in steps else largest.copies
    return Step(round(HELD * largest.needed), copies)


def _baseline_cost(method: Method, prediction: Prediction, speed: Speed, free: int) -> Estimate:
    """Estimate a method other than HETA from its runs of the whole context; a backward costs two forwards."""
    n, work = len(prediction), method.work(prediction)
    step = _largest_step(method, prediction, max(1, work.forwards), free)
    return Estimate(
        options=chosen(method),
        tokens=n,
        forwards=work.forwards,
        backwards=work.backwards,
        hvps=work.hvps,
        runs=float(work.worth),
        seconds=work.worth * n * speed.forward,
        memory=step.needed,
        batch=step.copies,
        free=free,
        method=method.name,
        spread=speed.spread,
    )


def _duration(seconds: float) -> str:
    if seconds < MINUTE:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / MINUTE:.0f} min" if seconds < HOUR else f"{seconds / HOUR:.1f} h"


# -------------------------------------------------------------------------------------------------------------- budget
# A method that costs no more than so many forwards: the option that its cost grows with is chosen for each prompt.


M = TypeVar("M", bound=Method)

LEAST, MOST = range(1, 9), 2**20  # sizes that are tried as the least one, and the greatest


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
        least, fits = _least(method, name), _fitting(method, name, prediction, budget)
        if fits(least):
            fitting = replace(method, **{name: _largest(fits, least)})
            return _checked(fitting, name, prediction, budget)
        method = replace(method, **{name: least})
    if (cost := method.work(prediction).worth) > budget:
        raise OverBudget(f"at its cheapest it takes {cost} forwards, over the budget of {budget:g}")
    return method


def _checked(method: M, name: str, prediction: Prediction, budget: float | int) -> M:
    try:
        method.check(prediction)
    except ValueError as error:
        raise OverBudget(f"a budget of {budget:g} forwards leaves it {name}={getattr(method, name)}: {error}") from None
    return method


def _fitting(method: Method, name: str, prediction: Prediction, budget: float | int) -> Callable[[int], bool]:
    def fits(size: int) -> bool:
        try:
            return replace(method, **{name: size}).work(prediction).worth <= budget
        except ValueError:  # more than the option takes
            return False

    return fits


def _least(method: Method, name: str) -> int:
    """The least value that the option takes."""
    for size in LEAST:
        try:
            replace(method, **{name: size})
        except ValueError:
            continue
        return size
    raise ValueError(f"{name} of {method.name} takes none of {LEAST.start} to {LEAST.stop - 1}")


def _largest(fits: Callable[[int], bool], least: int) -> int:
    """The largest size that fits, of which the least does."""
    high = least
    while high < MOST and fits(2 * high):
        high *= 2
    low, beyond = high, 2 * high
    while beyond - low > 1:
        middle = (low + beyond) // 2
        low, beyond = (middle, beyond) if fits(middle) else (low, middle)
    return low
