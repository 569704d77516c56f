"""What printed tables ask beside `METRICS`: costs, windows' edges, and settings of a decoder."""

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from heta_lens.attribution import Attribution
from heta_lens.data.instance import Instance
from heta_lens.evaluation.reproduce.ways import Known, Recombined, parts_of
from heta_lens.evaluation.runner import ask, figures
from heta_lens.heta import Heta
from heta_lens.metrics import FEW, GRID, Case, Setting, first_token
from heta_lens.metrics.judges import Judge, Value
from heta_lens.prediction import Prediction
from heta_lens.windows import edge_gap, most_central, windows

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
        return cls(model, instance, ask(model, instance), full, window, first)

    @cached_property
    def judges(self) -> Mapping[str, Judge]:
        """Those beside `METRICS`, one for all figures that come from it, by the names of these."""
        bound = {judge: partial(judge, self) for judge in JUDGES.values()}
        return {name: bound[judge] for name, judge in JUDGES.items()}

    @cached_property
    def peak(self) -> float:
        """Bytes that the full method holds."""
        return _held(self.full, self.prediction)


OfTrial: TypeAlias = Callable[[Trial, Case], Mapping[str, Value]]


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


JUDGES: Mapping[str, OfTrial] = {
    "seconds": judge_seconds,
    **dict.fromkeys(("memory", "memory_share"), judge_memory),
    "edge_gap": judge_edges,
    **dict.fromkeys(_decoded("grid"), partial(judge_decoding, GRID, "grid")),
    **dict.fromkeys(_decoded("few"), partial(judge_decoding, FEW, "few")),
}
"""By the names of the figures that each gives."""
SETTINGS: Mapping[str, int] = {"grid": len(GRID), "few": len(FEW)}
