"""The training loop of every task: early stopping on a development set, and resuming."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from elmokit.checkpoints.errors import check_shapes
from elmokit.fs.atomic import atomic_directory
from elmokit.fs.json_files import from_json, read_json
from elmokit.nn.scalar_mix import ScalarMix
from elmokit.progress import ProgressBar
from elmokit.tasks.batches import by_length, shuffled
from elmokit.tasks.config import FitConfig
from elmokit.tasks.report import Epoch, LearnedMix
from elmokit.tasks.task import Task, TaskNetwork, to_device
from elmokit.tasks.word_batches import Sentences
from elmokit.train.optim import Optimizer


@dataclass
class ExampleSet:
    """Examples and their encoded sentences, from which batches are made."""

    task: Task
    examples: Sequence[Any]
    sentences: Sentences

    def __post_init__(self) -> None:
        self.lengths = np.array([self.task.length(example) for example in self.examples], dtype=np.int64)

    def batch(self, chosen: np.ndarray, device: torch.device) -> Any:
        """The batch of the examples with the given indices."""
        examples = [self.examples[index] for index in chosen]
        return to_device(self.task.collate(examples, self.sentences.batch), device)


def _device(network: TaskNetwork) -> torch.device:
    return next(network.parameters()).device


@torch.no_grad()
def predict(network: TaskNetwork, examples: ExampleSet, with_probabilities: bool = True) -> list[Any]:
    """Predict for all examples.

    Args:
        network: The network, which is switched to evaluation mode.
        examples: Examples with or without answers.
        with_probabilities: As in `TaskNetwork.decode`.

    Returns:
        The predictions, in the order of the examples.
    """
    decoded: list[Any] = [None] * len(examples.examples)
    network.eval()
    for chosen in by_length(examples.lengths, examples.task.prediction_batch_size):
        answers = network.decode(examples.batch(chosen, _device(network)), with_probabilities)
        for index, answer in zip(chosen, answers, strict=True):
            decoded[index] = answer
    return examples.task.predictions(examples.examples, decoded)


def score(network: TaskNetwork, examples: ExampleSet) -> dict[str, float]:
    """Scores of the network on examples with answers."""
    return examples.task.score(examples.examples, predict(network, examples, with_probabilities=False))


# --- One epoch ---------------------------------------------------------------------------------------------------


def train_epoch(
    network: TaskNetwork, examples: ExampleSet, optimizer: torch.optim.Optimizer, config: FitConfig, number: int
) -> float:
    """Train for one epoch; the order of examples and the dropout depend on the seed and the epoch's number alone.

    Returns:
        The mean loss of the batches.
    """
    torch.manual_seed(config.seed * 1_000_003 + number)
    batches = list(shuffled(examples.lengths, config.batch_size, np.random.default_rng([config.seed, number])))
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    losses = []
    network.train()
    for chosen in ProgressBar(batches, desc=f"epoch {number}", unit=" batches", leave=False):
        loss = network.loss(examples.batch(chosen, _device(network))) + network.words.penalty()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, config.max_grad_norm)
        optimizer.step()
        losses.append(loss.detach())
    return float(torch.stack(losses).mean())


# --- Training -----------------------------------------------------------------------------------------------------


def best_epoch(epochs: Sequence[Epoch], metric: str) -> int:
    """Number, from 1, of the first epoch with the best development score; 0 where there is none."""
    return max(range(len(epochs)), key=lambda index: epochs[index].scores[metric], default=-1) + 1


def unimproved(epochs: Sequence[Epoch], metric: str) -> int:
    """The number of epochs since the best score.

    Epochs count from the first change of the score on, unless it is 1 from the start: a network that still finds no
    span, or gives all examples the same answer, has not begun to learn, and needs its full learning rate.
    """
    scores = [epoch.scores[metric] for epoch in epochs]
    unchanged = sum(1 for _ in takewhile(lambda score: score == scores[0] < 1, scores))
    return len(epochs) - max(best_epoch(epochs, metric), unchanged)


def _halvings(epochs: Sequence[Epoch], metric: str, halve_after: int) -> int:
    """How often the rate is halved: after every `halve_after` epochs in a row without a new best score."""
    counts = [unimproved(epochs[:number], metric) for number in range(1, len(epochs) + 1)]
    return sum(count > 0 and count % halve_after == 0 for count in counts)


def _is_over(epochs: Sequence[Epoch], metric: str, config: FitConfig) -> bool:
    seconds = sum(epoch.seconds for epoch in epochs)
    return (
        len(epochs) >= config.max_epochs
        or unimproved(epochs, metric) >= config.patience
        or (config.max_minutes is not None and seconds >= 60 * config.max_minutes)
    )


def _last_epoch(epochs: Sequence[Epoch], metric: str) -> str:
    """A line on the last epoch, with the best score so far."""
    last, best = epochs[-1], best_epoch(epochs, metric)
    score, best_score = (100 * epoch.scores[metric] for epoch in (last, epochs[best - 1]))
    return (
        f"epoch {len(epochs)}: loss {last.loss:.4f}, {metric} {score:.2f} on the development set "
        f"(best {best_score:.2f}, epoch {best}), {last.seconds:.1f} s"
    )


def _parameter_groups(network: TaskNetwork, config: FitConfig) -> list[dict[str, Any]]:
    elmo = network.words.elmo
    of_bilm = set() if elmo is None else {id(parameter) for parameter in elmo.bilm.parameters()}
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    groups = [
        ([parameter for parameter in trained if id(parameter) not in of_bilm], config.learning_rate, 0),
        (
            [parameter for parameter in trained if id(parameter) in of_bilm],
            config.finetune_learning_rate,
            config.finetune_after,
        ),
    ]
    return [
        {"params": parameters, "lr": rate, "full_rate": rate, "waits": epochs}
        for parameters, rate, epochs in groups
        if parameters
    ]


@contextmanager
def _frozen(groups: Iterable[dict[str, Any]]) -> Iterator[None]:
    """Keep groups of parameters, and Adam's averages of their gradients, unchanged within the `with` block."""
    parameters = [parameter for group in groups for parameter in group["params"]]
    for parameter in parameters:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)


def _trained_weights(network: TaskNetwork) -> dict[str, Tensor]:
    """Copies of all tensors that training changes, including buffers such as batch normalization's statistics."""
    frozen = {name for name, value in network.named_parameters(remove_duplicate=False) if not value.requires_grad}
    return {name: copied(value) for name, value in network.state_dict().items() if name not in frozen}


def copied(value: Tensor) -> Tensor:
    """A copy that shares no memory with another tensor, as safetensors requires and tied weights do."""
    return value.detach().clone().contiguous()


def shapes_of(weights: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor, by name."""
    return {name: tuple(value.shape) for name, value in weights.items()}


@dataclass(frozen=True)
class _Progress:
    """The content of state.json; `identity` is a hash of data, settings and labels."""

    identity: str
    epochs: list[Epoch]


class _Snapshot:
    """The state of a run after its last finished epoch, in a directory; None: nothing is written.

    `identity` is a hash of data, settings and labels, which must be equal to resume.
    """

    def __init__(self, directory: Path | None, identity: str) -> None:
        self._directory, self._identity = directory, identity

    def write(
        self, network: TaskNetwork, best: dict[str, Tensor], optimizer: torch.optim.Optimizer, epochs: list[Epoch]
    ) -> None:
        if self._directory is None:
            return
        with atomic_directory(self._directory, overwrite=True) as partial:
            save_file(_trained_weights(network), partial / "current.safetensors")
            save_file(best, partial / "best.safetensors")
            state = {name: tensor.contiguous() for name, tensor in Optimizer([optimizer]).tensors().items()}
            save_file(state, partial / "optimizer.safetensors")
            content = json.dumps(asdict(_Progress(self._identity, epochs)))
            (partial / "state.json").write_text(content, encoding="utf-8")

    def read(
        self, network: TaskNetwork, optimizer: torch.optim.Optimizer
    ) -> tuple[dict[str, Tensor], list[Epoch]] | None:
        """Restore network and optimizer; return the best weights and the epochs, or None without a snapshot."""
        if self._directory is None or not (self._directory / "state.json").is_file():
            return None
        try:
            progress = from_json(_Progress, read_json(self._directory / "state.json"))
            files = [self._directory / f"{name}.safetensors" for name in ("current", "best", "optimizer")]
            current, best, state = map(load_file, files)
        except (ValueError, OSError, SafetensorError) as error:
            raise ValueError(f"{self._directory} is a damaged snapshot ({error}): remove it to train anew") from error
        if progress.identity != self._identity:
            raise ValueError(
                f"{self._directory} is the snapshot of a run with other data or settings: "
                "repeat the same command, or remove it"
            )
        expected = shapes_of(_trained_weights(network))
        for path, weights in zip(files, (current, best), strict=False):
            check_shapes(path, expected, shapes_of(weights))
        network.load_state_dict(current, strict=False)
        Optimizer([optimizer]).restore(state)
        return best, progress.epochs


def check_finite(scores: Mapping[str, float], where: str) -> None:
    """ValueError if one of the scores is not a number, which reports and snapshots cannot hold."""
    for name, value in scores.items():
        if not np.isfinite(value):
            raise ValueError(
                f"{name} {where} is {value}: give a set on which it is defined, or let the task's score return a number"
            )


def train(
    network: TaskNetwork,
    examples: ExampleSet,
    dev: ExampleSet,
    config: FitConfig,
    snapshot: Path | None = None,
    identity: str = "",
) -> list[Epoch]:
    """Train in place until the development score stops improving, then restore the best weights.

    Args:
        network: Network on the device to train on.
        examples: Examples to train on.
        dev: Examples that determine when to stop.
        config: Settings of the training.
        snapshot: Directory for the state after each epoch, from which an interrupted run resumes; None: not written.
        identity: Hash of data and settings; a snapshot with another one is refused.

    Returns:
        Loss, development scores and time of each epoch.

    Raises:
        ValueError: The loss is not a number; the snapshot is damaged, or of another run.
    """
    metric = examples.task.metric
    optimizer = torch.optim.Adam(_parameter_groups(network, config), fused=True)
    snapshots = _Snapshot(snapshot, identity)
    best_weights, epochs = snapshots.read(network, optimizer) or (_trained_weights(network), [])
    while not _is_over(epochs, metric, config):
        start_time, number = time.perf_counter(), len(epochs) + 1
        scale = 0.5 ** _halvings(epochs, metric, config.halve_after)
        for group in optimizer.param_groups:
            group["lr"] = group["full_rate"] * scale
        with _frozen(group for group in optimizer.param_groups if number <= group["waits"]):
            loss = train_epoch(network, examples, optimizer, config, number)
        if not np.isfinite(loss):
            raise ValueError(f"the loss of epoch {number} is not a number: lower the learning rate")
        scores = {name: float(value) for name, value in score(network, dev).items()}  # NumPy's are not JSON
        check_finite(scores, f"on the development set after epoch {number}")
        epochs.append(Epoch(loss, scores, config.learning_rate * scale, time.perf_counter() - start_time))
        if best_epoch(epochs, metric) == number:
            best_weights = _trained_weights(network)
        snapshots.write(network, best_weights, optimizer, epochs)
        print(_last_epoch(epochs, metric), file=sys.stderr, flush=True)
    network.load_state_dict(best_weights, strict=False)
    return epochs


def learned_mixes(network: TaskNetwork) -> list[LearnedMix]:
    """The current weights of ELMo's mixes."""
    mixes = [] if network.words.elmo is None else network.words.elmo.mixes
    return [learned_mix(cast(ScalarMix, mix)) for mix in mixes]


def learned_mix(mix: ScalarMix) -> LearnedMix:
    """The current weights of a mix."""
    return LearnedMix(mix.layer_weights().tolist(), float(mix.gamma.detach()))
