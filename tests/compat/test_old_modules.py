"""The old libraries' modules by their own names; in processes of their own, as `install` changes what is imported."""

import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from elmokit.compat.old_modules import MODULES, TENSORFLOW_HUB

pytestmark = pytest.mark.any_backend


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=folder, timeout=120)


def output_of(program: str, folder: Path) -> str:
    """What a program prints that begins with `install()`."""
    done = run("-c", f"from elmokit.compat import install; install()\n{program}", folder=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("counterpart", sorted({*MODULES.values(), *TENSORFLOW_HUB.values()}))
def test_counterparts_exist_and_describe_themselves(counterpart: str) -> None:
    assert importlib.import_module(f"elmokit.compat.{counterpart}").__doc__


def test_install_imports_nothing_until_a_module_is_asked_for(tmp_path: Path) -> None:
    assert output_of("import sys; print('torch' in sys.modules)", tmp_path) == "False\n"


def test_old_imports_find_the_new_classes(tmp_path: Path) -> None:
    program = """
import allennlp.commands.elmo
from allennlp.commands import main
from allennlp.common import Params
from allennlp.common.checks import ConfigurationError
from allennlp.data.token_indexers import ELMoTokenCharactersIndexer
from allennlp.data.token_indexers.elmo_indexer import ELMoCharacterMapper
from allennlp.modules import Elmo, ScalarMix
from allennlp.modules.elmo import Elmo as Same, _ElmoBiLm, batch_to_ids
from allennlp.modules.scalar_mix import ScalarMix as SameMix
from allennlp.modules.token_embedders import ElmoTokenEmbedder
from allennlp.nn.util import remove_sentence_boundaries
import bilm
from bilm import Batcher, TokenBatcher, weight_layers, dump_token_embeddings
from bilm.data import BidirectionalLMDataset
from bilm.elmo import weight_layers
from bilm.model import BidirectionalLanguageModel
from bilm.training import dump_weights, load_options_latest_checkpoint, load_vocab, test, train
from elmoformanylangs import Embedder
from elmoformanylangs.elmo import Embedder as SameEmbedder
from simple_elmo import ElmoModel
from simple_elmo.elmo_helpers import ElmoModel as SameModel
import elmokit.compat.allennlp, elmokit.compat.simple_elmo
assert Elmo is Same is elmokit.compat.allennlp.Elmo and ScalarMix is SameMix and Embedder is SameEmbedder
assert ElmoModel is SameModel is elmokit.compat.simple_elmo.ElmoModel
assert allennlp.commands.elmo.ElmoEmbedder is elmokit.compat.allennlp.ElmoEmbedder
print(allennlp.commands.elmo.DEFAULT_BATCH_SIZE, bilm.Batcher is Batcher)
"""
    assert output_of(program, tmp_path) == "64 True\n"


@pytest.mark.skipif(importlib.util.find_spec("tensorflow_hub") is not None, reason="tensorflow_hub is installed")
def test_tensorflow_hub_is_found_on_request_only(tmp_path: Path) -> None:
    import_it = (
        "try:\n    import tensorflow_hub as hub\n    print(hub.KerasLayer.__module__)\nexcept ImportError: print('no')"
    )
    program = f"{import_it}\ninstall(tensorflow_hub=True)\n{import_it}"
    assert output_of(program, tmp_path) == "no\nelmokit.compat.tf_hub\n"


def test_an_installed_library_is_found_before(tmp_path: Path) -> None:
    (tmp_path / "bilm").mkdir()
    (tmp_path / "bilm" / "__init__.py").write_text("Batcher = 'the real one'")
    assert output_of("from bilm import Batcher; print(Batcher)", tmp_path) == "the real one\n"


def test_names_that_do_not_exist_say_where_to_look(tmp_path: Path) -> None:
    messages = {
        "import allennlp.models": "elmokit has no allennlp.models: docs/migrating.md lists what it has",
        "from allennlp.data.fields import TextField": "elmokit has no allennlp.data.fields: docs/migrating.md",
        "from allennlp.data import Vocabulary": "cannot import name 'Vocabulary' from 'allennlp.data' (/",
        "from allennlp.modules.elmo import Tagger": "cannot import name 'Tagger' from 'allennlp.modules.elmo' (/",
        "import bilm; bilm.Trainer": "elmokit has no bilm.Trainer: docs/migrating.md",
    }
    tries = [f"try: exec({name!r})\nexcept (ImportError, AttributeError) as error: print(error)" for name in messages]
    lines = output_of("\n".join(tries), tmp_path).splitlines()
    for line, message in zip(lines, messages.values(), strict=True):
        assert line.startswith(message)


def test_install_twice_is_install_once(tmp_path: Path) -> None:
    program = "import sys; install(); print(sum('_OldModules' in type(each).__name__ for each in sys.meta_path))"
    assert output_of(program, tmp_path) == "1\n"


@pytest.mark.slow
def test_a_script_and_a_module_run_as_they_are(old_model: Path, tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("WORDS = ['the', 'cat']")
    (tmp_path / "script.py").write_text(
        "import sys\n"
        "from helper import WORDS\n"
        "from allennlp.commands.elmo import ElmoEmbedder\n"
        "if __name__ == '__main__':\n"
        "    print(sys.argv[0], ElmoEmbedder(sys.argv[1], sys.argv[2]).embed_sentence(WORDS).shape)\n"
    )
    files = str(old_model / "options.json"), str(old_model / "model.hdf5")
    script = str(tmp_path / "script.py")
    for arguments, folder in (([script], old_model), (["-m", "script"], tmp_path)):
        done = run("-m", "elmokit.compat", *arguments, *files, folder=folder)
        assert done.stdout == f"{script} (3, 2, 32)\n", done.stderr


def test_a_linked_script_imports_what_is_next_to_its_file(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "bin").mkdir()
    (tmp_path / "lib" / "sibling.py").write_text("print('sibling')")
    (tmp_path / "lib" / "run.py").write_text("import sibling")
    (tmp_path / "bin" / "run.py").symlink_to("../lib/run.py")
    assert run("-m", "elmokit.compat", "bin/run.py", folder=tmp_path).stdout == "sibling\n"


def test_a_script_gets_all_arguments_after_its_name(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import sys; print(sys.argv)")
    for arguments in (["--", "-m", "x"], ["-m", "x", "--"], ["-h"], ["--tensorflow-hub", "b.py"], []):
        expected = run("a.py", *arguments, folder=tmp_path).stdout
        assert run("-m", "elmokit.compat", "a.py", *arguments, folder=tmp_path).stdout == expected
        done = run("-m", "elmokit.compat", "--tensorflow-hub", "-m", "a", *arguments, folder=tmp_path)
        assert done.stdout == expected.replace("'a.py'", repr(str(tmp_path / "a.py")), 1)


def test_a_missing_script_is_a_usage_error(tmp_path: Path) -> None:
    for arguments in ([], ["-m"]):
        done = run("-m", "elmokit.compat", *arguments, folder=tmp_path)
        assert done.returncode == 2 and done.stderr.endswith("the following arguments are required: SCRIPT\n")


def test_a_script_that_is_not_there_is_an_error_of_one_line(tmp_path: Path) -> None:
    done = run("-m", "elmokit.compat", "none.py", folder=tmp_path)
    assert done.returncode == 2 and done.stderr.splitlines()[-1].endswith("there is no script none.py")


@pytest.mark.slow
def test_commands_run_by_their_old_names(old_model: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("the\tcat\n")
    files = f"--options-file {old_model / 'options.json'} --weight-file {old_model / 'model.hdf5'}"
    commands = {
        f"allennlp.run elmo in.txt 0.hdf5 --all {files}": "0.hdf5",
        f"allennlp elmo in.txt 1.hdf5 --all {files}": "1.hdf5",
        f"elmoformanylangs test --input in.txt --model {old_model} --output_prefix 2 --output_layer 0": "2.ly0.hdf5",
    }
    for command, output in commands.items():
        done = run("-m", "elmokit.compat", "-m", *command.split(), folder=tmp_path)
        assert done.returncode == 0 and (tmp_path / output).is_file(), done.stderr


@pytest.mark.parametrize("module", ["allennlp.commands.elmo", "elmoformanylangs.biLM", "bilm"])
def test_a_module_without_a_command_is_an_error_of_one_line(module: str, tmp_path: Path) -> None:
    done = run("-m", "elmokit.compat", "-m", module, "test", folder=tmp_path)
    message = f"elmokit has no command {module}: `elmokit compat --help` lists those that it has"
    assert done.returncode == 2 and done.stderr.splitlines()[-1].endswith(message)
