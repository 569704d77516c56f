"""Methods of other names whose numbers are ours: the table in docs/methods.md."""

from typing import Any

import pytest
import torch
from einops import einsum, rearrange, repeat
from torch import Tensor
from torch.nn.functional import silu

from helpers import zoo
from helpers.asking import explain, relative
from heta_lens import METHODS
from heta_lens.metrics.scores import with_mean
from heta_lens.span_attribution import hops


def dual_paths(model: Any, ids: Tensor, target: int) -> Tensor:
    """Dual Path Attribution (2603.19742) of a Llama, written down from its formulas, without autograd."""
    config, body = model.config, model.model
    n, heads, groups = ids.shape[1], config.num_attention_heads, config.num_key_value_heads
    embeddings = body.embed_tokens.weight[ids[0]].double()
    cos, sin = (each[0].double() for each in body.rotary_emb(embeddings[None], torch.arange(n)[None]))
    visible = torch.ones(n, n, dtype=torch.bool).tril()

    def scale(x: Tensor) -> Tensor:
        return (x.square().mean(-1, keepdim=True) + config.rms_norm_eps).rsqrt()

    def turned(x: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        return torch.cat([-second, first], -1)

    def by_head(x: Tensor, count: int) -> Tensor:
        split = rearrange(x, "pos (group d) -> group pos d", group=count)
        return repeat(split, "group pos d -> (group copy) pos d", copy=heads // count)

    kept, x = [], embeddings
    for layer in body.layers:
        attention, mlp = layer.self_attn, layer.mlp
        before, read = scale(x), x * scale(x) * layer.input_layernorm.weight.double()
        q = by_head(read @ attention.q_proj.weight.double().T, heads)
        k = by_head(read @ attention.k_proj.weight.double().T, groups)
        v = by_head(read @ attention.v_proj.weight.double().T, groups)
        q, k = (each * cos + turned(each) * sin for each in (q, k))
        scores = einsum(q, k, "head query d, head key d -> head query key") * q.shape[-1] ** -0.5
        pattern = scores.where(visible, -torch.inf).softmax(-1)
        z = pattern @ v
        x = x + rearrange(z, "head pos d -> pos (head d)") @ attention.o_proj.weight.double().T
        after, read = scale(x), x * scale(x) * layer.post_attention_layernorm.weight.double()
        gate, up = (read @ each.weight.double().T for each in (mlp.gate_proj, mlp.up_proj))
        x = x + (silu(gate) * up) @ mlp.down_proj.weight.double().T
        kept.append((layer, before, q, k, v, pattern, z, after, gate, up))

    gradient = torch.zeros_like(x)
    gradient[-1] = (model.lm_head.weight[target] * body.norm.weight).double() * scale(x)[-1]
    for layer, before, q, k, v, pattern, z, after, gate, up in reversed(kept):
        attention, mlp = layer.self_attn, layer.mlp
        inner = gradient @ mlp.down_proj.weight.double()
        by_up, by_gate = inner * silu(gate), inner * gate.sigmoid() * up
        halves = by_up @ mlp.up_proj.weight.double() + by_gate @ mlp.gate_proj.weight.double()
        gradient = gradient + halves / 2 * after * layer.post_attention_layernorm.weight.double()

        inner = rearrange(gradient @ attention.o_proj.weight.double(), "pos (head d) -> head pos d", head=heads)
        moved = pattern * (inner @ v.mT - (inner * z).sum(-1, keepdim=True)) * q.shape[-1] ** -0.5
        onto_q, onto_k = (each * cos - turned(each) * sin for each in (moved @ k, moved.mT @ q))
        parts = ((onto_q, heads, attention.q_proj, 1 / 4), (onto_k, groups, attention.k_proj, 1 / 4))
        total = torch.zeros_like(gradient)
        for part, count, projection, share in (*parts, (pattern.mT @ inner, groups, attention.v_proj, 1 / 2)):
            joined = rearrange(part, "(group copy) pos d -> copy pos (group d)", group=count).sum(0)
            total += share * joined @ projection.weight.double()
        gradient = gradient + total * before * layer.input_layernorm.weight.double()
    return (embeddings * gradient).sum(-1).detach()


@torch.no_grad()
def test_dual_path_attribution_is_attn_lrp() -> None:
    model = zoo.bridge("llama")
    ids = zoo.prompt(model, 7)
    wanted = dual_paths(zoo.huggingface("llama"), ids, 9)
    assert relative(explain(model, ids, 9, method="dpa").scores, wanted) < zoo.FLOAT32_NORMS
    assert METHODS["dpa"] is METHODS["attn_lrp"]


def test_cage_propagates_as_through_does() -> None:
    torch.manual_seed(0)
    prompt, written = 5, 4
    rows = [torch.rand(prompt + at, dtype=torch.float64) for at in range(written)]
    answer = torch.rand(prompt + written, dtype=torch.float64)
    shares = torch.stack([torch.cat([row / row.sum(), torch.zeros(written - at)]) for at, row in enumerate(rows)])
    among, onto = shares[:, prompt:], shares[:, :prompt]  # CAGE: of written tokens on written ones, and on the prompt
    wanted = answer[:prompt] + answer[prompt:] @ torch.linalg.solve(torch.eye(written) - among, onto)
    assert relative(hops(answer, rows).values.sum(0)[:prompt], wanted) < 1e-14


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_soft_metrics_with_keep_retain_what_pi_soft_metrics_retain(share: float) -> None:
    scores = torch.tensor([9.0, 3.0, 0.5, 0.1, 0.0, 2.0])
    assert float(with_mean(scores, share).mean()) == pytest.approx(share)
