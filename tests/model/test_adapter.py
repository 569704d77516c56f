"""One interface to every kind of model: runs of ids with hooks, of some blocks, from kept keys and values."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformer_lens import ActivationCache
from transformer_lens.config import TransformerBridgeConfig
from transformer_lens.model_bridge import TransformerBridge

import heta_lens
from helpers import odd_models, quantised, zoo
from helpers.asking import N, cache_of, explain, missing, refusal, relative
from heta_lens._util.work import Allocations
from heta_lens.model import adapter as adapter_module
from heta_lens.model.adapter import ModelAdapter
from heta_lens.model.hooks import bare, note, put, put_positions, put_where
from heta_lens.model.weights import is_elsewhere, is_readable, quantised_modules, read_output_weights


@torch.no_grad()
@pytest.mark.parametrize("build", zoo.models("-(gpt2|llama)$"))
def test_logits_are_those_of_the_model_wherever_they_are_read(build: Any) -> None:
    model = build()
    ids = zoo.prompt(model, 5)
    expected = model(ids)
    for whole in (False, True):
        torch.testing.assert_close(ModelAdapter(model).run(ids, read=[1, 4], whole=whole), expected[:, [1, 4]])
    places = torch.tensor([[2], [3]])
    rows = ModelAdapter(model).run(ids.expand(2, -1), read=places)[:, 0]
    torch.testing.assert_close(rows, expected[0, [2, 3]])


@pytest.mark.parametrize("build", zoo.models("-(gpt2|llama)$"))
def test_its_cache_is_that_of_run_with_cache(build: Any) -> None:
    model = build()
    ids = zoo.prompt(model, 5)
    expected, cache = cache_of(model, ids), ModelAdapter(model).cache(ids)
    for name in ("hook_embed", "blocks.0.attn.hook_pattern", "blocks.1.attn.hook_v"):
        assert torch.equal(cache[name], expected[name])


LAYERS = 4


def entered(adapter: ModelAdapter, ids: Tensor) -> dict[int, Tensor]:
    return adapter.streams(ids, range(LAYERS + 1))


def test_patterns_that_would_fill_the_memory_are_not_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = ModelAdapter(zoo.bridge("gpt2"))
    ids, most = zoo.prompt(adapter.model, 5), 8 * adapter.sizes.patterns(5)
    for free, cached in ((most, True), (most - 1, False)):
        monkeypatch.setattr(adapter_module, "available", lambda _, free=free: free)
        assert ("blocks.0.attn.hook_pattern" in adapter.cache(ids)) == cached


@pytest.mark.parametrize("build", zoo.models())
def test_a_block_that_runs_alone_does_what_it_does_in_the_model(build: Any) -> None:
    model = build(n_layers=LAYERS)
    adapter, ids = ModelAdapter(model), zoo.prompt(model, 9)
    streams = entered(adapter, ids)
    with torch.no_grad():
        logits = adapter.run(ids)
        for layer in range(LAYERS):
            left: dict[int, Tensor] = {}
            hooks = {f"blocks.{layer}.hook_resid_post": note(left, layer + 1)}
            last = adapter.run(ids, {adapter.stream_name(layer): put(streams[layer]), **hooks}, only=layer)
            assert all(torch.equal(left[above], streams[above]) for above in left)
        assert torch.equal(last, logits)
        above = adapter.run(ids, {adapter.stream_name(2): put(streams[2])}, first=2)
    assert torch.equal(above, logits)


@pytest.mark.parametrize("build", zoo.models("bridge-(gpt2|gptj|native)|hooked-gpt2"))
def test_blocks_are_whole_again_after_a_run_and_after_an_error(build: Any) -> None:
    model = build(n_layers=LAYERS)
    adapter, ids = ModelAdapter(model), zoo.prompt(model, 5)
    streams = entered(adapter, ids)
    before = [{**vars(block)} for block in model.blocks]

    def fail(_: Tensor) -> None:
        raise KeyboardInterrupt

    entering = {adapter.stream_name(1): put(streams[1])}
    with torch.no_grad():
        adapter.run(ids, entering, only=1)
        with pytest.raises(KeyboardInterrupt):
            adapter.run(ids, {**entering, "blocks.1.attn.hook_v": fail}, only=1)
    for block, attributes in zip(model.blocks, before, strict=True):
        assert vars(block).keys() == attributes.keys()
    assert not adapter.user_hooks()


def test_a_forward_that_somebody_put_on_a_block_comes_back() -> None:
    model = zoo.NEW["gpt2"]()
    adapter, ids = ModelAdapter(model), zoo.prompt(model, 5)
    block, calls = model.blocks[0], []
    plain = block.forward
    mine = lambda *args, **kwargs: (calls.append(1), plain(*args, **kwargs))[1]  # noqa: E731
    vars(block)["forward"] = mine
    streams = adapter.streams(ids, [1])
    with torch.no_grad():
        adapter.run(ids, {adapter.stream_name(1): put(streams[1])}, only=1)
    assert vars(block)["forward"] is mine and len(calls) == 1


LIVE = torch.arange(24.0).reshape(2, 4, 3)


def test_states_are_replaced_in_a_copy_and_only_where_they_should_be() -> None:
    cells, values = torch.tensor([[True, False, False], [False, True, True]]), -torch.ones(2, 3, 3)
    expected = LIVE.clone()
    expected[0, 0] = expected[1, 1] = expected[1, 2] = -1
    assert torch.equal(put_where(cells, values)(LIVE), expected)
    assert torch.equal(put_where(cells, values[:1])(LIVE), expected)
    assert torch.equal(put_where(cells, values)(LIVE[:, :2]), expected[:, :2])
    heads, one = LIVE.reshape(2, 4, 3, 1), torch.zeros(1, 4, 3, dtype=torch.bool)
    one[0, 2, 1] = True
    expected = heads.clone()
    expected[:, 2, 1] = -1
    assert torch.equal(put_where(one, -torch.ones(1, 1, 1, 1))(heads), expected)
    expected = LIVE.clone()
    expected[:, 1:3] = -1
    assert torch.equal(put_positions(-torch.ones(4, 3), 1, 3)(LIVE), expected)
    assert torch.equal(put(expected)(LIVE), expected)
    assert torch.equal(LIVE, torch.arange(24.0).reshape(2, 4, 3))


@torch.no_grad()
@pytest.mark.parametrize("build", zoo.models("-(gpt2|llama)$"))
def test_a_run_that_continues_equals_a_full_run(build: Any) -> None:
    adapter = ModelAdapter(build())
    ids = zoo.prompt(adapter.model, 6)
    kept = adapter.keys_values(ids)
    past = adapter.reuse.resume(kept, 4, 6, 2)
    continued = adapter.run(ids[:, 4:].expand(2, -1), past=past)
    torch.testing.assert_close(continued, adapter.run(ids).expand(2, -1, -1))
    grown = adapter.reuse.grown(past)
    joined = adapter.reuse.joined(
        [(k[:1], v[:1]) for k, v in adapter.reuse.grown(adapter.reuse.resume(kept, 4, 4, 1))], kept, 6
    )
    for (keys, values), (joined_keys, joined_values), (kept_keys, kept_values) in zip(grown, joined, kept, strict=True):
        torch.testing.assert_close(keys[:1], kept_keys)
        torch.testing.assert_close(values[:1], kept_values)
        assert torch.equal(joined_keys, kept_keys)
        assert torch.equal(joined_values, kept_values)


LONG, MANY = 48, 6
FUSED = zoo.models("bridge-(gpt2|phi3|neox|bloom)")


@pytest.mark.parametrize("build", FUSED)
def test_a_run_keeps_no_pattern_and_never_holds_all(build: Any) -> None:
    model = build(torch.float32, n_layers=MANY)
    adapter, ids = ModelAdapter(model), zoo.prompt(model, LONG)
    pattern = model.cfg.n_heads * LONG**2 * 4
    with torch.no_grad(), Allocations() as held:
        adapter.run(ids)
    assert held.now < pattern and held.most < MANY * pattern


pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.fixture
def ids() -> Tensor:
    return zoo.prompt(zoo.bridge("gpt2"), N)


def cache_if_any(model: Any, ids: Tensor) -> Any:
    """What the model caches, or an empty cache where its kind cannot be run on tokens alone."""
    try:
        return model.run_with_cache(ids)[1]
    except (TypeError, ValueError, RuntimeError):
        return ActivationCache({}, model)


@pytest.mark.parametrize("variant", ["full", "no_gate", "kl_only"])
@pytest.mark.parametrize("kind", odd_models.NO_DECODERS)
def test_a_model_that_is_no_decoder_is_refused(kind: str, variant: str, ids: Tensor) -> None:
    model = odd_models.NO_DECODERS[kind]()
    assert "decoder-only language model" in refusal(cache_if_any(model, ids), variant=variant)


def test_a_model_without_attention_is_refused(ids: Tensor) -> None:
    assert (
        missing(["blocks.0.attn.hook_pattern", "heta_lens explains"], refusal(cache_of(odd_models.mamba(), ids))) == ""
    )


@torch.no_grad()
@pytest.mark.parametrize("build", zoo.models())
def test_positions_that_are_not_read_leave_before_the_last_mlp(build: Any) -> None:
    model = build()
    ids = zoo.prompt(model, 5)
    adapter = heta_lens.Prediction.from_cache(cache_of(model, ids), tokens=ids).adapter
    expected, point = model(ids), adapter.last_mlp[0]
    torch.testing.assert_close(adapter.run(ids, read=[4]), expected[:, [4]])
    torch.testing.assert_close(adapter.run(ids, read=[1, 4]), expected[:, [1, 4]])
    assert adapter.narrow.get(point, False) == (point != "")


@torch.no_grad()
def test_a_model_whose_last_mlp_mixes_positions_runs_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    model = zoo.bridge("gpt2")
    ids, mlp = zoo.prompt(model, 5), bare(model.blocks[-1].mlp)
    plain = mlp.forward
    monkeypatch.setattr(mlp, "forward", lambda states: plain(states + states.mean(1, keepdim=True)))
    adapter = heta_lens.Prediction.from_cache(cache_of(model, ids), tokens=ids).adapter
    assert adapter.narrow == {adapter.last_mlp[0]: False}
    torch.testing.assert_close(adapter.run(ids, read=[4]), model(ids)[:, [4]])


@pytest.mark.skipif(not zoo.HAS_HOOKED, reason="HookedTransformer was removed in TransformerLens 4")
def test_training_mode_changes_nothing_where_nothing_drops_out(ids: Tensor) -> None:
    model = zoo.hooked.__wrapped__("gpt2")
    clean = heta_lens.attribute(cache_of(model, ids), method="input_x_gradient").scores
    model.train()
    assert torch.equal(heta_lens.attribute(cache_of(model, ids), method="input_x_gradient").scores, clean)


class Packed(torch.Tensor):
    """A tensor whose class may store its numbers as it likes."""


def test_weights_that_hold_their_own_numbers_are_readable() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        assert is_readable(torch.zeros(2, dtype=dtype)) and is_readable(nn.Parameter(torch.zeros(2, dtype=dtype)))
    for weight in (torch.zeros(2, dtype=torch.int8), torch.zeros(2).as_subclass(Packed), None, "mxfp4"):
        assert not is_readable(weight)
    assert not is_readable(torch.zeros(2).to(torch.float8_e4m3fn))
    assert not is_readable(torch.zeros(2, device="meta")) and is_elsewhere(torch.zeros(2, device="meta"))


@pytest.mark.parametrize("build", zoo.models())
def test_what_is_read_equals_what_the_model_shows(build) -> None:
    model = build()
    assert [*quantised_modules(model)] == []
    for layer, block in enumerate(model.blocks):
        shown = read_output_weights(block.attn)
        assert shown is not None and torch.equal(shown, block.attn.W_O)
        assert torch.equal(ModelAdapter(model).output_weights(layer), block.attn.W_O)


@pytest.mark.parametrize("family", ["llama", "gemma2", "qwen2", "olmo2"])
@pytest.mark.every_model
def test_quantised_weights_are_run(family: str) -> None:
    packed, plain = quantised.pair(family, torch.float64)
    assert "layers.0." in next(quantised_modules(packed))
    for layer, (block, other) in enumerate(zip(packed.blocks, plain.blocks, strict=True)):
        assert read_output_weights(block.attn) is None
        found = ModelAdapter(packed).output_weights(layer)
        torch.testing.assert_close(found, other.attn.W_O)


def test_one_that_can_neither_be_read_nor_run_is_refused() -> None:
    class Attention:
        def __init__(self) -> None:
            self._parameters, self._buffers = {"W_O": torch.zeros(2, dtype=torch.uint8)}, {}

    with pytest.raises(ValueError, match=r"W_O of a Attention with quantised weights .* load the model as a Transf"):
        ModelAdapter(SimpleNamespace(blocks=[SimpleNamespace(attn=Attention())], cfg=None)).output_weights(0)


def test_copies_of_a_model_that_flattens_its_rows_are_run_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(zoo.FAMILIES, "opt", ("OPTConfig", {"ffn_dim": 16, "word_embed_proj_dim": 8}))
    model = zoo.bridge.__wrapped__("opt")
    ids = zoo.prompt(model, 8)
    one, many = (explain(model, ids, 7, method="leave_one_out", batch=batch) for batch in (1, 4))
    assert relative(one.scores, many.scores) < 1e-6
    assert not many.diagnostics.user_hooks and explain(model, ids, 7, method="tdd").scores.any()


def test_positions_that_depend_on_the_length_of_a_run_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    scaling = {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [8.0]}
    options = {"num_key_value_heads": 2, "original_max_position_embeddings": 8, "rope_scaling": scaling}
    monkeypatch.setitem(zoo.FAMILIES, "phi3", ("Phi3Config", options))
    model = zoo.bridge.__wrapped__("phi3")
    cache, ids = cache_of(model, zoo.prompt(model, 12)), zoo.prompt(model, 12)
    with pytest.raises(ValueError, match="positions change in runs of more than 8 tokens"):
        heta_lens.attribute(cache, 7, position=5, tokens=ids, method="leave_one_out")
    assert heta_lens.attribute(cache, 7, tokens=ids, method="leave_one_out").diagnostics.prefix_reuse.startswith("off")


def test_an_activation_of_a_model_with_few_positions_is_explained() -> None:
    config = TransformerBridgeConfig(
        d_model=8, d_head=4, n_heads=2, n_layers=1, n_ctx=3, d_mlp=8, d_vocab=9, act_fn="relu", device="cpu"
    )
    model = TransformerBridge.boot_native(config, tokenizer=None, device="cpu").eval()
    ids = torch.tensor([[1, 2, 3]])
    target = heta_lens.activation("blocks.0.mlp.hook_post", index=3)
    assert explain(model, ids, target, method="leave_one_out").scores.shape == (3,)
