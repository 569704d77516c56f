"""Components that carry a change: recall of exact effects by screening, known mechanisms, and time."""

import time
from collections.abc import Iterator
from functools import partial
from itertools import islice
from statistics import median
from typing import Any, get_args

import torch

import heta_lens
from benchmarks import pages
from benchmarks.components_mechanisms import DEMO, GEMMA, SMALL, Ids, cached, heads_found, induction, loaded, shared
from benchmarks.models import TEXT
from benchmarks.outcomes import Outcomes
from benchmarks.pages import Table, number, written
from heta_lens.causal import components
from heta_lens.causal.component_results import Direction
from heta_lens.data import recall
from heta_lens.evaluation.statistics import estimate

STORIES, DIRECTIONS = 32, get_args(Direction)
PAIRS = (  # the changed word is near the end, so that all components after it can be patched
    ("The capital of {} is the city of", "France", "Spain"),
    ("The currency of {} is called the", "Japan", "Germany"),
    ("She lives in {} and speaks", "Germany", "Spain"),
    ("The teacher met the {} and talked to", "woman", "man"),
    ("My {} said that", "sister", "brother"),
    ("The {} on the table", "keys", "key"),
    ("The chef put the {} in the", "cake", "fish"),
    ("Anna is in Paris and Tom is in London. {} is in", "Tom", "Anna"),
)
OUTCOMES = Outcomes("components")
KEYS = [
    *(("recalled", name, change, way)
      for name in (DEMO, SMALL) for change in ("counterfactual", "zero") for way in DIRECTIONS),
    *(("heads_found", name, way) for name in (SMALL, GEMMA) for way in DIRECTIONS),
    ("induction",),
    ("timed",),
]  # fmt: skip
LIMITS = {"recalled": [(0, 1)] * 4 + [None], "heads_found": [(-1, 1), (0, 1)]}  # of the numbers of a prompt


def prompts(name: str) -> Iterator[tuple[str, Ids, Ids, str | None]]:
    """Yield template, prompt, counterfactual of the same length, and answer (None: the predicted token)."""
    if name == DEMO:
        stories = recall.stories("dev", facts=3)
        texts = ((story.template, story.text, story.counterfactual.text, story.answer) for story in stories)
    else:
        texts = ((form, form.format(word), form.format(other), None) for form, word, other in PAIRS)
    encode = loaded(name).to_tokens
    pairs = ((template, encode(text), encode(other), answer) for template, text, other, answer in texts)
    return islice((pair for pair in pairs if pair[1].shape == pair[2].shape), STORIES)


def recalled(name: str, change: str, direction: Direction) -> list[list[Any]]:
    """Patch every component after the change, and look for the ten largest effects among estimates with 1 and 5 steps.

    Return for every prompt the template, the shares among the first 10 and 32, and the tenth effect over the change.
    """
    found: list[list[Any]] = []
    for template, ids, other, target in prompts(name):
        clean, places = cached(loaded(name), ids), (ids != other)[0].nonzero().flatten().tolist()
        search = partial(components, clean, places, target, tokens=ids, direction=direction, share=0)
        search = partial(search, change=other if change == "counterfactual" else "zero")
        exact, screened = search(verify=10**6), search(verify=1, steps=5)
        estimates = [exact.sign * each.estimates[tuple(exact.found.T)] for each in (exact, screened)]
        shares = [shared(exact.sign * exact.effects, each, among) for each in estimates for among in (10, 32)]
        found.append([template, *shares, exact.sign * float(exact.effects[9]) / abs(exact.clean - exact.changed)])
    return found


def timed() -> list[list[str]]:
    """Return the seconds of the processor for searches, and these as a number of forwards."""
    model, ids = loaded(SMALL), loaded(SMALL).to_tokens(TEXT)
    clean = cached(model, ids)
    (place, *_) = heta_lens.Prediction.from_cache(clean, tokens=ids).positions_of("flour with")

    def seconds(work: Any) -> float:
        begun = time.process_time()
        work()
        return time.process_time() - begun

    found = []
    for direction in DIRECTIONS:
        for steps in (1, 5):
            search = partial(components, clean, [place], tokens=ids, direction=direction, steps=steps)
            with torch.no_grad():
                forward = median(seconds(partial(model, ids)) for _ in range(7))
            taken = seconds(search)
            found.append([direction, str(steps), str(ids.shape[1]), number(taken), number(taken / forward)])
    return found


# ------------------------------------------------------------------------------------------------------------ tables
def run(*parts: str) -> None:
    torch.set_num_threads(1)
    wanted = [key for key in KEYS if not parts or key[0] in parts]
    functions = {each.__name__: each for each in (recalled, heads_found, induction, timed)}
    OUTCOMES.measure(wanted, lambda part, *key: functions[part](*key))


def row(key: tuple[Any, ...], outcome: list[list[Any]]) -> list[str]:
    """Return the means over prompts with 95 % intervals, clustered by template, or a median where there is no limit."""
    templates, *columns = zip(*outcome, strict=True)
    cells = [
        written(estimate(column, templates, bounds=ends)) if ends else f"{median(column):.1%}"
        for column, ends in zip(columns, LIMITS[key[0]], strict=True)
    ]
    return [*key[1:], str(len(templates)), *cells]


def write() -> None:
    outcomes, _ = OUTCOMES.of(KEYS)
    ways = [f"first {among}, {steps}" for steps in ("1 step", "5 steps") for among in (10, 32)]
    parts = {
        "recalled": ("Recall", ["model", "change", "direction", "prompts", *ways, "tenth effect"]),
        "heads_found": ("Indirect objects", ["model", "direction", "prompts", "rank correlation", "first ten"]),
        "induction": ("Induction", ["head", "restores", "induction score", "rank of 270"]),
        "timed": ("Time", ["direction", "steps", "tokens", "seconds", "forwards"]),
    }
    for part, (title, columns) in parts.items():
        several = {key: outcome for key, outcome in outcomes.items() if key[0] == part}
        rows = outcomes[(part,)] if (part,) in several else [row(*each) for each in several.items()]
        pages.write("components", [Table(title, columns, rows, sum(key[0] == part for key in KEYS) - len(several))])
