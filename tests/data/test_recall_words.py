"""The words of recall stories: each in one list."""

from heta_lens.data import recall


def test_no_word_stands_in_two_lists() -> None:
    words = [word for name, words in vars(recall).items() if name.isupper() for word in words]
    assert len(words) == len({*words}) > 300
