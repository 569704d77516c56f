"""Patching grids, against TransformerLens' own and against one run a cell; and attributions as their prior."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from transformer_lens import patching as theirs

from helpers import zoo
from helpers.asking import busy, cache_of, explain, hooked, relative
from helpers.patching import OTHER, TARGET, N, copies, log_prob, note, one_run, patched, prompts, run, searched
from heta_lens.causal import patch
from heta_lens.causal import patching as ours
from heta_lens.model.adapter import ModelAdapter

LAYERS = 2
FAMILIES = pytest.mark.parametrize("build", zoo.models("-(gpt2|llama|gptj)$"))
ONE_EACH = pytest.mark.parametrize("build", zoo.models("-gpt2$"))
BY_POSITION = {"resid_pre": "hook_resid_pre", "attn_out": "hook_attn_out", "mlp_out": "hook_mlp_out"}
BY_HEAD = {"head_out": "attn.hook_z", "head_q": "attn.hook_q", "head_k": "attn.hook_k", "head_v": "attn.hook_v"}
PLACES = BY_POSITION | BY_HEAD
EVERYTHING = pytest.mark.parametrize("what", PLACES)
A_FEW = pytest.mark.parametrize("what", ["resid_pre", "attn_out", "head_out", "head_k"])
THEIRS = {
    "resid_pre": theirs.get_act_patch_resid_pre,
    "attn_out": theirs.get_act_patch_attn_out,
    "mlp_out": theirs.get_act_patch_mlp_out,
    "head_out": theirs.get_act_patch_attn_head_out_all_pos,
    "head_q": theirs.get_act_patch_attn_head_q_all_pos,
    "head_k": theirs.get_act_patch_attn_head_k_all_pos,
    "head_v": theirs.get_act_patch_attn_head_v_all_pos,
}
CLOSE = 1e-6  # some norms compute in float32 even inside a float64 model


def by_runs(model: Any, what: str, positions: Sequence[int] = range(N)) -> Tensor:
    rows = []
    for layer in range(LAYERS):
        name = f"blocks.{layer}.{PLACES[what]}"
        handed = note(model, prompts(model)[0], name)
        if what in BY_POSITION:
            rows.append([one_run(model, name, handed, [place]) for place in positions])
        else:
            rows.append([one_run(model, name, handed, positions, head) for head in range(handed.shape[1])])
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.slow
@EVERYTHING
@FAMILIES
def test_grids_are_those_of_transformer_lens(build: Callable[..., Any], what: str) -> None:
    model = build()
    clean, corrupted = prompts(model)
    cache = model.run_with_cache(clean)[1]
    with torch.no_grad():
        expected = THEIRS[what](model, corrupted, cache, log_prob)
    found = patched(model, what=what)
    assert found.values.shape == expected.shape
    assert relative(found.values, expected) < 1e-5  # theirs is kept in float32
    assert expected.std() > 1e-3


@FAMILIES
def test_a_pair_of_logits_is_the_logit_difference_of_the_usual_idiom(build: Callable[..., Any]) -> None:
    """As in the demos of TransformerLens, on the scale where 0 is the corrupted run and 1 the clean one."""
    model = build()
    clean, corrupted = prompts(model)

    def difference(logits: Tensor) -> Tensor:
        return logits[0, -1, TARGET] - logits[0, -1, OTHER]

    with torch.no_grad():
        low, high = difference(model(corrupted)), difference(model(clean))
        expected = theirs.get_act_patch_resid_pre(
            model, corrupted, model.run_with_cache(clean)[1], lambda logits: (difference(logits) - low) / (high - low)
        )
    found = patched(model, (TARGET, OTHER), scale="logit")
    assert relative(found.restored, expected) < 1e-5
    assert found.clean == pytest.approx(float(high), rel=CLOSE) and found.corrupted == pytest.approx(
        float(low), rel=CLOSE
    )


@pytest.mark.sample(quick=4)
@EVERYTHING
@pytest.mark.parametrize("build", zoo.models("-(?!(gpt2|llama|gptj)$)"))
def test_grids_equal_one_run_a_cell_on_models_of_other_kinds(build: Callable[..., Any], what: str) -> None:
    model = build()
    if what == "mlp_out" and getattr(model.cfg, "attn_only", False):
        pytest.skip("this model has no MLP")
    found = patched(model, what=what)
    assert relative(found.values, by_runs(model, what)) < CLOSE
    clean, corrupted = prompts(model)
    assert found.clean == pytest.approx(float(run(model, clean)), rel=CLOSE)
    assert found.corrupted == pytest.approx(float(run(model, corrupted)), rel=CLOSE)


@pytest.mark.slow
@EVERYTHING
@FAMILIES
def test_only_some_positions_are_patched(build: Callable[..., Any], what: str) -> None:
    model = build()
    whole = patched(model, what=what)
    for positions in ([3], [4, 1]):
        found = patched(model, what=what, positions=positions)
        assert relative(found.values, by_runs(model, what, positions)) < CLOSE
        columns = [whole.labels[place] for place in positions] if what in BY_POSITION else [*whole.labels]
        assert [*found.labels] == columns
        assert found.forwards == 2 + LAYERS * len(columns)
    if what in BY_HEAD:
        assert relative(whole.values, found.values) > 1e-3


@FAMILIES
def test_only_some_layers_are_patched(build: Callable[..., Any]) -> None:
    model = build()
    whole, found = patched(model), patched(model, layers=[1])
    assert found.values.shape == (1, N) and found.layers == (1,) and whole.layers == tuple(range(LAYERS))
    assert relative(found.values[0], whole.values[1]) < CLOSE
    assert (whole.values[0] - whole.values[1]).abs().max() > 1e-3
    assert found.forwards == 2 + N and found.title == whole.title
    assert {cell.layer for cell in found.top(3)} == {1} == {*found.to_frame()["layer"]}
    assert "layer 1" in found.plot().fragment and "layer 0" not in found.plot().fragment


# -------------------------------------------------------------------------------------------------- what must be equal
@EVERYTHING
@FAMILIES
def test_patching_what_is_there_already_changes_nothing(build: Callable[..., Any], what: str) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    found = patch(cache_of(model, ids), cache_of(model, ids), TARGET, tokens=ids, corrupted_tokens=ids, what=what)
    assert (found.values - found.corrupted).abs().max() < CLOSE and found.corrupted == found.clean
    assert found.corrupted == pytest.approx(float(run(model, ids)), rel=CLOSE)


@FAMILIES
def test_all_that_enters_the_first_layer_restores_all_exactly(build: Callable[..., Any]) -> None:
    model = build()
    attribution = explain(model, zoo.prompt(model, N), TARGET, method="recency")
    found = searched(model, attribution, restore=1e9, batch=1)
    assert found.restored[-1] == 1 and len(found.restored) == N
    assert found.sufficient is None and found.positions == (4, 3, 2, 1, 0)


@pytest.mark.slow
@A_FEW
@FAMILIES
def test_neither_the_batch_nor_reuse_matters(
    build: Callable[..., Any], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build()
    options: dict[str, Any] = {"what": what, "positions": [3, 1, 2]}
    first = patched(model, batch=1, **options)
    assert relative(patched(model, batch=5, **options).values, first.values) < CLOSE
    monkeypatch.setattr("heta_lens.prediction.rerun.reusable_prefix", lambda *_: (None, "off"))
    for batch in (1, 5):
        assert relative(patched(model, batch=batch, **options).values, first.values) < CLOSE


@ONE_EACH
def test_a_full_cache_tells_no_more_than_a_filtered_one(build: Callable[..., Any]) -> None:
    model = build()
    clean, corrupted = prompts(model)
    full = patch(model.run_with_cache(clean)[1], model.run_with_cache(corrupted)[1], TARGET, what="head_out")
    assert torch.equal(full.values, patched(model, what="head_out").values)


@ONE_EACH
def test_scales_and_contrasts(build: Callable[..., Any]) -> None:
    model = build()
    first, second, both = (patched(model, target) for target in (TARGET, OTHER, (TARGET, OTHER)))
    assert relative(both.values, first.values - second.values) < 1e-9
    assert both.clean == pytest.approx(first.clean - second.clean)
    assert relative(patched(model, (TARGET, OTHER), scale="logit").values, both.values) < 1e-9
    assert relative(patched(model, scale="prob").values, first.values.exp()) < 1e-9


@ONE_EACH
def test_contexts_of_one_token_can_be_patched(build: Callable[..., Any]) -> None:
    model = build()
    clean, corrupted = torch.tensor([[5]]), torch.tensor([[6]])
    found = patch(cache_of(model, clean), cache_of(model, corrupted), TARGET, tokens=clean, corrupted_tokens=corrupted)
    assert found.values.shape == (LAYERS, 1)
    assert found.restored == pytest.approx(torch.ones(LAYERS, 1))


@EVERYTHING
@ONE_EACH
def test_runs_are_counted(build: Callable[..., Any], what: str, forwards: Any) -> None:
    model = build()
    caches = [cache_of(model, ids) for ids in prompts(model)]
    ran = forwards(model)
    found = patch(*caches, TARGET, what=what, batch=3)
    checks, reuse = 2, 2 if what in BY_POSITION else 0  # of each cache; of whether runs can begin later
    assert sum(count for count, _ in copies(ran)) == found.forwards + checks + reuse
    assert max(count for count, _ in copies(ran)) == 3


@ONE_EACH
def test_runs_begin_where_they_can_change(build: Callable[..., Any], forwards: Any) -> None:
    model = build()
    caches = [cache_of(model, ids) for ids in prompts(model)]
    ran = forwards(model)
    patch(*caches, TARGET, positions=[3, 4], layers=[1], batch=1)
    assert copies(ran)[-2:] == [(1, 2), (1, 1)]
    ran.clear()
    patch(*caches, TARGET, what="head_out", positions=[3, 4], layers=[1], batch=4)
    assert copies(ran)[-1] == (4, 2)


# ---------------------------------------------------------------------------------------------- hooks of somebody else
@pytest.mark.sample(quick=2)
@A_FEW
@FAMILIES
def test_hooks_of_others_stay_at_work_and_see_the_prompt_they_know(build: Callable[..., Any], what: str) -> None:
    model, shapes = build(), set()
    plain = patched(model, what=what)

    def turn(live: Tensor, hook: Any) -> Tensor:  # noqa: ARG001
        shapes.add((len(live), live.shape[1]))
        return live * torch.linspace(0.5, 2, live.shape[1], dtype=live.dtype)[:, None]

    with hooked(model, ("blocks.0.hook_resid_pre", turn)):
        expected = by_runs(model, what)
        caches = [cache_of(model, ids) for ids in prompts(model)]
        shapes.clear()
        found = patch(*caches, TARGET, what=what, batch=4)
        assert shapes == {(1, N)}
        assert len(ModelAdapter(model).user_hooks()) == 1
    assert relative(found.values, expected) < CLOSE and relative(found.values, plain.values) > 1e-3


@ONE_EACH
def test_a_model_in_somebodys_work_is_left_as_it_was(build: Callable[..., Any]) -> None:
    model = busy(getattr(build, "func", build).__wrapped__(*getattr(build, "args", ())))
    flags = [parameter.requires_grad for parameter in model.parameters()]
    with torch.inference_mode():
        found = patched(model, what="head_out")
    assert relative(found.values, by_runs(model, "head_out")) < CLOSE
    assert not found.values.is_inference()  # so that it can be computed with
    assert [parameter.requires_grad for parameter in model.parameters()] == flags
    assert len(ModelAdapter(model).user_hooks()) == 1


# --------------------------------------------------------------------------------------------------- what is refused
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"what": "resid_mid"}, "what='resid_mid' is not one of 'resid_pre', 'attn_out', 'mlp_out', 'head_out'"),
        ({"what": "head_pattern"}, "what='head_pattern' is not one of .*after it was used: patch head_q and head_k"),
        ({"what": "resid_post"}, "what='resid_post' is not one of .*a layer's is the resid_pre of the next"),
        ({"what": "z"}, "what='z' is not one of .*called head_out here"),
        ({"scale": "nats"}, "scale='nats' is not one of 'log_prob'"),
        ({"batch": 0}, "batch=0 must be at least 1"),
        ({"layers": []}, "layers is empty: name at least one layer"),
        ({"layers": [0, 2]}, "layer=2 is none of the layers 0 to 1 this model has"),
        ({"layers": [-1]}, "layer=-1 is none of the layers 0 to 1"),
        ({"layers": [0.5]}, "layer=0.5 is none of the layers 0 to 1"),
        ({"positions": []}, "positions is empty: name a position"),
        ({"positions": [0, N]}, f"position {N} is none of the {N} positions of the prompts"),
        ({"positions": [-1]}, f"position -1 is none of the {N} positions of the prompts.*: write {N - 1}$"),
        ({"positions": [3, 3]}, "positions names position 3 more than once"),
        ({"positions": ["last"]}, f"position 'last' is none of the {N} positions of the prompts"),
    ],
    ids=str,
)
@pytest.mark.usefixtures("unchecked")
def test_what_makes_no_sense_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        patched(zoo.bridge("gpt2"), **options)


@pytest.mark.parametrize("what", PLACES)
def test_a_model_without_the_place_is_refused_before_any_run(
    what: str, forwards: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = zoo.bridge("gpt2")
    caches, name = [cache_of(model, ids) for ids in prompts(model)], f"blocks.1.{PLACES[what]}"
    ran, every = forwards(model), ModelAdapter(model).points
    monkeypatch.setattr(ModelAdapter, "points", {point: hook for point, hook in every.items() if point != name})
    with pytest.raises(ValueError, match=f"this TransformerBridge has no {name}"):
        patch(*caches, TARGET, what=what)
    assert not ran


@pytest.mark.skipif(not zoo.HAS_HOOKED, reason="models of this kind are gone")
def test_a_model_whose_layers_have_no_mlp_is_refused() -> None:
    with pytest.raises(ValueError, match=r"this HookedTransformer has no blocks\.0\.hook_mlp_out, where this would be"):
        patched(zoo.hooked_config("attn_only"), what="mlp_out")


def test_heads_that_are_not_kept_apart_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ours, "head_outputs_name", lambda layer: f"blocks.{layer}.hook_attn_out")
    with pytest.raises(ValueError, match=r"blocks\.0\.hook_attn_out of this Tr.* is \(5, 8\), not head_out by"):
        patched(zoo.bridge("gpt2"), what="head_out")


def test_a_likelihood_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    put = ours._put
    monkeypatch.setattr(ours, "_put", lambda *given: put(*given) * torch.nan)
    with pytest.raises(
        ValueError, match=r"the target's likelihood with clean activations at blocks\.0\.hook_mlp_out is nan"
    ):
        patched(zoo.bridge("gpt2"), what="mlp_out")
