"""A small random Llama, written as llama.cpp's converter writes one."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from tokenizers.pre_tokenizers import ByteLevel
from transformers import LlamaConfig, LlamaForCausalLM

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TOKENS = [*SPECIAL, *sorted(ByteLevel.alphabet()), "ĠĠ", "in", "Ġa"]
MERGES = ["Ġ Ġ", "i n", "Ġ a"]
TEMPLATE = "{% for message in messages %}<|im_start|>{{ message.content }}<|im_end|>{% endfor %}"
NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def small_llama() -> LlamaForCausalLM:
    """Its matrices have values that 8 bits hold exactly."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "max_position_embeddings": 64}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "tie_word_embeddings": True}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(TOKENS), **sizes, **heads)).eval()
    for weight in model.parameters():
        steps = torch.randint(-127, 128, weight.shape)
        if weight.dim() == 2:
            steps[:, ::32] = 127  # the largest of every block of 32
        weight.data = steps / 1024 if weight.dim() == 2 else 1 + steps / 1024
    return model


def write_gguf(model: LlamaForCausalLM, file: Path, *, splits: str = "smollm", without: str = "", **more: Any) -> None:
    """``without`` names a tensor that is left out, ``more`` are further tensors."""
    config = model.config
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_name("A small Llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(splits)
    writer.add_token_list(TOKENS)
    writer.add_token_types([gguf.TokenType.CONTROL] * len(SPECIAL) + [gguf.TokenType.NORMAL] * (len(TOKENS) - 3))
    writer.add_token_merges(MERGES)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
    for name, weight in {**_named(model), **more}.items():
        if name == without:
            continue
        if weight.ndim == 2:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quantize(weight, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _named(model: LlamaForCausalLM) -> dict[str, np.ndarray]:
    """The weights by llama.cpp's names; what rotates together are neighbours there."""
    named = {"token_embd.weight": model.model.embed_tokens.weight, "output_norm.weight": model.model.norm.weight}
    for number, layer in enumerate(model.model.layers):
        for ours, theirs in NAMES.items():
            weight = layer.get_submodule(ours).weight
            if theirs in ("attn_q", "attn_k"):
                halves = weight.unflatten(0, (-1, 2, model.config.head_dim // 2))
                weight = halves.transpose(1, 2).flatten(0, 2)
            named[f"blk.{number}.{theirs}.weight"] = weight
    return {name: weight.detach().numpy() for name, weight in named.items()}
