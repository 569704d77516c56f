"""Draws are the same at any time."""

from helpers.bootstrap_oracle import OTHERS, VALUES
from heta_lens.evaluation import statistics
from heta_lens.evaluation.statistics import difference, estimate

PAIRS = [0, 0, 1, 1, 2, 2, 3, 3]


def test_the_order_of_clusters_and_the_time_of_day_say_nothing() -> None:
    assert estimate(VALUES, PAIRS) == estimate(VALUES, [f"t{one}" for one in PAIRS])
    ours, theirs, each = VALUES * 3, OTHERS * 3, list(range(24))
    before = estimate(ours, each), difference(ours, theirs, each)
    statistics._counts.cache_clear(), statistics.cluster_weights.cache_clear()
    assert (estimate(ours, each), difference(ours, theirs, each)) == before
