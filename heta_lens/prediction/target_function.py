"""A function of the logits as the target: called for one prediction at a time; refused if it returns no scalar tensor.

The logits are those that predict the next token, not normalised, in float32 or the model's own type if that is wider.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from heta_lens._util.file_reading import brief
from heta_lens._util.target_kinds import Target, TargetFunction, function_name
from heta_lens.model.batching import out_of_memory
from heta_lens.prediction.readout import Scale

CONNECTED = "avoid .item(), .detach(), argmax and comparisons, or choose a method that takes no gradients"


def check_scale(target: Target, scale: Scale, default: Scale | None) -> None:
    """Refuse a scale that was chosen (it is not the default) for a function, which has its own."""
    if callable(target) and scale != default:
        raise ValueError(
            f"scale={scale!r} has no effect with the function target={function_name(target)}, whose values are on a "
            "scale of their own: leave it out"
        )


def values_of(function: TargetFunction, logits: Float[Tensor, "*batch vocab"]) -> Float[Tensor, "*batch"]:
    """What the function gives for each prediction by itself, since it need not know of batches.

    A value that does not depend on these logits, as on one side of a condition, has a gradient of 0.
    """
    rows = logits.reshape(-1, logits.shape[-1])
    values = [called(function, row) for row in rows]
    if logits.requires_grad:
        values = [value + row[:0].sum() for value, row in zip(values, rows, strict=True)]
    return torch.stack(values).reshape(logits.shape[:-1])


def called(function: TargetFunction, logits: Float[Tensor, "vocab"]) -> Float[Tensor, ""]:
    """The value for one prediction, refused where it is no finite number; the function may change its copy."""
    name = function_name(function)
    try:
        value: Any = function(logits.clone())
    except Exception as error:  # whatever a user's function raises
        if isinstance(error, RuntimeError) and out_of_memory(error):
            raise
        why = brief(str(error).partition("\n")[0])
        raise ValueError(f"the function target={name} raised {type(error).__name__}: {why}") from error
    if not isinstance(value, Tensor):
        raise TypeError(f"the function target={name} gave {brief(value)}: it must return a tensor of one number")
    if value.shape != ():
        raise ValueError(
            f"the function target={name} gave a tensor of shape {tuple(value.shape)}: it must return one number, of "
            "shape (), as .sum() does"
        )
    if not value.dtype.is_floating_point:
        raise TypeError(f"the function target={name} gave {value.dtype}: it must return a real number, as .float()")
    if not value.isfinite():
        raise ValueError(f"the function target={name} gave {float(value)}: it must be finite, whatever the logits are")
    return value.to(logits) if logits.requires_grad else value.detach().to(logits)  # of the function's own weights


def check_connected(function: TargetFunction, logits: Float[Tensor, "vocab"]) -> None:
    """Refuse a function whose gradient by these logits is not known, since autograd cannot follow it."""
    name, leaf = function_name(function), logits.detach().clone().requires_grad_()
    with torch.enable_grad():
        value = called(function, leaf)
        try:
            (gradient,) = torch.autograd.grad(value, leaf, allow_unused=True) if value.requires_grad else (None,)
        except (RuntimeError, NotImplementedError) as error:
            why = brief(str(error).partition("\n")[0])
            raise ValueError(f"the function target={name} cannot be differentiated: {why}; {CONNECTED}") from error
    if gradient is None:
        raise ValueError(f"what the function target={name} gave has no gradient by the logits: {CONNECTED}")
    if not gradient.isfinite().all():
        raise ValueError(f"the function target={name} has a gradient by the logits that is not finite: {CONNECTED}")
