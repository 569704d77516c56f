"""The site: Markdown pages, the stored notebooks, and a reference from docstrings. `make docs` builds it."""

import inspect
import re
import shutil
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from sphinx.util.typing import stringify_annotation

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT))

from heta_lens import api  # noqa: E402

PICTURE = re.compile(
    r'<picture><source [^>]*srcset="(?P<dark>[^"]+)"><img alt="(?P<alt>[^"]*)" src="(?P<light>[^"]+)"></picture>'
)
ALIASES = ("TargetLike", "MethodLike", "Tokens")

project, author = "heta_lens", "the heta_lens authors"
copyright = author
release = metadata.version("heta-lens")
html_title = "heta_lens"

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.intersphinx", "sphinx_copybutton"]
exclude_patterns = ["gallery.py", "inventories"]
default_role = "py:obj"
nb_execution_mode = "off"  # notebooks are kept with what they show
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_inline"]
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
autodoc_inherit_docstrings = False
maximum_signature_line_length = 88
intersphinx_mapping = {  # a few names, kept here: the build needs no network
    "torch": ("https://docs.pytorch.org/docs/stable/", "inventories/torch.inv"),
    "transformer_lens": ("https://transformerlensorg.github.io/TransformerLens/", "inventories/transformer_lens.inv"),
}

html_theme = "furo"
html_static_path, html_css_files = ["style"], ["site.css"]
html_copy_source = html_show_sourcelink = False
pygments_style, pygments_dark_style = "a11y-high-contrast-light", "a11y-high-contrast-dark"

BESIDE = ("notebooks", "benchmarks")  # folders whose pages are also on the site
for folder in BESIDE:
    shutil.copytree(
        ROOT / folder, HERE / folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.py", "tables", "measured")
    )


def pictures(app: Any, page: str, source: list[str]) -> None:  # noqa: ARG001
    """Let the pictures follow the switch of the site, and not only the system, and find other pages, as GitHub does."""
    text = source[0].replace("](../docs/", "](../")
    for folder in BESIDE:
        text = text.replace(f"](../{folder}/", f"]({folder}/")
    source[0] = PICTURE.sub(r"![\g<alt>](\g<light>){.only-light}\n![\g<alt>](\g<dark>){.only-dark}", text)


def literal_blocks(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:  # noqa: ARG001
    """Mark indented code of a docstring as code, which Markdown takes it for and reStructuredText does not."""
    for at in reversed(range(2, len(lines))):
        indented = lines[at].startswith("    ") and not lines[at - 1].strip()
        before = next((line for line in reversed(lines[: at - 1]) if line.strip()), "")
        if indented and before and not before.startswith(("    ", "- ", "  ", ":", "..")):
            lines[at - 1 : at] = ["", "::", ""]


def legible_types(app: Any, what: str, name: str, obj: Any, options: Any, signature: Any, returns: Any) -> Any:  # noqa: ARG001
    """Write type aliases by their names, and of a class's options only names and defaults: what they mean is below."""
    if signature is None:
        return None
    if what != "class":
        for alias in ALIASES:
            signature = signature.replace(stringify_annotation(getattr(api, alias), "smart"), alias)
        return signature, returns
    parameters = [one.replace(annotation=one.empty) for one in inspect.signature(obj).parameters.values()]
    return re.sub(r" at 0x\w+", "", str(inspect.Signature(parameters))), None


def captions(app: Any, page: str, template: str, context: dict[str, Any], tree: Any) -> None:  # noqa: ARG001
    """Give the headings of the sidebar a level, which screen readers ask for."""
    navigation = context.get("furo_navigation_tree", "")
    context["furo_navigation_tree"] = navigation.replace('role="heading"', 'role="heading" aria-level="2"')


def setup(app: Any) -> None:
    app.connect("source-read", pictures)
    app.connect("html-page-context", captions, priority=900)  # after furo's own
    app.connect("autodoc-process-docstring", literal_blocks)
    app.connect("autodoc-process-signature", legible_types)
