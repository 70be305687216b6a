"""What the old interfaces share: sentences may be iterators, of which no check loses one."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from efml_files import write_efml

from elmokit.compat import elmoformanylangs
from elmokit.compat.allennlp import ElmoEmbedder, batch_to_ids
from elmokit.compat.bilm_tf import Batcher, TokenBatcher
from elmokit.compat.simple_elmo import ElmoModel

SENTENCES = [["the", "cat"], ["dogs"], ["the", "cat", "is", "on"]]


def simple_elmo(name: str) -> Callable[[Path, Iterable[Any]], Any]:
    def call(folder: Path, sentences: Iterable[Any]) -> Any:
        model = ElmoModel()
        model.load(folder, 2)
        return getattr(model, name)(sentences)

    return call


CALLS: dict[str, Callable[[Path, Iterable[Any]], Any]] = {
    "batch_to_ids": lambda folder, sentences: batch_to_ids(sentences),
    "Batcher": lambda folder, sentences: Batcher(None, 50).batch_sentences(sentences),
    "TokenBatcher": lambda folder, sentences: TokenBatcher(folder / "vocab.txt").batch_sentences(
        sentences
    ),
    "embed_batch": lambda folder, sentences: ElmoEmbedder(
        folder / "options.json", folder / "model.hdf5"
    ).embed_batch(sentences),
    "sents2elmo": lambda folder, sentences: elmoformanylangs.Embedder(
        write_efml(folder / "efml")
    ).sents2elmo(sentences),
    "get_elmo_vectors": simple_elmo("get_elmo_vectors"),
    "get_elmo_vector_average": simple_elmo("get_elmo_vector_average"),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("ignore:averages exclude padding")
def test_iterators_of_iterators_are_lists_of_lists(
    name: str, old_model: Path, tmp_path: Path
) -> None:
    results = []
    for number, sentences in enumerate((SENTENCES, (iter(sentence) for sentence in SENTENCES))):
        folder = tmp_path / str(number)
        folder.mkdir()
        for file in old_model.iterdir():
            (folder / file.name).symlink_to(file)
        results.append(CALLS[name](folder, sentences))
    assert len(results[1]) == len(SENTENCES)
    for found, expected in zip(results[1], results[0], strict=True):
        np.testing.assert_array_equal(found, expected)
