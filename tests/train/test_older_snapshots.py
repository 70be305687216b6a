"""Runs resumed from snapshots of older layouts: tensors that hold both directions, fewer keys."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from toy_run import settings_for, write_text

from elmokit.config import BiLMConfig
from elmokit.text.vocab import Vocab, count_words
from elmokit.train.config import PretrainConfig
from elmokit.train.snapshots import CHECKSUMS, Snapshot, add_prefix, read_snapshot, write_snapshot
from elmokit.train.trainer import Trainer

pytestmark = pytest.mark.any_backend


def trainer(settings: PretrainConfig) -> Trainer:
    vocab = Vocab.from_counts(count_words(settings.corpus))
    return Trainer(settings, BiLMConfig.preset("tiny"), vocab, list(settings.corpus), total_steps=100)


def older_snapshot(run: Trainer) -> Snapshot:
    """The snapshot that the older version would have written: directions stacked, parameters in the older order."""
    snapshot = run.snapshot()
    present, own = run.optimizer.tensors(), dict(run.bilm.named_parameters())
    numbers = {id(parameter): number for number, parameter in enumerate(run.optimizer.parameters())}
    stored = run.bilm.stored_tensors()
    sources = {}
    for name, tensor in stored.items():
        stacks = [f"sequence_encoder.stacks.{d}.{name}" for d in range(2)]
        names = stacks if name.startswith("layers.") else [name.replace("char_cnn", "token_encoder")]
        sources[name] = tensor.dim(), [own[each] for each in names]
    sources |= {name: (tensor.dim(), [tensor]) for name, tensor in run.softmax.named_parameters()}
    *muon, last = run.optimizer.optimizers
    hidden = {id(parameter) for part in muon for group in part.param_groups for parameter in group["params"]}
    order = [pair for pair in sources.values() if id(pair[1][0]) not in hidden]
    if len(last.param_groups) > 1:
        order = [pair for pair in order if pair[0] > 1] + [pair for pair in order if pair[0] <= 1]
    # Muon treated the two directions of a matrix as separate parameters.
    alone = [(2, [parameter]) for _, pair in sources.values() for parameter in pair if id(parameter) in hidden]
    slots = {}
    for number, (_, parameters) in enumerate([*alone, *order]):
        for key in [key for key in present if key.startswith(f"{numbers[id(parameters[0])]}.")]:
            slot = key.split(".", 1)[1]
            values = [present[f"{numbers[id(parameter)]}.{slot}"] for parameter in parameters]
            slots[f"{number}.{slot}"] = torch.stack(values) if len(values) > 1 and values[0].dim() else values[0]
    kept = {name: tensor for name, tensor in snapshot.tensors.items() if not name.startswith(("bilm.", "optimizer."))}
    return Snapshot(kept | add_prefix("bilm", stored) | add_prefix("optimizer", slots), snapshot.progress)


@pytest.mark.parametrize(("recipe", "decays"), [("modern", True), ("original", False)])
def test_snapshot_from_before_0_1_resumes_like_a_present_one(tmp_path: Path, recipe: str, decays: bool) -> None:
    """It lacks the keys that docs/formats.md names, and its checksums."""
    write_text(tmp_path / "text.txt")
    settings = replace(settings_for(tmp_path / "text.txt", tmp_path / "out"), recipe=recipe)
    run = trainer(settings)
    run.train_step()
    present = run.snapshot()
    progress = {name: present.progress[name] for name in ("step", "position", "rows", "run")}
    progress["run"] = {name: value for name, value in progress["run"].items() if name != "schedule"}
    progress["run"]["decays"] = decays
    path = write_snapshot(tmp_path / "checkpoints", 1, Snapshot(present.tensors, progress), keep=1)
    (path / CHECKSUMS).unlink()
    expected = [run.train_step() for _ in range(2)]
    other = trainer(settings)
    other.restore(read_snapshot(path))
    assert (other.step, other.rate_factor, other.schedule) == (1, 1.0, run.schedule)
    assert all(torch.equal(other.train_step(), losses) for losses in expected)
    progress["run"]["decays"] = not decays
    with pytest.raises(ValueError, match="belongs to another run: schedule was"):
        trainer(settings).restore(Snapshot(present.tensors, progress))


@pytest.mark.parametrize("recipe", ["original", "modern", "muon"])
def test_older_snapshot_resumes_like_a_present_one(tmp_path: Path, recipe: str) -> None:
    write_text(tmp_path / "text.txt")
    settings = replace(settings_for(tmp_path / "text.txt", tmp_path / "out"), recipe=recipe, dropout=0.1)
    run = trainer(settings)
    for _ in range(3):
        run.train_step()
    older, present = older_snapshot(run), run.snapshot()
    assert older.tensors.keys() != present.tensors.keys()
    ends = []
    for snapshot in (present, older):
        other = trainer(settings)
        other.restore(snapshot)
        losses = [other.train_step() for _ in range(3)]
        ends.append([*losses, *other.parameters])
    assert all(torch.equal(left, right) for left, right in zip(*ends, strict=True))
