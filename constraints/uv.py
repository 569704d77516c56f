"""Run uv with pip's settings: `python constraints/uv.py venv FOLDER`, `python constraints/uv.py pip install ...`.

uv is taken from the path, or installed once into .venv/uv; where it cannot be had, venv and pip do the same.
"""

import os
import shutil
import subprocess
import sys
from ast import literal_eval
from pathlib import Path

OWN = Path(__file__).parents[1] / ".venv" / "uv"
SETTINGS = {  # pip's names and uv's
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "constraint": "UV_CONSTRAINT",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
}


def python_of(environment: Path) -> Path:
    return next(environment.glob("[bS]*/python*"))  # bin/python, or Scripts/python.exe


def uv() -> str | None:
    """Return the command, installed on first use, or None if there is none for this machine."""
    if found := shutil.which("uv", path=os.pathsep.join([os.environ["PATH"], str(OWN / "bin"), str(OWN / "Scripts")])):
        return found
    subprocess.run([sys.executable, "-m", "venv", OWN], check=True)
    install = [python_of(OWN), "-m", "pip", "install", "--quiet", "--only-binary=:all:", "uv"]
    return uv() if subprocess.run(install).returncode == 0 else None


def settings() -> dict[str, str]:
    """Return what pip's files and variables say, as variables of uv."""
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True).stdout
    found = {}
    for line in sorted(listed.splitlines(), key=lambda line: line.startswith(":env:")):  # variables count more
        name, _, value = line.partition("=")
        if variable := SETTINGS.get(name.rpartition(".")[2]):
            found[variable] = literal_eval(value).strip().replace("\n", " ")
    if "UV_FIND_LINKS" in found:
        found["UV_FIND_LINKS"] = found["UV_FIND_LINKS"].replace(" ", ",")
    if "UV_INDEX" in found:  # pip takes the best version of all indexes
        found["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    return found


def main(arguments: list[str]) -> int:
    command, [what, *rest] = uv(), arguments
    if command is not None:
        made = ["--seed", "--clear", "--python", sys.executable] if what == "venv" else []
        call = [command, what, "--quiet", *made, *rest]
    elif what == "venv":
        call = [sys.executable, "-m", "venv", "--clear", *rest]
    elif "--python" not in rest:
        sys.exit(f"uv cannot be installed here, and pip has no {what}")
    else:  # pip install --python FOLDER ...
        folder = rest.pop(rest.index("--python") + 1)
        call = [str(python_of(Path(folder))), "-m", "pip", *(option for option in rest if option != "--python")]
    return subprocess.run(call, env=settings() | os.environ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
