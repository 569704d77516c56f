"""Names, folders, and a hub that may not answer."""

from pathlib import Path

import pytest

from heta_lens.model.checkpoints import folder_of, read_from


def test_a_name_is_of_a_folder_or_of_the_hub(tmp_path: Path) -> None:
    assert folder_of(str(tmp_path), "model") == tmp_path and folder_of("org/name", "model") is None
    for name in ("", "./nowhere", "/no/where", "~nobody-of-this-name"):
        with pytest.raises(
            ValueError, match=f"no model '{name}': give demo, a name on the Hugging Face hub, or a fold"
        ):
            folder_of(name, "model")


def test_what_goes_wrong_is_one_sentence(tmp_path: Path) -> None:
    def fail(place: str) -> None:
        raise OSError(f"{Path(place).name} is\ndamaged")

    with pytest.raises(ValueError, match=rf"the model '{tmp_path.name}' cannot be loaded: {tmp_path.name} is damaged"):
        read_from(tmp_path.name, "model", tmp_path, fail)
    assert read_from("a", "model", tmp_path, str.upper) == str(tmp_path).upper()
