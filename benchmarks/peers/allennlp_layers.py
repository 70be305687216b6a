"""Compute all layers of batches of sentences with AllenNLP, in its own environment.

    python allennlp_layers.py MODEL BATCHES.json LAYERS.npz

MODEL is a directory with options.json and weights.hdf5. BATCHES.json holds a list of batches; a
batch is a list of sentences, and a sentence is a list of words. The batches are run one after
another through one model, which carries its state from batch to batch. Writes an array "b i" (L+1,
T, 2D) for sentence i of batch b, and prints the version of AllenNLP.
"""

import json
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from allennlp.modules.elmo import Elmo, batch_to_ids

model, batches, output = map(Path, sys.argv[1:])
elmo = Elmo(
    str(model / "options.json"),
    str(model / "weights.hdf5"),
    num_output_representations=1,
    dropout=0,
).eval()
arrays = {}
with torch.no_grad():
    for b, sentences in enumerate(json.loads(batches.read_text(encoding="utf-8"))):
        layers = elmo._elmo_lstm(batch_to_ids(sentences))["activations"]
        for i, words in enumerate(sentences):
            arrays[f"{b} {i}"] = np.stack(
                [layer[i, 1 : len(words) + 1].numpy() for layer in layers]
            )
np.savez(output, **arrays)
print(version("allennlp"))
