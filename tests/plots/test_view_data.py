"""What the script of a page knows."""

import json

import torch

from helpers.attributions import of_chat
from helpers.pages import numbers, written
from heta_lens.plots.figures import cells
from heta_lens.plots.page import embedded, packed, packed_counts, packed_halves, page_data, shown, units


def test_numbers_come_back_as_they_were() -> None:
    values = torch.tensor([0.1, -3e-30, 1e30, 0.0])
    assert numbers(packed(values)) == values.tolist()
    assert numbers(packed_counts([2, 0, 65_535]), "<u2") == [2, 0, 65_535]
    assert numbers(packed_counts([2, 65_536]), "<u4") == [2, 65_536]
    assert numbers(packed_halves([1.0, -0.5, 0.25, 0.0]), "<f2") == [1.0, -0.5, 0.25, 0.0]


def test_units_say_where_each_token_belongs() -> None:
    made = written(["One", " t", "wo", ".", " Three", " four", "."])
    own = units(made)
    assert numbers(own["words"]["of"], "<u2") == [0, 1, 1, 1, 2, 3, 3]
    assert numbers(own["sentences"]["of"], "<u2") == [0] * 4 + [1] * 3
    chat = units(of_chat())
    assert numbers(chat["messages"]["of"], "<u2") == [3, 0, 0, 3, 1, 3]


def test_a_text_of_one_word_has_no_units() -> None:
    assert units(written(["wo", "rd"])) == {}


def test_what_is_as_usual_is_left_out_of_the_data() -> None:
    made = written(["a", " b", " c"])
    data = page_data(made, cells(made), shown(made), made.hidden, marked=[2])
    assert (data["positions"], data["cells"], data["marked"], data["first"]) == (None, None, [2], [0])
    some = made.without([0])
    data = page_data(some, cells(some), shown(some), some.hidden, marked=[2])
    assert (data["positions"], data["marked"], data["first"]) == ([1, 2], [1], [])


def test_data_cannot_end_its_script() -> None:
    text = embedded({"a": "</script><!--"})
    assert "<" not in text and json.loads(text) == {"a": "</script><!--"}
