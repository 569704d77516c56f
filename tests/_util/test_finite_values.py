"""Values that are not finite are refused where they are."""

import pytest
import torch

from heta_lens._util.numerics import check_finite


def test_the_first_bad_value_is_named() -> None:
    check_finite(torch.ones(3), "row {} is {}".format)
    with pytest.raises(ValueError, match=r"^row 1 is nan$"):
        check_finite(torch.tensor([1.0, torch.nan, torch.inf]), "row {} is {}".format)
    with pytest.raises(ValueError, match=r"^column 2 is -inf$"):
        check_finite(torch.tensor([[1.0, 2, -torch.inf]]), "column {} is {}".format, axis=1)
