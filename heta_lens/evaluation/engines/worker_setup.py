"""What a worker is started with: how it loads its model, and the methods it explains prompts by."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from os import PathLike
from typing import Any

import torch
from threadpoolctl import threadpool_limits
from torch import nn

from heta_lens.evaluation.prompt_evaluation import Explainer, PromptEvaluator
from heta_lens.model.loading import load_model

PLACED = ("device", "device_map", "n_devices")  # options of `load_model` that say where a model goes


@dataclass(frozen=True, eq=False)
class WorkerSetup:
    """``gpus`` is how many GPUs there are to share out, one to each worker in turn."""

    load: Callable[[], Any]
    entries: Mapping[str, Explainer]
    threads: int
    gpus: int = 0

    def evaluator(self, number: int = 0) -> PromptEvaluator:
        """Load the model of the worker of this number, in a process of which only this many threads are wanted."""
        limit_threads(self.threads)
        return PromptEvaluator(self._placed(number)(), self.entries)

    def _placed(self, number: int) -> Callable[[], Any]:
        """Loads the model on this worker's GPU, unless it is said where models go."""
        load = self.load
        if not self.gpus or not isinstance(load, partial) or load.func is not load_model or _is_placed(load):
            return load
        return partial(load, device=f"cuda:{number % self.gpus}")


def _is_placed(load: partial[Any]) -> bool:
    return any(load.keywords.get(name) is not None for name in PLACED)


def limit_threads(count: int) -> None:
    """Of torch and of the linear algebra that NumPy calls, which share the cores with those of other workers."""
    torch.set_num_threads(count)
    threadpool_limits(count)


def loader(model: Any) -> Callable[[], Any]:
    """How workers load a model: by its name or folder, or by a function; a loaded one cannot be sent to them."""
    if isinstance(model, str | PathLike):
        return partial(load_model, str(model))
    if not _loads(model):
        raise TypeError(
            "workers need a model each: give the name of a model, a folder, or a function that loads one, not a "
            f"{type(model).__name__}"
        )
    return model


def loaded(model: Any) -> Any:
    """The model itself, which may have to be loaded."""
    return loader(model)() if isinstance(model, str | PathLike) or _loads(model) else model


def _loads(model: Any) -> bool:
    return callable(model) and not isinstance(model, nn.Module)
