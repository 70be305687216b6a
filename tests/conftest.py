"""What several test files need: the folder of golden files and corpora that lies beside the repository."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

# Tests are small: threads that wait for each other cost more than they bring. Set before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

MISSING = "shared folder missing"


def _shared_folder() -> Path:
    beside_repository = Path(__file__).resolve().parents[2] / "shared"
    return Path(os.environ.get("ELMOKIT_SHARED", beside_repository))


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with goldens/, corpus/ and eval/: $ELMOKIT_SHARED, or `shared` beside the repository."""
    folder = _shared_folder()
    if not (folder / "goldens").is_dir():
        pytest.skip(f"{MISSING}: no {folder}/goldens (set ELMOKIT_SHARED to the folder that holds goldens/)")
    return folder


@pytest.fixture
def without_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a processor without AVX-512."""
    from elmokit.nn.kernels import products

    monkeypatch.setattr(products, "_level", lambda: 0)


@pytest.fixture
def both_at_once(without_products: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, whose products are of both directions."""
    from elmokit.nn.kernels import packed
    from elmokit.nn.kernels.directions import BOTH

    monkeypatch.setattr(packed, "each_direction", lambda run, device: run(BOTH))


@pytest.fixture
def without_library(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As where nothing was compiled."""
    from elmokit.nn.kernels import library, products

    cached = library.compiled, products._level
    monkeypatch.setattr(library, "_library", lambda: None)
    for function in cached:
        function.cache_clear()
    yield
    for function in cached:
        function.cache_clear()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tests that could not run are counted aloud: a green run without the goldens proves less."""
    skipped = [report for report in terminalreporter.stats.get("skipped", []) if MISSING in str(report.longrepr)]
    if skipped:
        terminalreporter.write_line(
            f"NOT TESTED for want of {_shared_folder()} (set ELMOKIT_SHARED): {len(skipped)}", yellow=True, bold=True
        )
