"""The old libraries' modules by their own names; in processes of their own, as `install` changes
what is imported.
"""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.any_backend


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, cwd=folder, timeout=120
    )


def output_of(program: str, folder: Path) -> str:
    """What a program prints that begins with `install()`."""
    done = run("-c", f"from elmokit.compat import install; install()\n{program}", folder=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_old_imports_find_the_new_classes(tmp_path: Path) -> None:
    program = """
import allennlp.commands.elmo
from allennlp.commands import main
from allennlp.common import Params
from allennlp.common.checks import ConfigurationError
from allennlp.common.file_utils import cached_path
from allennlp.common.util import lazy_groups_of
from allennlp.data.token_indexers import ELMoTokenCharactersIndexer
from allennlp.data.token_indexers.elmo_indexer import ELMoCharacterMapper
from allennlp.modules import Elmo, ScalarMix
from allennlp.modules.elmo import Elmo as Same, _ElmoBiLm, batch_to_ids
from allennlp.modules.elmo_lstm import ElmoLstm
from allennlp.modules.scalar_mix import ScalarMix as SameMix
from allennlp.modules.token_embedders import ElmoTokenEmbedder
from allennlp.nn.util import remove_sentence_boundaries
import bilm
from bilm import Batcher, TokenBatcher, weight_layers, dump_token_embeddings, dump_bilm_embeddings
from bilm.data import BidirectionalLMDataset
from bilm.elmo import weight_layers
from bilm.model import BidirectionalLanguageModel
from bilm.training import dump_weights, load_options_latest_checkpoint, load_vocab, test, train
from elmoformanylangs import Embedder
from elmoformanylangs.elmo import Embedder as SameEmbedder
from simple_elmo import ElmoModel
from simple_elmo.elmo_helpers import ElmoModel as SameModel
import elmokit.compat.allennlp, elmokit.compat.simple_elmo
assert Elmo is Same is elmokit.compat.allennlp.Elmo
assert ScalarMix is SameMix and Embedder is SameEmbedder
assert ElmoModel is SameModel is elmokit.compat.simple_elmo.ElmoModel
assert allennlp.commands.elmo.ElmoEmbedder is elmokit.compat.allennlp.ElmoEmbedder
print(allennlp.commands.elmo.DEFAULT_BATCH_SIZE, bilm.Batcher is Batcher)
"""
    without_torch = "import sys; assert 'torch' not in sys.modules"
    assert output_of(without_torch + program, tmp_path) == "64 True\n"


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("tensorflow_hub") is not None, reason="tensorflow_hub is installed"
)
def test_tensorflow_hub_is_found_on_request_only(tmp_path: Path) -> None:
    import_it = (
        "try:\n    import tensorflow_hub as hub\n    print(hub.KerasLayer.__module__)\nexcept "
        "ImportError: print('no')"
    )
    program = f"{import_it}\ninstall(tensorflow_hub=True)\n{import_it}"
    assert output_of(program, tmp_path) == "no\nelmokit.compat.tf_hub\n"


@pytest.mark.slow
def test_a_script_and_a_module_run_as_they_are(old_model: Path, tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("WORDS = ['the', 'cat']")
    (tmp_path / "script.py").write_text(
        "import sys\n"
        "from helper import WORDS\n"
        "from allennlp.commands.elmo import ElmoEmbedder\n"
        "if __name__ == '__main__':\n"
        "    print(sys.argv[0], ElmoEmbedder(sys.argv[1], "
        "sys.argv[2]).embed_sentence(WORDS).shape)\n"
    )
    files = str(old_model / "options.json"), str(old_model / "model.hdf5")
    script = str(tmp_path / "script.py")
    for arguments, folder in (([script], old_model), (["-m", "script"], tmp_path)):
        done = run("-m", "elmokit.compat", *arguments, *files, folder=folder)
        assert done.stdout == f"{script} (3, 2, 32)\n", done.stderr


@pytest.mark.slow
def test_allennlp_elmo_runs_by_its_old_name(old_model: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("the\tcat\n")
    files = f"--options-file {old_model / 'options.json'} --weight-file {old_model / 'model.hdf5'}"
    arguments = f"-m elmokit.compat -m allennlp elmo in.txt out.hdf5 --all {files}".split()
    done = run(*arguments, folder=tmp_path)
    assert done.returncode == 0 and (tmp_path / "out.hdf5").is_file(), done.stderr
