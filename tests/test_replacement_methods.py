"""Methods that run parts of the context, or other tokens: TDD, ReAGent and GiLOT, each against its formula."""

import math
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from asking import doubts_allowed, plain_embeddings, plain_log_probs, predict, relative
from scipy.optimize import linprog
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor

import zoo
from heta_lens.baselines.gilot import Gilot, euclidean, exact_transport, later, likeliest, transport
from heta_lens.baselines.reagent import Probe, Reagent, aggregated, best, evidence, random_mask
from heta_lens.baselines.replacers import MaskedLM, drawn, kind, language_model, replaced, unigram
from heta_lens.baselines.tdd import Tdd, choices, steps
from heta_lens.generation import Beams, Writer, beam_search

FAMILIES = pytest.mark.parametrize("build", zoo.models("-(gpt2|llama|gptj)$"))
ONE_EACH = pytest.mark.parametrize("build", zoo.models("-gpt2$"))
N, TARGET = 8, 7

pytestmark = pytest.mark.filterwarnings("ignore:none of . probes found .* tokens that suffice:UserWarning")


def plain_logits(model: Any, ids: Tensor) -> Tensor:
    with torch.no_grad():
        return model(ids)[0].double()


def hooked_up(model: Any) -> Any:
    model.add_hook("blocks.0.hook_resid_post", lambda activation, hook: activation * 0.9)  # noqa: ARG005
    return model


def on_bridge() -> Any:
    model = zoo.bridge("gpt2")
    return predict(model, zoo.prompt(model, N), TARGET)


# ---------------------------------------------------------------------------------------------------------------- TDD
def pair_score(logits: Tensor, target: int, foil: int | None) -> float:
    if foil is None:
        return float(logits.softmax(-1)[target])
    first, second = (math.exp(float(logits[token] - logits.max())) for token in (target, foil))
    return (first - second) / (first + second)


def plain_tdd(model: Any, ids: Tensor, target: int, foil: int | None, bos: int | None) -> dict[str, Tensor]:
    forward = [0.0, *(pair_score(logits, target, foil) for logits in plain_logits(model, ids))]
    backward = [0.0]
    for length in range(1, ids.shape[1] + 1):
        part = ids[:, -length:]
        if bos is not None and int(part[0, 0]) != bos:
            part = torch.cat([torch.tensor([[bos]]), part], 1)
        backward.append(pair_score(plain_logits(model, part)[-1], target, foil))
    found = {
        "forward": torch.tensor([now - before for before, now in pairwise(forward)], dtype=torch.float64),
        "backward": torch.tensor([now - before for before, now in pairwise(backward)][::-1], dtype=torch.float64),
    }
    return found | {"bidirectional": (found["forward"] + found["backward"]) / 2}


@FAMILIES
def test_tdd_is_how_each_token_moves_the_choice(build: Callable[..., Any]) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    order = plain_logits(model, ids)[-1].argsort(descending=True).tolist()
    for target, foil, named in ((order[0], order[1], {}), (TARGET, order[0], {}), (TARGET, None, {"foil": "none"})):
        expected = plain_tdd(model, ids, target, foil, None)
        for direction in ("forward", "backward", "bidirectional"):
            found = Tdd(direction=direction, **named)(predict(model, ids, target))
            assert relative(found.scores, expected[direction]) < 1e-5, (direction, foil)
            assert found.diagnostics["foil"] == foil and found.signed


@ONE_EACH
def test_a_contrast_names_the_foil_and_parts_may_begin_as_texts_do(build: Callable[..., Any]) -> None:
    model = build()
    ids, bos = zoo.prompt(model, N), model.tokenizer.bos_token_id
    for context in (ids, ids[:, 1:]):
        expected = plain_tdd(model, context, TARGET, 30, bos)["backward"]
        found = Tdd(add_bos=True)(predict(model, context, (TARGET, 30)))
        assert relative(found.scores, expected) < 1e-9
        assert found.diagnostics["foil"] == 30
    assert abs(float(Tdd(add_bos=True)(predict(model, ids, (TARGET, 30))).scores[0])) < 1e-9
    opposite = Tdd()(predict(model, ids, (30, TARGET))).scores
    assert relative(-opposite, Tdd()(predict(model, ids, (TARGET, 30))).scores) < 1e-9


@ONE_EACH
@pytest.mark.parametrize("foil", ["rival", "none"])
def test_tdd_adds_up_to_the_choice_after_the_whole_context(build: Callable[..., Any], foil: Any) -> None:
    model = build()
    asked = predict(model, zoo.prompt(model, N), TARGET)
    found = [Tdd(direction=each, foil=foil)(asked) for each in ("forward", "backward", "bidirectional")]
    whole = pair_score(plain_logits(model, zoo.prompt(model, N))[-1], TARGET, found[0].diagnostics["foil"])
    assert [float(one.scores.sum()) for one in found] == pytest.approx([whole] * 3, rel=1e-9)
    assert [one.diagnostics["forwards"] for one in found] == [1, N, N + 1]
    assert [Tdd(direction=each).work(asked)["forwards"] for each in ("forward", "backward", "bidirectional")] == [
        1,
        N,
        N + 1,
    ]


def test_the_worked_example_of_tdd() -> None:
    assert steps(torch.tensor([0.1, 0.4, 0.3])).tolist() == pytest.approx([0.1, 0.3, -0.1])
    logits = torch.tensor([[1.0, 3.0, 2.0]], dtype=torch.float64)
    two = torch.tensor([3.0, 2.0], dtype=torch.float64).softmax(0)
    assert float(choices(logits, 1, 2)) == pytest.approx(float(two[0] - two[1]))
    assert float(choices(logits, 1, None)) == pytest.approx(float(logits.softmax(-1)[0, 1]))


def test_what_tdd_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    with pytest.raises(ValueError, match=r"target=\(7, 30\) has a foil, and foil='none' asks for none"):
        Tdd(foil="none")(predict(model, ids, (TARGET, 30)))
    asked = on_bridge()
    with monkeypatch.context() as patch:
        patch.setattr(model, "tokenizer", None)
        with pytest.raises(ValueError, match="add_bos=True needs a tokenizer"):
            Tdd(add_bos=True)(asked)
    full = zoo.prompt(model, zoo.N_CTX + 1)[:, 1:]
    with pytest.raises(ValueError, match=rf"takes {zoo.N_CTX + 1} positions, .*: leave out add_bos=True"):
        Tdd(add_bos=True)(predict(model, full, TARGET))
    try:
        asked = predict(hooked_up(model), ids, TARGET)
        with pytest.raises(ValueError, match=r"\(unless direction='forward'\), which hooks on"):
            Tdd()(asked)
        expected = plain_tdd(model, ids, TARGET, int(plain_logits(model, ids)[-1].argmax()), None)["forward"]
        assert relative(Tdd(direction="forward")(asked).scores, expected) < 1e-9
    finally:
        model.reset_hooks()


# ------------------------------------------------------------------------------------------------------------ ReAGent
def other_token(ids: Tensor, positions: Tensor, generator: np.random.Generator) -> Tensor:
    """The one after it, most of the time."""
    return (ids[positions] + 1 + torch.from_numpy(generator.integers(0, 3, len(positions)))) % 90 + 5


def plain_reagent(model: Any, ids: Tensor, target: int, options: dict[str, Any]) -> dict[str, Any]:
    """One probe after the other, each with its own source of chance."""
    context, n = ids[0], ids.shape[1]
    whole = float(plain_logits(model, ids)[-1].softmax(-1)[target])
    shares, stopped = [], []
    for number in range(options["probes"]):
        generator = np.random.default_rng([0, number])
        belief, enough, taken = list(generator.random(n)), False, 0
        while not enough and taken < options["max_steps"]:
            taken += 1
            mask = generator.random(n) < options["rate"]
            while not any(mask):
                mask = generator.random(n) < options["rate"]
            other = context.clone()
            at = torch.tensor([place for place in range(n) if mask[place]])
            other[at] = other_token(context, at, generator)
            drop = whole - float(plain_logits(model, other[None])[-1].softmax(-1)[target])
            for place in range(n):
                change = drop if mask[place] else -drop
                belief[place] += math.log((1 + change) / (1 - change))
            order = sorted(range(n), key=lambda place: -belief[place])
            other, at = context.clone(), torch.tensor(sorted(order[options["top"] :]))
            other[at] = other_token(context, at, generator)
            enough = target in plain_logits(model, other[None])[-1].topk(options["tolerance"]).indices.tolist()
        sizes = [math.exp(one) for one in belief]
        shares.append([size / sum(sizes) for size in sizes])
        stopped.append(enough)
    counted = [share for share, enough in zip(shares, stopped, strict=True) if enough or not any(stopped)]
    votes = Counter(
        place for share in counted for place in sorted(range(n), key=lambda at: -share[at])[: options["top"]]
    )
    return {
        "scores": torch.tensor(counted, dtype=torch.float64).mean(0),
        "stopped": sum(stopped),
        "rationale": sorted(place for place, count in votes.items() if count >= min(2, len(counted))),
    }


@FAMILIES
def test_reagent_is_the_mean_of_probes_that_stopped(build: Callable[..., Any]) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    options = {"top": 3, "tolerance": 3, "rate": 0.3, "probes": 3, "max_steps": 5}
    for target in (int(plain_logits(model, ids)[-1].argmax()), TARGET):
        found = Reagent(replacer=other_token, **options)(predict(model, ids, target))
        expected = plain_reagent(model, ids, target, options)
        assert relative(found.scores, expected["scores"]) < 1e-6
        assert {name: found.diagnostics[name] for name in ("stopped", "rationale")} == {
            name: expected[name] for name in ("stopped", "rationale")
        }
        assert "other_token" in found.options["replacer"]


def test_the_worked_example_of_reagent() -> None:
    belief = evidence(torch.tensor(0.3, dtype=torch.float64), torch.tensor([True, False, True]))
    assert belief.tolist() == pytest.approx([0.61904, -0.61904, 0.61904], abs=1e-5)
    assert belief.softmax(0).tolist() == pytest.approx([0.43669, 0.12661, 0.43669], abs=1e-5)
    sure = evidence(torch.tensor(1.0, dtype=torch.float64), torch.tensor([True, False]))
    assert sure.tolist() == pytest.approx([math.log(1e6), -math.log(1e6)], rel=1e-6)


def test_what_reagent_is_made_of() -> None:
    generator = np.random.default_rng(0)
    assert all(random_mask(generator, 2, 0.01).any() for _ in range(20))
    assert abs(torch.stack([random_mask(generator, 50, 0.3) for _ in range(200)]).double().mean() - 0.3) < 0.02
    assert best(torch.tensor([0.1, 0.3, 0.2]), 2).tolist() == [False, True, True]
    asked = on_bridge()
    probes = [Probe(generator, torch.tensor(row, dtype=torch.float64)) for row in ([0.0, 1.0], [0.0, 3.0], [5.0, 0.0])]
    with pytest.warns(UserWarning, match="none of 3 probes found 1 tokens that suffice: raise top, tolerance or"):
        every, facts = aggregated(probes, 1, asked)
    assert facts == {"stopped": 0, "rationale": [1]}
    assert every.tolist() == pytest.approx(torch.stack([one.belief.softmax(0) for one in probes]).mean(0).tolist())
    probes[2].stopped = True
    scores, facts = aggregated(probes, 1, asked)
    assert facts == {"stopped": 1, "rationale": [0]}
    assert scores.tolist() == pytest.approx(probes[2].belief.softmax(0).tolist())


def test_options_of_reagent_do_something() -> None:
    asked, never = on_bridge(), {"probes": 3, "max_steps": 4, "tolerance": 1}
    plain = Reagent(**never)(asked)
    assert (
        plain.diagnostics["stopped"] == 0
        and plain.diagnostics["forwards"] == 24 == Reagent(**never).work(asked)["forwards"]
    )
    for change in ({"rate": 0.7}, {"probes": 4}, {"max_steps": 2}, {"replacer": "lm"}, {"seed": 1}, {"tolerance": 99}):
        assert relative(Reagent(**never | change)(asked).scores, plain.scores) > 1e-3, change
    assert relative(Reagent(**never, batch=1)(asked).scores, plain.scores) < 1e-9
    rank = plain.diagnostics["target_rank"]
    with doubts_allowed():
        enough, short = (Reagent(**never | {"tolerance": rank - less, "top": N})(asked).diagnostics for less in (0, 1))
    assert (enough["stopped"], enough["forwards"], enough["rationale"]) == (3, 6, [*range(N)])
    assert (short["stopped"], short["forwards"]) == (0, 24)
    assert len(Reagent(**never | {"top": 1})(asked).diagnostics["rationale"]) <= 1
    likely = Reagent(**never | {"replacer": "lm"})
    assert likely(asked).diagnostics["forwards"] == likely.work(asked)["forwards"] == 25


def test_reagent_warns_when_all_tokens_are_enough() -> None:
    asked = on_bridge()
    rank = int((asked.log_probs > asked.log_probs[TARGET]).sum()) + 1
    with pytest.warns(UserWarning, match=f"the top=9 tokens that suffice are all {N} there are"):
        found = Reagent(top=9, tolerance=rank)(asked)
    assert found.diagnostics["stopped"] == 8 and found.diagnostics["rationale"] == [*range(N)]


def test_what_reagent_refuses() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    with pytest.raises(ValueError, match="'reagent' explains one token, and cannot contrast"):
        Reagent()(predict(model, ids, (TARGET, 30)))
    with pytest.raises(ValueError, match="rate=1 must be below 1"):
        Reagent(rate=1)
    for given, message in {
        (-1,): "ids are whole numbers from 0 to",
        (1.5,): "ids are whole numbers from 0 to",
        (10**7,): "ids are whole numbers from 0 to",
        ("a",): "which are no ids",
    }.items():
        with pytest.raises(ValueError, match=f"the replacer gave .*{message}"):
            Reagent(replacer=lambda ids, positions, generator, given=given: [*given] * len(positions))(on_bridge())  # noqa: ARG005
    with pytest.raises(ValueError, match=r"the replacer gave ids of shape \(1,\) for"):
        Reagent(replacer=lambda ids, positions, generator: [3], rate=0.99)(on_bridge())  # noqa: ARG005
    try:
        asked = predict(hooked_up(model), ids, TARGET)
        with pytest.raises(ValueError, match="'reagent' runs other tokens, which hooks on the model"):
            Reagent()(asked)
    finally:
        model.reset_hooks()


@pytest.mark.usefixtures("unchecked")
def test_a_replacer_is_one_of_ours_or_a_function() -> None:
    for wrong in ("bert", 3):
        with pytest.raises(ValueError, match=f"replacer={wrong!r} is not one of unigram, lm, nor a function"):
            Reagent(replacer=wrong)


# ---------------------------------------------------------------------------------------------------------- replacers
@ONE_EACH
def test_any_token_of_the_same_kind_may_replace_one(build: Callable[..., Any]) -> None:
    model = build()
    tokenizer = model.tokenizer
    asked = predict(model, zoo.prompt(model, N), TARGET)
    replacer, generator = unigram(asked), np.random.default_rng(0)
    for text in (" cat", "at", ",", " "):
        (token,) = tokenizer.encode(text, add_special_tokens=False)
        many = torch.full((500,), token)
        written = {tokenizer.decode([other]) for other in replacer(many, torch.arange(500), generator).tolist()}
        every = [tokenizer.decode([other]) for other in range(4, model.cfg.d_vocab)]
        assert written == {other for other in every if kind(other) == kind(text)}, text
    begins = torch.full((1500,), tokenizer.bos_token_id)
    found = Counter(replacer(begins, torch.arange(1500), generator).tolist())
    assert sorted(found) == list(range(4, model.cfg.d_vocab)) and max(found.values()) < 50


def test_kinds_of_tokens() -> None:
    kinds = {"cat": "letters", " cat": "led letters", "don't": "letters", "42": "digits", " 4": "led digits"}
    kinds |= {"4th": "letters", "?!": "signs", " (": "led signs", "\n": "space", "": ""}
    assert {piece: kind(piece) for piece in kinds} == kinds


def test_without_a_tokenizer_any_token_may_replace_one(monkeypatch: pytest.MonkeyPatch) -> None:
    model = zoo.bridge("gpt2")
    monkeypatch.setattr(model, "tokenizer", None)
    asked = predict(model, zoo.prompt(model, N), TARGET)
    found = unigram(asked)(torch.full((1500,), 9), torch.arange(1500), np.random.default_rng(0))
    assert set(found.tolist()) == set(range(model.cfg.d_vocab))


@ONE_EACH
def test_the_model_itself_draws_what_it_expects(build: Callable[..., Any]) -> None:
    model = build()
    ids = zoo.prompt(model, N)
    asked = predict(model, ids, TARGET)
    expected = plain_logits(model, ids).softmax(-1)
    replacer, generator = language_model(asked), np.random.default_rng(0)
    found = torch.stack([replacer(asked.ids, torch.tensor([0, 2, 5]), generator) for _ in range(1000)])
    for column, place in ((1, 2), (2, 5)):
        shares = torch.bincount(found[:, column], minlength=model.cfg.d_vocab) / 1000
        assert (shares - expected[place - 1]).abs().max() < 0.06
    assert found[:, 0].min() >= 4 and len(found[:, 0].unique()) > 60
    assert drawn(torch.tensor([[0.0, 50.0, 0.0]]), generator).tolist() == [1]


def test_what_is_replaced_is_only_what_was_asked() -> None:
    ids, generator = torch.arange(5), np.random.default_rng(0)
    fixed = replaced(ids, torch.tensor([1, 3]), lambda ids, at, generator: [7, 8], generator, 90)  # noqa: ARG005
    assert fixed.tolist() == [0, 7, 2, 8, 4] and ids.tolist() == [0, 1, 2, 3, 4]
    never = replaced(ids, torch.tensor([], dtype=torch.long), lambda *_: 1 / 0, generator, 90)
    assert never.tolist() == ids.tolist()


WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cat", "dog", "tower", "the", "paris", "##s", "zebra", "."]


def bert() -> tuple[Any, Any]:
    """A tiny one that fills every mask with nearly the same: words are as likely as its output bias says."""
    wordpiece = Tokenizer(models.WordPiece({word: token for token, word in enumerate(WORDS)}, unk_token="[UNK]"))
    wordpiece.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=wordpiece, model_max_length=20,
        **{f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")},
    )  # fmt: skip
    config = transformers.BertConfig(
        vocab_size=len(WORDS), hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        max_position_embeddings=20,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        return transformers.BertForMaskedLM(config).eval(), tokenizer


@ONE_EACH
def test_a_masked_language_model_fills_in(build: Callable[..., Any]) -> None:
    model = build()
    own, (masked, tokenizer) = model.tokenizer, bert()
    ids = torch.tensor([own.bos_token_id, *own.encode("The cat dog tower", add_special_tokens=False)])
    assert [own.decode([token]) for token in ids.tolist()][-3:] == [" cat", " dog", " tower"]
    replacer, seen = MaskedLM(masked, tokenizer, own), []
    masked.register_forward_pre_hook(
        lambda _, __, given: seen.append(tokenizer.decode(given["input_ids"][0])), with_kwargs=True
    )

    def only(word: str) -> list[str]:
        masked.cls.predictions.bias.data = torch.tensor([80.0 * (one == word) for one in WORDS])
        places = torch.tensor([len(ids) - 3, len(ids) - 1])
        return [own.decode([token]) for token in replacer(ids, places, np.random.default_rng(0)).tolist()]

    assert only("dog") == [" dog", " dog"]
    assert only("##s") == ["s", "s"]
    assert seen[0].lower().endswith("[mask] dog [mask]") and "<bos>" not in seen[0]
    masked.cls.predictions.bias.data = torch.tensor([80.0 * word.startswith("[") for word in WORDS])
    found = [int(replacer(ids, torch.tensor([2]), np.random.default_rng(seed))[0]) for seed in range(30)]
    assert len(set(found)) > 3 and not set(found) & set(own.all_special_ids)
    assert found == [int(replacer(ids, torch.tensor([2]), np.random.default_rng(seed))[0]) for seed in range(30)]
    asked = predict(model, ids[None], TARGET)
    assert Reagent(replacer=replacer, probes=2, max_steps=2, top=2)(asked).scores.isfinite().all()
    with pytest.raises(ValueError, match="the masked language model is in training mode"):
        MaskedLM(masked.train(), tokenizer, own)
    masked.eval()
    with pytest.raises(ValueError, match=r"reads 22 of 22 masks in \d+ tokens, of which it takes 20"):
        replacer(ids[-1:].repeat(22), torch.arange(22), np.random.default_rng(0))


# -------------------------------------------------------------------------------------------------------------- GiLOT
def plain_transport(p: Tensor, q: Tensor, costs: Tensor) -> float:
    """The linear programme, written out: what leaves each token is p, what arrives is q."""
    rows, columns = costs.shape
    leaves = np.kron(np.eye(rows), np.ones(columns))
    arrives = np.kron(np.ones(rows), np.eye(columns))
    known = np.concatenate([p.numpy(), q.numpy()])
    return linprog(costs.numpy().ravel(), A_eq=np.vstack([leaves, arrives]), b_eq=known, method="highs").fun


def plain_distance(table: Tensor, log_p: Tensor, log_q: Tensor, share: float) -> float:
    union: set[int] = set()
    for log_probs in (log_p, log_q):
        reached = 0.0
        for token in log_probs.argsort(descending=True).tolist():
            if reached < share:
                union.add(token)
            reached += float(log_probs[token].exp())
    places = sorted(union)
    p, q = (log_probs[places].exp() / log_probs[places].exp().sum() for log_probs in (log_p, log_q))
    vectors = table[places].double()
    costs = torch.tensor(
        [[1 - float(a @ b / a.norm() / b.norm()) if a is not b else 0.0 for b in vectors] for a in vectors],
        dtype=torch.float64,
    )
    return plain_transport(p, q, costs)


@FAMILIES
def test_gilot_is_how_far_the_next_token_moves(build: Callable[..., Any]) -> None:
    model = build()
    ids = zoo.prompt(model, 5)
    embeddings, log_probs = plain_embeddings(model, ids), plain_log_probs(model, ids)
    clean, expected = log_probs(embeddings).double().detach(), []
    for place in range(5):
        masked = embeddings.clone()
        masked[place] = 0
        after = log_probs(masked).double().detach()
        table = model.W_E.detach()
        kl, l2 = (clean.exp() * (clean - after)).sum(), (clean.exp() - after.exp()).square().sum().sqrt()
        expected.append([plain_distance(table, clean, after, 0.7), float(kl), float(l2)])
    asked = predict(model, ids, TARGET)
    for column, options in enumerate(({"distance": "ot", "nucleus": 0.7}, {"distance": "kl"}, {"distance": "l2"})):
        found = Gilot(**options)(asked)
        assert relative(found.scores, torch.tensor(expected, dtype=torch.float64)[:, column]) < 1e-4, options
        assert found.diagnostics["forwards"] == 5 and not found.signed


def authors_distribution(model: Any, ids: Tensor, embeddings: Tensor, beams: int, written: int) -> Tensor:
    """The authors' p_J: a beam search writes J tokens; each beam's next-token distribution counts as it is likely.

    Transcribed from the definition: every step is a full run in float64, and the weight of a beam is the product of
    the probabilities of the J tokens that it consists of.
    """

    def following(beam: list[int]) -> Tensor:
        put = [("hook_embed", lambda live, hook: torch.cat([embeddings[None], live[:, len(embeddings) :]], 1))]  # noqa: ARG005
        with torch.no_grad():
            run = model.run_with_hooks(torch.tensor([[*ids[0].tolist(), *beam]]), fwd_hooks=put)
        return run[0, -1].double().softmax(-1)

    search: list[tuple[float, list[int]]] = [(1.0, [])]
    for _ in range(written):
        extended = [
            (likely * float(p), [*beam, token])
            for likely, beam in search
            for token, p in enumerate(following(beam).tolist())
        ]
        search = sorted(extended, key=lambda pair: -pair[0])[:beams]
    mixed = sum(likely * following(beam) for likely, beam in search)
    return mixed / mixed.sum()


@pytest.mark.parametrize("build", zoo.models("-(gpt2|llama)$"))
@pytest.mark.parametrize("written", [0, 1, 2, 3])
def test_gilot_reads_the_distribution_of_its_authors(build: Callable[..., Any], written: int) -> None:
    model = build()
    ids = zoo.prompt(model, 4)
    prediction = predict(model, ids, TARGET)
    batches = prediction.prompt.batches("auto", 4)
    for masked in (None, 2):
        embeddings = plain_embeddings(model, ids)
        if masked is not None:
            embeddings[masked] = 0
        writer = Writer.after(prediction, batches, lambda _: None, states=None if masked is None else embeddings)
        found = later(beam_search(writer, 3, written)).double().exp()
        expected = authors_distribution(model, ids, embeddings, 3, written)
        total_variation = float((found - expected).abs().sum()) / 2
        assert total_variation < 1e-12


@pytest.mark.parametrize("build", zoo.models("-(gpt2|llama)$"))
def test_gilot_looks_ahead_along_beams(build: Callable[..., Any]) -> None:
    model = build()
    ids = zoo.prompt(model, 4)
    embeddings = plain_embeddings(model, ids)
    clean, expected = authors_distribution(model, ids, embeddings, 2, 2), []
    for place in range(4):
        masked = embeddings.clone()
        masked[place] = 0
        expected.append(float((clean - authors_distribution(model, ids, masked, 2, 2)).norm()))
    asked = predict(model, ids, TARGET)
    found = Gilot(distance="l2", length=3, beams=2)(asked)
    assert relative(found.scores, torch.tensor(expected, dtype=torch.float64)) < 1e-5
    assert found.diagnostics["forwards"] == Gilot(length=3, beams=2).work(asked)["forwards"] == 5 * (1 + 2 * 2)
    assert relative(Gilot(distance="l2", length=3, beams=2, batch=1)(asked).scores, found.scores) < 1e-9


def test_the_worked_example_of_gilot() -> None:
    p, q = torch.tensor([0.8, 0.2], dtype=torch.float64), torch.tensor([0.5, 0.5], dtype=torch.float64)
    costs = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    assert float(exact_transport(p, q, costs)) == pytest.approx(0.3)
    assert float(exact_transport(p, p, costs)) == 0
    assert float(transport(torch.eye(2), 1, 9, p.log(), q.log())) == pytest.approx(0.3)
    assert float(transport(torch.tensor([[1.0, 0.0], [-2.0, 0.0]]), 1, 9, p.log(), q.log())) == pytest.approx(0.6)
    assert float(transport(torch.tensor([[1.0, 0.5], [2.0, 1.0]]), 1, 9, p.log(), q.log())) == pytest.approx(
        0, abs=1e-7
    )
    assert float(euclidean(p.log(), q.log())) == pytest.approx(0.3 * math.sqrt(2))


def test_transport_solves_its_linear_programme() -> None:
    generator = torch.Generator().manual_seed(0)
    for size in (3, 8, 20):
        p, q = torch.randn(2, size, generator=generator, dtype=torch.float64).softmax(-1)
        costs = torch.rand(size, size, generator=generator, dtype=torch.float64)
        assert float(exact_transport(p, q, costs)) == pytest.approx(plain_transport(p, q, costs), rel=1e-9)


def test_what_counts_as_likely() -> None:
    log_probs = torch.tensor([0.15, 0.5, 0.05, 0.3], dtype=torch.float64).log()
    for share, most, tokens in (
        (0.4, 9, [1]),
        (0.79, 9, [1, 3]),
        (0.81, 9, [0, 1, 3]),
        (1, 9, [0, 1, 2, 3]),
        (1, 2, [1, 3]),
    ):
        assert likeliest(log_probs, share, most).nonzero()[:, 0].tolist() == tokens, (share, most)
    mixed = later(
        Beams(torch.zeros(2, 1), torch.tensor([0.6, 0.2]).log(), torch.tensor([[0.5, 0.5], [0.1, 0.9]]).log())
    )
    assert mixed.exp().tolist() == pytest.approx([0.4, 0.6])


def test_options_of_gilot_do_something() -> None:
    asked = on_bridge()
    plain = Gilot()(asked).scores
    for change in ({"mask": "mean"}, {"nucleus": 0.5}, {"support": 3}, {"length": 2}, {"length": 2, "beams": 2}):
        assert not torch.equal(Gilot(**change)(asked).scores, plain), change
    assert relative(Gilot(batch=1)(asked).scores, plain) < 1e-9
    same = Gilot(mask=int(asked.ids[3]))(asked).scores
    assert float(same[3]) < 1e-9 < float(same.max())


def test_what_gilot_refuses() -> None:
    model = zoo.bridge("gpt2")
    ids = zoo.prompt(model, N)
    with pytest.raises(ValueError, match="'gilot' explains one token, and cannot contrast"):
        Gilot()(predict(model, ids, (TARGET, 30)))
    for nucleus in (0, 1.5):
        with pytest.raises(ValueError, match=f"nucleus={nucleus}.* must be above 0 and at most 1"):
            Gilot(nucleus=nucleus)
    with pytest.raises(ValueError, match="'gilot' takes 108 positions, and this model has 64: make length=101 smaller"):
        Gilot(length=101)(on_bridge())
    try:
        asked = predict(hooked_up(model), ids, TARGET)
        with pytest.raises(ValueError, match="'gilot' writes after the context, which hooks on the model"):
            Gilot(length=2)(asked)
        assert Gilot()(asked).scores.max() > 0
    finally:
        model.reset_hooks()
