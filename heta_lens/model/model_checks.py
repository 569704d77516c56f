"""Refuses models that cannot be explained: no hooks, an encoder, no attention, dropout switched on, no gradients."""

from typing import Any

from torch import nn

from heta_lens.model.hook_sites import EMBED, pattern_names, values_names
from heta_lens.model.key_value_reuse import is_hooked_transformer
from heta_lens.model.model_protocol import wrapped

RATES = ("p", "dropout", "attention_dropout")  # how torch and transformers call the rate of a module that drops out


def model_of(cache: Any) -> Any:
    """The model a cache was taken from; refused in one sentence if it cannot be explained."""
    if hasattr(cache, "run_with_cache"):
        raise TypeError(
            f"expected an ActivationCache, got the model itself, a {type(cache).__name__}: run it first, "
            "_, cache = model.run_with_cache(tokens)"
        )
    model = getattr(cache, "model", None)
    if model is None and hasattr(cache, "cache_dict"):
        raise TypeError("the cache has no model (cache.model is None): set cache.model to the model it was taken from")
    if model is None:
        raise TypeError(
            f"expected an ActivationCache, got {type(cache).__name__}: pass the second of the two things that "
            "model.run_with_cache returns"
        )
    check_decoder(model)
    return model


def check_decoder(model: Any) -> None:
    """Refuse a model that is not a decoder-only language model ready to be explained."""
    kind = type(model).__name__
    if not all(hasattr(model, name) for name in ("cfg", "hook_dict")):
        raise TypeError(f"{kind} is not a TransformerLens model")
    points = model.hook_dict
    direction = getattr(model.cfg, "attention_dir", "causal")
    if direction != "causal" or EMBED not in points or not hasattr(model, "blocks") or _is_encoder(model):
        raise ValueError(f"{kind} is not a decoder-only language model, where every token sees only those before it")
    layers = max(1, len(model.blocks))
    both = zip(pattern_names(layers), values_names(layers), strict=True)
    missing = [name for names in both for name in names if name not in points]
    if missing:
        raise ValueError(f"{kind} has no {missing[0]}: heta_lens explains models that attend in every layer")
    if (name := _in_training(model)) is not None:
        where = f"{name} of the model" if name else "the model"
        raise ValueError(f"{where} is in training mode, where dropout can change every run: call model.eval() first")
    if any(parameter.is_inference() for parameter in model.parameters()):
        raise ValueError("the model was made under torch.inference_mode() and has no gradients: make it outside")


def _in_training(model: Any) -> str | None:
    """The name of what is in training mode: the model (""), or a part that drops out, or None.

    Other parts may be in training mode: those that TransformerLens creates when it processes weights are. So may a
    HookedTransformer, which has no dropout.
    """
    if not is_hooked_transformer(model) and (model.training or wrapped(model).training):
        return ""
    modules = (named for whole in (model, wrapped(model)) for named in whole.named_modules())
    return next((name for name, module in modules if module.training and _drops_out(module)), None)


def _drops_out(module: nn.Module) -> bool:
    rates = [getattr(module, name, 0) for name in RATES]
    return any(isinstance(rate, float | int) and rate > 0 for rate in rates)


def _is_encoder(model: Any) -> bool:
    """Whether no attention of the wrapped blocks is causal; some bridges of encoders do not say so in their config."""
    causal = [
        bool(module.is_causal)
        for block in model.blocks
        for module in block.modules()
        if hasattr(module, "is_causal") and not type(module).__module__.startswith("transformer_lens")
    ]
    return bool(causal) and not any(causal)  # cross-attention of a decoder is not causal either
