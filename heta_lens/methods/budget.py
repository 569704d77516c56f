"""A method that costs no more than so many forwards: the option that its cost grows with is chosen for each prompt."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from heta_lens.methods.base import Method
from heta_lens.methods.function_method import FunctionMethod
from heta_lens.methods.heta.heta import Heta
from heta_lens.methods.heta.heta_cost_estimate import counts
from heta_lens.prediction.prediction import Prediction

M = TypeVar("M", bound=Method)

LEAST, MOST = range(1, 9), 2**20  # sizes that are tried as the least one, and the greatest


class OverBudget(ValueError):
    """A method that costs more, however little of it is done."""


def worth(method: Method, prediction: Prediction) -> int:
    """How many plain forwards a method takes at most; a backward, or an HVP, counts as two.

    As what a run took is counted: a copy of the prompt that is run only in part counts as a whole one.
    """
    if not isinstance(method, Heta):
        work = method.work(prediction)
        return work.get("forwards", 0) + 2 * work.get("backwards", 0)
    own = counts(method, [prediction])
    full = worth(method.full, prediction) if method.audit and method.recipe.approximate else 0
    return own.forwards + 2 * (own.backwards + own.hvps) + full


def within_budget(method: M, prediction: Prediction, budget: float | int) -> M:
    """The method with as much work as a budget of so many plain forwards allows, as `worth` counts them.

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
    if (cost := worth(method, prediction)) > budget:
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
            return worth(replace(method, **{name: size}), prediction) <= budget
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
