"""The stories3M model, which does not come with this repository: a folder with a `load.py`."""

import runpy
from pathlib import Path
from typing import Any

MODEL = Path(__file__).parents[2] / "shared" / "models" / "stories3M"


def load_stories3m(folder: Path = MODEL) -> Any:
    return runpy.run_path(str(folder / "load.py"))["load_hooked"](str(folder))
