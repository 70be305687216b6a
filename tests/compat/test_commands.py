"""The flags of the old commands: those of `elmokit compat` and of AllenNLP's own `main` are the same."""

import sys
from unittest.mock import patch

import pytest

from elmokit import cli
from elmokit.compat.allennlp import command

pytestmark = pytest.mark.any_backend


def run(name: str, arguments: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run `allennlp elmo` by its new name, or by its old one."""
    if name == "compat allennlp-elmo":
        assert cli.main([*name.split(), *arguments.split()]) == 0
        return
    monkeypatch.setattr(sys, "argv", ["allennlp", "elmo", *arguments.split()])
    command.main(prog="allennlp")


NAMES = pytest.mark.parametrize("name", ["compat allennlp-elmo", "allennlp elmo"])


@NAMES
def test_include_package_takes_one_name_at_a_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with patch("elmokit.compat.allennlp.allennlp_elmo", autospec=True) as called:
        run(name, "--include-package one --include-package two in.txt out.hdf5 --all", monkeypatch)
    arguments = called.call_args.kwargs
    assert arguments["include_package"] == ("one", "two")
    assert [str(arguments[name]) for name in ("input_file", "output_file")] == ["in.txt", "out.hdf5"]


@NAMES
@pytest.mark.parametrize("layers", ["", "--all --top"])
def test_layers_are_chosen_once(name: str, layers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit) as stop:
        run(name, f"in.txt out.hdf5 {layers}", monkeypatch)
    assert stop.value.code == 2
