"""The library of compiled kernels: built in whichever way the compiler can, and left alone where it does not fit."""

import importlib.util
import re
import shutil
from pathlib import Path
from types import ModuleType

import pytest
import torch

from elmokit.ops.native import library

LOAD = library._library.__wrapped__


def load_build_script() -> ModuleType:
    script = Path(__file__).resolve().parents[3] / "hatch_build.py"
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
        assert not library.is_built() and library.avx512_level() == 0 and not library.multiplies_int8()


@pytest.mark.parametrize("needed", ["", "-DFOR_EACH_TARGET=", "-DNO_AVX512"])
def test_kernels_are_built_by_compilers_that_cannot_do_everything(
    needed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiler that cannot build a function for several processors, or for AVX-512, is asked for less.

    Without optimisation, which would take most of the time and is the business of other tests.
    """
    if not (compiler := shutil.which("cc")):
        pytest.skip("no C compiler")
    pytest.importorskip("hatchling")
    build = load_build_script()
    wrapper = tmp_path / "cc"
    wrapper.write_text(f'#!/bin/sh\ncase "$* " in *"{needed}"*) exec {compiler} "$@" -O0;; esac\nexit 1\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("CC", str(wrapper))
    build.build_library(library.SOURCES, tmp_path / "_native.so")
    use(tmp_path / "_native.so", monkeypatch)
    assert library.is_built()
    found, types = library._library(), ["float", "bfloat16", "int8"]
    declared = library._declarations()
    names = [name + kind for name in declared for kind in (types if name.endswith("_") else [""])]
    names = [name.replace("unpack_bfloat16", "unpack_float16") for name in names]
    trained = [name for name in names if not re.search("(backward|logsumexp|unpack)_.*int8", name)]
    packed = ["avx512", "prepack", "product_", "quantize", "lstm_", "logsumexp_"]
    there = [name for name in trained if needed != "-DNO_AVX512" or not name.startswith(tuple(packed))]
    assert len(there) > 3 and all(hasattr(found, f"elmokit_{name}") for name in there)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["_native.so", "cc"]


def test_no_library_is_left_where_nothing_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("hatchling")
    build = load_build_script()
    monkeypatch.setenv("CC", "false")
    with pytest.raises(build.subprocess.CalledProcessError):
        build.build_library(library.SOURCES, tmp_path / "_native.so")
    assert not list(tmp_path.iterdir())


def test_a_library_of_other_sources_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after an update without another installation: what is called might have changed."""
    if not shutil.which("cc"):
        pytest.skip("no C compiler")
    pytest.importorskip("hatchling")
    build, folder = load_build_script(), tmp_path / "kernels"
    folder.mkdir()
    (folder / "other.c").write_text("const char elmokit_sources[] = ELMOKIT_SOURCES;\n")
    build.build_library(folder, tmp_path / "_native.so")
    with pytest.warns(UserWarning, match="of other sources"):
        use(tmp_path / "_native.so", monkeypatch)
    assert not library.is_built()


def test_the_header_declares_what_python_calls() -> None:
    declared = library._declarations()
    result, parameters = declared["unpack_"]
    assert result == "int" and parameters[0] == library.Parameter("layers", "ptrdiff_t", False)
    assert parameters[4] == library.Parameter("streams", "float", True)
    assert [each.name for each in declared["lstm_forward_"][1]][:3] == ["steps", "batch_sizes", "resets"]
    assert declared["avx512"] == ("int", [])


@pytest.mark.skipif(library.avx512_level() < 1, reason="this function is compiled for AVX-512")
def test_a_function_refuses_what_it_would_misread() -> None:
    call = library.native("quantize")
    sizes, tensors = {"rows": 2, "depth": 4}, {"values": torch.zeros(2, 4)}
    tensors["quantized"] = torch.zeros(2, 8, dtype=torch.uint8)
    call(**sizes, **tensors)
    for wrong in (torch.zeros(2, 4).double(), torch.zeros(4, 2).T, torch.zeros(2, 4).bfloat16()):
        with pytest.raises(AssertionError):
            call(**sizes, **{**tensors, "values": wrong})
    with pytest.raises(AssertionError):
        call(**tensors)
