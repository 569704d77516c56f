"""Which patches are refused, before any run."""

from collections.abc import Iterable
from typing import Literal, TypeAlias, get_args

import torch
from jaxtyping import Bool
from torch import Tensor

from heta_lens._util.options import Batch, check_batch, check_choice, chosen_positions
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.hook_sites import queries_keys_names
from heta_lens.prediction.masking import Mask, check_mask
from heta_lens.prediction.prediction import Prediction
from heta_lens.prediction.readout import Scale

How: TypeAlias = Literal["edge_patch", "resid_patch", "input"]
Patterns: TypeAlias = Literal["frozen", "recomputed"]


def check_reading(scale: Scale, batch: Batch) -> None:
    """Refuse an unknown scale or batch size."""
    check_choice("scale", scale, get_args(Scale))
    check_batch(batch)


def check_patch(
    prediction: Prediction,
    how: How,
    mask: Mask,
    layer: int | None,
    reference: Prediction | None,
    patterns: Patterns,
) -> None:
    for given in (prediction, prediction if reference is None else reference):
        if not isinstance(given, Prediction):
            way_out = "heta_lens.Prediction.from_cache(cache, target, tokens=tokens) makes one"
            raise TypeError(f"expected a Prediction, got {type(given).__name__}: {way_out}")
    for name, value, kind in (("how", how, How), ("patterns", patterns, Patterns)):
        check_choice(name, value, get_args(kind))
    check_mask("mask", mask)
    if how != "edge_patch" and patterns != "frozen":
        raise ValueError(f"patterns={patterns!r} is for how='edge_patch', not for how={how!r}")
    if (how == "resid_patch") != (layer is not None):
        raise ValueError(f"layer={layer!r} with how={how!r}: only how='resid_patch' has a layer, and needs one")
    missing = [name for name in attention_names(prediction.adapter) if name not in prediction.adapter.points]
    if how == "edge_patch" and patterns == "frozen" and missing:
        kind = type(prediction.adapter.model).__name__
        raise ValueError(f"this {kind} has no {missing[0]}, which patterns='frozen' needs: use patterns='recomputed'")
    if layer is not None:
        prediction.adapter.check_layer("layer", layer)
    if reference is not None:
        _check_reference(prediction, mask, reference)


def attention_names(adapter: ModelAdapter) -> list[str]:
    """Every layer's queries and keys."""
    return [name for layer in range(adapter.layers) for name in queries_keys_names(layer)]


def _check_reference(prediction: Prediction, mask: Mask, reference: Prediction) -> None:
    if isinstance(mask, Tensor) or mask != "zero":
        shown = f"a vector of {len(mask)}" if isinstance(mask, Tensor) else repr(mask)
        raise ValueError(f"mask={shown} and a reference both say what is put in: give only one")
    if reference.adapter.model is not prediction.adapter.model:
        raise ValueError(f"the reference is of another {type(reference.adapter.model).__name__}, not of the same model")
    if len(reference) != len(prediction):
        raise ValueError(f"the reference has {len(reference)} tokens, and the prediction {len(prediction)}")


def group_members(groups: Iterable[Iterable[int]], n: int) -> Bool[Tensor, "group pos"]:
    """Which positions are in which group."""
    if not isinstance(groups, Iterable):
        raise TypeError(f"groups={groups!r} is not a list of groups of positions: write [[3], [4, 5]] for two")
    groups = [*groups]
    if not groups:
        raise ValueError("groups holds no group of positions")
    members = torch.zeros(len(groups), n, dtype=torch.bool)
    for number, (row, group) in enumerate(zip(members, groups, strict=True)):
        row[chosen_positions(f"group {number}", group, n, "of the context")] = True
    return members
