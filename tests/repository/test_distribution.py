"""The wheels of the sdist work, also where nothing can be compiled."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import numpy as np
import pytest

import elmokit
from elmokit.embed.embedder import Embedder

pytestmark = pytest.mark.slow
pytest.importorskip("hatchling")

ROOT = Path(__file__).parents[2]
LIBRARY = "elmokit/ops/native/_native.so"
SENTENCE = "I like to eat apple"
PROGRAM = f"""
import sys
import numpy as np
import elmokit
from elmokit.ops.dispatch import available_backends
print(elmokit.__file__, *available_backends())
np.save(sys.argv[1], elmokit.Embedder(device="cpu").embed([{SENTENCE!r}])[0])
"""


def build(source: Path, target: str, output: Path, **environment: str) -> Path:
    """Build the "sdist" or the "wheel" of a source tree, without a network; the file."""
    command = [
        sys.executable,
        *f"-m hatchling build --target {target} --directory {output}".split(),
    ]
    run = subprocess.run(
        command, cwd=source, env=os.environ | environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout + run.stderr
    (output / "log.txt").write_text(run.stdout + run.stderr)
    (built,) = (file for file in output.iterdir() if file.name != "log.txt")
    return built


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked sdist."""
    folder = tmp_path_factory.mktemp("source")
    with tarfile.open(build(ROOT, "sdist", tmp_path_factory.mktemp("sdist"))) as archive:
        archive.extractall(folder, filter="data")
    (tree,) = folder.iterdir()
    return tree


def run_installed(wheel: Path, folder: Path) -> tuple[list[str], np.ndarray]:
    """Install a wheel into a new environment without a compiler; its backends, and the vectors of a
    sentence.
    """
    clean = folder / "environment"
    venv.create(clean, with_pip=False)
    python = clean / "bin" / "python"
    install = f"-m pip --python {python} install --quiet --no-index --no-deps {wheel}"
    subprocess.run([sys.executable, *install.split()], check=True)
    # The dependencies are those that are installed here; of this checkout nothing is found, even if
    # it is editable.
    (site,) = clean.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    environment = os.environ | {"CC": "false"}
    for name in ("ELMOKIT_BACKEND", "PYTHONPATH"):
        environment.pop(name, None)
    command = [str(python), "-c", PROGRAM, str(folder / "vectors.npy")]
    run = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    path, *backends = run.stdout.split()
    assert Path(path).is_relative_to(clean)
    script = [str(clean / "bin" / "elmokit"), "--version"]
    version = subprocess.run(
        script, cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    assert version.stdout == f"elmokit {elmokit.__version__}\n"
    return backends, np.load(folder / "vectors.npy")


def test_wheel_of_the_sdist_runs_its_kernels_without_a_compiler(
    source: Path, tmp_path: Path
) -> None:
    if not (compiler := shutil.which("cc")):
        pytest.skip("no C compiler")
    quick = (
        tmp_path / "cc"
    )  # which takes a fifth of the time; the kernels of the checkout are optimized
    quick.write_text(f'#!/bin/sh\nexec {compiler} "$@" -O0\n')
    quick.chmod(0o755)
    wheel = build(source, "wheel", tmp_path / "dist", CC=str(quick))
    *_, python, abi, platform = wheel.stem.split("-")
    assert (python, abi) == ("py3", "none")
    assert platform.startswith(("linux_", "macosx_"))
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        assert archive.read(f"elmokit-{elmokit.__version__}.dist-info/top_level.txt").split() == [
            b"elmokit"
        ]
    assert LIBRARY in names
    assert "elmokit/models/en-small/model.safetensors" in names
    backends, vectors = run_installed(wheel, tmp_path)
    assert "native" in backends
    np.testing.assert_allclose(vectors, Embedder(device="cpu").embed([SENTENCE])[0], atol=1e-4)


def test_wheel_without_kernels_is_pure_and_works(source: Path, tmp_path: Path) -> None:
    for name, environment in {"compiler": {"CC": "false"}, "pure": {"ELMOKIT_PURE": "1"}}.items():
        wheel = build(source, "wheel", tmp_path / name, **environment)
        assert wheel.stem.endswith("-py3-none-any")
        with zipfile.ZipFile(wheel) as archive:
            assert LIBRARY not in archive.namelist()
        assert ("WITHOUT COMPILED KERNELS" in (tmp_path / name / "log.txt").read_text()) == (
            "CC" in environment
        )
    backends, vectors = run_installed(wheel, tmp_path)
    assert "native" not in backends
    assert "portable" in backends
    np.testing.assert_allclose(vectors, Embedder(device="cpu").embed([SENTENCE])[0], atol=1e-4)
