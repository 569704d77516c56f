"""One report of made-up records, for all tests of reports."""

from pathlib import Path

import pytest

from helpers.report_folder import folder_of, records
from heta_lens.evaluation.report.folder_report import write_report
from heta_lens.evaluation.report.results import Summary, summary


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = folder_of(tmp_path_factory.mktemp("made"), records())
    paths = write_report(folder)
    assert all(path.is_file() for path in paths)
    return folder


@pytest.fixture(scope="session")
def found(written: Path) -> Summary:
    return summary(written)
