"""What heads write, against a loop over heads."""

import torch

from heta_lens.model.hooks import head_outputs


def test_each_head_writes_its_groups_values_through_its_own_weights() -> None:
    generator = torch.Generator().manual_seed(0)
    values, output = (torch.randn(*shape, generator=generator).double() for shape in ((5, 2, 3), (4, 3, 6)))
    written = head_outputs(values, output)
    assert written.shape == (4, 5, 6)
    for head in range(4):
        torch.testing.assert_close(written[head], values[:, head // 2] @ output[head])
