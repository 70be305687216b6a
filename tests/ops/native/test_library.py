"""The library of compiled kernels: built in whichever way the compiler can, and left alone where it
does not fit.
"""

import importlib.util
import platform
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from elmokit.ops.dispatch import available_backends, explain
from elmokit.ops.native import library

pytestmark = pytest.mark.any_backend

LOAD = library._library.__wrapped__


def load_build_script() -> ModuleType:
    script = Path(__file__).resolve().parents[3] / "hatch_build.py"
    spec = importlib.util.spec_from_file_location("hatch_build", script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def use(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the kernels from there until the test ends."""
    monkeypatch.setattr(library, "LIBRARY", path)
    loaded = LOAD()
    monkeypatch.setattr(library, "_library", lambda: loaded)


def test_a_library_that_does_not_fit_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "no_library.so").write_bytes(b"not one")
    extension = importlib.util.find_spec("_ctypes")  # a real library, of other functions
    for path in (tmp_path / "absent.so", tmp_path / "no_library.so", Path(str(extension.origin))):
        use(path, monkeypatch)
        assert library._library() is None
        assert library.targets.__wrapped__() == ()
        monkeypatch.setattr(library, "targets", tuple)
        reason = (
            "cannot be loaded here, or was built from other"
            if path.exists()
            else "there was no C compiler"
        )
        assert reason in str(library.unavailable_reason())
        monkeypatch.undo()


@pytest.mark.slow
def test_a_compiler_that_knows_no_targets_builds_the_baseline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without optimisation, which would take most of the time and is the business of other
    tests.
    """
    if not (compiler := shutil.which("cc")):
        pytest.skip("no C compiler")
    if platform.machine() != "x86_64":
        pytest.skip("the flags are those of x86-64")
    pytest.importorskip("hatchling")
    build = load_build_script()
    wrapper = tmp_path / "cc"
    fails = 'case "$*" in *" -m"*) exit 1;; esac\n'
    wrapper.write_text(f'#!/bin/sh\n{fails}exec {compiler} "$@" -O0\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("CC", str(wrapper))
    build.build_library(library.SOURCES, tmp_path / "_native.so")
    use(tmp_path / "_native.so", monkeypatch)
    found = [
        target
        for target in library.TARGETS
        if hasattr(library._library(), f"elmokit_highway_float_{target}")
    ]
    assert found == ["baseline"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["_native.so", "cc"]


def test_a_library_of_other_sources_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after an update without another installation: what is called might have changed."""
    if not shutil.which("cc"):
        pytest.skip("no C compiler")
    pytest.importorskip("hatchling")
    build = load_build_script()
    folder = tmp_path / "kernels"
    folder.mkdir()
    for name in ("characters", "unpack", "kernels"):
        (folder / f"{name}.c").touch()
    (folder / "library.c").write_text("const char elmokit_sources[] = ELMOKIT_SOURCES;\n")
    build.build_library(folder, tmp_path / "_native.so")
    with pytest.warns(UserWarning, match="from other sources"):
        use(tmp_path / "_native.so", monkeypatch)
    assert library._library() is None


@pytest.mark.native
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("wrong", ["panels", "out"])
def test_wrong_products_of_each_number_type_are_noticed(
    wrong: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = library.NativeFunction.__call__

    def with_an_error(function: library.NativeFunction, **arguments: Any) -> Any:
        result = run(function, **arguments)
        written = "out" if "out" in arguments else "panels"
        if written == wrong and arguments.get("panels", torch.empty(0)).dtype == dtype:
            arguments[wrong].flatten()[0] += 1
        return result

    monkeypatch.setattr(library.NativeFunction, "__call__", with_an_error)
    assert not any(map(library.multiplies_correctly, library.targets()))


@pytest.mark.native
def test_a_library_that_multiplies_wrongly_on_every_target_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(library, "multiplies_correctly", lambda _: False)
    with pytest.warns(UserWarning, match="computes wrong products with .*baseline"):
        found = library.targets.__wrapped__()
    monkeypatch.setattr(library, "targets", lambda: found)
    monkeypatch.setattr(library, "target", library.target.__wrapped__)
    assert available_backends() == ("reference", "portable")
    reasons = explain("prepacked linear", "cpu", torch.float32, 4)
    assert reasons == {"native": "its products are wrong", "portable": None}
    assert library.describe_target() == "none: its products are wrong"
