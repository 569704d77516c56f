"""The benchmark of following an answer through the reasoning: what is trained, predicted, and counted as found."""

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

import heta_lens
from benchmarks import reasoning, reasoning_model
from benchmarks.demo_training import vocabulary
from heta_lens.data import recall
from heta_lens.data.recall import Draw, split_of

KNOWN = {index: token for token, index in vocabulary().items()}


@pytest.fixture(scope="module")
def model() -> Any:
    if not reasoning_model.WEIGHTS.exists():
        pytest.skip("make model trains it")
    return reasoning_model.load()


@pytest.fixture(scope="module")
def stories() -> list[Any]:
    return [*islice(recall.stories("dev", hops=2, facts=reasoning.FACTS), 30)]


def test_a_question_is_followed_by_what_the_model_is_to_write() -> None:
    batch, given = reasoning_model.batch_of(Draw("a test")), []
    for row in range(len(batch.ids)):
        for part in range(1, reasoning_model.ASKED + 1):
            at = (batch.part[row] == part).nonzero().flatten()
            ids, following, found = batch.ids[row, at], batch.following[row, at], batch.found[row, at]
            own, named = following >= 0, batch.answers[row, at]
            assert torch.equal(ids[1:][own[:-1]], following[:-1][own[:-1]])  # what follows is what comes next
            words = [KNOWN[int(token)] for token in [*ids, following[-1]]]
            asked, wrote = words[: words.index(":", 2) + 1], words[words.index(":", 2) + 1 :]
            what, who, place, room = wrote[1], wrote[3], wrote[7], wrote[14]
            assert "".join(wrote) == f" The{what} of{who} is in the{place}. The{place} is in the{room}.<eos>"
            assert split_of(who[1:], what[1:], place[1:]) == split_of(place[1:], room[1:]) == "train"
            expected = [what, who, place, place, room] if own[len(asked) - 1] else [place, room]
            assert [KNOWN[int(token)] for token in following[named]] == expected
            assert [KNOWN[int(token)] for token in found[found >= 0]] == [place] * (2 + (len(expected) > 2))
            assert int(own.sum()) == (17 if len(expected) > 2 else 9)
            given.append({who, what} <= {*asked})
            assert given[-1] or len(expected) == 2  # only what is given may be about something else
            check_mask(batch, row, part)
    assert 0.6 < sum(given) / len(given) < 0.9


def check_mask(batch: reasoning_model.Batch, row: int, part: int) -> None:
    """A question sees the story and itself, and follows the story."""
    at = (batch.part[row] == part).nonzero().flatten()
    mask = batch.mask[row, 0, at[-1]]
    assert mask[at].all() and mask[batch.part[row] == 0].all()
    assert not mask[batch.part[row] == part % reasoning_model.ASKED + 1].any()
    start = int((batch.part[row] == 0).sum())
    assert batch.places[row, at].tolist() == [*range(start, start + len(at))]


@pytest.mark.thorough
@pytest.mark.slow
def test_training_changes_attention_alone(tmp_path: Path) -> None:
    reasoning_model.train(tmp_path / "weights", steps=1)
    stored = reasoning_model.load_file(tmp_path / "weights")
    before = dict(reasoning_model.demo_weights("eager").named_parameters())
    assert stored.keys() == {name for name in before if "self_attn" in name} and len(stored) == 24
    assert all(not torch.equal(weight.float(), before[name]) for name, weight in stored.items())
    assert all(weight.dtype == torch.bfloat16 for weight in stored.values())


@pytest.mark.slow
def test_the_stored_model_writes_the_chain_and_answers_from_it(model: Any, stories: list[Any]) -> None:
    wrote = [reasoning.written(model, story) for story in stories]
    assert sum(one.place and one.room for one in wrote) >= 28
    assert sum(reasoning.follows(model, story) for story in stories) >= 27


def test_hops_are_the_things_place_and_the_places_room(stories: list[Any]) -> None:
    model = heta_lens.load_demo_model()
    for story in stories:
        ids = reasoning.encoded(model, reasoning.prompt_pieces(story))
        facts, places = reasoning.facts(story), reasoning.sentences(story)
        tokens = [model.tokenizer.decode([token]).strip() for token in ids[0].tolist()]
        assert tokens[-2:] == ["Answer", ":"] and len(places) == reasoning.SENTENCES
        assert all(tokens[place.stop - 1] == "." for place in places)
        first, second = ({*tokens[places[hop].start : places[hop].stop]} for hop in reasoning.by_hop(story))
        assert {facts[name] for name in ("who", "what", "place")} <= first
        assert {facts["place"], facts["room"]} <= second
        assert "".join(reasoning.reasoning(story)) == (
            f" The {facts['what']} of {facts['who']} is in the {facts['place']}. The {facts['place']} is in the"
        )


def test_what_is_found_is_counted_by_sentence(stories: list[Any]) -> None:
    story = stories[0]
    places, (first, second) = reasoning.sentences(story), reasoning.by_hop(story)
    other = next(at for at in range(len(places)) if at not in (first, second))
    scores = torch.zeros(len(reasoning.prompt_pieces(story)) + 1, dtype=torch.float64)
    scores[0], scores[places[first][0]], scores[places[second][-1]] = 100, 3, 1
    assert reasoning.found(scores, story) == (1, 2, True, 3 / 4, 1 / 4)
    scores[places[other]] = 4 / len(places[other])
    assert reasoning.found(scores, story) == pytest.approx((2, 3, False, 3 / 8, 1 / 8))
    scores[places[other][0]] -= 5  # against the answer: not among what speaks for it
    rank_1, rank_2, on_top, share_1, share_2 = reasoning.found(scores, story)
    assert (rank_1, rank_2, on_top) == (1, 2, True) and 3 / 8 < share_1 == 3 * share_2
    assert reasoning.found(torch.ones_like(scores) * 0, story) == (4.5, 4.5, False, 0, 0)


def test_ways_of_scoring_are_of_the_prompt(stories: list[Any]) -> None:
    model = heta_lens.load_demo_model()
    story = stories[0]
    wrote = reasoning.written(model, story)
    assert wrote.start == len(reasoning.prompt_pieces(story)) + 1
    assert wrote.answer - wrote.start == len(reasoning.reasoning(story))
    _, cache = model.run_with_cache(wrote.ids, names_filter=heta_lens.names_filter)
    how: dict[str, Any] = {"tokens": wrote.ids, "method": "attention_rollout"}
    span = heta_lens.attribute_span(cache, wrote.answer, through=(wrote.start, wrote.answer), **how)
    ways = reasoning.ways(span, wrote.start)
    assert all(len(scores) == wrote.start for scores in ways.values())
    torch.testing.assert_close(ways["through"].sum(), span.total.double().sum())
    torch.testing.assert_close(ways["direct"], span.total[: wrote.start].double())
    written = heta_lens.attribute_span(cache, wrote.start, **how)
    torch.testing.assert_close(ways["all written"], written.total.double())
    rows = [step.scores[: wrote.start] / step.scores.sum() for step in written.steps]
    torch.testing.assert_close(ways["all written, in shares"], torch.stack(rows).sum(0).double())
