"""AttriBoT against plain runs of what is left, and its shortcuts against the exact scores where they cut nothing."""

from typing import Any

import pytest
import torch

import heta_lens
from helpers import zoo
from helpers.ablations import TARGET, close, found, hooked, ids_of
from helpers.asking import predict, relative
from heta_lens._util.text import Span
from heta_lens.methods.attribot import AttriBot, lines_of

NAMES = [param.id for param in zoo.models("-(gpt2|llama|gptj)$")]
MODEL = pytest.mark.parametrize("name", NAMES)
BUILD = dict(zoo.KINDS)


def log_prob(model: Any, ids: torch.Tensor, left: list[int], target: int = TARGET) -> float:
    with torch.no_grad():
        return float(model(ids[:, left])[0, -1].double().log_softmax(-1)[target])


def others(length: int, *gone: Any) -> list[int]:
    return [place for place in range(length) if not any(place in places for places in gone)]


@MODEL
def test_each_sentence_is_left_out_of_the_ids(name: str) -> None:
    model, ids = BUILD[name](), ids_of()
    some, n = found(model, AttriBot(), ids), ids.shape[1]
    clean = log_prob(model, ids, [*range(n)])
    expected = [clean - log_prob(model, ids, others(n, places)) for places in some.diagnostics["source_positions"]]
    close(name, some.diagnostics["source_scores"], expected, 20)
    assert some.signed and some.diagnostics["forwards"] == len(expected) == 4
    assert some.diagnostics["measured"] == [True] * 4


@MODEL
@pytest.mark.parametrize("ablate", ["remove", "mask"])
def test_where_nothing_is_cut_shortcuts_are_exact(name: str, ablate: Any) -> None:
    model, ids = BUILD[name](), ids_of()
    exact = found(model, AttriBot(ablate=ablate), ids).scores
    for cut in (AttriBot(ablate=ablate, prune_to=99), AttriBot(ablate=ablate, prune_to=99, proxy=model)):
        assert relative(found(model, cut, ids).scores, exact) < 1e-4
    assert relative(found(model, AttriBot(ablate=ablate, proxy=model), ids).scores, exact) < 1e-4


@pytest.mark.parametrize(("paragraph", "parts"), [(2, [2, 2]), (3, [3, 1]), (1, [1] * 4)])
def test_sentences_of_the_best_paragraph_are_left_out_of_it_alone(paragraph: int, parts: list[int]) -> None:
    model, ids = zoo.bridge("gpt2"), ids_of()
    n, every = ids.shape[1], found(model, AttriBot(), ids).diagnostics["source_positions"]
    owner = [k for k, size in enumerate(parts) for _ in range(size)]
    paragraphs = [
        [p for places, own in zip(every, owner, strict=True) if own == k for p in places] for k in range(len(parts))
    ]
    drops = [log_prob(model, ids, [*range(n)]) - log_prob(model, ids, others(n, part)) for part in paragraphs]
    best = max(range(len(parts)), key=lambda k: drops[k])
    gone = [place for k, part in enumerate(paragraphs) if k != best for place in part]
    whole = log_prob(model, ids, others(n, gone))
    expected = [
        whole - log_prob(model, ids, others(n, gone, places)) if own == best else 0.0
        for places, own in zip(every, owner, strict=True)
    ]
    some = found(model, AttriBot(prune_to=1, paragraph=paragraph), ids)
    close("bridge-gpt2", some.diagnostics["source_scores"], expected, 20)
    assert some.diagnostics["measured"] == [own == best for own in owner]
    assert some.diagnostics["forwards"] == len(parts) + 1 + parts[best]
    assert AttriBot(prune_to=1, paragraph=paragraph).work(predict(model, ids, TARGET))["forwards"] == len(
        parts
    ) + 1 + max(parts)


def test_paragraphs_end_at_line_ends() -> None:
    text = "One. Two.\nThree.\n\nFour. Five."
    starts = [text.index(word) for word in ("One", " Two", "\nThree", "\n\nFour", " Five")]
    spans = [Span(start, start + 5) for start in starts]
    assert lines_of(text, spans).tolist() == [0, 0, 1, 3, 3]


def test_a_proxy_chooses_and_the_model_measures() -> None:
    model, proxy, ids = zoo.bridge("gpt2"), zoo.bridge("llama"), ids_of()
    n, by_proxy = ids.shape[1], found(proxy, AttriBot(), ids).diagnostics
    places = by_proxy["source_positions"]
    alone = found(model, AttriBot(proxy=proxy), ids)
    assert alone.diagnostics["source_scores"] == pytest.approx(by_proxy["source_scores"], rel=1e-5)
    two = sorted(range(4), key=lambda k: -by_proxy["source_scores"][k])[:2]
    gone = [place for k in range(4) if k not in two for place in places[k]]
    whole = log_prob(model, ids, others(n, gone))
    expected = [whole - log_prob(model, ids, others(n, gone, places[k])) if k in two else 0.0 for k in range(4)]
    some = found(model, AttriBot(proxy=proxy, prune_to=2), ids)
    close("bridge-gpt2", some.diagnostics["source_scores"], expected, 20)
    assert some.diagnostics["forwards"] == 4 + 1 + 2


def test_a_contrast_is_the_difference_of_two_targets() -> None:
    model, ids = zoo.bridge("gpt2"), ids_of()
    both, one, other = (found(model, AttriBot(), ids, target).scores for target in ((TARGET, 12), TARGET, 12))
    assert relative(both, one - other) < 1e-5


def test_a_proxy_has_the_same_tokens() -> None:
    model = zoo.bridge("gpt2")
    with pytest.raises(ValueError, match=r"the proxy has other tokens than this model \(375 and \d+\)"):
        AttriBot(proxy=heta_lens.load_demo_model()).check(predict(model, ids_of(), TARGET))
    with pytest.raises(TypeError, match="is not a model: load it first"):
        AttriBot(proxy=type(model))


def test_what_goes_for_the_model_goes_for_the_proxy() -> None:
    with pytest.raises(ValueError, match="unless ablate='mask'"):
        AttriBot(proxy=hooked()).check(predict(zoo.bridge("llama"), ids_of(), TARGET))


@pytest.mark.parametrize("target", [frozenset((TARGET, 12)), lambda logits: logits[..., TARGET]])
def test_sets_and_functions_are_read_as_they_are(target: Any) -> None:
    model, ids = zoo.bridge("gpt2"), ids_of()
    exact, kept = (found(model, AttriBot(prune_to=cut), ids, target) for cut in (None, 99))
    assert relative(kept.scores, exact.scores) < 1e-4 and exact.scores.any()


def test_where_every_token_is_special_there_is_nothing_to_measure() -> None:
    facts = found(zoo.bridge("gpt2"), AttriBot(), ids_of()[:, :1]).diagnostics
    assert [facts[name] for name in ("sources", "source_positions", "source_scores", "measured")] == [[]] * 4
    with pytest.raises(TypeError, match=r"proxy='gpt2' is not a model: load it first, with heta_lens.load_model"):
        AttriBot(proxy="gpt2")


def test_options_without_effect_are_said() -> None:
    with pytest.warns(UserWarning, match=r"paragraph.*prune_to=None \(which prunes nothing\)"):
        AttriBot(paragraph=3)
    with pytest.warns(UserWarning, match="paragraph.*a proxy"):
        AttriBot(paragraph=3, prune_to=2, proxy=zoo.bridge("gpt2"))
