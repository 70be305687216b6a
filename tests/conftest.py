"""Markers and fixtures of all tests: golden files, backends, threads.

`golden`, `native` and `gpu` say what a test needs, and skip it where that is missing; see `markers`
in pyproject.toml.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# An example may take long where the machine is busy.
settings.register_profile("elmokit", deadline=None)
settings.load_profile("elmokit")

# Tests are small: threads that wait for each other cost more than they bring. Set before torch is
# imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch  # noqa: E402

# Without a GPU, Triton's kernels are interpreted. Set before triton is imported, wherever that is.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

VENDORED_GOLDENS = Path(__file__).parent / "golden" / "data"
MISSING = "shared folder missing"


def _shared_folder() -> Path:
    beside_repository = Path(__file__).resolve().parents[2] / "shared"
    return Path(os.environ.get("ELMOKIT_SHARED", beside_repository))


# --- Markers --------------------------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as golden whatever reads golden files."""
    for item in items:
        if "goldens" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.golden)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what this machine cannot run."""
    if any(item.iter_markers("gpu")):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("no GPU that PyTorch can use")


@pytest.fixture(autouse=True)
def _native(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let a test that is marked native run on the compiled kernels, whatever ELMOKIT_BACKEND says,
    or skip it.
    """
    markers = list(request.node.iter_markers("native"))
    if not markers:
        yield
        return

    from elmokit.ops.dispatch import available_backends, explain, set_backend

    if "native" not in available_backends():
        pytest.skip("no compiled kernels: there was no C compiler at installation")
    set_backend("native")
    try:
        for dtype in (dtype for marker in markers for dtype in marker.args):
            if explain("prepacked linear", "cpu", dtype)["native"] is not None:
                pytest.skip(f"no compiled kernels of {dtype} on this processor")
        yield
    finally:
        set_backend(None)


def pytest_report_header() -> str:
    """Which kernels are tested."""
    import elmokit
    from elmokit.ops.dispatch import available_backends, get_backend

    there = ", ".join(available_backends())
    return (
        f"elmokit: {Path(elmokit.__file__).parent}; backends: {there}; allowed: up to "
        f"{get_backend()}"
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tests that could not run are counted aloud: a green run without all golden files proves
    less.
    """
    skipped = [
        report
        for report in terminalreporter.stats.get("skipped", [])
        if MISSING in str(report.longrepr)
    ]
    if skipped:
        terminalreporter.write_line(
            f"NOT TESTED for want of {_shared_folder()} (set ELMOKIT_SHARED): {len(skipped)}",
            yellow=True,
            bold=True,
        )


# --- Files ----------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with goldens/, corpus/ and eval/: $ELMOKIT_SHARED, or `shared` beside the
    repository.
    """
    folder = _shared_folder()
    if not folder.is_dir():
        pytest.skip(f"{MISSING}: no {folder} (set ELMOKIT_SHARED)")
    return folder


@pytest.fixture(scope="session")
def goldens() -> Callable[[str], Path]:
    """Called with a name, the golden file or folder of that name: vendored, or else in the shared
    folder.
    """

    def find(name: str) -> Path:
        for folder in (VENDORED_GOLDENS, _shared_folder() / "goldens"):
            if (folder / name).exists():
                return folder / name
        pytest.skip(f"{MISSING}: no goldens/{name} in {_shared_folder()} (set ELMOKIT_SHARED)")

    return find


# --- Backends and threads -------------------------------------------------------------------------


@pytest.fixture
def backend() -> Iterator[Callable[[str], None]]:
    """Called with its name, lets nothing above a backend run until the test ends, whatever
    ELMOKIT_BACKEND says.
    """
    from elmokit.ops.dispatch import set_backend

    yield set_backend
    set_backend(None)


@pytest.fixture
def without_native(backend: Callable[[str], None]) -> None:
    """As where nothing was compiled."""
    backend("portable")


@pytest.fixture
def on_reference(backend: Callable[[str], None]) -> None:
    """On the specification."""
    backend("reference")


@pytest.fixture
def num_threads() -> Iterator[Callable[[int], None]]:
    """Called, sets how many threads are used until the test ends."""
    import torch

    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)
