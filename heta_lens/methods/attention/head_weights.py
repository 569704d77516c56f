"""How much each attention head counts, as AT2 fits it: kept in a file, and refused by another model."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from heta_lens._util.tensor_storage import load, save
from heta_lens._util.type_checks import fits
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.loading import DEMO

KIND, VERSION = "heta_lens head weights", 1
SAMPLE = 16  # tokens whose embeddings a model is recognised by
ALIKE = 0.02  # relative: half precision rounds less
FITTED = DEMO / "head_weights.safetensors"


@dataclass(frozen=True, eq=False)
class HeadWeights:
    """A weight for each head of each layer, the model it belongs to, and how it was fitted."""

    weights: Float[Tensor, "layer head"]
    model: str
    lengths: Float[Tensor, "token"]  # of some embeddings
    fitted: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, adapter: ModelAdapter, weights: Float[Tensor, "layer head"], **fitted: Any) -> "HeadWeights":
        name = str(getattr(adapter.model.cfg, "model_name", type(adapter.model).__name__))
        return cls(weights, name, _lengths(adapter), fitted)

    def save(self, path: str | PathLike[str]) -> None:
        save(path, KIND, VERSION, {**vars(self), "fitted": dict(self.fitted)})

    @classmethod
    def load(cls, path: str | PathLike[str]) -> "HeadWeights":
        return load(Path(path).expanduser(), KIND, VERSION, lambda value: cls(**value), check=_check)

    def belongs_to(self, adapter: ModelAdapter) -> bool:
        """Whether they were fitted to this model, however it is loaded."""
        same = tuple(self.weights.shape) == (adapter.layers, int(adapter.model.cfg.n_heads))
        own = _lengths(adapter)
        return same and own.shape == self.lengths.shape and bool(((own / self.lengths - 1).abs() < ALIKE).all())


def _check(value: dict[str, Any]) -> None:
    for name, dimensions in (("weights", 2), ("lengths", 1)):
        tensor = value[name]
        if not (isinstance(tensor, Tensor) and tensor.is_floating_point() and tensor.ndim == dimensions):
            raise ValueError(f"its {name} are no tensor of floats with {dimensions} dimensions")
    if {*value} != {field.name for field in fields(HeadWeights)} or not fits(value["fitted"], Mapping[str, Any]):
        raise ValueError(f"it has {', '.join(value)}")


def _lengths(adapter: ModelAdapter) -> Float[Tensor, "token"]:
    """Of the first tokens' embeddings, which are the same in every class and nearly so in every precision."""
    some = range(min(SAMPLE, adapter.vocabulary))
    return adapter.embedding_table(some).double().norm(dim=-1).clamp(min=1e-9).cpu()


@cache
def demo_weights() -> HeadWeights:
    """Those that ship with the demo model."""
    return HeadWeights.load(FITTED)


def equal_weights(adapter: ModelAdapter) -> Float[Tensor, "layer head"]:
    layers, heads = adapter.layers, int(adapter.model.cfg.n_heads)
    return torch.full((layers, heads), 1 / (layers * heads), dtype=torch.float64)
