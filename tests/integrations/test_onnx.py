"""ONNX files of every published layout give under onnxruntime what `BiLM.forward` gives."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from efml_files import changed, write_efml
from oracle import random_weights
from tiny_model import tiny_bilm

from elmokit.checkpoints.exporting import convert
from elmokit.checkpoints.loading import load, save
from elmokit.checkpoints.pretrained import Pretrained
from elmokit.config import BiLMConfig, CharCNNConfig, InterleavedConfig, LSTMConfig
from elmokit.nn.bilm import BiLM, BiLMState
from elmokit.nn.inference import prepack
from elmokit.text.characters import encode_words

onnx = pytest.importorskip("onnx", reason="ONNX is NOT TESTED: pip install onnx onnxruntime")
onnxruntime = pytest.importorskip(
    "onnxruntime", reason="ONNX is NOT TESTED: pip install onnxruntime"
)

LSTM = LSTMConfig(2, 12, 6, cell_clip=0.8, proj_clip=0.5)
CHARACTERS = CharCNNConfig(5, ((1, 4), (3, 7)), num_highway=2)
CONFIGS = {
    "characters": BiLMConfig(LSTM, CHARACTERS),
    "tanh": BiLMConfig(LSTM, replace(CHARACTERS, activation="tanh", num_highway=1)),
    "no projection of the token layer": BiLMConfig(
        LSTM, CharCNNConfig(4, ((1, 2), (2, 4)), num_highway=1)
    ),
    "no projection of the cells": BiLMConfig(replace(LSTM, cell_dim=6), CHARACTERS),
    "no clips, no skips, three layers": BiLMConfig(
        replace(LSTM, num_layers=3, cell_clip=None, proj_clip=None, use_skip_connections=False),
        CHARACTERS,
    ),
    "one layer": BiLMConfig(replace(LSTM, num_layers=1), CHARACTERS),
    "words": BiLMConfig(LSTM, char_cnn=None, num_words=9),
    "interleaved": BiLMConfig(None, CHARACTERS, interleaved=InterleavedConfig(2, 12, 6)),
    "interleaved as in ELMoForManyLangs": BiLMConfig(
        None, CHARACTERS, interleaved=InterleavedConfig(2, 12, 6, projects_layers=False)
    ),
}
LENGTHS = [5, 0, 1, 7]


def random_ids(bilm: BiLM, lengths: list[int], seed: int = 0) -> torch.Tensor:
    """Ids (B, T, C) or (B, T) of random words with their boundaries, zeros after them; a row of
    length 0 has none.
    """
    draw = np.random.default_rng(seed)
    widths = (bilm.config.char_cnn.max_characters,) if bilm.config.char_cnn else ()
    ids = torch.zeros(len(lengths), max(lengths) + 2, *widths, dtype=torch.int64)
    for row, length in zip(ids, lengths, strict=True):
        if not length:
            continue
        if widths:
            words = [
                "".join(draw.choice(list("abcdeth今"), draw.integers(1, 9))) for _ in range(length)
            ]
            row[: length + 2] = torch.from_numpy(
                encode_words(["<S>", *words, "</S>"], *widths)
            ).long()
        else:
            row[: length + 2] = torch.from_numpy(draw.integers(1, 10, length + 2))
    return ids


def run(path: Path, ids: torch.Tensor, state: BiLMState | None) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    inputs: dict[str, Any] = {"ids": ids.numpy()}
    if state is not None:
        inputs |= {"h": state.h.numpy(), "c": state.c.numpy()}
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


@torch.no_grad()
def assert_equal(bilm: BiLM, path: Path, ids: torch.Tensor, state: BiLMState | None) -> None:
    expected = bilm(ids, state=state)
    found = run(path, ids, state)
    np.testing.assert_array_equal(found["mask"], expected.mask.numpy())
    np.testing.assert_allclose(found["layers"], expected.layers.numpy(), atol=1e-4)
    if state is not None:
        np.testing.assert_allclose(found["h_after"], expected.state.h.numpy(), atol=1e-4)
        np.testing.assert_allclose(found["c_after"], expected.state.c.numpy(), atol=1e-4)


def random_state(bilm: BiLM, rows: int) -> BiLMState | None:
    if not bilm.config.sequence_encoder.carries_state:
        return None
    zeros = bilm.initial_state(rows)
    generator = torch.Generator().manual_seed(2)
    h, c = (torch.randn(part.shape, generator=generator) * 0.3 for part in (zeros.h, zeros.c))
    return BiLMState(h, c)


@pytest.mark.parametrize("name", CONFIGS)
def test_exported_bilm_gives_what_forward_gives(name: str, tmp_path: Path) -> None:
    bilm = BiLM(CONFIGS[name])
    path = tmp_path / "model.onnx"
    random_weights(bilm, seed=3, scale=0.5)
    convert(Pretrained(bilm), path, "onnx")
    onnx.checker.check_model(str(path), full_check=True)
    for seed, lengths in enumerate((LENGTHS, [3], [2, 2, 9, 4, 1])):  # any sizes
        ids = random_ids(bilm, lengths, seed)
        assert_equal(bilm, path, ids, random_state(bilm, len(lengths)))


def test_exported_bilm_refuses_words_of_another_width_instead_of_giving_other_vectors(
    tmp_path: Path,
) -> None:
    bilm = BiLM(CONFIGS["characters"])
    path = tmp_path / "model.onnx"
    convert(Pretrained(bilm), path, "onnx")
    ids = random_ids(bilm, LENGTHS)
    for other in (ids[..., :-1], torch.nn.functional.pad(ids, (0, 1), value=261)):
        with pytest.raises(Exception, match=f"Got: {other.shape[-1]} Expected: {ids.shape[-1]}"):
            run(path, other, bilm.initial_state(len(LENGTHS)))


def test_state_that_is_carried_makes_one_text_of_two_calls(tmp_path: Path) -> None:
    bilm = BiLM(CONFIGS["characters"])
    random_weights(bilm, seed=3, scale=0.5)
    convert(Pretrained(bilm), tmp_path / "model.onnx", "onnx")
    ids = random_ids(bilm, [8, 8])
    zeros = bilm.initial_state(2)
    whole = run(tmp_path / "model.onnx", ids, zeros)
    first = run(tmp_path / "model.onnx", ids[:, :4], zeros)
    state = BiLMState(*(torch.from_numpy(first[name]) for name in ("h_after", "c_after")))
    second = run(tmp_path / "model.onnx", ids[:, 4:], state)
    forward = slice(0, bilm.config.lstm.projection_dim)  # the backward direction begins at the end
    together = np.concatenate([first["layers"], second["layers"]], axis=2)
    np.testing.assert_allclose(together[..., forward], whole["layers"][..., forward], atol=1e-6)


@pytest.mark.parametrize("encoder", ["elmo", "lstm"])
@pytest.mark.parametrize("parts", [{}, {"word_dim": 0}, {"char_dim": 0}])
def test_elmoformanylangs_is_exported(tmp_path: Path, encoder: str, parts: dict[str, int]) -> None:
    settings = changed(encoder={"name": encoder}, token_embedder=parts)
    bilm = load(write_efml(tmp_path / "efml", settings)).bilm
    convert(Pretrained(bilm), tmp_path / "model.onnx", "onnx")
    sentences = [["the", "cat", "ate"], ["今"]]
    rows = [bilm.token_encoder.ids(["<bos>", *words, "<eos>"]).long() for words in sentences]
    widest = max(row.shape[-1] for row in rows)
    ids = torch.zeros(2, 5, widest, dtype=torch.int64)
    for padded, row in zip(ids, rows, strict=True):
        padded[: len(row), : row.shape[-1]] = row
        padded[: len(row), row.shape[-1] :] = row[:, -1:]
    assert_equal(bilm, tmp_path / "model.onnx", ids, random_state(bilm, 2))


def test_export_takes_whatever_load_takes_and_writes_the_same_bytes_again(tmp_path: Path) -> None:
    bilm = tiny_bilm()
    save(Pretrained(bilm), tmp_path / "model")
    convert(tmp_path / "model", tmp_path / "a.onnx", "onnx")
    convert(Pretrained(bilm), tmp_path / "b.onnx", "onnx")
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    random_weights(bilm, seed=1)
    with pytest.raises(FileExistsError, match=r"b\.onnx exists"):
        convert(Pretrained(bilm), tmp_path / "b.onnx", "onnx")
    convert(Pretrained(bilm), tmp_path / "b.onnx", "onnx", overwrite=True)
    with pytest.raises(ValueError, match="prepacked"):
        convert(Pretrained(prepack(bilm, torch.float32)), tmp_path / "c.onnx", "onnx")
