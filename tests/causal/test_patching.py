"""Patching grids against TransformerLens and against a run per cell."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from transformer_lens import patching as theirs

from helpers import zoo
from helpers.asking import cache_of, explain, hooked, relative
from heta_lens import activation
from heta_lens.causal import Grid, patch
from heta_lens.model.adapter import ModelAdapter

N, TARGET, OTHER = 5, 7, 9


def prompts(model: Any, n: int = N) -> tuple[Tensor, Tensor]:
    return zoo.prompt(model, n), zoo.prompt(model, n, seed=1)


def patched(model: Any, target: Any = TARGET, n: int = N, **options: Any) -> Grid:
    clean, corrupted = prompts(model, n)
    ids = {"tokens": clean, "corrupted_tokens": corrupted}
    return patch(cache_of(model, clean), cache_of(model, corrupted), target, **ids, **options)


def log_prob(logits: Tensor) -> Tensor:
    return logits[0, -1].double().log_softmax(-1)[TARGET]


@torch.no_grad()
def run(model: Any, ids: Tensor, *hooks: tuple[str, Any]) -> Tensor:
    return log_prob(model.run_with_hooks(ids, fwd_hooks=[*hooks]))


def note(model: Any, ids: Tensor, name: str) -> Tensor:
    """What a run of its own shows there."""
    seen: list[Tensor] = []
    run(model, ids, (name, lambda live, hook: seen.append(live[0].clone())))  # noqa: ARG005
    return seen[0]


def one_run(model: Any, name: str, handed: Tensor, positions: Sequence[int], head: int | None = None) -> Tensor:
    """The corrupted run, with what the clean one handed on at these positions (by one head)."""

    def put(live: Tensor, hook: Any) -> Tensor:  # noqa: ARG001
        live = live.clone()
        for place in positions:
            if head is None:
                live[0, place] = handed[place]
            else:
                live[0, place, head] = handed[place, head]
        return live

    return run(model, prompts(model)[1], (name, put))


LAYERS = 2

FAMILIES = pytest.mark.parametrize("build", zoo.models("-(gpt2|llama|gptj)$"))


ONE_EACH = pytest.mark.parametrize("build", zoo.models("-gpt2$"))


BY_POSITION = {"resid_pre": "hook_resid_pre", "attn_out": "hook_attn_out", "mlp_out": "hook_mlp_out"}


BY_HEAD = {"head_out": "attn.hook_z", "head_q": "attn.hook_q", "head_k": "attn.hook_k", "head_v": "attn.hook_v"}


PLACES = BY_POSITION | BY_HEAD


EVERYTHING = pytest.mark.parametrize("what", PLACES)


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
    assert (found.clean, found.corrupted) == pytest.approx((float(high), float(low)), rel=CLOSE)


@pytest.mark.sample(quick=4)
@EVERYTHING
@pytest.mark.parametrize("build", zoo.models("-(?!(gpt2|llama|gptj)$)"))
def test_grids_equal_one_run_a_cell_on_models_of_other_kinds(build: Callable[..., Any], what: str) -> None:
    model = build()
    if what == "mlp_out" and getattr(model.cfg, "attn_only", False):
        with pytest.raises(ValueError, match=r"has no blocks\.0\.hook_mlp_out, where this would be put in"):
            patched(model, what=what)
        return
    found = patched(model, what=what)
    assert relative(found.values, by_runs(model, what)) < CLOSE
    clean, corrupted = prompts(model)
    likelihoods = (float(run(model, ids)) for ids in (clean, corrupted))
    assert (found.clean, found.corrupted) == pytest.approx((*likelihoods,), rel=CLOSE)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["resid_pre", "head_k"])
@FAMILIES
def test_only_some_positions_are_patched(build: Callable[..., Any], what: str) -> None:
    model = build()
    whole = patched(model, what=what)
    for positions in ([3], [4, 1]):
        found = patched(model, what=what, positions=positions)
        assert relative(found.values, by_runs(model, what, positions)) < CLOSE
        columns = [whole.labels[place] for place in positions] if what in BY_POSITION else [*whole.labels]
        assert [*found.labels] == columns
        assert found.forwards == 1 + LAYERS * len(columns)
    if what in BY_HEAD:
        assert relative(whole.values, found.values) > 1e-3


@ONE_EACH
def test_scales_and_contrasts(build: Callable[..., Any]) -> None:
    model = build()
    first, second, both = (patched(model, target) for target in (TARGET, OTHER, (TARGET, OTHER)))
    assert relative(both.values, first.values - second.values) < 1e-9
    assert both.clean == pytest.approx(first.clean - second.clean)
    assert relative(patched(model, (TARGET, OTHER), scale="logit").values, both.values) < 1e-9
    assert relative(patched(model, scale="prob").values, first.values.exp()) < 1e-9


@pytest.mark.sample(quick=2)
@pytest.mark.parametrize("what", ["resid_pre", "attn_out", "head_out", "head_k"])
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


# --------------------------------------------------------------------------------------------------------------- grids
@ONE_EACH
def test_a_grid_is_labelled_by_tokens_or_heads(build: Callable[..., Any]) -> None:
    model = build()
    clean, corrupted = prompts(model)
    likely = int(model(clean)[0, -1].argmax())
    found, asked = patched(model, None), explain(model, clean, likely, method="recency")
    assert found.title == f"patching resid_pre: {asked.target_text!r}"
    assert torch.equal(found.values, patched(model, asked.target_text).values)
    assert found.labels == explain(model, corrupted, likely, method="recency").tokens != asked.tokens
    heads = patched(model, (TARGET, likely), what="head_v")
    assert heads.labels == ("head 0", "head 1", "head 2", "head 3") and not heads.values.requires_grad
    assert heads.title.startswith("patching head_v: '") and heads.title.endswith(f" rather than {asked.target_text!r}")


# ------------------------------------------------------------------------------------------------------------ refusals
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"what": "resid_mid"}, "what='resid_mid' is not one of 'resid_pre'"),
        ({"scale": "nats"}, "scale='nats'"),
        ({"batch": 0}, "batch=0"),
        ({"layers": [0, 2]}, "layer=2 is none of the layers 0 to 1"),
        ({"positions": [0, N]}, f"position {N} is none of the {N} positions"),
        ({"positions": [3, 3]}, "position 3 more than once"),
    ],
    ids=str,
)
@pytest.mark.usefixtures("unchecked")
def test_wrong_options_of_a_grid_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        patched(zoo.bridge("gpt2"), **options)


def test_of_a_number_in_a_block_no_block_above_has_a_row() -> None:
    target = activation("blocks.0.hook_resid_post", index=1)
    model = zoo.bridge("gpt2")
    clean, corrupted = prompts(model)
    grid = patch(cache_of(model, clean), cache_of(model, corrupted), target)
    assert grid.layers == (0,) and grid.values[0, -1] != grid.corrupted
    with pytest.raises(ValueError, match="layer 1 comes after the activation: choose from 0 to 0"):
        patch(cache_of(model, clean), cache_of(model, corrupted), target, layers=[1])


@pytest.mark.usefixtures("unchecked")
def test_prompts_and_attributions_that_do_not_match_are_refused() -> None:
    model, stranger = zoo.bridge("gpt2"), zoo.bridge("gptj")
    clean, longer = zoo.prompt(model, N), zoo.prompt(model, N + 1)
    cache = cache_of(model, clean)
    with pytest.raises(ValueError, match=f"the corrupted prompt has {N + 1} tokens, and the clean one {N}"):
        patch(cache, cache_of(model, longer), TARGET)
    with pytest.raises(ValueError, match="the two caches are of two models"):
        patch(cache, cache_of(stranger, clean), TARGET)
    with pytest.raises(TypeError, match="expected an ActivationCache"):
        patch(cache, clean, TARGET)
    for wrong in ("tokens", "corrupted_tokens"):
        with pytest.raises(ValueError, match=f" {wrong}=, if given, do not match the cache"):
            patch(cache, cache, TARGET, **{wrong: prompts(model)[1]})


@pytest.mark.parametrize("what", ["mlp_out", "head_q"])
def test_a_model_without_the_hook_is_refused_before_a_run(
    what: str, forwards: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = zoo.bridge("gpt2")
    caches, name = [cache_of(model, ids) for ids in prompts(model)], f"blocks.1.{PLACES[what]}"
    ran, every = forwards(model), ModelAdapter(model).points
    monkeypatch.setattr(ModelAdapter, "points", {point: hook for point, hook in every.items() if point != name})
    with pytest.raises(ValueError, match=f"this TransformerBridge has no {name}"):
        patch(*caches, TARGET, what=what)
    assert not ran
