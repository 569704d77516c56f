"""What `import heta_lens` offers, and what it costs."""

import subprocess
import sys

import pytest

import heta_lens


def test_nothing_but_the_public_names_is_exported() -> None:
    assert set(heta_lens.__all__) == {
        *("METHODS", "Attribution", "Heta", "SavedScores", "Method", "Prediction", "SpanAttribution", "__version__"),
        *("ChatPrompt", "ContextReliance", "chat", "lean_names_filter", "names_filter"),
        *(
            "activation",
            "app",
            "attribute",
            "attribute_batch",
            "attribute_dataset",
            "attribute_span",
            "compare",
            "context_reliance",
            "estimate",
            "estimate_memory",
            "fit_at2",
            "preset",
            "PRESETS",
            "fit_weights",
            "load_demo_model",
            "load_model",
            "load_scores",
        ),
        *("causal", "data", "evaluation", "metrics", "plots"),
    }


@pytest.mark.parametrize("name", heta_lens.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(heta_lens, name) is not None
    assert name in dir(heta_lens)


def test_importing_it_imports_nothing_heavy() -> None:
    code = "import heta_lens, sys; print(sorted({'torch', 'transformer_lens', 'scipy'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
