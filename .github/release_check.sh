#!/usr/bin/env bash
# Build the sdist and the wheel into dist/, and run the pages of five minutes and the demo from the wheel, in an empty
# environment outside the repository, with the pinned versions.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
uv() { "${PYTHON:-python3}" constraints/uv.py "$@"; }
unset PYTHONPATH
export UV_CONSTRAINT=constraints/tl3.txt
empty=$(mktemp -d)
trap 'rm -rf "$empty"' EXIT

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
if [ "${GITHUB_REF_TYPE:-}" = tag ]; then
    [ "$GITHUB_REF_NAME" = "v$version" ] || { echo "the tag $GITHUB_REF_NAME is not v$version, of pyproject.toml"; exit 1; }
    grep -qE "^## \[$version\] – [0-9]" CHANGELOG.md || { echo "CHANGELOG.md has no date for $version"; exit 1; }
fi

rm -rf dist
uv build --out-dir dist
uv tool run twine check --strict dist/*.whl dist/*.tar.gz

uv venv "$empty/venv"
uv pip install --python "$empty/venv" "$(ls dist/*.whl)[plots]"
cd "$empty"
venv/bin/python - "$root" <<'PYTHON'
import runpy
import sys
from pathlib import Path

import heta_lens

assert Path(heta_lens.__file__).is_relative_to(sys.prefix), f"{heta_lens.__file__} is not the wheel's"
root = Path(sys.argv[1])
blocks = runpy.run_path(str(root / "docs" / "printed_outputs.py"))["blocks"]
for block in blocks((root / "docs/five_minutes.md").read_text(encoding="utf-8"), {}):
    print(block.actual, end="")
    assert bool(block.actual) == bool(block.expected), block.code
PYTHON
venv/bin/heta-lens demo >/dev/null
ls heta_lens_demo.html
cd "$root" && wc -c dist/*.whl dist/*.tar.gz
