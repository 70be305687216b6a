"""The library of compiled kernels: built in whichever way the compiler can, and left alone where it does not fit."""

import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from elmokit.nn.kernels import library

LOAD = library._library.__wrapped__
ONE_OF_EACH_FILE = ["elmokit_avx512", "elmokit_cell_forward_float", "elmokit_characters_forward", "elmokit_text_order"]


def load_build_script() -> ModuleType:
    script = Path(__file__).resolve().parents[1] / "hatch_build.py"
    spec = importlib.util.spec_from_file_location("hatch_build", script)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def use(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the kernels from there until the test ends."""
    monkeypatch.setattr(library, "LIBRARY", path)
    loaded = LOAD()
    monkeypatch.setattr(library, "_library", lambda: loaded)


def test_a_library_that_does_not_fit_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "no_library.so").write_bytes(b"not one")
    extension = importlib.util.find_spec("_ctypes")  # a real library, of other functions
    assert extension is not None
    for path in (tmp_path / "absent.so", tmp_path / "no_library.so", Path(str(extension.origin))):
        use(path, monkeypatch)
        assert [library.compiled.__wrapped__(name) for name in ONE_OF_EACH_FILE] == [None] * len(ONE_OF_EACH_FILE)


@pytest.mark.parametrize("needed", ["", "-DFOR_EACH_PROCESSOR=", "-DNO_AVX512"])
def test_kernels_are_built_by_compilers_that_cannot_do_everything(
    needed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiler that cannot build a function for several processors, or for AVX-512, is asked for less."""
    if not (compiler := shutil.which("cc")):
        pytest.skip("no C compiler")
    pytest.importorskip("hatchling")
    build = load_build_script()
    wrapper = tmp_path / "cc"
    wrapper.write_text(f'#!/bin/sh\ncase "$* " in *"{needed}"*) exec {compiler} "$@";; esac\nexit 1\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("CC", str(wrapper))
    build.build_library(library.LIBRARY.parent, tmp_path / "_kernels.so")
    use(tmp_path / "_kernels.so", monkeypatch)
    assert library.is_compiled()
    assert all(library.compiled.__wrapped__(name) for name in ONE_OF_EACH_FILE)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["_kernels.so", "cc"]


def test_no_library_is_left_where_nothing_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("hatchling")
    build = load_build_script()
    monkeypatch.setenv("CC", "false")
    with pytest.raises(build.subprocess.CalledProcessError):
        build.build_library(library.LIBRARY.parent, tmp_path / "_kernels.so")
    assert not list(tmp_path.iterdir())


def test_a_library_of_other_sources_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after an update without another installation: what is called might have changed."""
    if not shutil.which("cc"):
        pytest.skip("no C compiler")
    pytest.importorskip("hatchling")
    build, folder = load_build_script(), tmp_path / "kernels"
    shutil.copytree(library.LIBRARY.parent, folder, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    (folder / "cell.c").write_text((folder / "cell.c").read_text() + "\n")
    build.build_library(folder, tmp_path / "_kernels.so")
    with pytest.warns(UserWarning, match="of other sources"):
        use(tmp_path / "_kernels.so", monkeypatch)
    assert not library.is_compiled()
