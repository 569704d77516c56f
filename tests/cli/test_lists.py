"""``methods`` and ``metrics``: lists, and descriptions of every option."""

import json
import re
import shlex
from typing import Any

import pytest

from helpers.evaluating import run
from heta_lens import METHODS
from heta_lens.cli.lists import described_options
from heta_lens.metrics import METRICS


def words_of(*words: str) -> str:
    done = run(*words)
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


@pytest.mark.parametrize(("command", "names"), [("methods", METHODS), ("metrics", METRICS)])
def test_every_method_and_metric_is_listed(command: str, names: Any) -> None:
    assert {*names} <= {line.split()[0] for line in run(command).output.splitlines() if line.strip()}


def test_methods_are_listed_by_family_after_the_recommended_ones() -> None:
    first, *families = re.findall(r"^(recommended|family: [a-z ]+?)  ", run("methods").output, re.MULTILINE)
    assert first == "recommended" and len(families) == len({method.family for method in METHODS.values()})


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
    assert "LIME (Ribeiro 2016)" in shown and "cost samples · F" in shown and "±: above 0 speaks" in shown
    assert "paper Ribeiro, Singh & Guestrin" in shown and "penalty float ≥ 0 1.0" in shown
    assert "samples int ≥ 1 or none none number of random z" in shown
    assert "--method lime" in shown
    assert "the number of random points" in words_of("methods", "gradient_shap")  # a method's own line, not its base's
    shown = words_of("metrics", "hard_nc")
    assert "measures How much the prediction changes without the tokens with the highest scores." in shown
    assert "better more" in shown and "low 0.0" in shown and "--metrics hard_nc" in shown


@pytest.mark.sample(quick=2)
@pytest.mark.parametrize("method", ["lime", "leave_one_out", "heta"])
def test_the_example_of_a_method_runs(method: str) -> None:
    (about,) = json.loads(run("methods", method, "--json").stdout)["methods"]
    program, *words = shlex.split(about["example"])
    assert program == "heta-lens" and f"{method}: why" in words_of(*words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["methods", "limes"], "method='limes' is not in heta_lens.METHODS or PRESETS (did you mean 'lime'"),
        (["methods", "zzzz"], "method='zzzz' is not in heta_lens.METHODS or PRESETS: `heta-lens methods` lists them"),
        (["metrics", "soft_n"], "metric='soft_n' is not in heta_lens.metrics.METRICS (did you mean 'soft_n"),
        (["methods", "nowhere:x"], "nowhere:x cannot be loaded"),
    ],
    ids=str,
)
def test_an_unknown_name_is_refused_with_similar_names(words: list[str], message: str) -> None:
    done = run(*words)
    assert done.exit_code == 2 and message in done.stderr and not done.stdout
