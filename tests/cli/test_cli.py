"""The command line: help, exit codes, one-line errors, and verbs beside their functions."""

import json
import shlex
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields
from inspect import signature
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

import elmokit.checkpoints
import elmokit.lm
import elmokit.tasks.fitting.model
from elmokit import cli
from elmokit.cli import verbs
from elmokit.nn.softmax import FullSoftmax


def _exit_code(arguments: Sequence[str]) -> int:
    """The exit code of a command, whether it returns or raises SystemExit."""
    try:
        return cli.main(arguments)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 1


@pytest.mark.parametrize("verb", verbs.VERBS)
def test_help_of_a_verb_says_what_it_does_and_explains_every_default(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _exit_code([verb, "--help"]) == 0
    printed = capsys.readouterr().out
    assert "None" not in printed and "(default: )" not in printed
    assert _exit_code(["--help"]) == 0
    assert f" {verb} " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("xyz", "xyz"),
        ("embed raw.txt --outpt a", "--outpt"),
        ("embed raw.txt --output a --layers tpo", "tpo"),
        ("substitutes text --positions b", "--positions"),
        ("probe train.conllu", "DEV"),
        ("fit pairs a b --output c --taget score", "--taget"),
        ("fit dancing a b --output c", "dancing"),
        ("fit --output c tagging a b", "fit tagging"),
    ],
)
def test_typing_error_exits_2_and_names_what_is_wrong(
    command: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _exit_code(command.split()) == 2
    printed = capsys.readouterr()
    assert words in printed.err and not printed.out


def test_word_help_does_what_the_option_does(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("embed --help", "help embed", "--help", ""):
        assert _exit_code(command.split()) == 0
    of_option, of_word, *of_all = capsys.readouterr().out.split("usage: ")[1:]
    assert of_option == of_word != of_all[0] == of_all[1]


def test_info_prints_one_value_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    result = {
        "words": 2,
        "score": 1 / 3,
        "sizes": {"a.txt": 5},
        "epochs": [{"loss": 0.5}, {"loss": 0.25}],
        "filters": ((1, 8), (2, 8)),
        "mix": None,
        "card": ["# A model", "", "of something"],
    }
    with patch("elmokit.checkpoints.describe", lambda _: dict(result)):
        assert cli.main(["info"]) == 0
        brief = capsys.readouterr().out
        assert cli.main(["info", "--full"]) == 0
    printed = capsys.readouterr().out
    assert "words: 2" in brief and "mix" not in brief and "A model" not in brief
    assert printed.startswith(
        "words: 2\nscore: 0.333333\nsizes:\n  a.txt: 5\nepochs:\n  loss 0.5\n  loss 0.25\n"
        "filters: (1, 8), (2, 8)\nmix: none\nbackend: "
    )
    assert printed.endswith("\n\n# A model\n\nof something\n")


def test_fit_has_the_options_of_the_named_task(tmp_path: Path) -> None:
    with patch("elmokit.tasks.fitting.fit.fit", return_value=(None, None)) as called:
        arguments = f"fit tagging a.conllu b.txt --output {tmp_path} --tag-column xpos --elmo none"
        assert cli.main(arguments.split()) == 0
    task, *files = called.call_args.args
    assert (task.config.tag_column, files) == ("xpos", [Path("a.conllu"), Path("b.txt"), None])
    assert called.call_args.kwargs["words"].elmo == "none"


def test_version_option_prints_the_package_version() -> None:
    import elmokit

    command = [sys.executable, "-m", "elmokit", "--version"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed == f"elmokit {elmokit.__version__}\n"


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
    def fail(_: verbs.Info) -> None:
        raise error

    monkeypatch.setattr(verbs.Info, "run", fail)
    monkeypatch.delenv("ELMOKIT_DEBUG", raising=False)
    assert cli.main(["info"]) == 2
    assert capsys.readouterr().err == f"elmokit: error: {line}\n"
    monkeypatch.setenv("ELMOKIT_DEBUG", "1")
    with pytest.raises(type(error)):
        cli.main(["info"])


def test_main_prints_warnings_on_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    recwarn: pytest.WarningsRecorder,
) -> None:
    def warn(_: verbs.Info) -> None:
        warnings.warn("some words:\n  are too long", UserWarning, stacklevel=2)

    warnings.simplefilter("always")
    monkeypatch.setattr(verbs.Info, "run", warn)
    monkeypatch.delenv("ELMOKIT_DEBUG", raising=False)
    assert cli.main(["info"]) == 0
    assert capsys.readouterr().err == "elmokit: warning: some words: are too long\n"
    assert not recwarn
    warnings.warn("outside the command", stacklevel=1)  # no longer intercepted
    monkeypatch.setenv("ELMOKIT_DEBUG", "1")
    assert cli.main(["info"]) == 0
    assert [str(each.message)[:10] for each in recwarn] == ["outside th", "some words"]


@pytest.mark.parametrize(
    "message", ["", "stopped at step 12; run the same command again to resume from step 10"]
)
def test_interrupt_exits_130_and_says_where_a_run_resumes(
    message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(_: object) -> None:
        raise KeyboardInterrupt(message)

    monkeypatch.setattr(verbs.Info, "run", interrupt)
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
        (verbs.Prepare, elmokit.prepare),
        (verbs.Evaluate, elmokit.evaluate),
        (verbs.Score, elmokit.lm.score_file),
        (verbs.Substitutes, elmokit.substitutes),
        (verbs.NextWords, elmokit.next_words),
        (verbs.Compare, elmokit.compare),
        (verbs.Neighbors, elmokit.neighbors),
        (verbs.Senses, elmokit.senses),
        (verbs.Change, elmokit.change),
        (verbs.Predict, elmokit.tasks.fitting.model.predict_file),
        (verbs.Convert, elmokit.checkpoints.convert),
    ],
)
def test_a_verb_and_its_function_have_the_same_defaults(verb: Any, function: Any) -> None:
    parameters = signature(function).parameters
    same = [field for field in fields(verb) if field.name in parameters]
    defaults = {field.name: field.default or None for field in same if field.default is not MISSING}
    assert defaults
    assert defaults == {name: parameters[name].default or None for name in defaults}


# --- Answers as JSON: those of the Python functions -----------------------------------------------

SENTENCES = [
    "the cat sees a dog",
    "a Dog runs",
    "the dogs run",
    "a dog sees the cat",
    "the dog runs",
]


def _use(use: Any) -> dict[str, Any]:
    return {"words": list(use.sentence), "position": use.position, "length": use.length}


def _candidates(found: Any) -> dict[str, Any]:
    each = [
        {"word": candidate.word, "log_probability": candidate.log_probability}
        for candidate in found
    ]
    return {"position": found.position, "word": found.word, "candidates": each}


def _compare(model: str) -> dict[str, Any]:
    found = elmokit.compare("dog,dogs", SENTENCES[:2], model, other=SENTENCES[2:4])
    contrasts = {name: each._asdict() for name, each in found.contrasts.items()}
    similarities = {name: matrix.tolist() for name, matrix in found.similarities.items()}
    return {
        "uses": list(map(_use, found.uses)),
        "similarities": similarities,
        "contrasts": contrasts,
    }


def _neighbors(model: str) -> dict[str, Any]:
    found = elmokit.neighbors("a dog", "a dog barks", "text.txt", model)
    nearest = [{"similarity": similarity, "use": _use(use)} for similarity, use in found.nearest]
    return {
        "query": _use(found.query),
        "nearest": nearest,
        "sentences_searched": found.sentences_searched,
    }


def _senses(model: str) -> dict[str, Any]:
    found = elmokit.senses(["dog", "dogs"], "text.txt", model)
    uses = [
        _use(use) | {"cluster": label}
        for use, label in zip(found.uses, found.labels.tolist(), strict=True)
    ]
    return {"word": "dog", "uses": uses, "summary": found.summary, "silhouette": found.silhouette}


JSON: dict[str, Callable[[str], Any]] = {
    f"compare dog,dogs '{SENTENCES[0]}' '{SENTENCES[1]}' --other '{SENTENCES[2]}' "
    f"'{SENTENCES[3]}'": _compare,
    "neighbors 'a dog' --in 'a dog barks' --corpus text.txt": _neighbors,
    "senses dog --lemma lemmas.tsv --corpus text.txt": _senses,
    "substitutes 'the dog runs'": lambda model: list(
        map(_candidates, elmokit.substitutes("the dog runs", model))
    ),
}


@pytest.mark.parametrize("command", JSON)
def test_json_option_prints_what_the_function_returns(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("\n".join(SENTENCES))
    Path("lemmas.tsv").write_text("dogs\tdog\nran\trun\n")
    torch.manual_seed(5)
    vocab = elmokit.Vocab(
        ["<S>", "</S>", "<UNK>", *sorted({word for line in SENTENCES for word in line.split()})]
    )
    bilm = elmokit.BiLM(elmokit.BiLMConfig.preset("tiny"))
    elmokit.save(
        elmokit.Pretrained(bilm, softmax=FullSoftmax(len(vocab), 16), vocab=vocab), "model"
    )
    assert cli.main([*shlex.split(command), "--model", "model", "--json"]) == 0
    answer, expected = json.loads(capsys.readouterr().out), JSON[command]("model")
    assert answer == (expected if isinstance(expected, list) else answer | expected)
