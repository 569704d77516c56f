"""The page of results is made of measured parts, and the worth of a metric of values by prompt."""

import random
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from benchmarks import metrics_worth, results
from benchmarks.metrics_worth import Values, agreed, goodness, halves, noise, worth
from benchmarks.models import STORIES3M, load_stories3m
from helpers import zoo
from heta_lens.data.suites import suite
from heta_lens.evaluation.prompt_evaluation import ask
from heta_lens.evaluation.report.results import Measure, summary
from heta_lens.evaluation.run_database import RUN


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_the_page_says_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    methods = ["heta variant=kl_only", "heta variant=transition_only", "leave_one_out", "recency"]
    prompts = suite("recall", limit=3, facts=2)
    part = results.Part("short stories", results.demo, lambda: prompts, methods, ["evidence_mass", "aopc_ins"])
    part.run(tmp_path)
    found = summary(tmp_path)
    sections = dict(
        (one.title, one.text) if isinstance(one, results.Table) else one
        for one in results.sections({part.title: found})
    )
    assert [*sections] == ["HETA against the others", "The others against HETA", "Short stories"]
    assert "3 prompts of" in sections["Short stories"] and "| recency |" in sections["Short stories"]
    assert not any("nan" in text for text in sections.values())
    verdicts = [found.verdict(found.metrics["evidence_mass"], method) for method in ("leave_one_out", "recency")]
    counts = f"| Evidence mass | {verdicts.count(-1)} / {verdicts.count(1)} of 2 |"
    assert counts in sections["HETA against the others"]
    assert "| `recency` | " in sections["The others against HETA"]
    monkeypatch.setattr(results, "PARTS", {tmp_path.name: part})
    monkeypatch.setattr(results, "FOLDER", tmp_path.parent)
    with closing(sqlite3.connect(tmp_path / RUN)) as run, run:
        run.execute("UPDATE tasks SET state = 'pending' WHERE method = 'recency'")
    written: list[object] = []
    monkeypatch.setattr("benchmarks.pages.write", lambda _, some: written.extend(some))
    results.write()
    assert not written  # of a part that is not finished


@pytest.mark.skipif(not STORIES3M.is_dir(), reason="the stories3M model is not there")
@pytest.mark.skipif(not zoo.HAS_HOOKED, reason="which its loader makes")
@pytest.mark.filterwarnings(
    "ignore:HookedTransformer is deprecated", "ignore:unclosed file", "ignore:Exception ignored"
)
def test_copied_words_are_asked_as_they_were_chosen() -> None:
    model = load_stories3m()
    for instance in results.copied(3)():
        prediction = ask(model, instance)
        assert prediction.adapter.tokenizer.write(prediction.target, prediction.ids.tolist()) == instance.answer
        assert {word.lower() for word in instance.words("gold")} == {str(instance.answer).strip().lower()}
        assert all(any(a <= start < b for a, b in instance.support) for start, _ in instance.gold)


# ----------------------------------------------------------------------------------------------- the worth of metrics
def values(name: str, rows: list[list[float]], better: str = "more") -> Values:
    clusters = [(f"template {number // 2}", "") for number in range(len(rows[0]))]
    return Values(Measure(name, name.title(), better), np.array(rows)[..., None], clusters)


GOOD = values("good", [[3, 3.1, 3, 3.2], [2, 2.1, 2, 2.2], [1, 1.1, 1, 1.2]])
LESS = values("less", [[1, 1.1, 1, 1.2], [2, 2.1, 2, 2.2], [3, 3.1, 3, 3.2]], "less")


def test_how_good_a_method_is_depends_on_what_is_better() -> None:
    assert goodness(GOOD).tolist() == pytest.approx([3.075, 2.075, 1.075])
    assert agreed(goodness(GOOD), goodness(LESS)) == pytest.approx(1)
    assert goodness(values("some", [[1, np.nan, 2, np.nan], [np.nan] * 4])).tolist() == pytest.approx(
        [1.5, np.nan], nan_ok=True
    )


def test_halves_of_the_templates_agree_or_do_not() -> None:
    assert halves(GOOD, random.Random(0)) == pytest.approx(1)
    opposed = values("opposed", [[3, 3, 1, 1], [2, 2, 2, 2], [1, 1, 3, 3]])
    assert halves(opposed, random.Random(0)) == pytest.approx(-1)


def test_a_metric_is_evaluated_by_others_and_by_controls() -> None:
    methods = ["method", "recency", "random"]
    means = {
        name: goodness(one)
        for name, one in (("good", GOOD), ("evidence_mass", LESS), ("mean_effect_5", GOOD), ("abpc", LESS))
    }
    found = worth(GOOD, means, methods)
    assert (found.evidence, found.interventions) == pytest.approx((1, 1))
    assert (found.random_place, found.recency_place, found.methods) == (3, 2, 3)
    assert found.sound
    part = worth(
        GOOD._replace(metric=Measure("morf", "MoRF")),
        means | {"morf": -goodness(GOOD), "abpc": goodness(GOOD)},
        methods,
    )
    assert part.interventions == pytest.approx(-1)  # with the mean effect alone, not with the area it is a part of


def test_noise_is_a_share_of_what_methods_differ_by() -> None:
    made = {"metric": {name: [level - 0.1, level + 0.1] for level, name in enumerate(metrics_worth.METHODS)}}
    of_means, of_one = noise([made, made], "metric")
    spread = np.std(range(len(metrics_worth.METHODS)), ddof=1)
    assert of_means == pytest.approx(of_one) == pytest.approx(0.2 / 2**0.5 / spread)
