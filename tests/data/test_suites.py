"""Suites by name, their options and limits."""

from pathlib import Path
from typing import Any

import pytest

from helpers.dataset_records import (
    CURATED,
    LONGRA,
    NARRATIVES,
    NINA,
    PROSE,
    WHY,
    narrative,
    science,
    unchecked,
    written,
)
from heta_lens.data import curated, datasets, recall
from heta_lens.data.families import FAMILIES, family
from heta_lens.data.instance import Instance, write_jsonl
from heta_lens.data.suites import SUITES, suite

PUBLISHED = {
    "squad": {"question": "Where?", "context": "In Rome.", "answer": "Rome", "answer_span": [3, 7]},
    "known_facts": {"prompt": "Etna is in", "subject": "Etna", "attribute": "Sicily", "relation_id": "P1"},
}


def test_every_suite_can_be_had_by_its_name(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "own.jsonl", [NINA])
    many = [*NARRATIVES, narrative("Cleo walks to a far town.")]
    narratives, questions = written(tmp_path / "n.jsonl", many), written(tmp_path / "q.jsonl", [science()])
    found = {
        "recall": suite("recall", limit=3, seed=2, hops=2),
        "curated": suite("curated", written(tmp_path / "c.jsonl", [CURATED]), cue=None),
        "longra": suite("longra", written(tmp_path / "l.jsonl", [LONGRA])),
        "tellmewhy": suite("tellmewhy", written(tmp_path / "t.jsonl", [WHY])),
        "wikibio": suite("wikibio", str(written(tmp_path / "w.jsonl", [PROSE]))),
        "jsonl": suite("jsonl", tmp_path / "own.jsonl"),
        **{name: suite(name, limit=3, split="dev", seed=2) for name in FAMILIES},
        **{name: suite(name, written(tmp_path / f"{name}.jsonl", [record])) for name, record in PUBLISHED.items()},
    }
    assert found.keys() == SUITES.keys()
    assert found["recall"] == list(recall.instances(seed=2, count=3, hops=2, wordings="more"))
    assert found["curated"] == curated.released([CURATED], cue=None)
    assert found["longra"] == list(datasets.longra_instances([LONGRA]))
    assert found["tellmewhy"] == list(datasets.tellmewhy_instances([WHY]))
    assert found["wikibio"] == list(datasets.wikibio_instances([PROSE]))
    assert found["jsonl"] == [NINA]
    assert all(found[name] == list(family(name, "dev", seed=2, count=3)) for name in FAMILIES)
    made = [suite("curated", narratives=narratives, questions=questions, cue=None, seed=seed) for seed in range(9)]
    assert made == [list(curated.pairs(many, [science()], cue=None, seed=seed)) for seed in range(9)]
    assert any(one != made[0] for one in made)
    assert suite("longra", tmp_path / "l.jsonl", says=lambda _: " Oslo") == found["longra"]
    assert suite("longra", tmp_path / "l.jsonl", says=lambda _: " Rome") == []


def test_a_limit_draws_by_the_seed_and_keeps_the_order(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    write_jsonl(path, [Instance(id=f"{at:02d}", text="One", answer=None) for at in range(50)])
    drawn = [[one.id for one in suite("jsonl", path, limit=10, seed=seed)] for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert all(len(set(ids)) == 10 and ids == sorted(ids) for ids in drawn)
    assert len(suite("jsonl", path, limit=99)) == len(suite("jsonl", path)) == 50


@unchecked
@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ({"name": "recal"}, ValueError, "suite='recal' is not one of 'recall', .*did you mean 'recall'"),
        ({"name": "longra"}, ValueError, "the longra suite is read from a file: give path=, a json or jsonl file of"),
        ({"name": "recall", "path": "x"}, ValueError, "recall suite is made, without an end: leave out path="),
        ({"name": "recall"}, ValueError, "the recall suite is made, without an end: .*give limit="),
        ({"name": "recall", "limit": 2, "rival": 1}, TypeError, "recall has no option 'rival' .*; it has claim"),
        ({"name": "jsonl", "path": "x", "cue": 1}, TypeError, "jsonl has no option 'cue'; it has none"),
        ({"name": "needle", "path": "x", "limit": 1}, ValueError, "the needle suite is made, .* leave out path="),
        ({"name": "needle", "split": "train", "limit": 1}, ValueError, "split='train' is not one of 'dev', 'test'"),
        ({"name": "ioi", "path": "x", "chat": True}, TypeError, "ioi has no option 'chat'; it has none"),
        ({"name": "ioi", "limit": 1, "chat": True}, ValueError, "ioi asks no question"),
        ({"name": "key_value", "limit": 1, "pairs": 500}, ValueError, "key_value has no words for .*pairs"),
        ({"name": "key_value", "limit": 1, "pairs": "a"}, ValueError, "key_value has no words for .*pairs"),
        ({"name": "curated", "narratives": "x.json"}, FileNotFoundError, "'x.json' is not a file"),
    ],
)
def test_what_no_suite_can_do_is_refused(given: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        suite(**given)
