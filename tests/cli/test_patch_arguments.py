"""How tokens or activations are patched, and what contradicts itself."""

from typing import Any, get_args

import pytest

from heta_lens.cli.causal import MEASURED, flow_option, grid_options, numbers, refuse, way_of
from heta_lens.prediction import target


def way(**given: Any) -> dict[str, Any]:
    return way_of(**{**dict.fromkeys(("how", "mask", "layer", "patterns", "scale")), **given})


def test_only_what_was_given() -> None:
    assert way() == {} and flow_option(None) == {}
    assert way(how="resid_patch", layer=0, mask="12") == {"how": "resid_patch", "layer": 0, "mask": 12}
    assert way(patterns="recomputed", scale="logit", mask="mean")["mask"] == "mean"
    assert grid_options({"what": None, "layers": "0:2", "positions": "3"}, "logit") == {
        "scale": "logit",
        "layers": [0, 1],
        "positions": [3],
    }
    assert flow_option("direct") == {"flow": "direct"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"how": "edge"}, "--how='edge' is not one of 'edge_patch'"),
        ({"how": "resid_patch"}, "--layer goes with --how resid_patch"),
        ({"layer": 2}, "--layer goes with --how resid_patch"),
        ({"how": "input", "patterns": "frozen"}, "--patterns frozen is for --how edge_patch, not for --how input"),
        ({"mask": "nought"}, "--mask='nought' is not one of zero"),
        ({"scale": "odds"}, "--scale='odds' is not one of"),
    ],
    ids=str,
)
def test_contradictions_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        way(**given)


@pytest.mark.parametrize("written", ["3:", ":3", "5:3", "3:3", "-3:-1", "x", "1:2:3"])
def test_a_range_has_a_beginning_and_an_end(written: str) -> None:
    with pytest.raises(ValueError, match=r"--layers .* is no range of numbers from 0: write 3:7, or 3 for one"):
        numbers("--layers", written)


def test_what_is_measured_is_named_for_every_scale() -> None:
    assert {*MEASURED} == {*get_args(target.Scale)}


def test_kinds_of_activations_and_flows() -> None:
    with pytest.raises(ValueError, match=r"--what='z' is not one of .*\(called head_out here\)"):
        grid_options({"what": "z", "layers": None, "positions": None}, None)
    with pytest.raises(ValueError, match="--flow='x' is not one of 'suffix'"):
        flow_option("x")


def test_what_does_not_go_together_is_named() -> None:
    refuse({"what": None}, "needs --corrupted")
    with pytest.raises(ValueError, match="--what z needs --corrupted"):
        refuse({"layer": None, "what": "z"}, "needs --corrupted")
