"""What tests of views share."""

import pytest

from helpers import zoo
from helpers.asking import explain
from heta_lens.attribution import Attribution


@pytest.fixture(scope="module")
def attribution() -> Attribution:
    model = zoo.bridge("gpt2")
    return explain(model, zoo.prompt(model), balance="sum")
