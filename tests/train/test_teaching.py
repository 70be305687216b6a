"""Teaching vectors of texts: the loss by its formula, the first map by least squares, and what a
taught model gives.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_model import tiny_model
from toy_encoders import CONFIGS
from toy_run import settings_for, write_text

from elmokit.checkpoints.loading import load, save
from elmokit.checkpoints.pretrained import Pretrained
from elmokit.embed.embedder import Embedder
from elmokit.embed.files import encode_file
from elmokit.embed.text_maps import PENALTY, fit_text_map
from elmokit.nn.text_map import TextMap
from elmokit.text.vocab import Vocab
from elmokit.train.config import FinetuneConfig, PretrainConfig
from elmokit.train.finetuning import finetune
from elmokit.train.pretraining import pretrain
from elmokit.train.snapshots import latest_snapshot
from elmokit.train.teaching import TextTeaching, TextVectors
from elmokit.train.trainer import Trainer

DIM = 5


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def vectors_for(texts: Path) -> np.ndarray:
    """For each line a random vector of its first and its third word together."""
    draw = np.random.default_rng(0)
    pairs = [tuple(line.split()[1:4:2]) for line in texts.read_text().split("\n")[:-1]]
    of_pair = {pair: draw.normal(size=DIM) for pair in sorted(set(pairs))}
    return np.stack([of_pair[pair] for pair in pairs])


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    texts = write_text(tmp_path / "texts.txt")
    texts.write_text("\n" + texts.read_text())  # a blank line has a vector, too
    np.save(tmp_path / "vectors.npy", vectors_for(texts))
    return texts


def random_map(num_layers: int, dim: int) -> TextMap:
    text_map = TextMap(DIM, num_layers, dim)
    torch.nn.init.normal_(text_map.weight)
    torch.nn.init.normal_(text_map.bias)
    return text_map


def mean_layers(embedder: Embedder, sentences: list[list[str]]) -> np.ndarray:
    """(B, L+1, 2D)"""
    embedded = embedder.embed(sentences, "all", "zeros")
    return np.stack([layers.mean(axis=1) for layers in embedded])


@pytest.mark.parametrize("encoder", ["lstm", "transformer"])
def test_loss_of_texts_is_that_of_the_vectors_that_the_embedder_gives(
    settings: PretrainConfig, encoder: str, texts: Path
) -> None:
    settings = replace(settings, dropout=0.0, corpus=(texts,), batch_size=3, unroll_steps=8)
    vocab, vectors = Vocab.from_counts(Vocab.count_words([texts])), vectors_for(texts)
    config = CONFIGS[encoder]
    text_map = random_map(config.num_representations, config.output_dim)
    given = TextVectors([texts], texts.with_name("vectors.npy"))
    objective = partial(TextTeaching, vectors=given, text_map=text_map)
    run = Trainer(settings, config, vocab, [texts], 10, objective=objective)
    twin = Trainer(settings, config, vocab, [texts], 10, objective=objective)
    sentences = next(twin.objective.stream)
    embedder = Embedder(Pretrained(twin.bilm, vocab=vocab), "cpu")
    means = mean_layers(embedder, sentences)
    weight, bias = text_map.weight.detach().numpy().copy(), text_map.bias.detach().numpy().copy()
    learned = unit(np.einsum("bld,kld->bk", means, weight) + bias)
    lines = texts.read_text().split("\n")
    wanted = unit(np.stack([vectors[lines.index(" ".join(words))] for words in sentences]))
    distance = 1 - (learned * wanted).sum(axis=1).mean()
    error = np.square(learned @ learned.T - wanted @ wanted.T).mean()
    forward, backward, text = run.train_step().tolist()
    assert text == pytest.approx(distance + error, rel=1e-4)
    plain = Trainer(settings, config, vocab, [texts], 10, objective=TextTeaching.__mro__[1])
    assert [forward, backward] == pytest.approx(plain.train_step().tolist(), rel=1e-5)
    assert not np.allclose(text_map.weight.detach().numpy(), weight)


def test_parts_of_texts_have_no_vectors(texts: Path) -> None:
    given = TextVectors([texts], texts.with_name("vectors.npy"))
    line = texts.read_text().split("\n")[3].split()
    found = given.find([line, line[:-1], ["other", "words"]]).numpy()
    np.testing.assert_allclose(found[0], unit(vectors_for(texts)[3:4])[0], rtol=1e-6)
    assert not found[1:].any()


def test_first_map_is_that_of_least_squares() -> None:
    embedder = Embedder(tiny_model(), "cpu")
    draw = np.random.default_rng(1)
    sentences = [["a"] * length + ["dog", str(length)] for length in range(1, 300)]
    vectors = draw.normal(size=(len(sentences), DIM))
    text_map = fit_text_map(embedder, sentences, vectors)
    x = mean_layers(embedder, sentences).reshape(len(sentences), -1).astype(np.float64)
    x = np.concatenate([x, np.ones((len(x), 1))], axis=1)
    penalty = PENALTY * np.square(x[:, :-1]).sum(axis=0).mean()
    ridge = np.diag([np.sqrt(penalty)] * (x.shape[1] - 1) + [0.0])
    stacked = np.concatenate([x, ridge]), np.concatenate([unit(vectors), ridge[:, :DIM] * 0])
    expected = np.linalg.lstsq(*stacked, rcond=None)[0]
    found = torch.cat([text_map.weight.flatten(1), text_map.bias[:, None]], dim=1).detach()
    np.testing.assert_allclose(x @ found.numpy().T, x @ expected, atol=1e-4)


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("start")
    model = load(pretrain(settings_for(write_text(folder / "toy.txt"), folder / "run")).model)
    model.tokenizer = "whitespace-1"
    save(model, folder / "model")
    return folder / "model"


def settings_to_teach(texts: Path, start: Path, output: Path) -> FinetuneConfig:
    return FinetuneConfig(
        corpus=(texts,), output=output, model=str(start), vectors=texts.with_name("vectors.npy"),
        tokenize=False, min_count=1, batch_size=8, unroll_steps=20, epochs=30.0, num_samples=6,
        learning_rate=0.003, dropout=0.0, dtype="float32", device="cpu", threads=1,
        log_every=10, checkpoint_every=9,
    )  # fmt: skip


@pytest.mark.slow
def test_a_taught_model_gives_texts_their_vectors_and_a_run_resumes(
    texts: Path, start: Path, tmp_path: Path
) -> None:
    settings = settings_to_teach(texts, start, tmp_path / "taught")
    finetune(settings)
    lines, wanted = texts.read_text().split("\n")[1:-1], unit(vectors_for(texts)[1:])
    taught = Embedder(tmp_path / "taught" / "model", "cpu")
    before = Embedder(start, "cpu")
    first = fit_text_map(before, [line.split() for line in lines], wanted)
    before.model.text_map = first
    cosines = [
        (unit(np.asarray(embedder.encode(lines))) * wanted).sum(axis=1).mean()
        for embedder in (before, taught)
    ]
    assert 1 - cosines[1] < 0.5 * (1 - cosines[0])
    interrupted = replace(settings, output=tmp_path / "again")
    finetune(interrupted)
    snapshot = latest_snapshot(tmp_path / "again" / "checkpoints")
    assert snapshot is not None
    (tmp_path / "again" / "model" / "text.safetensors").unlink()
    finetune(interrupted)  # from its last checkpoint
    again = load(tmp_path / "again" / "model")
    for name, tensor in taught.model.text_map.state_dict().items():  # type: ignore[union-attr]
        torch.testing.assert_close(again.text_map.state_dict()[name], tensor)  # type: ignore[union-attr]


def test_vectors_of_texts_are_those_of_the_map(tmp_path: Path) -> None:
    model = tiny_model(["a", "dog"])
    model.text_map = random_map(model.config.num_representations, model.config.output_dim)
    save(model, tmp_path / "model")
    embedder = Embedder(tmp_path / "model", "cpu")
    texts = ["a dog", "", "the old dog sleeps"]
    means = mean_layers(embedder, [text.split() or ["x"] for text in texts])
    weight, bias = (tensor.numpy() for tensor in model.text_map.state_dict().values())
    expected = np.einsum("bld,kld->bk", means, weight) + bias
    expected[1] = 0
    np.testing.assert_allclose(embedder.encode(texts), expected, atol=1e-4)
    np.testing.assert_allclose(embedder.encode(texts, "text"), expected, atol=1e-4)
    assert embedder.text_dim() == DIM
    mean = embedder.encode(texts, "mean")
    np.testing.assert_array_equal(mean, embedder.encode(texts, layers="mix"))
    assert mean.shape == (3, embedder.dim)
    (tmp_path / "texts.txt").write_text("\n".join(texts))
    encode_file(tmp_path / "texts.txt", tmp_path / "texts.npy", embedder)
    np.testing.assert_allclose(np.load(tmp_path / "texts.npy"), expected, atol=1e-4)
    with pytest.raises(ValueError, match="omit layers"):
        embedder.encode(texts, "text", layers=1)
    with pytest.raises(ValueError, match="text map"):
        Embedder(tiny_model(), "cpu").encode(texts, "text")


def test_vectors_that_are_not_those_of_the_lines_are_refused(
    texts: Path, start: Path, tmp_path: Path
) -> None:
    vectors = np.load(tmp_path / "vectors.npy")
    np.save(tmp_path / "vectors.npy", vectors[1:])
    with pytest.raises(ValueError, match="also for blank ones"):
        finetune(settings_to_teach(texts, start, tmp_path / "run"))
    (tmp_path / "vectors.npy").write_text("no numbers")
    with pytest.raises(ValueError, match="not a NumPy file"):
        finetune(settings_to_teach(texts, start, tmp_path / "run"))
