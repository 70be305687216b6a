"""Check that AllenNLP reads a model that elmokit exported, and computes the same layers with it.

    python benchmarks/quality/allennlp_reads_export.py --python DIRECTORY/allennlp/bin/python
    [--model NAME_OR_PATH]

DIRECTORY is the directory of environments that peers/install.sh creates. The model is converted to
options.json and weights.hdf5. AllenNLP, in a process of its own environment, runs two batches of
sentences through it, the first from a zero state, the second from the state that the first one
left. elmokit does the same with the original model. Prints the largest difference in each layer;
the exit status is 1 if it is above 1e-5.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch

from elmokit.checkpoints import convert
from elmokit.embed import Embedder
from elmokit.text import TruncationWarning

sys.path.append(str(Path(__file__).parents[1]))
from result_files import BENCHMARKS, RESULTS, write_result

BOUND = 1e-5
SENTENCES = [
    "The bank of the river was steep and slippery after the rain .",
    "She put the money into the bank on Friday .",
    "Yes",
    "Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft is one word .",  # noqa: E501
    f"A word of 48 bytes : {'a' * 48} , one of 49 : {'b' * 49} , and one of two hundred : "
    f"{'cd' * 100} .",
    "Zażółć gęślą jaźń , naïve café , Ελληνικά , русский язык , עברית , العربية .",
    "我 喜欢 吃 苹果 。 りんご が 好き です 。 🍎 👩‍👩‍👧‍👦 !",
    "I do n't know what you 're talking about , '' he said , `` but it 's 3.14 % -- or $ 1,000.00 !",  # noqa: E501
    " ".join(["Buffalo", "buffalo"] * 40),
]


def two_batches() -> list[list[list[str]]]:
    """The sentences, and the same in reverse order, so that almost every row continues with another
    sentence.
    """
    first = [sentence.split() for sentence in SENTENCES]
    return [first, first[::-1]]


def allennlp_layers(
    python: Path, export: Path, batches: list[list[list[str]]], directory: Path
) -> tuple[str, list[np.ndarray]]:
    """The version of AllenNLP, and an array (L+1, T, 2D) for each sentence of each batch."""
    asked, found = directory / "batches.json", directory / "layers.npz"
    asked.write_text(json.dumps(batches), encoding="utf-8")
    command = [
        str(python),
        str(BENCHMARKS / "peers" / "allennlp_layers.py"),
        str(export),
        str(asked),
        str(found),
    ]
    printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    with np.load(found) as arrays:
        layers = [
            arrays[f"{b} {i}"] for b, sentences in enumerate(batches) for i in range(len(sentences))
        ]
    return printed.split()[-1], layers


def elmokit_layers(embedder: Embedder, batches: list[list[list[str]]]) -> list[np.ndarray]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TruncationWarning)  # some words are too long on purpose
        sentences = [sentence for batch in batches for sentence in batch]
        return embedder.embed(sentences, layers="all", state="carry", batch_size=len(batches[0]))


def largest_by_layer(ours: list[np.ndarray], theirs: list[np.ndarray]) -> list[float]:
    each = [np.abs(our - their).max(axis=(1, 2)) for our, their in zip(ours, theirs, strict=True)]
    return np.max(each, axis=0).tolist()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--python", type=Path, required=True, help="the Python of the environment with AllenNLP"
    )
    parser.add_argument("--model", default="en-small", help="directory or name")
    parser.add_argument("--output", type=Path, default=RESULTS / "allennlp_reads_export.json")
    arguments = parser.parse_args()
    embedder, batches = Embedder(arguments.model), two_batches()
    with tempfile.TemporaryDirectory() as temporary, warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "HDF5 has no place"
        )  # the softmax is lost, but no layer needs it
        directory = Path(temporary)
        convert(arguments.model, directory / "export", to="hdf5")
        version, theirs = allennlp_layers(
            arguments.python, directory / "export", batches, directory
        )
    ours, count = elmokit_layers(embedder, batches), len(batches[0])
    from_zeros = largest_by_layer(ours[:count], theirs[:count])
    carried = largest_by_layer(ours[count:], theirs[count:])
    largest = max(from_zeros + carried)
    report = {
        "model": arguments.model,
        "fingerprint": embedder.fingerprint(),
        "allennlp": version,
        "torch": torch.__version__,
        "sentences": count,
        "largest_difference": largest,
        "by_layer": {"from_zeros": from_zeros, "carried": carried},
        "largest_component": max(float(np.abs(array).max()) for array in ours),
    }
    print(json.dumps(report, indent=1))
    write_result(arguments.output, report)
    if largest > BOUND:
        sys.exit(f"AllenNLP {version} and elmokit differ by {largest}")


if __name__ == "__main__":
    main()
