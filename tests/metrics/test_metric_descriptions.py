"""What each metric measures, in a sentence."""

from heta_lens.metrics import METRICS
from heta_lens.metrics.registry import (
    AGAINST_EVIDENCE,
    AGAINST_PATCHING,
    AGAINST_REMOVAL,
    DESCRIPTIONS,
    DOWNSTREAM,
    OF_METHODS,
    described_metric,
)

BUILT_IN = {**AGAINST_REMOVAL, **AGAINST_EVIDENCE, **AGAINST_PATCHING, **OF_METHODS, **DOWNSTREAM}


def test_every_metric_is_described_and_every_description_is_of_a_metric() -> None:
    assert {*BUILT_IN} <= {*METRICS}
    sentences = {described_metric(name) for name in BUILT_IN}
    assert "" not in sentences and sentences == {*DESCRIPTIONS.values()}
    assert all(sentence.endswith(".") and sentence[0].isupper() for sentence in sentences)


def test_a_variant_is_described_as_its_family() -> None:
    assert described_metric("dsa_segments") == DESCRIPTIONS["dsa"] and described_metric("span_f1") != DESCRIPTIONS["f1"]
    assert described_metric("dsas") == "" and described_metric("mine:metric") == ""
