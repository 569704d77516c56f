"""``methods`` and ``metrics``: lists, and descriptions of every option."""

import json
import re
import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from helpers.evaluating import run
from heta_lens import METHODS
from heta_lens._util.options import AtLeast
from heta_lens.cli.lists import described_options, description, documented, type_text
from heta_lens.metrics import METRICS


def words_of(*words: str) -> str:
    done = run(*words)
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


@pytest.mark.parametrize(("command", "names"), [("methods", METHODS), ("metrics", METRICS)])
def test_every_method_and_metric_is_listed(command: str, names: Any) -> None:
    assert {*names} <= {line.split()[0] for line in run(command).output.splitlines() if line.strip()}


@pytest.mark.parametrize("method", METHODS)
def test_every_option_has_a_type_and_a_line(method: str) -> None:
    options = described_options(METHODS[method])
    for option in options:
        assert option.type and option.default and option.help, option
        assert "typing" not in option.type and "`" not in option.help
    shown = {line.split()[0] for line in run("methods", method).output.splitlines() if line and line[0] != " "}
    assert {option.name for option in options} <= shown and "progress" not in {option.name for option in options}


def test_a_method_and_a_metric_are_described() -> None:
    shown = words_of("methods", "lime")
    assert "LIME (Ribeiro 2016)" in shown and "cost samples · F" in shown and "signed: above 0" in shown
    assert "paper Ribeiro, Singh & Guestrin" in shown and "surrogate ridge or lasso ridge" in shown
    assert "samples int ≥ 1 or none none number of random z" in shown
    assert "--method lime -o samples=50" in shown
    shown = words_of("metrics", "hard_nc")
    assert "measures How much the prediction changes without the tokens with the highest scores." in shown
    assert "better more" in shown and "range 0 to unbounded" in shown and "--metrics hard_nc" in shown


WITHOUT_PAPER = {"attention_last", "leave_one_out", "random", "recency"}


def test_a_method_names_its_paper() -> None:
    listed = json.loads(run("methods", "--json").stdout)["methods"]
    papers = {about["name"]: about["paper"] for about in listed}
    assert {name for name, paper in papers.items() if not paper} == WITHOUT_PAPER
    for each in "; ".join(filter(None, papers.values())).split("; "):
        assert re.fullmatch(r"[A-Z].*, .{20,}, .*\b20[0-2]\d(, arXiv:\d{4}\.\d{4,5})?", each), each


@pytest.mark.sample(quick=2)
@pytest.mark.parametrize("method", ["lime", "leave_one_out", "heta"])
def test_the_example_of_a_method_runs(method: str) -> None:
    (about,) = json.loads(run("methods", method, "--json").stdout)["methods"]
    program, *words = shlex.split(about["example"])
    assert program == "heta-lens" and f"{method}: why" in words_of(*words)


def test_an_alias_is_listed_and_described() -> None:
    assert "also called loo" in words_of("methods")
    assert words_of("methods", "loo") == words_of("methods", "leave_one_out")


def test_a_method_of_ones_own_is_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lengths_of_mine.py").write_text(
        "def length(prediction):\n    return prediction.embeddings.norm(dim=-1)\n"
    )
    monkeypatch.chdir(tmp_path)
    assert "package lengths_of_mine" in words_of("methods", "lengths_of_mine:length")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["methods", "limes"], "there is no method 'limes': did you mean 'lime'"),
        (["methods", "IG"], "there is no method 'IG': did you mean 'ig'?"),
        (["methods", "zzzz"], "there is no method 'zzzz': heta-lens methods lists them"),
        (["metrics", "soft_n"], "there is no metric 'soft_n': did you mean 'soft_n"),
        (["methods", "nowhere:x"], "nowhere:x cannot be loaded"),
    ],
    ids=str,
)
def test_an_unknown_name_is_refused_with_similar_names(words: list[str], message: str) -> None:
    done = run(*words)
    assert done.exit_code == 2 and message in done.stderr and not done.stdout


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (int, "int"),
        (bool, "True or False"),
        (str | None, "str or none"),
        (Literal["a", "b"], "a or b"),
        (Annotated[int, AtLeast(1, whole=True)], "int ≥ 1"),
        (Annotated[float | int, AtLeast(0.01)], "float ≥ 0.01"),
        (Annotated[int | Literal["auto"] | None, AtLeast(2)], "int ≥ 2 or auto or none"),
    ],
    ids=str,
)
def test_types_are_for_people(kind: Any, text: str) -> None:
    assert type_text(kind) == text


def test_options_that_are_documented_together_share_a_line() -> None:
    found = documented("What it is.\n\n- ``a``, ``b``: the first\n  and ``x`` the second\n- ``c``: more\n\nCost: F.")
    both = "a, b: the first and x the second"
    assert found == {"a": both, "b": both, "c": "more"}


def test_a_description_ends_before_the_options_and_documented_options_come_first() -> None:
    assert description(METHODS["lime"]).startswith("The coefficients of g(X with only tokens z)")
    assert "number of random z" not in description(METHODS["lime"])
    names = [option.name for option in described_options(METHODS["lime"])]
    assert names[0] == "samples" and names.index("penalty") < names.index("mask")
