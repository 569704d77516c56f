"""Matrices of scores as heat maps."""

from time import process_time
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib import pyplot

from helpers.attributions import attribution
from heta_lens import SpanAttribution, plots
from heta_lens._util import python
from heta_lens.causal import Grid
from heta_lens.plots.matrix_figure import Labels, Side, _figure, _of_pairs, _of_span, matrix, patch_grid

TOKENS = ("The", " cat", "\n", " $s_1$", " at", " 🎉")


def span(first: int = 3, tokens: tuple[str, ...] = TOKENS) -> SpanAttribution:
    steps = [attribution(tokens[:end], range(1, end + 1), target_text=tokens[end]) for end in range(first, len(tokens))]
    return SpanAttribution(tuple(steps), tokens)


def pairs(**changes: Any) -> Any:
    values = torch.tensor([[9.0, 1.0, 2.0], [1.0, 9.0, 3.0], [2.0, 3.0, 9.0]])
    return attribution(["a", " b", " b"], [1.0, 2.0, 3.0], **{"interactions": values, **changes})


def shown_values(figure: Any) -> Any:
    return np.ma.filled(figure.axes[0].images[0].get_array(), np.nan)


def labels(figure: Any) -> tuple[list[str], list[str]]:
    axes = figure.axes[0]
    figure.draw_without_rendering()
    return [text.get_text() for text in axes.get_xticklabels()], [text.get_text() for text in axes.get_yticklabels()]


def test_a_span_is_targets_by_sources() -> None:
    figure: Any = _figure(_of_span(span()))
    nan = np.nan
    np.testing.assert_array_equal(
        shown_values(figure), [[1, 2, 3, nan, nan], [1, 2, 3, 4, nan], [1, 2, 3, 4, 5]]
    )  # fmt: skip
    across, down = labels(figure)
    assert across == ["The", "cat", r"'\n'", "$s_1$", "at"]
    assert down == ["$s_1$", "at", "⟨U+1F389⟩"]
    assert figure.axes[0].lines[0].get_xdata()[0] == 2.5, "where the answer begins"
    assert (figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()) == ("source", "target")
    low, high = figure.axes[0].get_ylim()
    assert low > high, "the first target on top"
    assert not _figure(_of_span(span(len(TOKENS) - 1))).axes[0].lines


def test_what_is_not_there_is_grey_and_0_is_white() -> None:
    image: Any = _figure(_of_span(span())).axes[0].images[0]
    assert image.get_cmap()(np.ma.masked_invalid([np.nan]))[0][:3] == pytest.approx((0.894,) * 3, abs=1e-3)
    assert image.get_cmap()(image.norm(0.0))[:3] == (1, 1, 1)


def test_pairs_are_symmetric_around_0() -> None:
    figure: Any = _figure(_of_pairs(pairs()))
    values, nan = shown_values(figure), np.nan
    np.testing.assert_array_equal(values, [[nan, 1, 2], [1, nan, 3], [2, 3, nan]])
    assert labels(figure) == (["a", "b", "b"], ["a", "b", "b"])
    box = figure.axes[0].get_window_extent()
    assert box.width == pytest.approx(box.height, rel=0.2)
    signed: Any = _figure(_of_pairs(pairs(interactions=torch.tensor([[0.0, -2.0, 1], [-2.0, 0, 0], [1, 0, 0]]))))
    norm = signed.axes[0].images[0].norm
    assert (norm.vmin, norm.vmax) == (-2, 2)


def test_the_attribution_is_left_as_it_was() -> None:
    own = pairs()
    matrix(own)
    assert own.interactions.isfinite().all()


def test_special_tokens_have_no_column_unless_they_are_wanted() -> None:
    tokens = ("<bos>", "The", " cat", " at")
    shown: Any = _figure(_of_span(span(2, tokens)))
    assert labels(shown)[0] == ["The", "cat"] and shown.axes[0].lines[0].get_xdata()[0] == 0.5
    assert shown_values(shown).shape == (2, 2) and "'<bos>' (first token, special) holds" in shown.get_supxlabel()
    assert labels(_figure(_of_span(span(2, tokens), special=True)))[0] == ["<bos>", "The", "cat"]
    special = torch.tensor([True, False, False])
    assert labels(_figure(_of_pairs(pairs(special=special)))) == (["b", "b"], ["b", "b"])
    assert labels(_figure(_of_pairs(pairs(special=special), special=True)))[0] == ["a", "b", "b"]


def test_the_colours_of_a_span_are_scaled_to_others_than_a_sink() -> None:
    steps = [attribution(TOKENS[:end], [50.0, *range(1, end)], target_text=TOKENS[end]) for end in (3, 4)]
    image: Any = _figure(_of_span(SpanAttribution(tuple(steps), TOKENS[:5]))).axes[0].images[0]
    assert image.norm.vmax == 3 and image.colorbar.extend == "max"


def test_what_has_no_matrix_is_refused_with_the_way_out() -> None:
    with pytest.raises(ValueError, match="no pairs of tokens: give attribute interactions=True, or use attribute_span"):
        matrix(attribution())


def test_values_beyond_the_scale_have_an_arrow() -> None:
    beyond = torch.tensor([[1.0, 9.0, -1.0]])

    def arrow(values: Any) -> str:
        figure: Any = patch_grid("a", values, [0], ["x", "y", "z"])
        return figure.axes[0].images[0].colorbar.extend

    assert arrow(beyond) == "max"
    assert arrow(-beyond) == "min"
    assert arrow(beyond.clamp(max=2)) == "neither"


def test_labels_get_smaller_and_then_fewer() -> None:
    side = Side("token", [f"t{at}" for at in range(100)], range(1000, 1100))
    few, small, thinned = (Labels.of(side, inches) for inches in (20.0, 10.0, 4.0))
    assert (few.size, small.size, thinned.size) == (7, 6, 7)
    assert few.texts == small.texts == side.labels
    assert thinned.texts[:2] == ["t0  1000", "t3  1003"] and [*thinned.rows[:2]] == [0, 3]
    assert Labels.of(Side("layer", side.labels), 4.0).texts[1] == "t3"


@pytest.mark.slow
def test_a_large_matrix_is_fast_and_small() -> None:
    tokens = tuple(f" w{at}" for at in range(1000))
    scores = torch.rand(1000, generator=torch.Generator().manual_seed(0)) ** 8
    steps = [attribution(tokens[:end], scores[:end].tolist()) for end in range(800, 1000)]
    large = SpanAttribution(tuple(steps), tokens)
    start = process_time()
    view = matrix(large)
    assert process_time() - start < 3
    assert all(len(make()) < 2_000_000 for make in view.exports.values())
    assert view.exports[".svg"]().count(b"<image") <= 3, "no shape for every cell"  # pyright: ignore


@pytest.mark.slow
@pytest.mark.parametrize("make", [span, pairs])
def test_the_view_is_saved_the_same_each_time(make: Any) -> None:
    view = matrix(make())
    assert set(view.exports) == {".svg", ".png", ".pdf"} and view.title == make().title
    assert all(export() == export() for export in view.exports.values())
    assert not pyplot.get_fignums() and plots.matrix is matrix


def test_a_grid_has_layer_0_on_top_and_is_what_a_grid_of_patches_is_saved_as() -> None:
    values = torch.tensor([[1.0, 4.0], [3.0, 2.0]])
    figure = patch_grid("patching", values, (0, 3), ("a", " $b"), note="0 is −1")
    np.testing.assert_array_equal(shown_values(figure), values.numpy())
    assert labels(figure) == (["a", "$b"], ["0", "3"])
    grid = Grid("patching", values, ("a", "<b>"), clean=5.0, corrupted=1.0, forwards=6)
    view = grid.plot()
    assert set(view.exports) == {".svg", ".png", ".pdf"}
    assert view.exports[".png"]() == view.exports[".png"]()


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = Grid("patching", torch.eye(2), ("a", "b"), clean=5.0, corrupted=1.0, forwards=6)
    monkeypatch.setattr(python, "find_spec", lambda _: None)
    for make in (
        lambda: matrix(span()),
        lambda: patch_grid("a", torch.eye(2), (0, 1), "ab"),
        grid.plot().exports[".svg"],
    ):
        with pytest.raises(ImportError, match=r"heta-lens\[plots\]"):
            make()
