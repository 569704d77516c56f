"""Evaluations: what is judged, kept and gone on from, and that metrics tell good scores from bad ones."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from asking import doubts_allowed
from typer.testing import CliRunner

import heta_lens
from heta_lens.cli import _listed, app
from heta_lens.data.instance import Instance, write_jsonl
from heta_lens.data.suites import suite
from heta_lens.evaluation import Entry, evaluate, runner, write_report
from heta_lens.evaluation.records import RECORDS, read_records
from heta_lens.evaluation.runner import ask, figures, record_of, stretches
from heta_lens.evaluation.tables import summary
from heta_lens.metrics import METRICS, Case
from heta_lens.metrics.case import positions
from heta_lens.metrics.judges import READINGS, of_whole_answer
from heta_lens.prediction import versions

QUICK = ["leave_one_out", "input_x_gradient", "random"]
FEW = ["soft_nc", "soft_ns", "aopc_del", "support_mass", "dsa", "f1"]
WORDS = ["evaluate", "recall", "--limit", "6"]


@cache
def demo() -> Any:
    return heta_lens.load_demo_model()


def run(*words: str) -> Any:
    return CliRunner().invoke(app, list(words), env={"COLUMNS": "200", "NO_COLOR": "1"})


def entries(*written: str) -> list[Entry]:
    return [Entry.read(one) for one in written]


def evaluated(folder: Path, instances: list[Instance], *written: str, metrics: Any = FEW, model: Any = None) -> Any:
    evaluate(model or demo(), instances, entries(*written), metrics, folder, progress=False)
    return {record.key: record for record in read_records(folder)}


# ------------------------------------------------------------------------------------------------------------ metrics
def scored(case: Case, scores: Any) -> Case:
    return replace(case, attribution=replace(case.attribution, scores=torch.as_tensor(scores, dtype=torch.float64)))


def case_of(instance: Instance) -> Case:
    prediction = ask(demo(), instance)
    method = heta_lens.METHODS["leave_one_out"]()
    return Case(instance, prediction, method(prediction), lambda *_: method, partial(ask, demo()))


def means() -> dict[str, dict[str, float]]:
    """What metrics say of leaving one out, of gold words, of random scores, and of the first upside down."""
    names = [name for name, metric in METRICS.items() if not metric.again]
    found: dict[str, list[dict[str, Any]]] = {"own": [], "gold": [], "random": [], "inverted": []}
    for number, instance in enumerate(
        [
            *suite("recall", limit=4, facts=3, wordings="trained"),
            *suite("recall", limit=1, claim=True, facts=3, wordings="trained"),
        ]
    ):
        case = case_of(instance)
        gold = np.isin(np.arange(len(case.scores)), case.positions("gold")).astype(float)
        drawn = np.random.default_rng(number).random(len(gold))
        ways = {
            "own": case.scores,
            "gold": gold + 1e-3 * drawn,
            "random": drawn,
            "inverted": case.scores.max() - case.scores,
        }
        for way, scores in ways.items():
            found[way].append(figures(scored(case, scores), names)[0])
    return {way: {name: mean([one[name] for one in some]) for name in names} for way, some in found.items()}


def mean(values: list[Any]) -> float:
    """Of pairs, the one part over the other."""
    table = np.array([value for value in values if value is not None], dtype=float)
    return float(table.mean()) if table.ndim == 1 else float(table[:, 0].mean() / table[:, 1].mean())


UNORDERED = {
    *("soft_ns", "soft_ns_raw"),  # a token's worth of a context is too little for a sure prediction, whichever it is
    *("faithfulness_error", "additivity_gap"),  # go by the size of scores, not by their order
    "verdict_change_random",  # is the same for all
}
"""Metrics that do not put these in order on the demo model, and why."""


@pytest.mark.usefixtures("unchecked")
def test_every_metric_prefers_good_scores_to_random_ones_and_these_to_bad_ones() -> None:
    found = means()
    for name in found["own"].keys() - UNORDERED:
        good, gold, random, bad = (found[way][name] for way in ("own", "gold", "random", "inverted"))
        sign = 1 if METRICS[name].better == "more" else -1
        assert sign * good > sign * random, name
        assert sign * random >= sign * bad - 1e-3 or name == "verdict_change", name  # right or wrong, of few: coarse
        assert sign * gold >= sign * good or "gold" not in METRICS[name].needs, name


def test_every_metric_is_told_of() -> None:
    assert json.loads(json.dumps({name: metric.about for name, metric in METRICS.items()}))
    listed = run("metrics").output
    assert all(f"{name} " in listed for name in METRICS)
    for metric in METRICS.values():
        assert metric.title and metric.variant and metric.source
        assert metric.low is None or metric.high is None or metric.low < metric.high


@pytest.mark.usefixtures("unchecked")
def test_values_keep_to_their_bounds_and_wear_a_name() -> None:
    for instance in suite("recall", limit=1, seed=4):
        values, reasons = figures(case_of(instance), list(METRICS))
        assert list(values) == list(METRICS)
        for name, value in values.items():
            low, high = METRICS[name].low, METRICS[name].high
            assert (value is None) == (name in reasons), name
            if isinstance(value, float):
                assert (low is None or low <= value) and (high is None or value <= high + 1e-9), name
            else:
                assert value is None or METRICS[name].aggregate == "log_ratio"


def test_what_is_not_known_of_a_prompt_is_said() -> None:
    (known,) = suite("recall", limit=1)
    values, reasons = figures(
        case_of(Instance(known.id, known.text, known.answer)), ["dsa", "counterfactual_aopc", "morf"]
    )
    assert reasons == {
        "dsa": "no support, gold, distractor known of this prompt",
        "counterfactual_aopc": "no twin known of this prompt",
    }
    assert values["dsa"] is None and isinstance(values["morf"], float)


@pytest.mark.usefixtures("unchecked")
def test_evidence_put_in_the_twin_is_looked_for_there() -> None:
    """What the last position attends to finds the evidence in both texts, a method that knows no tokens in neither."""
    found = []
    for instance in suite("recall", limit=4, facts=2, distractors="before"):
        case = case_of(instance)
        gold = case.positions("gold")
        known = figures(case, ["causal_pass_5", "causal_pass_5_unpatched", "causal_pass_5_chance"])[0]
        drawn = [np.random.default_rng(seed).permutation(case.candidates)[:5] for seed in range(2000)]
        chance = np.mean([bool({*gold} & {*some}) for some in drawn])
        assert known["causal_pass_5_chance"] == pytest.approx(chance, abs=0.05)
        found.append((known["causal_pass_5"], known["causal_pass_5_unpatched"]))
        recent = replace(case, ready=lambda *_: heta_lens.METHODS["recency"]())  # which is blind to what is patched
        late = float(bool({*gold} & {*case.candidates[-5:]}))
        assert [*figures(recent, ["causal_pass_5", "causal_pass_5_unpatched"])[0].values()] == [late, late]
    assert np.mean(found, axis=0)[0] >= 0.75


@pytest.mark.usefixtures("unchecked")
def test_the_span_of_an_answer_is_explained_token_by_token() -> None:
    (instance,) = suite("recall", limit=1, facts=2)
    case = case_of(instance)
    assert figures(case, ["span_f1"])[0]["span_f1"] == figures(case, ["f1"])[0]["f1"]
    two = replace(instance, answer=f"{instance.answer}{instance.choices[0]}", choices=())
    longer = case_of(two)
    rows = [longer.explain(longer.prediction).scores.clamp(min=0)]
    after = ask(demo(), replace(two, text=two.text + str(instance.answer), answer=instance.choices[0]))
    rows.append(longer.explain(after).scores[: len(rows[0])].clamp(min=0))
    expected = sum(row.double() / row.double().sum() for row in rows)
    torch.testing.assert_close(of_whole_answer(longer), expected, check_dtype=False)


@pytest.mark.usefixtures("unchecked")
def test_a_paraphrase_is_explained_with_its_own_spans() -> None:
    (instance,) = suite("recall", limit=1, facts=2)
    asked = []

    def ready(instance: Instance, prediction: Any) -> Any:
        asked.append(positions(instance, prediction, "question"))
        return heta_lens.METHODS["leave_one_out"]()

    figures(replace(case_of(instance), ready=ready), ["paraphrase"])
    other = instance.paraphrase
    assert other is not None
    assert asked == [positions(other, ask(demo(), other), "question")]


@pytest.mark.parametrize(
    ("method", "varies"),
    [
        *(("random", True), ("recency", False), ("heta probes=1", True), ("heta beta=0", False)),
        *(("heta variant=transition_only", False), ("heta variant=kl_only", False), ("heta variant=gs", False)),
    ],
)
def test_scores_vary_by_chance_only_where_a_method_has_some(method: str, varies: bool) -> None:
    [instance], ready = suite("recall", limit=1, facts=2), Entry.read(method).ready
    with doubts_allowed():
        case = runner.case_of(demo(), instance, ask(demo(), instance), ready)
        values, reasons = figures(case, ["sensitivity_chance"])
    assert not reasons
    assert (values["sensitivity_chance"] > 0) == varies


def test_what_a_special_token_has_does_not_matter() -> None:
    [instance], names = suite("recall", limit=1, facts=2), [*READINGS, "f1", "support_mass", "sensitivity"]
    prediction = ask(demo(), instance)
    scores = torch.arange(float(len(prediction)))

    def found(first: float) -> dict[str, Any]:
        def explain(asked: Any) -> Any:
            noisy = asked.embeddings.double().sum(1) + 10 * scores
            return asked.attribution("mine", torch.cat([torch.tensor([first]), noisy[1:]]), {}, {}, {})

        return figures(runner.case_of(demo(), instance, prediction, lambda *_: explain), names)[0]

    assert found(0.0) == found(1e4)
    assert found(0.0)["sensitivity"] > 0 and found(0.0)["dsa_thresholded"] != 0


def test_scores_that_say_little_are_doubted() -> None:
    (instance,) = suite("recall", limit=1, facts=2)
    case = case_of(instance)
    values = dict.fromkeys(["soft_nc", "dsa", "morf"], 0.0)
    doubts = [
        [*record_of(scored(case, scores), "", values, {}).doubts]
        for scores in (case.scores, -case.scores.abs() - 1e-9, torch.ones(len(case.scores)))
    ]
    assert doubts == [[], ["soft_nc", "dsa"], ["soft_nc", "dsa", "morf"]]


# ------------------------------------------------------------------------------------------------------------- runner
def test_other_prompts_in_one_folder_are_refused(tmp_path: Path) -> None:
    instances = suite("recall", limit=2, facts=2)
    evaluated(tmp_path, instances, "recency", metrics=["f1"])
    with pytest.raises(ValueError, match="holds an evaluation with other texts: give another folder"):
        evaluated(tmp_path, suite("recall", limit=2, facts=2, seed=1), "recency", metrics=["f1"])


def test_a_record_has_the_versions_it_was_made_with(tmp_path: Path) -> None:
    (record,) = evaluated(tmp_path, suite("recall", limit=1), "recency", metrics=["f1"]).values()
    assert record.versions == versions() and "versions" not in record.options


def test_spans_stand_for_tokens_in_each_prompt(tmp_path: Path) -> None:
    assert stretches([2, 3, 5]) == ((2, 4), (5, 6))
    told = "context_cite samples=8 held_out=2 query=@question"
    found = evaluated(tmp_path, suite("recall", limit=2), told, metrics=["support_mass"])
    for instance in suite("recall", limit=2):
        record = found[instance.id, told]
        case = case_of(instance)
        assert [tuple(one) for one in record.options["query"]] == [*stretches(case.positions("question"))]
        assert not record.failed and record.tokens == len(case.prediction) and record.correct


def test_what_fails_is_recorded_and_stops_nothing(tmp_path: Path) -> None:
    (good,) = suite("recall", limit=1)
    unknown = Instance("odd", "Xyzzy plugh .", None)
    found = evaluated(tmp_path, [unknown, good], "leave_one_out", "kernel_shap samples=3", metrics=["morf"])
    assert "no token for 'Xyzzy'" in found["odd", "leave_one_out"].failed
    assert "samples=3 are too few" in found[good.id, "kernel_shap samples=3"].failed
    assert found[good.id, "leave_one_out"].values["morf"] > 0 and not found[good.id, "leave_one_out"].failed
    paths = write_report(tmp_path)
    assert "Xyzzy" in "".join(path.read_text() for path in paths if path.suffix == ".md")


def test_scores_that_tell_nothing_are_doubtful(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heta_lens.METHODS["random"], "explain", lambda _, asked, work: (torch.ones(len(asked)), {}))  # noqa: ARG005
    (record,) = evaluated(tmp_path, suite("recall", limit=1), "random", metrics=["morf", "dsa"]).values()
    assert list(record.doubts) == ["morf", "dsa"]


def test_an_answer_that_is_not_known_is_what_the_model_says(tmp_path: Path) -> None:
    (known,) = suite("recall", limit=1)
    (record,) = evaluated(tmp_path, [replace(known, answer=None)], "random", metrics=["morf"]).values()
    assert record.correct
    wrong = next(choice for choice in known.choices if choice != known.answer)
    (record,) = evaluated(tmp_path / "b", [replace(known, answer=wrong)], "random", metrics=["morf"]).values()
    assert record.correct is False


REFUSED: dict[str, Callable[[Path, list[Instance]], Any]] = {
    "metric='morph' is not one of": lambda path, some: evaluated(path, some, "random", metrics=["morph"]),
    "there are no methods": lambda path, some: evaluated(path, some),
    "there are no instances": lambda path, _: evaluated(path, [], "random"),
    "methods random are there more than once": lambda path, some: evaluated(path, some, "random", "random"),
    "instances recall-test-0-00000 are there more than once": lambda path, some: evaluated(path, some * 2, "random"),
    "method='rando'": lambda path, some: evaluated(path, some, "rando"),
    "method=''": lambda path, some: evaluated(path, some, " "),
    "is no method and its options .No closing quotation.": lambda path, some: evaluated(path, some, "lime x='1"),
    "probes=0 must be at least 1": lambda path, some: evaluated(path, some, "heta probes=0"),
    "'probes' is not of the form NAME=VALUE": lambda path, some: evaluated(path, some, "heta probes"),
}


def test_a_method_is_read_with_options_in_brackets_and_quotes() -> None:
    assert dict(Entry.read("context_cite query='((0, 5), (7, 9))'").options) == {"query": ((0, 5), (7, 9))}
    assert dict(Entry.read("heta  balance=sum").options) == {"balance": "sum"}
    assert _listed(["random,context_cite query=((0,5),(7,9)), heta", "lime"], []) == [
        *("random", "context_cite query=((0,5),(7,9))", "heta", "lime")
    ]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_evaluated_is_refused_before_any_work(message: str, tmp_path: Path) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        REFUSED[message](tmp_path / "new", suite("recall", limit=1))
    assert not (tmp_path / "new").exists()


def test_a_folder_goes_on_with_its_own_evaluation_only(tmp_path: Path) -> None:
    some = suite("recall", limit=2)
    evaluated(tmp_path, some, "random", metrics=["morf"])
    before = (tmp_path / RECORDS).read_bytes()
    evaluated(tmp_path, some, "random", metrics=["morf"])
    assert (tmp_path / RECORDS).read_bytes() == before
    with pytest.raises(ValueError, match=r"other methods: .* \(methods: random; metrics: morf\), to which methods may"):
        evaluated(tmp_path, some, "recency", metrics=["morf"])
    with pytest.raises(ValueError, match="holds an evaluation with other instances, texts, metrics"):
        evaluated(tmp_path, some[:1], "random", metrics=["lerf"])
    assert (tmp_path / RECORDS).read_bytes() == before


def test_a_method_may_be_added_to_an_evaluation(tmp_path: Path) -> None:
    some = suite("recall", limit=2)
    evaluated(tmp_path, some, "random", metrics=["morf"])
    before = (tmp_path / RECORDS).read_bytes()
    evaluated(tmp_path, some, "recency", "random", metrics=["morf"])
    assert (tmp_path / RECORDS).read_bytes().startswith(before)
    assert [record.method for record in read_records(tmp_path)] == ["random", "recency"] * 2
    assert summary(tmp_path).methods == ("recency", "random")
    with pytest.raises(ValueError, match="holds an evaluation with other methods"):  # less than it has
        evaluated(tmp_path, some, "random", metrics=["morf"])
    with pytest.raises(ValueError, match="holds an evaluation with other metrics"):
        evaluated(tmp_path, some, "recency", "random", "peering", metrics=["lerf"])


def tables(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.suffix in (".md", ".csv", ".svg")
            and not path.name.startswith("costs")}  # fmt: skip


def test_a_run_that_is_killed_goes_on_and_ends_with_the_same_tables(tmp_path: Path) -> None:
    words = [*WORDS, "-m", ",".join(QUICK), "--metrics", ",".join(FEW)]
    begun = subprocess.Popen(
        [sys.executable, "-c", "from heta_lens.cli import app; app()", *words, "--out", str(tmp_path / "parts")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    path = tmp_path / "parts" / RECORDS
    while not (path.exists() and path.read_bytes().count(b"\n") >= 4):
        assert begun.poll() is None
        time.sleep(0.02)
    begun.send_signal(signal.SIGKILL)
    begun.wait()
    left = path.read_bytes()
    assert 4 <= left.count(b"\n") < 18
    path.write_bytes(left + b'{"instance": "recall-test-0-000')  # as if it had been in the middle of a line
    kept = [json.loads(line) for line in left.splitlines() if line.endswith(b"}")]
    for folder in ("parts", "whole"):
        assert run(*words, "--out", str(tmp_path / folder)).exit_code == 0
    found = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert found[: len(kept)] == kept and len(found) == 18 == len({(one["instance"], one["method"]) for one in found})
    assert tables(tmp_path / "parts") == tables(tmp_path / "whole") and len(tables(tmp_path / "whole")) >= 3


# ------------------------------------------------------------------------------------------------------------ command
def test_the_command_evaluates_a_file_of_ones_own(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "own.jsonl", suite("recall", limit=2))
    done = run(
        *("evaluate", "jsonl", "--path", str(tmp_path / "own.jsonl"), "--out", str(tmp_path / "out")),
        *("-m", "random", "--metrics", "morf,dsa"),
    )
    assert done.exit_code == 0, done.output
    assert "report.md" in done.stdout and (tmp_path / "out" / "report.html").exists()
    assert run("report", str(tmp_path / "out")).exit_code == 0


def test_an_evaluation_in_which_all_fails_says_so_where_it_is_seen(tmp_path: Path) -> None:
    """The demo model has no token for these words."""
    own = [Instance(id=name, text="Zanzibar is in the", answer=None) for name in "ab"]
    own += [*suite("recall", limit=1)]
    write_jsonl(tmp_path / "some.jsonl", own)
    write_jsonl(tmp_path / "none.jsonl", own[:2])
    words = ("evaluate", "jsonl", "-m", "random", "--metrics", "morf")
    some = run(*words, "--path", str(tmp_path / "some.jsonl"), "--out", str(tmp_path / "some"))
    assert some.exit_code == 0 and "2 of 3 failed, most often (2) by: ValueError: this model has no" in some.stderr
    none = run(*words, "--path", str(tmp_path / "none.jsonl"), "--out", str(tmp_path / "none"))
    assert none.exit_code == 1 and "no metric has a value of any prompt" in none.stderr
    assert "none" in (tmp_path / "none" / "report.md").read_text()


def test_an_option_that_stands_for_spans_needs_them(tmp_path: Path) -> None:
    told, untold = suite("recall", limit=1)[0], replace(suite("recall", limit=2)[1], question=())
    found = evaluated(tmp_path, [told, untold], "context_cite query=@question", metrics=["morf"])
    assert not found[told.id, "context_cite query=@question"].failed
    failed = found[untold.id, "context_cite query=@question"].failed
    assert failed == "ValueError: query=@question, and no question is known of this prompt"


def test_figures_and_folders_that_cannot_be_are_refused(tmp_path: Path) -> None:
    case = case_of(suite("recall", limit=1)[0])
    with pytest.raises(ValueError, match=r"metric='dsaa' is not one of .*did you mean 'dsa'"):
        figures(case, ["dsaa"])
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="file is a file: give a folder"):
        evaluated(tmp_path / "file", suite("recall", limit=1), "random", metrics=["morf"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("evaluate", "recal", "--out", "x"), "did you mean 'recall'"),
        (("evaluate", "recall", "--out", "x", "-m", "lim"), "did you mean 'lime'"),
        (("evaluate", "recall", "--out", "x", "--metrics", "aopc"), "metric='aopc' is not one of"),
        (("evaluate", "recall", "--out", "x", "-m", "context_cite query=@questoin"), "did you mean '@question'?"),
        (("evaluate", "jsonl", "--out", "x"), "path"),
        (("evaluate", "recall", "--out", "x", "-o", "seed=1"), "-o seed=1 is not an option of a suite: use --seed"),
        (("evaluate", "recall", "--out", "x", "-o", "limit=1"), "use --limit"),
        (("evaluate", "recall", "--out", "x", "-o", "split=dev"), "use --split"),
        (("evaluate", "recall", "--out", "x", "-o", "path=a"), "use --path"),
        (("evaluate", "recall", "--out", "x", "-o", "name=a"), "-o name=a is not an option of a suite: the suite is"),
        (("evaluate", "longra", "--out", "x", "-o", "says=a"), "it is what the model of --model answers"),
        (("evaluate", "jsonl", "--out", "x", "--path", "x/records.jsonl"), "records.jsonl are the same file"),
        (("reproduce", "main", "--path", "longra=x/main.csv", "--out", "x"), "main.csv are the same file"),
        (("report", "/nowhere"), "/nowhere holds no evaluation"),
        (("reproduce", "compnents", "--quick"), "did you mean 'components'"),
        (("reproduce", "main"), "give model=, a name of the Hugging Face hub"),
    ],
)
def test_mistakes_get_one_sentence(
    words: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(*words)
    assert done.exit_code == 2 and message in done.stderr and "Traceback" not in done.output
    assert not (tmp_path / "x" / RECORDS).exists()
