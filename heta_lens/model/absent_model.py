"""A model that is not there: built from its configuration, on the ``meta`` device, where weights have no numbers."""

import os
from collections.abc import Iterator
from typing import Any, cast
from unittest.mock import patch

import torch
from torch import Tensor, nn
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.utilities import quantization
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PretrainedConfig

from heta_lens.model.checkpoints import first_sentence
from heta_lens.model.hub import folder_of, read_from
from heta_lens.model.loading import DEMO
from heta_lens.model.loading_options import check_kinds, dtype_named
from heta_lens.model.model_checks import check_decoder
from heta_lens.model.model_protocol import Model, wrapped


def absent_model(
    config: Any, dtype: torch.dtype | str | None = None, revision: str | None = None, *, trust_remote_code: bool = False
) -> Any:
    """A `TransformerBridge` of a configuration, its folder or its name on the hub; by default in its own precision.

    Its tokenizer is only a placeholder.
    """
    check_kinds({"trust_remote_code": trust_remote_code})
    if isinstance(config, PretrainedConfig) and revision is not None:
        raise ValueError(f"revision={revision!r} is of a configuration on the hub, and this one is already loaded")
    hub = {"revision": revision, "trust_remote_code": trust_remote_code}
    read = config if isinstance(config, PretrainedConfig) else read_config(config, **hub)
    if getattr(read, "quantization_config", None) is not None:
        raise ValueError(
            f"this {read.model_type} model is saved quantised, whose memory depends on its kernels: estimate it "
            "without quantization_config, and subtract what its weights save"
        )
    kind = dtype_named(dtype or read.dtype or torch.float32)
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(
                read, dtype=kind, attn_implementation="eager", trust_remote_code=trust_remote_code
            )
        model.config.architectures = [type(model).__name__]
        tokenizer = AutoTokenizer.from_pretrained(DEMO)
        # TransformerLens takes matrices apart only if it can read them, but here there is nothing to misread.
        with torch.device("meta"), patch.object(quantization, "unreadable_weight_reason", return_value=None):
            bridge = TransformerBridge.boot_transformers(
                "model", hf_model=model, tokenizer=tokenizer, device="meta", dtype=kind
            ).eval()
    except Exception as error:  # whatever the libraries raise for architectures that they do not know
        what = f"a {read.model_type} model cannot be built without its weights"
        raise ValueError(f"{what}: {first_sentence(error)}") from error
    check_decoder(bridge)
    return bridge


def read_config(config: Any, revision: str | None = None, **hub: Any) -> PretrainedConfig:
    if not isinstance(config, str | os.PathLike):
        raise TypeError(f"config={config!r} must be a folder, its config.json, a name on the hub or a PretrainedConfig")
    name = str(DEMO) if os.fspath(config) == "demo" else os.fspath(config)
    local = folder_of(name, "configuration", revision)
    if local is not None:
        local = local.parent if local.name == "config.json" else local
        if not (local / "config.json").is_file():
            raise ValueError(f"the folder {str(local)!r} has no config.json")
    return read_from(
        name, "configuration", local, lambda place: AutoConfig.from_pretrained(place, revision=revision, **hub)
    )


def weights(model: Model) -> Iterator[Tensor]:
    """Every tensor of a model, each once: a bridge may hold copies of parts of the weights that it wraps."""
    seen = set[int]()
    for root in (wrapped(model), model):
        module = cast(nn.Module, root)
        for tensor in (*module.parameters(), *module.buffers()):
            key = tensor.untyped_storage()._cdata
            if key not in seen:
                seen.add(key)
                yield tensor
