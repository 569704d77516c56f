"""Models with 8-bit weights: of our own, which equal a model of ordinary weights exactly, and bitsandbytes'."""

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from transformer_lens.model_bridge import TransformerBridge
from transformers import AutoModelForCausalLM, AutoTokenizer

from helpers import zoo
from heta_lens.model.loading import DEMO


class QuantisedLinear(nn.Module):
    """A linear map whose weight is kept in 8 bits, with a scale for each row; its derivatives are those of the map."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        scale = linear.weight.detach().abs().amax(1, keepdim=True) / 127
        self.register_buffer("weight", (linear.weight.detach() / scale).round().to(torch.int8))
        self.register_buffer("scale", scale)
        self.bias = linear.bias

    def values(self) -> Tensor:
        return self.weight.to(self.scale.dtype) * self.scale

    def forward(self, inputs: Tensor) -> Tensor:
        return nn.functional.linear(inputs, self.values().to(inputs.dtype), self.bias)


class Staircase(QuantisedLinear):
    """As kernels that round activations too, and leave autograd no derivative of that."""

    def forward(self, inputs: Tensor) -> Tensor:
        scale = inputs.detach().abs().amax(-1, keepdim=True).clamp(min=1e-8) / 127
        return super().forward((inputs / scale).round() * scale)


def quantise(model: nn.Module, kind: type[QuantisedLinear] = QuantisedLinear) -> None:
    """Replace every linear map inside the layers; the unembedding stays as it is."""
    for name, linear in [*model.named_modules()]:
        if isinstance(linear, nn.Linear) and "lm_head" not in name:
            parent, _, own = name.rpartition(".")
            setattr(model.get_submodule(parent), own, kind(linear))


def dequantise(model: nn.Module) -> None:
    """Put ordinary linear maps with the same numbers in their places."""
    for name, quantised in [*model.named_modules()]:
        if isinstance(quantised, QuantisedLinear):
            parent, _, own = name.rpartition(".")
            linear = nn.Linear(quantised.in_features, quantised.out_features, bias=quantised.bias is not None)
            linear.weight, linear.bias = nn.Parameter(quantised.values()), quantised.bias
            setattr(model.get_submodule(parent), own, linear)


def booted(model: Any, dtype: torch.dtype = torch.float32) -> TransformerBridge:
    return TransformerBridge.boot_transformers(
        "zoo/quantised", hf_model=model, tokenizer=zoo.tokenizer(), dtype=dtype, device="cpu"
    ).eval()


@lru_cache
def pair(family: str = "llama", dtype: torch.dtype = torch.float32) -> tuple[TransformerBridge, TransformerBridge]:
    """A model of 8-bit weights, and the same one with these numbers as ordinary weights."""
    packed, plain = zoo.huggingface(family, dtype), zoo.huggingface(family, dtype)
    quantise(packed)
    quantise(plain)
    dequantise(plain)
    return booted(packed, dtype), booted(plain, dtype)


@lru_cache
def demo(kind: type[QuantisedLinear]) -> TransformerBridge:
    """The demo model with its layers quantised: trained models are smooth enough for finite differences."""
    model = AutoModelForCausalLM.from_pretrained(DEMO, attn_implementation="eager", dtype=torch.float32)
    quantise(model, kind)
    return demo_bridge(model)


def demo_bridge(model: Any) -> TransformerBridge:
    tokenizer = AutoTokenizer.from_pretrained(DEMO)
    return TransformerBridge.boot_transformers(str(DEMO), hf_model=model, tokenizer=tokenizer, device="cpu").eval()


@lru_cache
def bitsandbytes() -> TransformerBridge:
    """The demo model, quantised by bitsandbytes while it is loaded."""
    from transformers import BitsAndBytesConfig

    loaded = AutoModelForCausalLM.from_pretrained(
        DEMO,
        quantization_config=BitsAndBytesConfig(load_in_8bit=True),
        device_map="cpu",
        dtype=torch.float32,
        attn_implementation="eager",
    )
    return demo_bridge(loaded)


def bitsandbytes_plain(model: TransformerBridge) -> TransformerBridge:
    """The same numbers as ordinary weights."""
    from bitsandbytes.functional import int8_vectorwise_dequant
    from bitsandbytes.nn import Linear8bitLt

    plain = AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.float32, attn_implementation="eager")
    for name, module in model.original_model.named_modules():
        if isinstance(module, Linear8bitLt):
            scale = module.weight.SCB if module.state.SCB is None else module.state.SCB  # where it is after a run
            values = int8_vectorwise_dequant(module.weight.data, scale)
            plain.get_submodule(name.replace("._original_component", "")).weight.data.copy_(values)
    return demo_bridge(plain)
