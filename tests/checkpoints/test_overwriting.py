"""Only a model of the same format is replaced, with nothing else beside it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from elmokit.checkpoints.convert import convert, save_hdf5
from elmokit.checkpoints.loading import Pretrained, load, save
from elmokit.config import BiLMConfig
from elmokit.nn.bilm import BiLM

Writer = Callable[[Path], object]


def tiny() -> Pretrained:
    return Pretrained(BiLM(BiLMConfig.preset("tiny")))


WRITERS: dict[str, Writer] = {
    "save": lambda path: save(tiny(), path, overwrite=True),
    "save_pretrained": lambda path: tiny().save_pretrained(path),
    "save_hdf5": lambda path: save_hdf5(tiny(), path, overwrite=True),
}
CONVERTERS: dict[str, Writer] = {
    to: lambda path, to=to: convert("en-small", path, to=to, overwrite=True) for to in ("native", "hdf5")
}


def content(path: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.mark.parametrize("write", [*WRITERS.values(), *CONVERTERS.values()], ids=[*WRITERS, *CONVERTERS])
@pytest.mark.parametrize("settings", ["config.json", "options.json"])
def test_directory_with_the_settings_of_another_program_is_not_replaced(
    write: Writer, settings: str, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / settings).write_text('{"model_type": "bert"}')
    before = content(tmp_path)
    with pytest.raises(FileExistsError, match="so it is not overwritten"):
        write(tmp_path / "other")
    assert content(tmp_path) == before


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_file_is_not_replaced_by_a_directory(write: Writer, tmp_path: Path) -> None:
    (tmp_path / "thesis").write_text("all of it")
    with pytest.raises(FileExistsError, match="thesis is a file: name a directory"):
        write(tmp_path / "thesis")
    assert (tmp_path / "thesis").read_text() == "all of it"


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_model_is_replaced_but_not_with_other_files_beside_it(write: Writer, tmp_path: Path) -> None:
    for _ in range(2):
        write(tmp_path / "model")
    (tmp_path / "model" / ".git").mkdir()
    (tmp_path / "model" / ".git" / "HEAD").write_text("main")
    with pytest.raises(FileExistsError, match=r"holds more than a model \(\.git\)"):
        write(tmp_path / "model")
    assert (tmp_path / "model" / ".git" / "HEAD").is_file() and load(tmp_path / "model")
