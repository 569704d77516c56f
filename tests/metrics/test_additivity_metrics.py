"""Whether scores add up."""

from typing import Any

import pytest
import torch

from helpers.metric_inputs import ONE_EACH, TARGET, N, prediction_of
from heta_lens.methods.leave_one_out import LeaveOneOut
from heta_lens.metrics import Drops, additivity_gap, faithfulness_error


@ONE_EACH
def test_scores_that_leave_one_out_gives_add_up_for_single_tokens(build: Any) -> None:
    asked = prediction_of(build())
    scores, drops = LeaveOneOut(effect="log_prob")(asked).scores, Drops.of(asked)
    torch.testing.assert_close(drops.each[:N], scores.cpu(), check_dtype=False, rtol=1e-4, atol=1e-6)
    found, zero = faithfulness_error(drops, scores), faithfulness_error(drops, torch.zeros(N))
    assert 0 < found["raw"] != zero["raw"] and zero["scale"] == 0
    nothing = asked.log_probs_from(0)(torch.zeros(1, N, 8)).detach()
    everything = float(asked.objective(asked.log_probs) - nothing[0, TARGET])
    assert additivity_gap(drops, torch.zeros(N)) == pytest.approx(abs(everything), rel=1e-6)
    assert additivity_gap(drops, torch.full((N,), everything / N)) == pytest.approx(0, abs=1e-6)
