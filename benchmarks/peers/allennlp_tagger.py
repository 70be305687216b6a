"""Train the same BiLSTM-CRF on AllenNLP's `Elmo` and on elmokit's; compare scores and time for the
same epochs.

    elmokit convert --model en-small --output exported --to hdf5 DIRECTORY/allennlp/bin/python
    benchmarks/peers/allennlp_tagger.py --data CONLL2003 --model exported --side allennlp
    DIRECTORY/allennlp/bin/python benchmarks/peers/allennlp_tagger.py --data CONLL2003 --model
    exported --side elmokit

DIRECTORY has the environments that install.sh creates. elmokit has to be installed in AllenNLP's
environment too (`pip install -e .`), since the tagger around both modules is elmokit's. AllenNLP
computes the biLM in every epoch, as its models did, and carries its state from batch to batch.
elmokit computes the layers once, which is part of its time. The time is that of training, including
the scores of the development set after each epoch; the test set is scored afterwards. CONLL2003
holds eng.train, eng.testa and eng.testb. Every run is written to the results as soon as it is
finished, and not repeated.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

sys.path.append(str(Path(__file__).parents[1]))
from result_files import RESULTS, write_result

from elmokit.checkpoints.loading import load
from elmokit.checkpoints.pretrained import Pretrained
from elmokit.tasks import FitConfig, WordsConfig
from elmokit.tasks.fitting import fit, train
from elmokit.tasks.fitting.model import ExampleSet, predict
from elmokit.tasks.fitting.words import (
    EncodedWords,
    Sentences,
    WordBatch,
    WordEncoder,
    WordTable,
)
from elmokit.tasks.tagging import TaggingTask
from elmokit.text.characters import PAD_CHARACTER

FILES = ("eng.train", "eng.testa", "eng.testb")
WORDS = WordsConfig(word_dim=100, character_dim=100)
SIDES = ("allennlp", "elmokit")


class AllenNLPElmo(nn.Module):
    """AllenNLP's `Elmo` in place of a mix of layers, from the characters of words."""

    def __init__(self, directory: Path, model: Pretrained) -> None:
        super().__init__()
        elmo = importlib.import_module("allennlp.modules.elmo").Elmo
        files = [str(directory / name) for name in ("options.json", "weights.hdf5")]
        self.elmo = elmo(*files, 1, dropout=WORDS.elmo_dropout)
        assert model.config.char_cnn is not None
        self.max_characters = model.config.char_cnn.max_characters

    def forward(self, ids: Tensor) -> Tensor:
        """Character ids (B, T, C), where elmokit has cut C to the longest word of the batch -> the
        mix (B, T, 2D).
        """
        padded = ids.new_zeros(*ids.shape[:2], self.max_characters)
        padded[..., : ids.shape[2]] = ids
        is_word = (ids > 0).any(2, keepdim=True)
        padded = torch.where(is_word & (padded == 0), PAD_CHARACTER, padded)
        return self.elmo(padded)["elmo_representations"][0]

    def penalty(self, weight: float) -> float:
        """No penalty on the mix weights."""
        return 0.0


class AllenNLPWords(WordEncoder):
    """elmokit's encoder of words, whose ELMo is AllenNLP's."""

    def __init__(self, directory: Path, table: WordTable, model: Pretrained) -> None:
        super().__init__(WORDS, table, model)
        self.mixes = nn.ModuleList([AllenNLPElmo(directory, model)])
        self.elmo_dropout = nn.Identity()  # it has its own

    def forward(self, batch: WordBatch) -> EncodedWords:
        """With the characters of words, (B, T, C), in place of their layers."""
        assert batch.characters is not None
        ids = batch.characters.new_zeros(*batch.mask.shape, batch.characters.shape[1])
        ids[batch.mask] = batch.characters[batch.character_rows]
        return super().forward(batch._replace(layers=ids))


def on_allennlp(
    directory: Path, model: Pretrained, sets: Sequence[Sequence[Any]], config: FitConfig
) -> dict[str, Any]:
    """Train and score the tagger on AllenNLP's module."""
    task = TaggingTask(labels=TaggingTask().learn(sets[0]))
    table = WordTable.from_sentences(example.words for example in sets[0])
    torch.manual_seed(config.seed)
    network = task.network(AllenNLPWords(directory, table, model))
    encoded = [
        ExampleSet(
            task,
            examples,
            Sentences((example.words for example in examples), table, reads_characters=True),
        )
        for examples in sets
    ]
    start = time.perf_counter()
    epochs = train(network, encoded[0], encoded[1], config)
    seconds = time.perf_counter() - start
    scores = task.score(sets[2], predict(network, encoded[2])).values
    return {"epochs": [asdict(epoch) for epoch in epochs], "seconds": seconds, "test": scores}


def on_elmokit(
    model: Pretrained, sets: Sequence[Sequence[Any]], config: FitConfig
) -> dict[str, Any]:
    """Train and score the tagger on elmokit's module; the time includes computing the layers, with
    an empty cache.
    """
    with TemporaryDirectory() as cache:
        tagger, report = fit(
            TaggingTask(), *sets[:2], model=model, words=WORDS, config=config, cache=cache
        )
    scores = tagger.score(sets[2]).values
    return {
        "epochs": [asdict(epoch) for epoch in report.epochs],
        "seconds": report.seconds,
        "test": scores,
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, required=True, help=f"directory with {', '.join(FILES)}"
    )
    parser.add_argument(
        "--model", type=Path, required=True, help="directory with options.json and weights.hdf5"
    )
    parser.add_argument("--side", choices=SIDES, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument(
        "--sentences", type=int, help="number of training sentences; all when not given"
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--output", type=Path, default=RESULTS / "allennlp_tagger.json")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(arguments.threads)

    task = TaggingTask()
    sets = [list(task.read(arguments.data / name)) for name in FILES]
    sets[0] = sets[0][: arguments.sentences]
    for seed in arguments.seeds:
        done = (
            json.loads(arguments.output.read_text(encoding="utf-8"))
            if arguments.output.is_file()
            else {}
        )
        for run in done.get(arguments.side, {}).values():
            if (len(run["epochs"]), run["sentences"]) != (arguments.epochs, len(sets[0])):
                raise SystemExit(
                    f"{arguments.output} has runs of other epochs or sentences: give another "
                    f"--output"
                )
        if str(seed) in done.get(arguments.side, {}):
            continue
        config = FitConfig(
            seed=seed, max_epochs=arguments.epochs, patience=arguments.epochs, device="cpu"
        )
        model = load(arguments.model, softmax=False)
        figures = (
            on_allennlp(arguments.model, model, sets, config)
            if arguments.side == "allennlp"
            else on_elmokit(model, sets, config)
        )
        write_result(
            arguments.output, {**figures, "sentences": len(sets[0])}, arguments.side, str(seed)
        )
        print(
            f"{arguments.side}, seed {seed}: test F1 {100 * figures['test']['f1']:.2f} in "
            f"{figures['seconds']:.0f} s"
        )


if __name__ == "__main__":
    main()
