"""Recombined parts are what each configuration gives by itself."""

import pytest
import torch

from helpers.asking import doubts_allowed
from helpers.evaluating import demo
from heta_lens.data.suites import suite
from heta_lens.evaluation.prompt_evaluation import ask
from heta_lens.evaluation.reproduce.cells import printed
from heta_lens.evaluation.reproduce.rows import CONFIGURATIONS, Effort, recombined


@pytest.mark.sample(quick=0, test=1)
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("balance", ["none", "sum"])
def test_recombined_parts_are_what_a_configuration_finds_by_itself(balance: str) -> None:
    (instance,) = suite("recall", limit=1, facts=2)
    prediction, known = ask(demo(), instance), {}
    effort = Effort(limit=1, heta={"probes": 2, "support": "row", "balance": balance})
    rows = [
        row for row, options in CONFIGURATIONS.items() if not {*options} - {"variant"} and options != {"variant": "gs"}
    ]
    for row in [*rows, "β = 0.2, γ = 0.8", "β = 0.0, γ = 1.0"]:
        method = effort.entry(row).ready(instance, prediction)
        together = recombined(method, effort.full(), known)
        assert together is not method
        torch.testing.assert_close(together(prediction).scores, method(prediction).scores)
    assert len(known) == 1
    assert (
        recombined(
            effort.entry("HETA-GS (grad-squared only)").ready(instance, prediction), effort.full(), known
        ).variant
        == "gs"
    )


@pytest.mark.usefixtures("unchecked")
def test_curvature_of_the_last_layers_is_that_of_all_rows() -> None:
    """As the paper has it for its largest model."""
    (instance,) = suite("recall", limit=1, facts=2)
    prediction, known = ask(demo(), instance), {}
    effort = Effort(limit=1, heta={"probes": 2, "support": "row"})
    last = {"variant": "ls", "layers": 2}
    full = effort.full(**last)
    entry = effort.entry("HETA (Full)", **last)
    assert entry.options["variant"] == "ls" and effort.entry("HETA-LS (4 layers)", **last).options["layers"] == 4
    with doubts_allowed():
        whole = recombined(entry.ready(instance, prediction), full, known)(prediction)
        torch.testing.assert_close(whole.scores, full(prediction).scores)
        bare = recombined(effort.entry("HETA-No-Gate", **last).ready(instance, prediction), full, known)(prediction)
    torch.testing.assert_close(bare.parts["gate"], whole.parts["gate"])
    torch.testing.assert_close(bare.scores, 0.5 * whole.parts["curvature"] + 0.5 * whole.parts["information"])
    assert len(known) == 1
    assert {block.last_layers for block in printed()["main"].blocks} == {0, 6}
