"""Components that carry a change, against plain runs with hooks and against TransformerLens; results and refusals."""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any, Literal

import pytest
import torch
from torch import Tensor
from transformer_lens import patching as theirs
from transformer_lens.tools.analysis.attribution_patching import attribution_patch

import heta_lens
from helpers import zoo
from helpers.asking import cache_of, hooked, plain_embeddings, relative
from heta_lens import activation
from heta_lens.causal import Components, components
from heta_lens.causal.components import shares_in_order
from heta_lens.model.adapter import ModelAdapter

N, TARGET, OTHER, POSITIONS, EVERY = 6, 7, 9, [2], 10**6
Direction = Literal["restore", "knock_out"]
DIRECTIONS: tuple[Direction, ...] = ("restore", "knock_out")
BOTH_WAYS = pytest.mark.parametrize("direction", DIRECTIONS)
ONE_EACH = pytest.mark.parametrize("build", zoo.models("-gpt2$"))


def found(model: Any, positions: Any = POSITIONS, target: Any = TARGET, n: int = N, **options: Any) -> Components:
    ids = zoo.prompt(model, n)
    return components(cache_of(model, ids), positions, target, tokens=ids, **options)


def log_prob(logits: Tensor) -> Tensor:
    return logits[0, -1].double().log_softmax(-1)[TARGET]


def names_of(model: Any) -> list[str]:
    """Heads and MLPs of both layers."""
    kinds = ["attn.hook_z"] if getattr(model.cfg, "attn_only", False) else ["attn.hook_z", "hook_mlp_out"]
    return [f"blocks.{layer}.{kind}" for layer in range(2) for kind in kinds]


def ends(model: Any, n: int = N) -> tuple[Tensor, Tensor]:
    """The embeddings, clean and with zeros at the changed positions."""
    clean = plain_embeddings(model, zoo.prompt(model, n))
    changed = clean.clone()
    changed[POSITIONS] = 0
    return clean, changed


def run(model: Any, embeddings: Tensor, *hooks: tuple[str, Any], read: Callable[[Tensor], Tensor] = log_prob) -> Tensor:
    put = ("hook_embed", lambda live, hook: embeddings[None].to(live))  # noqa: ARG005
    return read(model.run_with_hooks(zoo.prompt(model, len(embeddings)), fwd_hooks=[put, *hooks]))


@torch.no_grad()
def seen(model: Any, embeddings: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
    """What a plain run shows at hook points."""
    shown: dict[str, Tensor] = {}
    hooks = [(name, lambda live, hook, name=name: shown.update({name: live[0].clone()})) for name in names]  # noqa: ARG005
    run(model, embeddings, *hooks)
    return shown


def slope(model: Any, embeddings: Tensor, name: str) -> Tensor:
    """The gradient by one activation, of a run in which it is a leaf and everything after it follows."""
    leaf = seen(model, embeddings, [name])[name].requires_grad_()
    return torch.autograd.grad(run(model, embeddings, (name, lambda live, hook: leaf[None].to(live))), leaf)[0]  # noqa: ARG005


def plain_estimates(model: Any, direction: str, steps: int = 1) -> Tensor:
    clean, changed = ends(model)
    base, other = (changed, clean) if direction == "restore" else (clean, changed)
    names = names_of(model)
    one, two = seen(model, clean, names), seen(model, changed, names)
    columns = []
    for name in names:
        slopes = [slope(model, base + step / steps * (other - base), name) for step in range(steps)]
        column = ((one[name] - two[name]) * sum(slopes) / steps).sum(-1)
        columns.append(column[..., None] if column.ndim == 1 else column)
    each = len(columns) // 2
    return torch.stack([torch.cat(columns[each * layer :][:each], -1) for layer in range(2)])


@torch.no_grad()
def plain_effect(model: Any, direction: str, places: Sequence[Sequence[int]]) -> float:
    """Patch components together, given by layer, position and column."""
    clean, changed = ends(model)
    base, other = (changed, clean) if direction == "restore" else (clean, changed)
    handed, hooks, heads = seen(model, other, names_of(model)), [], model.cfg.n_heads
    for layer, position, column in places:
        name = f"blocks.{layer}." + ("hook_mlp_out" if column == heads else "attn.hook_z")
        cell = (0, position) if column == heads else (0, position, column)

        def put(live: Tensor, hook: Any, cell: Any = cell, name: str = name) -> Tensor:  # noqa: ARG001
            live = live.clone()
            live[cell] = handed[name][cell[1:]].to(live)
            return live

        hooks.append((name, put))
    moved = run(model, base, *hooks) - run(model, base)
    return float(moved if direction == "restore" else -moved)


# ---------------------------------------------------------------------------------------------- against plain runs
@pytest.mark.slow
@BOTH_WAYS
@pytest.mark.parametrize(("name", "build"), zoo.named(""))
def test_estimates_effects_and_shares_are_those_of_plain_runs(name: str, build: Any, direction: Direction) -> None:
    model, off = build(), 10 * zoo.tolerance(name)
    result = found(model, direction=direction, verify=12, share=1e9)
    expected = plain_estimates(model, direction)
    assert result.estimates.shape == expected.shape
    assert relative(result.estimates, expected) < off and expected.abs().max() > 1e-3
    with torch.no_grad():
        clean, changed = (float(run(model, end)) for end in ends(model))
    assert (result.clean, result.changed) == pytest.approx((clean, changed), abs=off)
    places = result.found.tolist()
    effects = torch.tensor([plain_effect(model, direction, [place]) for place in places])
    assert relative(result.effects, effects) < off and result.opposite.isnan().all()
    sign = 1 if clean > changed else -1
    assert (sign * result.effects).diff().max() <= 0  # the largest first
    helping = len(result.together)  # the others have no effect, but for rounding
    assert (sign * result.effects[:helping] > 0).all() and (sign * result.effects[helping:] < 1e-9).all()
    shares = [plain_effect(model, direction, places[: count + 1]) / (clean - changed) for count in range(helping)]
    assert result.together == pytest.approx(shares, abs=100 * off)


@pytest.mark.slow
@BOTH_WAYS
@pytest.mark.parametrize(("name", "build"), zoo.named("-(gpt2|llama|native)$"))
def test_steps_take_the_mean_gradient_on_the_way_to_the_other_run(name: str, build: Any, direction: Direction) -> None:
    model = build()
    expected, one = plain_estimates(model, direction, steps=3), plain_estimates(model, direction)
    for batch in (1, 2, "auto"):
        result = found(model, direction=direction, steps=3, batch=batch)
        assert relative(result.estimates, expected) < 10 * zoo.tolerance(name)
    assert relative(one, expected) > 1e-2


@pytest.mark.slow
@BOTH_WAYS
@pytest.mark.parametrize(("name", "build"), zoo.named(""))
def test_heads_take_their_estimates_from_source_positions(name: str, build: Any, direction: Direction) -> None:
    model, off = build(), 10 * zoo.tolerance(name)
    result = found(model, direction=direction, verify=EVERY, share=0)
    clean, changed = ends(model)
    points = [f"blocks.{layer}.attn.{kind}" for layer in range(2) for kind in ("hook_pattern", "hook_v", "hook_z")]
    one, two = seen(model, clean, points), seen(model, changed, points)
    base = changed if direction == "restore" else clean
    slopes = [slope(model, base, f"blocks.{layer}.attn.hook_z") for layer in range(2)]
    scale, heads = result.estimates.abs().max(), model.cfg.n_heads
    for (layer, position, column), parts in zip(result.found.tolist(), result.sources.double(), strict=True):
        if column == heads:
            assert not parts.any()
            continue
        pattern, other = (each[f"blocks.{layer}.attn.hook_pattern"][column, position].double() for each in (one, two))
        group = column // (heads // one[f"blocks.{layer}.attn.hook_v"].shape[1])
        v, w = (each[f"blocks.{layer}.attn.hook_v"][:, group].double() for each in (one, two))
        gradient, mean = slopes[layer][position, column].double(), other @ w / other.sum()
        expected = torch.stack([other * ((v - w) @ gradient), (pattern - other) * ((v - mean) @ gradient)], -1)
        assert (parts - expected).abs().max() < off * scale
        sink = (pattern.sum() - other.sum()) * mean @ gradient
        rest = result.estimates[layer, position, column] - parts.sum() - sink
        assert rest.abs() < 10 * off * scale
        if "sinks" not in name and "gptoss" not in name:
            assert sink.abs() < off * scale


@ONE_EACH
def test_the_other_direction_is_patched_on_request(build: Callable[..., Any]) -> None:
    model = build()
    for direction, other in (DIRECTIONS, DIRECTIONS[::-1]):
        result = found(model, direction=direction, both=True, verify=5)
        expected = torch.tensor([plain_effect(model, other, [place]) for place in result.found.tolist()])
        assert relative(result.opposite, expected) < 1e-6 and relative(result.opposite, result.effects) > 1e-3


# ------------------------------------------------------------------------------------------ against TransformerLens
@pytest.mark.parametrize("build", zoo.models("bridge-"))
def test_estimates_of_a_pair_are_those_of_attribution_patch(build: Callable[..., Any]) -> None:
    """Theirs restores: the gradient is that of the corrupted run, and above 0 is towards the clean number."""
    model, clean, other = *(build(),), zoo.prompt(build(), N), zoo.prompt(build(), N)
    other[0, [2, 3]] = torch.tensor([OTHER, TARGET])
    nodes = attribution_patch(model, clean, other, log_prob).node_scores
    result = components(cache_of(model, clean), target=TARGET, change=other, tokens=clean)
    expected = torch.zeros_like(result.estimates)
    for node, score in nodes.items():
        if node.kind != "embed":
            expected[node.layer, node.position, model.cfg.n_heads if node.head is None else node.head] = score
    assert relative(result.estimates, expected) < 1e-4 and expected.abs().max() > 1e-3
    assert result.positions == (2, 3)
    back = components(cache_of(model, other), target=TARGET, change=clean, tokens=other, direction="knock_out")
    assert relative(back.estimates, -expected) < 1e-4  # the same gradient, with the roles exchanged


@pytest.mark.slow
@BOTH_WAYS
@pytest.mark.parametrize("build", zoo.models("-(gpt2|llama|gptj)$"))
def test_effects_are_the_grids_of_transformer_lens(build: Callable[..., Any], direction: Direction) -> None:
    model = build()
    clean, other = zoo.prompt(model, N), zoo.prompt(model, N)
    other[0, POSITIONS] = OTHER
    result = components(
        cache_of(model, clean),
        POSITIONS,
        TARGET,
        tokens=clean,
        change=[OTHER],
        direction=direction,
        verify=EVERY,
        share=0,
    )
    base, handed = (other, clean) if direction == "restore" else (clean, other)
    with torch.no_grad():
        cache, start = model.run_with_cache(handed)[1], log_prob(model(base))
        heads = theirs.get_act_patch_attn_head_out_by_pos(model, base, cache, log_prob)
        mlps = theirs.get_act_patch_mlp_out(model, base, cache, log_prob)
    grid = (torch.cat([heads, mlps[..., None]], -1) - start) * (1 if direction == "restore" else -1)
    assert len(result.found) == 2 * (N - 3) * (model.cfg.n_heads + 1)  # what is after the changed position
    assert relative(result.effects, grid[tuple(result.found.T)]) < 1e-5 and result.effects.std() > 1e-3


# --------------------------------------------------------------------------------------------------- targets, changes
STREAM = "blocks.1.hook_resid_pre"
TARGETS: dict[str, tuple[Any, Callable[[Tensor], Tensor]]] = {
    "token": (TARGET, lambda logits: logits.log_softmax(-1)[TARGET]),
    "set": ({TARGET, OTHER}, lambda logits: logits.log_softmax(-1)[[TARGET, OTHER]].logsumexp(-1)),
    "contrast": ((TARGET, OTHER), lambda logits: logits[TARGET] - logits[OTHER]),
    "function": (lambda logits: logits[TARGET] ** 2, lambda logits: logits[TARGET] ** 2),
}


@pytest.mark.sample(quick=2)
@BOTH_WAYS
@pytest.mark.parametrize("kind", TARGETS)
def test_targets_of_every_kind(kind: str, direction: Direction) -> None:
    model, (target, read) = zoo.bridge("gpt2"), TARGETS[kind]
    result, (clean, changed) = found(model, target=target, direction=direction), ends(model)
    leaf = seen(model, changed if direction == "restore" else clean, ["blocks.0.attn.hook_z"])["blocks.0.attn.hook_z"]
    one, two = (seen(model, end, ["blocks.0.attn.hook_z"])["blocks.0.attn.hook_z"] for end in (clean, changed))
    base, leaf = changed if direction == "restore" else clean, leaf.requires_grad_()
    put = ("blocks.0.attn.hook_z", lambda live, hook: leaf[None])  # noqa: ARG005
    value = run(model, base, put, read=lambda logits: read(logits[0, -1]))
    (gradient,) = torch.autograd.grad(value, leaf)
    assert relative(result.estimates[0, :, :4], ((one - two) * gradient).sum(-1)) < 1e-7
    assert (result.changed if direction == "restore" else result.clean) == pytest.approx(value.item())
    assert result.quantity == ("value" if kind == "function" else "log_prob")


@BOTH_WAYS
@pytest.mark.parametrize("build", zoo.models("-(gpt2|llama|native)$"))
def test_an_activation_is_carried_by_the_layers_before_it(build: Callable[..., Any], direction: Direction) -> None:
    model = build()
    result = found(model, target=activation(STREAM, index=3), direction=direction, verify=EVERY)
    clean, changed = ends(model)
    before, after = (seen(model, end, [STREAM])[STREAM][-1, 3] for end in (clean, changed))
    assert (result.clean, result.changed) == pytest.approx((float(before), float(after)), rel=1e-4)
    assert len(result.estimates) in (1, 2) and not result.estimates[1:].any()
    best, base, other = result.top(1)[0], *((changed, clean) if direction == "restore" else (clean, changed))
    name = "blocks.0." + ("hook_mlp_out" if best.head is None else "attn.hook_z")
    cell = (best.position,) if best.head is None else (best.position, best.head)
    handed, shown = seen(model, other, [name])[name], []

    def put(live: Tensor, hook: Any) -> Tensor:  # noqa: ARG001
        live = live.clone()
        live[(0, *cell)] = handed[cell]
        return live

    with torch.no_grad():
        run(model, base, (name, put), (STREAM, lambda live, hook: shown.append(live[0, -1, 3])))  # noqa: ARG005
    assert best.effect == pytest.approx(
        abs(float(shown[0] - (after if direction == "restore" else before))) * result.sign, rel=1e-4
    )


def test_ids_a_counterfactual_and_a_token_as_the_mask_are_one_change() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    other = ids.clone()
    other[0, 2] = OTHER
    results = [
        found(model, change=[OTHER]),
        found(model, change=OTHER),
        found(model, None, change=other),
        found(model, change=other[0].tolist()),
    ]
    for result in results[1:]:
        assert torch.equal(result.estimates, results[0].estimates) and result.positions == (2,)
    assert results[0].changed == pytest.approx(float(log_prob(model(other)).detach()))
    pair = found(model, [4, 2], change=[OTHER, TARGET], verify=EVERY)  # one id per position, in their order
    assert {*pair.found[:, 1].tolist()} == {3, 5}  # what is at the changed tokens is not ranked
    other[0, [4, 2]] = torch.tensor([OTHER, TARGET])
    assert pair.changed == pytest.approx(float(log_prob(model(other)).detach())) and pair.positions == (4, 2)
    assert pair.change == ", ".join(repr(zoo.tokenizer().decode([token])) for token in (OTHER, TARGET))


def test_resampled_tokens_depend_on_the_seed() -> None:
    model = zoo.bridge("gpt2")
    one, again, other = (found(model, [2, 3], change="resample", seed=seed, verify=1) for seed in (0, 0, 1))
    assert one.changed == again.changed != other.changed
    rows = zoo.prompt(model, N).repeat(len(zoo.tokenizer()), 1)
    rows[:, 2] = torch.arange(len(rows))
    with torch.no_grad():
        values = model(rows)[:, -1].double().log_softmax(-1)[:, TARGET]  # with every token in that place
    assert (values - found(model, change="resample", verify=1).changed).abs().min() < 1e-9


@pytest.mark.slow
@BOTH_WAYS
def test_hooks_of_others_stay_at_work(direction: Direction) -> None:
    model = zoo.bridge("gpt2")
    plain, shapes = found(model, direction=direction), set()

    def turn(live: Tensor, hook: Any) -> Tensor:  # noqa: ARG001
        shapes.add((len(live), live.shape[1]))
        return live * torch.linspace(0.5, 2, live.shape[1], dtype=live.dtype)[:, None]

    with hooked(model, ("blocks.0.hook_resid_pre", turn)):
        expected, cache = plain_estimates(model, direction), cache_of(model, zoo.prompt(model, N))
        shapes.clear()
        result = components(cache, POSITIONS, TARGET, direction=direction, batch=4, verify=4)
        effects = [plain_effect(model, direction, [place]) for place in result.found.tolist()]
        assert shapes == {(1, N)} and len(ModelAdapter(model).user_hooks()) == 1
    assert relative(result.estimates, expected) < 1e-7 and relative(plain.estimates, expected) > 1e-3
    assert relative(result.effects, torch.tensor(effects)) < 1e-6


@ONE_EACH
def test_an_earlier_position_is_explained_by_what_is_before_it(build: Callable[..., Any]) -> None:
    model = build()
    ids = zoo.prompt(model, 8)
    short = components(cache_of(model, ids[:, :N]), POSITIONS, TARGET, tokens=ids[:, :N], direction="knock_out")
    result = components(cache_of(model, ids), POSITIONS, TARGET, tokens=ids, position=N, direction="knock_out")
    assert relative(result.estimates, short.estimates) < 1e-7 and relative(result.effects, short.effects) < 1e-6
    assert relative(result.sources, short.sources) < 1e-6 and result.tokens == short.tokens


def test_the_model_is_left_as_it_was() -> None:
    model = zoo.bridge("gpt2")
    flags = [parameter.requires_grad for parameter in model.parameters()]
    found(model)
    assert flags == [parameter.requires_grad for parameter in model.parameters()] and any(flags)
    assert not ModelAdapter(model).user_hooks()


# --------------------------------------------------------------------------------------------------------- the result
@pytest.fixture(scope="module")
def story() -> Components:
    model = heta_lens.load_demo_model()
    tokens = model.to_tokens(
        "Mia put the key in the drawer. Leo put the key in the box. Question: Where did Leo put the key? Answer: in the"
    )
    return components(cache_of(model, tokens), [15], tokens=tokens, both=True)


def test_a_story_is_printed(story: Components) -> None:
    claim, route, largest, other = repr(story).splitlines()
    moved = "With ' box' (15) replaced by the zero mask, log_prob of ' box' falls from -1.48e-05 to -9.27"
    assert claim == f"{moved}; 1 of 32 patched components together restore 100% of that."
    assert route == "Route: ' box' (15) → L2H3 at the last token; it restores 95%."
    correlation = f"rank correlation with the estimates {story.correlation:.2f}"
    assert largest == f"Largest effects: L0H1 at '.' (16) 9.27; {correlation}"
    assert other == f"In the other direction, in the same order: {float(story.opposite[0]):.3g}"
    assert len(repr(replace(story, opposite=story.opposite * torch.nan)).splitlines()) == 3
    assert story.heads() == [(0, 1)] and story.correlation > 0.9 and story.forwards < 110
    nothing = replace(story, together=(), effects=-story.effects)
    assert "no patched component accounts" in repr(nothing) and "No route: no patched head" in repr(nothing)


def test_the_picture_shows_what_was_patched(story: Components, tmp_path: Any) -> None:
    view = story.plot()
    assert view.title == "How ' box' (15) reaches ' box'" and story.claim.replace("'", "&#39;") in view.fragment
    assert {".svg", ".png", ".pdf", ".csv"} == {*view.exports}
    assert f'aria-label="{story.route_in_words.replace(chr(39), "&#39;")}"' in view.fragment
    drawn = view.fragment[view.fragment.index("<svg") : view.fragment.index("</svg>")]
    assert "#ffffff" not in drawn and "var(--ink)" in drawn and "var(--route)" in drawn  # follows the page's colours
    saved = view.save(tmp_path / "circuit.svg").read_text()
    assert "var(" not in saved and "#1a1a1a" in saved
    more = replace(story, effects=-story.effects, together=())  # every effect is against
    assert "var(--against)" in more.plot().fragment and "var(--against)" not in drawn


def test_a_route_begins_at_a_changed_token_wherever_it_is() -> None:
    model = heta_lens.load_demo_model()
    tokens = model.to_tokens("Mia put the key in the drawer. Leo put the key in the box. Question: Where did Leo put")
    cache, routes = cache_of(model, tokens), list[Components]()
    for place in range(1, 16, 2):
        found = components(cache, [place], tokens=tokens)
        routes += [found] * bool(found.route)
        assert not found.route or found.read_most[found.rows_of_route[0]] == place
        assert min(found.read_most) >= place
    assert routes


def test_pictures_of_many_changes_of_nothing_and_of_one_component(story: Components) -> None:
    none = replace(story, effects=torch.zeros_like(story.effects), together=())
    many = replace(story, positions=tuple(range(1, 28)))
    first = {name: getattr(story, name)[:1] for name in ("found", "effects", "opposite", "sources")}
    one = replace(story, **first)
    for result in (none, many, one):
        assert "<svg" in result.plot().fragment
    assert "nan" not in repr(one)


def test_the_attention_of_found_heads_is_one_call_away(story: Components) -> None:
    model = heta_lens.load_demo_model()
    cache = cache_of(model, torch.tensor([[model.tokenizer.bos_token_id or 0] * len(story.tokens)]))
    page = story.attention(cache).fragment
    assert "L0H1" in page and "' box' (15)".replace("'", "&#x27;") in page
    with pytest.raises(ValueError, match=r"the cache has no blocks\.0\.attn\.hook_pattern"):
        story.attention(model.run_with_cache(torch.tensor([[1, 2]]), names_filter="hook_embed")[1])
    with pytest.raises(ValueError, match="no head is among"):
        replace(story, together=()).attention(cache)
    with pytest.raises(ValueError, match="the cache has 2 positions, and these components are of a prompt of 30"):
        story.attention(cache_of(model, torch.tensor([[1, 2]])))


def test_lists_and_tables_agree(story: Components) -> None:
    best, frame = story.top(40), story.to_frame()
    assert len(best) == 32 == len(frame["effect"].dropna()) and len(frame) == story.estimates.numel()
    for node, effect, opposite in zip(best, story.effects, story.opposite, strict=True):
        head = frame["head"].isna() if node.head is None else frame["head"] == node.head
        row = frame[(frame["layer"] == node.layer) & (frame["position"] == node.position) & head]
        values = row[["token", "at_changed", "estimate", "effect", "opposite"]].to_numpy().tolist()
        assert values == [[story.tokens[node.position], False, node.estimate, float(effect), float(opposite)]]
        assert node.effect == float(effect) and node.position not in story.positions
    early = story.at_changed(3)
    here = frame[frame["at_changed"]].sort_values("estimate", ascending=False)
    assert [node.estimate for node in early] == here["estimate"].tolist()[:3] and {node.position for node in early} == {
        15
    }
    assert "estimate" in repr(early) and str(best[0]) == "L0H1 at '.' (16)" and repr(best[0]) == "L0H1 at '.' (16) 9.27"
    taken = story.taken_from(best[0])
    assert int((taken["values"] + taken["pattern"]).argmax()) == 15
    assert taken[["values", "pattern"]].to_numpy().sum() == pytest.approx(best[0].estimate, rel=1e-4)
    mlp = next(node for node in best if node.head is None)
    for stranger in (mlp, early[0]):
        with pytest.raises(ValueError, match="is not one of the patched heads"):
            story.taken_from(stranger)
    with pytest.raises(ValueError, match="k=0"):
        story.top(0)


def test_files_hold_everything(story: Components, tmp_path: Any) -> None:
    story.save(tmp_path / "story.safetensors")
    back = Components.load(tmp_path / "story.safetensors")
    for field in fields(Components):
        one, other = getattr(story, field.name), getattr(back, field.name)
        assert (
            torch.equal(one, other) if isinstance(one, Tensor) and field.name != "opposite" else str(one) == str(other)
        )
    assert repr(back) == repr(story) and back.top(3) == story.top(3)
    (tmp_path / "other.safetensors").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="is not a heta_lens"):
        Components.load(tmp_path / "other.safetensors")


def test_a_search_lists_no_more_patches_than_are_needed() -> None:
    shares = [0.1, 0.2, 0.3, 0.4, 0.5]
    assert shares_in_order(lambda some: shares[some], 5, 0.15, 4) == [0.1, 0.2]
    assert shares_in_order(lambda some: shares[some], 5, 0.9, 4) == shares


def test_a_rising_number_is_carried_by_what_raises_it() -> None:
    model = zoo.bridge("gpt2")
    falling, rising = (found(model, target=pair, verify=8) for pair in ((TARGET, OTHER), (OTHER, TARGET)))
    falling, rising = sorted((falling, rising), key=lambda result: result.sign, reverse=True)
    assert (falling.sign, rising.sign) == (1, -1) and relative(rising.estimates, -falling.estimates) < 1e-9
    assert relative(rising.effects, -falling.effects) < 1e-9 and rising.together == pytest.approx(falling.together)
    assert (
        torch.equal(rising.found, falling.found)
        and rising.rows_of_route == falling.rows_of_route
        and rising.effects[0] < 0
    )
    assert [node[:3] for node in rising.at_changed(4)] == [node[:3] for node in falling.at_changed(4)]


def test_a_route_leads_from_head_to_head(story: Components) -> None:
    places = [[3, 8, 2], [3, 8, 1], [2, 8, 0], [2, 5, 1], [1, 5, 0], [1, 5, 1], [0, 4, 0]]
    found, effects = torch.tensor(places), torch.arange(7.0, 0, -1)
    blank = {"tokens": tuple("abcdefghi"), "positions": (3,), "heads_per_layer": 2, "estimates": torch.zeros(4, 9, 3)}
    blank |= {"found": found, "opposite": effects}

    def route(read_most: Sequence[int], effects: Tensor = effects) -> list[int]:
        sources = torch.zeros(7, 9, 2)
        sources[range(7), read_most] = torch.tensor([0.5, 0.5])
        return replace(story, **blank, effects=effects, sources=sources).rows_of_route

    assert route([8, 5, 5, 4, 3, 3, 3]) == [6, 3, 1]  # not by the MLP
    assert route([8, 5, 5, 4, 3, 3, 4]) == [4, 1]  # no earlier head was found at 4, so by the next one at 5
    assert route([8, 5, 5, 8, 3, 3, 3]) == [3, 1]  # no head reads a later token
    assert route([8, 7, 7, 4, 3, 3, 3]) == []
    assert route([8, 8, 5, 3, 3, 3, 3]) == [4, 2, 1]  # each head in an earlier layer
    assert route([8, 3, 5, 3, 3, 3, 3]) == [1]
    assert route([8, 5, 5, 4, 3, 3, 3], effects=effects - 3.5) == []  # not by a head that works against it


def test_a_route_of_many_dead_ends_is_given_up_soon(story: Components) -> None:
    """Each of 60 heads at the last token reads that token: there are 2^60 ways, and none leads back."""
    many, last = 60, len(story.tokens) - 1
    found = torch.tensor([[layer, last, 0] for layer in range(many)[::-1]])
    sources, estimates = torch.zeros(many, last + 1, 2), torch.zeros(many, last + 1, 5)
    sources[:, last] = 1
    own = {"found": found, "sources": sources, "estimates": estimates, "heads_per_layer": 4}
    assert replace(story, **own, effects=torch.ones(many), opposite=torch.ones(many)).rows_of_route == []


@ONE_EACH
def test_the_heads_of_a_route_are_patched_together(build: Callable[..., Any]) -> None:
    model = build()
    result = found(model, verify=EVERY)
    assert result.route
    expected = plain_effect(model, "restore", result.found[result.rows_of_route].tolist())
    assert result.route_share == pytest.approx(expected / (result.clean - result.changed), abs=1e-6)


# ------------------------------------------------------------------------------------------------------------ refusals
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"direction": "up"}, "direction='up' is not one of 'restore', 'knock_out'"),
        ({"steps": 0}, "steps=0"),
        ({"verify": 0}, "verify=0"),
        ({"share": -1}, "share=-1"),
        ({"scale": "nats"}, "scale='nats'"),
        ({"batch": 0}, "batch=0"),
        ({"change": "noise"}, "change='noise' is not one of zero"),
        ({"seed": 1}, "seed=1 is for change='resample', not for change='zero'"),
        ({"change": [1, 2]}, f"change has 2 ids: give one for each of the 1 positions, or {N}"),
        ({"change": [10**9]}, "change=1000000000 is not a token id"),
        ({"change": 2.5}, "change=2.5 is not a token id"),
        ({"positions": [N]}, f"position {N} is none of the {N} positions"),
        ({"positions": None}, "positions=None needs the ids of a counterfactual prompt"),
        ({"positions": [2, N - 1, 3, 4]}, "the last token is changed, and none after it"),
        ({"positions": None, "change": "same"}, "is the prompt itself"),
        ({"change": "same"}, "the change leaves these tokens as they are"),
        ({"target": lambda logits: logits[0].detach()}, "has no gradient by the logits"),
        ({"target": lambda logits: logits[0], "scale": "prob"}, "scale='prob' has no effect with the function"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_wrong_questions_are_refused(options: dict[str, Any], message: str) -> None:
    model = zoo.bridge("gpt2")
    if options.get("change") == "same":
        options = {**options, "change": zoo.prompt(model, N)}
    with pytest.raises(ValueError, match=message):
        found(model, **options)


@pytest.mark.parametrize("name", ["blocks.1.attn.hook_z", "blocks.0.hook_mlp_out"])
def test_a_model_without_the_hooks_is_refused_before_the_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, every = zoo.bridge("gpt2"), ModelAdapter(zoo.bridge("gpt2")).points
    monkeypatch.setattr(ModelAdapter, "points", {point: hook for point, hook in every.items() if point != name})
    with pytest.raises(ValueError, match=f"this TransformerBridge has no {name}"):
        found(model)
