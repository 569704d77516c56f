"""Lists with commas, or one by one."""

from heta_lens.cli.app import listed


def test_a_list_may_be_given_with_commas_or_one_by_one() -> None:
    assert listed(["random,context_cite query=((0,5),(7,9)), heta", "lime"], []) == [
        *("random", "context_cite query=((0,5),(7,9))", "heta", "lime")
    ]
    assert listed(None, ["heta"]) == ["heta"]
