"""Scores that other libraries saved, of a prompt for the demo model."""

from helpers.paths import ROOT

INSEQ = ROOT / "tests" / "helpers" / "inseq_saved.json"  # by inseq 0.6: ``out.aggregate().save(path)``
PROMPT = (
    "The whistle of Tom was placed in the cradle. The ladder of Enzo was placed in the cooker. "
    "Claim: It was Enzo that put the ladder in the"
)
