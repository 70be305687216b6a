"""A biLM as an ONNX file, which runs without PyTorch. Needs onnx (elmokit's extra `onnx`).

`elmokit convert --model MODEL --to onnx` does the same on the command line; docs/tutorials/onnx.md
shows how the file is used.
"""

from __future__ import annotations

from pathlib import Path

from elmokit.checkpoints import ModelSource, Pretrained, convert
from elmokit.nn import BiLM

__all__ = ["export"]


def export(model: BiLM | ModelSource, path: str | Path, *, overwrite: bool = False) -> None:
    """Write a biLM as an ONNX file in float32, with dynamic numbers of sentences and words.

    Args:
        model: A biLM; or a loaded model, or anything that `elmokit.load` takes, of which only the
            biLM is written, but not the softmax, mix, state policy, warm state, tokenizer,
            vocabulary and card.
        path: The file. Its inputs are `ids` (B, T, C) or (B, T), int64, as in `BiLM.forward`, where
            C is the model's `max_characters` (any number for those of ELMoForManyLangs), and `h`
            (2, L, B, D) and `c` (2, L, B, H), the state from which rows start. Its outputs are
            `layers` (L+1, B, T, 2D), `mask` (B, T), `h_after` and `c_after`. A model with
            interleaved directions has no state.
        overwrite: Replace a file with other content.

    Raises:
        FileExistsError: The file exists with other content, and is not to be overwritten.
        ValueError: onnx is not installed, or the biLM is prepacked, has more than 2 GB, or has a
            sequence encoder other than an LSTM.
    """
    source = Pretrained(model) if isinstance(model, BiLM) else model
    convert(source, path, "onnx", overwrite=overwrite)
