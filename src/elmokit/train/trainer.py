"""A model in training: the training step, and saving and restoring everything that it reads and
changes.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from elmokit.checkpoints import Pretrained, fingerprint
from elmokit.config import BiLMConfig
from elmokit.data import PendingRows, PendingText, Position, SentenceReader
from elmokit.fs import atomic_directory, crc32_of, read_lines, remove_directory, remove_leftovers
from elmokit.lm import Perplexity
from elmokit.nn import BiLM, FullSoftmax
from elmokit.ops import upload
from elmokit.runtime import multiplies_bfloat16, pick_device, pick_dtype
from elmokit.text import Vocab
from elmokit.threads import run_ahead
from elmokit.train.config import PretrainConfig
from elmokit.train.objectives import MaskedWords, Part, SentenceLikelihood, WindowLikelihood
from elmokit.train.optim import RECIPES, Recipe, Schedule, clip_gradients, make_optimizer
from elmokit.train.processes import ALONE, Processes

# --- Snapshots, from which a run resumes exactly --------------------------------------------------

# Files of a snapshot: weights, optimizer, LSTM and random state; the rest of the state; the CRC-32
# of both.
TENSORS, PROGRESS, CHECKSUMS = "tensors.safetensors", "progress.json", "checksums.json"


@dataclass(frozen=True)
class Snapshot:
    """The state of a run.

    Attributes:
        tensors: Weights, optimizer, LSTM and random number generator state, by name.
        progress: JSON values: step, position in the corpus, settings.
    """

    tensors: dict[str, Tensor]
    progress: dict[str, Any]

    def with_prefix(self, prefix: str) -> dict[str, Tensor]:
        """The tensors whose names begin with `prefix` and a dot, by the rest of their names."""
        return {
            name[len(prefix) + 1 :]: tensor
            for name, tensor in self.tensors.items()
            if name.startswith(prefix + ".")
        }


def add_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies of tensors in main memory, with `prefix` and a dot before their names."""
    return {
        f"{prefix}.{name}": tensor.detach().cpu().contiguous().clone()
        for name, tensor in tensors.items()
    }


def _snapshots(directory: Path) -> list[Path]:
    return sorted(
        path
        for path in directory.glob("step-????????")
        if path.name[5:].isdecimal() and path.is_dir()
    )


def snapshot_path(directory: Path, step: int) -> Path:
    """The path of the snapshot of a step."""
    return directory / f"step-{step:08d}"


def step_of(snapshot: Path) -> int:
    """The step of a snapshot's path."""
    return int(snapshot.name.removeprefix("step-"))


def write_snapshot(directory: Path, step: int, snapshot: Snapshot, keep: int) -> Path:
    """Write the snapshot `step-NNNNNNNN` to `directory`, and remove all but the latest `keep`.

    Snapshots of later steps are removed, too: they are from before the run was set back.
    """
    remove_leftovers(directory)
    path = snapshot_path(directory, step)
    with atomic_directory(path, overwrite=True) as partial:
        save_file(snapshot.tensors, partial / TENSORS)
        (partial / PROGRESS).write_text(json.dumps(snapshot.progress), encoding="utf-8")
        checksums = {name: crc32_of(partial / name) for name in (TENSORS, PROGRESS)}
        (partial / CHECKSUMS).write_text(json.dumps(checksums), encoding="utf-8")
    for other in _snapshots(directory):
        if step_of(other) > step:
            remove_directory(other)
    for old in _snapshots(directory)[:-keep]:
        remove_directory(old)
    return path


def latest_snapshot(directory: Path) -> Path | None:
    """The latest complete snapshot; None if there is none."""
    snapshots = _snapshots(directory)
    return snapshots[-1] if snapshots else None


def remove_latest_snapshot(directory: Path) -> None:
    """Remove the latest snapshot, unless it is the only one."""
    *earlier, latest = _snapshots(directory)
    if earlier:
        remove_directory(latest)


def read_snapshot(path: Path) -> Snapshot:
    """Read a snapshot. ValueError if its files are missing or have changed since they were
    written.
    """
    try:
        checksums = json.loads((path / CHECKSUMS).read_bytes())
        is_whole = checksums == {name: crc32_of(path / name) for name in (TENSORS, PROGRESS)}
    except (FileNotFoundError, ValueError):
        is_whole = False
    if not is_whole:
        raise ValueError(f"{path} is damaged: remove it to resume from the snapshot before it")
    return Snapshot(load_file(path / TENSORS), json.loads((path / PROGRESS).read_bytes()))


# --- The step -------------------------------------------------------------------------------------

# The settings on which steps depend: a run is resumed with the same ones.
OF_STEPS = (
    "recipe",
    "schedule",
    "learning_rate",
    "warm_up_steps",
    "batch_size",
    "unroll_steps",
    "num_samples",
    "fresh_starts",
    "dropout",
    "dtype",
    "seed",
)


def recipe_of(settings: PretrainConfig) -> Recipe:
    """The recipe that the settings name, with the values that they override."""
    values = {
        name: getattr(settings, name) for name in ("learning_rate", "fresh_starts", "schedule")
    }
    return replace(
        RECIPES[settings.recipe],
        **{name: value for name, value in values.items() if value is not None},
    )


@dataclass(frozen=True)
class _Batch:
    """What a step reads and draws, prepared ahead, and the place in the text and the random state
    before it.
    """

    position: Position
    pending: PendingRows | PendingText
    draws: Tensor
    part: Part
    ids: Tensor  # of the distinct words
    # for each loss the ids of negative classes, and the draws for them; none with the full softmax
    samples: list[tuple[Tensor, int]]

    def to(self, device: torch.device) -> _Batch:
        """The batch with its tensors on a device, to which they are copied at once."""
        part, hidden = self.part, [] if self.part.hidden is None else [self.part.hidden]
        tensors = [
            self.ids,
            part.tokens,
            part.targets,
            *(drawn for drawn, _ in self.samples),
            *hidden,
        ]
        ids, tokens, targets, *others = upload(tensors, device)
        samples = [
            (drawn, num_tries) for drawn, (_, num_tries) in zip(others, self.samples, strict=False)
        ]
        part = replace(part, tokens=tokens, targets=targets, hidden=others[-1] if hidden else None)
        return replace(self, part=part, ids=ids, samples=samples)


def _first_sentences(file: Path, words: int) -> Iterator[list[str]]:
    for line in read_lines(file):
        if sentence := line.split()[:words]:
            yield sentence
        if (words := words - len(sentence)) <= 0:
            return


class Trainer:
    """A model in training: its weights, optimizer, text and random state, and the step that updates
    them.

    Attributes:
        bilm, softmax: The model.
        step: Number of steps so far.
        schedule: The learning rate by step.
        learning_rate: Of the last step.
        gradient_norm: Of the last step, before it was clipped; a tensor, so that a GPU need not be
            waited for.
        rate_factor: A factor of the learning rate of the schedule.
    """

    def __init__(
        self,
        settings: PretrainConfig,
        config: BiLMConfig,
        vocab: Vocab,
        files: list[Path],
        total_steps: int | None,
        corpus: str = "",
        cool_down: tuple[int, int] | None = None,
        processes: Processes = ALONE,
    ) -> None:
        """Initialize a model with random weights, at step 0.

        Args:
            settings: The optimization.
            config: The model.
            vocab: Vocabulary of the softmax.
            files: Files of the corpus.
            total_steps: Steps of the whole run; None without a planned end.
            corpus: Digest of the corpus; snapshots of another corpus are rejected.
            cool_down: The end of a run with a constant schedule: its first step, and the number of
                its steps.
            processes: The processes that share each batch; all of them make the same calls.
        """
        config.check_predicts_words()
        torch.manual_seed(settings.seed)
        self.settings, self.config, self.vocab = settings, config, vocab
        self.recipe, self.processes = recipe_of(settings), processes
        values = asdict(settings) | asdict(self.recipe)
        self.identity = {name: values[name] for name in OF_STEPS} | {"corpus": corpus}
        self.identity["total_steps"] = total_steps if self.recipe.schedule == "cosine" else None
        model = json.loads(
            json.dumps(config.to_dict())
        )  # as a snapshot has it, with lists in place of tuples
        self.identity |= {"model": model, "vocabulary": vocab.checksum()}
        self.device = pick_device(settings.device)
        self.dtype = pick_dtype(settings.dtype, self.device)
        if self.dtype == torch.bfloat16 and not multiplies_bfloat16(self.device):
            warnings.warn(
                "bfloat16 is many times slower than float32 on this hardware: use dtype auto",
                stacklevel=2,
            )
        self.bilm = BiLM(config).to(self.device)
        self.softmax = FullSoftmax(len(vocab), config.sequence_encoder.projection_dim).to(
            self.device
        )
        self.parameters: list[nn.Parameter] = [*self.bilm.parameters(), *self.softmax.parameters()]
        self.schedule = Schedule(
            self.recipe.schedule, total_steps, settings.warm_up_steps, cool_down
        )
        self.optimizer = make_optimizer(
            settings.recipe,
            self.parameters,
            self.bilm.hidden_matrices(),
            self.recipe.learning_rate,
            self.dtype,
        )
        self.step, self.learning_rate, self.rate_factor, self.gradient_norm = (
            0,
            0.0,
            1.0,
            torch.zeros(()),
        )
        # With as many samples as words, the full softmax gives the same loss faster.
        is_sampled = 0 < settings.num_samples < len(vocab)
        self.num_samples = settings.num_samples if is_sampled else 0
        self.draws = torch.Generator().manual_seed(settings.seed)
        encoder, state = config.sequence_encoder, self.bilm.initial_state(settings.batch_size)
        if encoder.carries_state:
            self.objective = WindowLikelihood(
                settings, vocab, processes, self.recipe.fresh_starts, state
            )
        else:
            kind = MaskedWords if encoder.merges_directions else SentenceLikelihood
            self.objective = kind(settings, vocab, processes)
        self._files = files
        self._ahead: Future[_Batch] | None = None
        self.read_from(Position(), None)

    # --- Text

    def read_from(self, position: Position, pending: Any) -> None:
        """Continue reading the corpus at `position`, after the objective's `pending` text, if
        any.
        """
        if self._ahead is not None:
            wait([self._ahead])  # it reads from what is replaced here
        self._ahead = None
        self.reader = SentenceReader(self._files, self.settings.seed, position)
        self.objective.read_from(self.reader, pending)

    def _prepare(self) -> _Batch:
        """Read and encode the text of the next step, and draw its negative classes."""
        before = self.reader.position, self.objective.stream.pending, self.draws.get_state()
        part, encoder = self.objective.next_part(self.draws), self.bilm.token_encoder
        ids = encoder.pad_to_bucket(encoder.ids(part.words, self.vocab))
        samples = (
            []
            if self.num_samples == 0
            else [self.softmax.sample(self.num_samples, self.draws) for _ in self.objective.losses]
        )
        return _Batch(*before, part, ids, samples)

    def _next_batch(self) -> _Batch:
        """The batch of the next step, which is prepared on another thread during the one before."""
        self._ahead = self._ahead or run_ahead(self._prepare)
        return self._ahead.result()

    # --- Step

    def train_step(self) -> Tensor:
        """Train on the next batch of text.

        Returns:
            The mean losses in nats per prediction, (K,), one for each of `objective.losses`: the
            two directions, or hidden words. Nothing waits for a GPU to compute them.
        """
        batch = self._next_batch().to(self.device)
        self._ahead = run_ahead(self._prepare)
        losses = torch.zeros(len(self.objective.losses), device=self.device)
        if batch.part.share:  # a batch of few sentences may leave a process without any
            losses = batch.part.share * self._losses(batch)
            loss = losses.mean()
            (
                loss * self.settings.unroll_steps if self.recipe.multiply_loss_by_steps else loss
            ).backward()
        losses = losses.detach()
        self._sum_over_processes(losses)
        self.gradient_norm = clip_gradients(self.parameters, self.recipe.clip_norm)
        self.learning_rate = (
            self.recipe.learning_rate * self.rate_factor * self.schedule.factor(self.step)
        )
        self.optimizer.step(self.learning_rate)
        for parameter in self.parameters:
            parameter.grad = None
        self.step += 1
        return losses

    def _losses(self, batch: _Batch) -> Tensor:
        """Mean losses of this process's part, (K,)."""
        part, low = batch.part, self.dtype != torch.float32
        if self.processes.count > 1 and self.settings.dropout:
            torch.manual_seed(
                hash((self.settings.seed, self.step, self.processes.rank))
            )  # another one in each process
        with torch.autocast(self.device.type, self.dtype) if low else nullcontext():
            vectors = self.bilm.token_encoder(batch.ids)
            outputs = self.objective.outputs(self.bilm, vectors, part, self.settings.dropout)
            if self.num_samples > 0:
                return self.softmax.sampled_losses(outputs, part.targets, batch.samples).mean(dim=1)
            losses = [
                self.softmax.log_losses(own, targets)
                for own, targets in zip(outputs, part.targets, strict=True)
            ]
            return torch.stack(losses).mean(dim=1)

    def _sum_over_processes(self, losses: Tensor) -> None:
        """Sum losses and gradients over all processes."""
        if self.processes.count == 1:
            return
        for parameter in self.parameters:
            if parameter.grad is None and parameter.requires_grad:  # this process had no text
                parameter.grad = torch.zeros_like(parameter)
        self.processes.sum(
            [
                losses,
                *(parameter.grad for parameter in self.parameters if parameter.grad is not None),
            ]
        )

    # --- State

    def snapshot(self) -> Snapshot:
        """The complete state of the run, from which `restore` resumes exactly, on any number of
        processes.
        """
        batch = self._next_batch()  # which the resumed run will read again
        pending = (
            batch.pending.to_words()
            if isinstance(batch.pending, PendingRows)
            else asdict(batch.pending)
        )
        random = {"torch": torch.get_rng_state(), "draws": batch.draws}
        if self.device.type == "cuda":
            random["cuda"] = torch.cuda.get_rng_state(self.device)
        tensors = (
            add_prefix("bilm", self.bilm.state_dict())
            | add_prefix("softmax", self.softmax.state_dict())
            | add_prefix("optimizer", self.optimizer.tensors())
            | add_prefix("state", self.objective.tensors())
            | add_prefix("random", random)
        )
        progress = {
            "step": self.step,
            "rate_factor": self.rate_factor,
            "position": batch.position.to_dict(),
            "pending": pending,
            "run": self.identity,
        }
        return Snapshot(tensors, progress)

    def restore(self, snapshot: Snapshot) -> None:
        """Resume from a snapshot. ValueError if it is of another run; the message names the
        settings that differ.
        """
        progress, before, now = snapshot.progress, snapshot.progress["run"], self.identity
        if different := [name for name in now | before if before.get(name) != now.get(name)]:
            raise ValueError(
                "the checkpoint in the output directory belongs to another run "
                f"({', '.join(different)} differ): use the same settings to resume it, or choose "
                "another output directory"
            )
        self.step, self.rate_factor = progress["step"], progress["rate_factor"]
        self.read_from(Position(**progress["position"]), progress["pending"])
        self.load_weights(snapshot)
        self.optimizer.restore(snapshot.with_prefix("optimizer"))
        self.objective.restore(snapshot.with_prefix("state"))
        random = snapshot.with_prefix("random")
        torch.set_rng_state(random["torch"])
        self.draws.set_state(random["draws"])
        if "cuda" in random and self.device.type == "cuda":
            torch.cuda.set_rng_state(random["cuda"], self.device)

    def load_weights(self, snapshot: Snapshot) -> None:
        """Replace the weights, and nothing else, by those of a snapshot."""
        self.bilm.load_state_dict(snapshot.with_prefix("bilm"))
        self.softmax.load_state_dict(snapshot.with_prefix("softmax"))

    def start_from(self, model: Pretrained) -> None:
        """Replace the random weights by those of a model, including its softmax if it has one."""
        self.identity["start"] = fingerprint(model)
        self.bilm.load_state_dict(model.bilm.state_dict())
        if model.softmax is not None:
            self.softmax.load_state_dict(model.softmax.state_dict())

    def pretrained(self, tokenizer: str | None, card: str = "") -> Pretrained:
        """The model with its current weights, which are shared, not copied."""
        return Pretrained(
            self.bilm, softmax=self.softmax, vocab=self.vocab, tokenizer=tokenizer, card=card
        )

    def measure_heldout(self, files: list[Path], words: int | None) -> Perplexity:
        """The exact (pseudo-)perplexity of files, or of `words` words from their beginnings; as
        `evaluate`.
        """
        words_per_file = sys.maxsize if words is None else max(1, words // len(files))
        texts = (
            _first_sentences(file, words_per_file)
            for file in files
            if next(_first_sentences(file, 1), None)
        )
        return reduce(add, (Perplexity.of(self.pretrained(None), text) for text in texts))
