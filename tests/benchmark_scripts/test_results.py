"""The page of results: made of figures alone, and of whatever parts are there."""

import json
import re
import shutil
import tarfile
from pathlib import Path

import pytest

from benchmarks import results
from benchmarks.stories3m import load_stories3m
from helpers import zoo
from heta_lens.data.suites import suite
from heta_lens.evaluation.runner import digest


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    methods = ["heta variant=kl_only", "heta variant=transition_only", "leave_one_out", "recency"]
    prompts = suite("recall", limit=3, facts=2)
    one = results.Part("short stories", results.demo, lambda: prompts, methods, ["evidence_mass", "aopc_ins"])
    monkeypatch.setattr(results, "PARTS", {"short": one, "never run": one})
    monkeypatch.setattr(results, "FOLDER", tmp_path / "evaluated")
    monkeypatch.setattr(results, "ARCHIVE", tmp_path / "evaluated.tar.xz")
    monkeypatch.setattr(results, "RESULTS", tmp_path / "results.md")


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked", "parts")
def test_the_page_says_what_was_measured(tmp_path: Path) -> None:
    results.run(["short"], tmp_path)
    results.write()
    page = (tmp_path / "results.md").read_text()
    assert [*re.findall(r"^#+ (.*)$", page, re.M)] == ["Results", "HETA against the others", "Short stories"]
    for told in ("**Where HETA wins.**", "**Where it does not.**", "**Which setting.**"):
        assert page.count(told) == 1
    assert "Not measured yet: Soft-NC; Soft-NS;" in page and "Evidence mass" not in page.split("\n\n")[1]
    assert "3 prompts of" in page and "| recency |" in page and "nan" not in page
    found = results.summary(tmp_path / "evaluated" / "short")
    mass = found.metrics["evidence_mass"]
    (tally,) = (one for one in results.by_metric(found) if one.name == "Evidence mass")
    verdicts = [found.verdict(mass, method) for method in ("leave_one_out", "recency")]
    assert tally == ("Evidence mass", verdicts.count(-1), verdicts.count(1), 2)
    assert {one.of for one in results.by_method(found, results.others(found))} == {2}
    results.run(["short"], tmp_path)
    results.write()
    assert (tmp_path / "results.md").read_text() == page
    with open(tmp_path / "evaluated" / "short" / "records.jsonl", "rb+") as file:
        whole = file.read()
        file.truncate(len(whole) - len(whole.splitlines(keepends=True)[-1]))
    results.write()
    assert "Short stories" not in (tmp_path / "results.md").read_text()  # which are not finished
    (tmp_path / "evaluated" / "short" / "records.jsonl").write_bytes(whole)
    results.keep()
    shutil.rmtree(tmp_path / "evaluated")
    results.write()
    assert (tmp_path / "results.md").read_text() == page


@pytest.mark.thorough
@pytest.mark.usefixtures("unchecked")
def test_who_agrees_with_patching_is_read_out(tmp_path: Path) -> None:
    methods = ["heta variant=kl_only", "leave_one_out", "random", "recency"]
    prompts = suite("recall", limit=24, facts=2, wordings="trained")
    part = results.Part("short stories", results.demo, lambda: prompts, methods, results.PATCHED)
    part.run(tmp_path, tmp_path)
    found = results.narrowed(results.summary(tmp_path), methods[:3], ["patch_correlation"])
    mean = {method: found.cells["patch_correlation", method].estimate.value for method in methods[:3]}
    order = sorted(mean, key=lambda method: -mean[method])
    told = results.read_out("short stories", found)
    assert f"On short stories the scores of {order[0]} agree best" in told
    assert f"those of {methods[0]} are number {order.index(methods[0]) + 1} of 3" in told
    assert "recency" not in told and told.count(". ") == 1
    worse = [method for method in methods[1:3] if found.verdict(found.metrics["patch_correlation"], method) < 0]
    assert all(f"{method} (0 better, 1 worse)" in told.split("worse: ")[1] for method in worse)
    assert "random (" in told.split("worse: ")[1]


@pytest.mark.skipif(not results.MODEL.is_dir(), reason="the stories3M model is not there")
@pytest.mark.skipif(not zoo.HAS_HOOKED, reason="which its loader makes")
@pytest.mark.filterwarnings(
    "ignore:HookedTransformer is deprecated", "ignore:unclosed file", "ignore:Exception ignored"
)
def test_copied_words_are_asked_as_they_were_chosen() -> None:
    from heta_lens.evaluation.prompt_evaluation import ask

    model = load_stories3m()
    for instance in results.copied(3)():
        prediction = ask(model, instance)
        assert prediction.adapter.tokenizer.write(prediction.target, prediction.ids.tolist()) == instance.answer
        assert {word.lower() for word in instance.words("gold")} == {str(instance.answer).strip().lower()}
        assert all(any(a <= start < b for a, b in instance.support) for start, _ in instance.gold)


def test_kept_figures_are_of_the_prompts_that_would_be_measured_now() -> None:
    """Or a run would not resume, and its tables would be of two kinds of prompts."""
    with tarfile.open(results.ARCHIVE) as archive:
        for name in ("recall", "ablations", "again"):
            kept = json.load(archive.extractfile(f"{name}/run.json"))  # type: ignore[arg-type]
            assert digest(results.PARTS[name].prompts()) == kept["texts"], name
