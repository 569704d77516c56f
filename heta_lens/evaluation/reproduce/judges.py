"""What printed tables ask beside `METRICS`: interventions, costs, windows' edges, spans, and settings of a decoder."""

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from heta_lens.attribution import Attribution
from heta_lens.cached import Activations
from heta_lens.data.instance import Instance
from heta_lens.evaluation.reproduce.ways import Known, Recombined, parts_of
from heta_lens.evaluation.runner import ask, figures
from heta_lens.heta import Heta
from heta_lens.interventions import effects
from heta_lens.lens import names_filter, values_name
from heta_lens.metrics import FEW, GRID, Case, Setting, f1, first_token
from heta_lens.metrics.effects import chance_of_passing, misattribution, passes, patch_correlation
from heta_lens.metrics.normalised import normalised
from heta_lens.metrics.ranking import highest
from heta_lens.metrics.robustness import again
from heta_lens.prediction import Prediction, predictions
from heta_lens.windows import edge_gap, most_central, windows

Value: TypeAlias = float | tuple[float, ...] | str  # a str says why there is none

TOP = 5
SEEDS = 3
DECODED = ("soft_nc", "soft_ns", "dsa")


@dataclass(frozen=True, eq=False)
class Trial:
    """A prompt, and what the judges of several methods share of it. ``first``: of its data set."""

    model: Any
    instance: Instance
    prediction: Prediction
    full: Heta
    window: int
    first: bool
    known: Known = field(default_factory=dict)

    @classmethod
    def of(cls, model: Any, instance: Instance, full: Heta, window: int, first: bool) -> "Trial":
        prediction = ask(model, instance)
        _ = prediction.prompt.kept  # made before any method's seconds are counted
        return cls(model, instance, prediction, full, window, first)

    @property
    def ask(self) -> Callable[[Instance], Prediction]:
        return partial(ask, self.model)

    @cached_property
    def effects(self) -> Float[Tensor, "pos"]:
        """Of patching what the last position reads from each token."""
        return effects(self.prediction).cpu().double()

    @cached_property
    def peak(self) -> float:
        """Bytes that the full method holds."""
        return _held(self.full, self.prediction)


Judge: TypeAlias = Callable[[Trial, Case], Mapping[str, Value]]


# -------------------------------------------------------------------------------------------------------- interventions
def judge_patching(trial: Trial, case: Case) -> dict[str, Value]:
    top = highest(case.scores, TOP, case.candidates)
    found = patch_correlation(case.scores, trial.effects, candidates=case.candidates)
    return {
        "patch_correlation": "the scores or the effects tell no tokens apart" if np.isnan(found) else found,
        "intervention": float(effects(case.prediction, groups=[top])[0]),
        "misattribution": misattribution(case.scores, trial.effects, candidates=case.candidates),
    }


def judge_swapped(trial: Trial, case: Case) -> dict[str, Value]:
    """Is the evidence found in a text that tells something else, where its values in a middle layer are put in?"""
    names = ("causal_pass", "pass_by_chance")
    if case.instance.twin is None:
        return dict.fromkeys(names, "no twin known of this prompt")
    other = trial.ask(replace(case.instance.twin, answer=case.instance.answer, choices=()))
    if len(other) != len(case.prediction):
        return dict.fromkeys(names, "the twin has another number of tokens")
    gold = case.positions("gold")
    if not gold:
        return dict.fromkeys(names, "no evidence known of this prompt")
    layer = case.prediction.lens.layers // 2
    with values_put(other, gold, values_at(case.prediction, gold, layer), layer):
        found = case.explain(again(other))
    scores = found.scores.detach().cpu().double()
    return {
        "causal_pass": passes(scores, gold, TOP, candidates=case.candidates),
        "pass_by_chance": chance_of_passing(len(case.candidates), len(gold), TOP),
    }


@torch.no_grad()
def values_at(prediction: Prediction, places: Sequence[int], layer: int) -> Float[Tensor, "place ..."]:
    """The value vectors of these tokens, as this model lays them out."""
    seen: list[Tensor] = []

    def note(live: Tensor) -> None:
        seen.append(live[0, list(places)].clone())

    prediction.lens.run(prediction.ids[None], {values_name(layer): note})
    return seen[0]


def values_put(prediction: Prediction, places: Sequence[int], values: Float[Tensor, "place ..."], layer: int) -> Any:
    """While this lasts, these tokens have these values."""

    def hook(live: Tensor) -> Tensor:
        found = live.clone()
        there = [row for row, place in enumerate(places) if place < live.shape[1]]
        found[:, [places[row] for row in there]] = values[there].to(live)
        return found

    return prediction.lens.hooked([(values_name(layer), hook)])


# ----------------------------------------------------------------------------------------------------- cost and windows
def judge_seconds(_: Trial, case: Case) -> dict[str, Value]:
    return {"seconds": float(case.attribution.diagnostics["seconds"])}


def judge_memory(trial: Trial, case: Case) -> dict[str, Value]:
    """The peak beside the model, and in units of the full method's."""
    if not trial.first:
        return dict.fromkeys(("memory", "memory_share"), "memory is watched on the first prompt alone")
    held = _held(_itself(case.explain), case.prediction)
    return {"memory": held / 2**30, "memory_share": held / trial.peak}


def _itself(explain: Any) -> Any:
    return explain.asked if isinstance(explain, Recombined) else explain


def _held(explain: Any, prediction: Prediction) -> float:
    """The most bytes that tensors held at once beyond those that were there."""
    device = prediction.lens.device
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        explain(prediction)
        return float(torch.cuda.max_memory_allocated(device) - before)
    with _Held() as meter:
        explain(prediction)
    return float(meter.most)


class _Held(TorchDispatchMode):
    """Counts bytes as tensors come and go; what they share counts once."""

    def __init__(self) -> None:
        super().__init__()
        self.live: set[int] = set()
        self.now, self.most = 0, 1

    def __torch_dispatch__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(found):
            if isinstance(tensor, Tensor):
                self._came(tensor.untyped_storage())
        return found

    def _came(self, storage: Any) -> None:
        name, size = storage._cdata, storage.nbytes()
        if name not in self.live:
            self.live.add(name)
            self.now += size
            self.most = max(self.most, self.now)
            weakref.finalize(storage, self._went, name, size)

    def _went(self, name: int, size: int) -> None:
        self.live.discard(name)
        self.now -= size


def judge_edges(trial: Trial, case: Case) -> dict[str, Value]:
    """Of the whole method and of one that knows windows: how much score differs where windows meet."""
    whole = parts_of(trial.full, trial.prediction, trial.known).scores.detach().cpu().double()
    seams = most_central(windows(len(whole), trial.window, 0.5))
    return {"edge_gap": edge_gap(whole, case.scores, seams)}


# ---------------------------------------------------------------------------------------------------------------- spans
def judge_span(trial: Trial, case: Case) -> dict[str, Value]:
    gold = case.positions("gold")
    if not gold:
        return {"span_f1": "no evidence known of this prompt"}
    return {"span_f1": f1(_of_whole_answer(trial, case), gold, candidates=case.candidates)}


def _of_whole_answer(trial: Trial, case: Case) -> Float[Tensor, "pos"]:
    """Scores of the context, summed over the tokens of the answer, each of which has the same total."""
    prediction, answer = case.prediction, case.instance.answer
    written = prediction.lens.speller.encoder()(answer) if answer else []
    if len(written) < 2:
        return case.scores
    n = len(prediction)
    ids = torch.cat([prediction.ids, torch.tensor(written[:-1]).to(prediction.ids)])[None]
    with torch.no_grad():
        _, cache = trial.model.run_with_cache(ids, names_filter=names_filter)
    lens = prediction.lens
    wanted = {n + place: token for place, token in enumerate(written)}
    with lens.undisturbed():
        asked = predictions(lens, Activations.of(cache), wanted, tokens=ids, follow=False)
    rows = [normalised(case.explain(one).scores.cpu()[:n], norm="sum").values for one in asked]
    return torch.stack(rows).double().sum(0)


# ------------------------------------------------------------------------------------------------------------- decoding
def judge_decoding(settings: Sequence[Setting], name: str, _: Trial, case: Case) -> dict[str, Value]:
    """Every figure under every setting and seed, one after the other; of a ratio both its terms."""
    tokens = [first_token(case.prediction, setting, seed) for setting in settings for seed in range(SEEDS)]
    found = {token: _asked_of(case, token) for token in dict.fromkeys(tokens)}
    told: dict[str, Value] = {}
    for metric in DECODED:
        missing = next((reasons[metric] for values, reasons in found.values() if values[metric] is None), "")
        terms = [found[token][0][metric] for token in tokens]
        told[f"{name}_{metric}"] = missing or tuple(float(term) for term in np.ravel(np.array(terms, dtype=float)))
    return told | {f"{name}_tokens": float(len(found))}


def _asked_of(case: Case, token: int) -> tuple[Mapping[str, Any], Mapping[str, str]]:
    """What is said of another token in the answer's place."""
    if token == case.prediction.target:
        return figures(case, DECODED)
    asked = replace(case.prediction, target=token)
    attribution: Attribution = case.explain(asked)
    return figures(replace(case, prediction=asked, attribution=attribution), DECODED)


def _decoded(name: str) -> list[str]:
    return [f"{name}_{metric}" for metric in (*DECODED, "tokens")]


JUDGES: Mapping[str, Judge] = {
    **dict.fromkeys(("patch_correlation", "intervention", "misattribution"), judge_patching),
    **dict.fromkeys(("causal_pass", "pass_by_chance"), judge_swapped),
    "seconds": judge_seconds,
    **dict.fromkeys(("memory", "memory_share"), judge_memory),
    "edge_gap": judge_edges,
    "span_f1": judge_span,
    **dict.fromkeys(_decoded("grid"), partial(judge_decoding, GRID, "grid")),
    **dict.fromkeys(_decoded("few"), partial(judge_decoding, FEW, "few")),
}
"""By the names of the figures that each gives."""
SETTINGS: Mapping[str, int] = {"grid": len(GRID), "few": len(FEW)}
