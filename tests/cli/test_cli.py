"""The command line: help, exit codes, one-line errors, and verbs beside their functions."""

import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import MISSING, fields
from inspect import signature
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from tiny_model import tiny_model

import elmokit.checkpoints
import elmokit.lm
import elmokit.tasks.fitting.model
from elmokit import cli


def _exit_code(arguments: Sequence[str]) -> int:
    """The exit code of a command, whether it returns or raises SystemExit."""
    try:
        return cli.main(arguments)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 1


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("xyz", "xyz"),
        ("embed raw.txt --outpt a", "--outpt"),
        ("substitutes text --positions b", "--positions"),
        ("probe train.conllu", "DEV"),
        ("fit dancing a b --output c", "dancing"),
        ("fit --output c tagging a b", "fit tagging"),
    ],
)
def test_typing_error_exits_2_and_names_what_is_wrong(
    command: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _exit_code(command.split()) == 2
    printed = capsys.readouterr()
    assert words in printed.err
    assert not printed.out


def test_fit_has_the_options_of_the_named_task(tmp_path: Path) -> None:
    with patch("elmokit.tasks.fitting.fit", return_value=(None, None)) as called:
        arguments = f"fit tagging a.conllu b.txt --output {tmp_path} --tag-column xpos --elmo none"
        assert cli.main(arguments.split()) == 0
    task, *files = called.call_args.args
    assert (task.config.tag_column, files) == ("xpos", [Path("a.conllu"), Path("b.txt"), None])
    assert called.call_args.kwargs["words"].elmo == "none"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("config.json lacks:\n  lstm\n  char_cnn"), "config.json lacks: lstm; char_cnn"),
        (
            FileNotFoundError(2, "No such file or directory", "a.txt"),
            "[Errno 2] No such file or directory: 'a.txt'",
        ),
        (ValueError(), "ValueError"),
    ],
)
def test_main_prints_one_line_and_exits_2_on_bad_input(
    error: Exception, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: cli.Info) -> None:
        raise error

    monkeypatch.setattr(cli.Info, "run", fail)
    monkeypatch.delenv("ELMOKIT_DEBUG", raising=False)
    assert cli.main(["info"]) == 2
    assert capsys.readouterr().err == f"elmokit: error: {line}\n"
    monkeypatch.setenv("ELMOKIT_DEBUG", "1")
    with pytest.raises(type(error)):
        cli.main(["info"])


@pytest.mark.parametrize(
    "message", ["", "stopped at step 12; run the same command again to resume from step 10"]
)
def test_interrupt_exits_130_and_says_where_a_run_resumes(
    message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(_: object) -> None:
        raise KeyboardInterrupt(message)

    monkeypatch.setattr(cli.Info, "run", interrupt)
    assert cli.main(["info"]) == 130
    assert capsys.readouterr().err == f"elmokit: interrupted{message and '; '}{message}\n"


def test_output_whose_reader_has_left_ends_a_command_quietly() -> None:
    program = (
        "import sys, time; time.sleep(1); from elmokit.cli import main; "
        "sys.exit(main(['--version']))"
    )
    shell = f'"{sys.executable}" -c "{program}" | true; exit ${{PIPESTATUS[0]}}'
    run = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (141, "")


@pytest.mark.parametrize(
    ("verb", "function"),
    [
        (cli.Prepare, elmokit.prepare),
        (cli.Evaluate, elmokit.evaluate),
        (cli.Score, elmokit.lm.score_file),
        (cli.Substitutes, elmokit.substitutes),
        (cli.NextWords, elmokit.next_words),
        (cli.Compare, elmokit.compare),
        (cli.Neighbors, elmokit.neighbors),
        (cli.Senses, elmokit.senses),
        (cli.Change, elmokit.change),
        (cli.Predict, elmokit.tasks.fitting.model.predict_file),
        (cli.Convert, elmokit.checkpoints.convert),
    ],
)
def test_a_verb_and_its_function_have_the_same_defaults(verb: Any, function: Any) -> None:
    parameters = signature(function).parameters
    same = [field for field in fields(verb) if field.name in parameters]
    defaults = {field.name: field.default or None for field in same if field.default is not MISSING}
    assert defaults
    assert defaults == {name: parameters[name].default or None for name in defaults}


# --- Answers as JSON: those of the Python functions -----------------------------------------------


@pytest.mark.parametrize("verb", cli.VERBS)
def test_every_verb_has_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _exit_code([verb, "--help"]) == 0
    assert verb in capsys.readouterr().out


# --- Answers as JSON ------------------------------------------------------------------------------

SENTENCES = ["the cat sees a dog", "a Dog runs", "the dogs run", "the dog runs"]


@pytest.mark.parametrize(
    ("command", "keys"),
    [
        (
            "compare dog,dogs 'a dog' 'dog runs' --other 'the dogs' 'the dog'",
            {"uses", "contrasts"},
        ),
        ("neighbors 'a dog' --in 'a dog barks' --corpus text.txt", {"query", "nearest"}),
        ("senses dog,dogs --corpus text.txt", {"uses", "summary"}),
        ("substitutes 'the dog runs'", {"position", "candidates"}),
    ],
)
def test_json_option_prints_what_programs_read(
    command: str,
    keys: set[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("\n".join(SENTENCES))
    elmokit.save(tiny_model(["dog", "the"]), "model")
    assert cli.main([*shlex.split(command), "--model", "model", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert keys <= (answer[0] if isinstance(answer, list) else answer).keys()
