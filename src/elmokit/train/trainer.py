"""A model in training: the training step, and saving and restoring everything that it reads and changes."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from elmokit.checkpoints.errors import non_finite
from elmokit.checkpoints.pretrained import Pretrained, fingerprint
from elmokit.config import BiLMConfig
from elmokit.data.corpus import Position, SentenceReader
from elmokit.data.streams import PendingRows, PendingText
from elmokit.fs.json_files import from_json
from elmokit.fs.reading import read_lines
from elmokit.lm.evaluate import measure
from elmokit.lm.language_model import check_predicts
from elmokit.lm.measures import Measure
from elmokit.nn.bilm import BiLM
from elmokit.nn.lstm import LSTMLayer
from elmokit.nn.softmax import FullSoftmax, LogUniformSampler, Samples
from elmokit.ops.dispatch import multiplies_bfloat16
from elmokit.ops.threads import run_ahead
from elmokit.ops.transfer import upload
from elmokit.runtime import pick_device, pick_dtype
from elmokit.text.vocab import Vocab
from elmokit.train.config import PretrainConfig
from elmokit.train.divergence import LossMonitor
from elmokit.train.early_stopping import EarlyStopping
from elmokit.train.objectives import Part, objective_of
from elmokit.train.older_snapshots import optimizer_tensors_of
from elmokit.train.optim import Recipe, clip_gradients, make_optimizer, recipe
from elmokit.train.processes import ALONE, Processes
from elmokit.train.schedule import CoolDown, Schedule
from elmokit.train.snapshots import Snapshot, add_prefix

# Settings that may differ between a run and its resumption: paths, logging, hardware, when to stop.
FREE_SETTINGS = {
    "corpus", "output", "heldout", "vocab", "config", "initial_model", "device", "threads", "log_every",
    "evaluate_every", "evaluate_words", "checkpoint_every", "keep_checkpoints", "tokenize", "tokenizer", "language",
    "tensorboard", "max_hours", "patience", "cool_down", "cool_down_from", "accumulation",
}  # fmt: skip
# Entries of a run's identity whose values, such as hashes, would say nothing in a message, and their names in it.
HASHED = {"model": "model", "vocabulary": "vocabulary", "corpus": "corpus", "start": "initial model"}
# The length of the run, on which steps depend with a cosine schedule only.
LENGTH = {"epochs", "max_words"}


def recipe_of(settings: PretrainConfig) -> Recipe:
    """The recipe that the settings name, with the values that they override."""
    return recipe(settings.recipe, settings.learning_rate, settings.fresh_starts, settings.schedule)


def _identity(settings: PretrainConfig, config: BiLMConfig, vocab: Vocab, corpus: str) -> dict[str, Any]:
    """The settings that a snapshot and the run that resumes it must share, as JSON values."""
    values = asdict(settings) | asdict(recipe_of(settings))  # the recipe supplies the defaults
    free = FREE_SETTINGS | (LENGTH if values["schedule"] != "cosine" else set())
    if settings.config is not None or settings.initial_model is not None:
        free = free | {"preset"}
    values = {name: value for name, value in values.items() if name not in free}
    identity = {"model": config.to_dict(), "vocabulary": vocab.checksum(), "corpus": corpus}
    return json.loads(json.dumps(values | identity))


def _check_same(before: dict[str, Any], now: dict[str, Any], free: Collection[str]) -> None:
    if "schedule" not in before:  # a snapshot of elmokit before 0.1
        before = {**before, "schedule": "cosine" if before.get("decays") else "none"}
    # A snapshot of an older version may lack a setting, but an initial model that is not given now is a difference.
    names = [*now, *({"start"} & before.keys() - now.keys())]
    different = [name for name in names if name not in free and before.get(name) != now.get(name)]
    if "preset" in different:
        different = [name for name in different if name != "model"]  # it follows from the preset
    if different:
        reasons = (
            f"the {HASHED[name]} has changed"
            if name in HASHED
            else f"{name} was {before.get(name)}, is {now.get(name)}"
            for name in different
        )
        raise ValueError(
            f"the checkpoint in the output directory belongs to another run: {'; '.join(reasons)}. Use the same "
            "settings to resume it, or choose another output directory"
        )


@dataclass(frozen=True)
class _Progress:
    """The contents of a snapshot's progress.json; fields with a default are missing from older ones."""

    step: int
    position: dict[str, int]
    run: dict[str, Any]
    losses: list[list[float]] = field(default_factory=list)
    rows: list[list[list[str]]] | None = None
    sentences: PendingText | None = None
    rate_factor: float = 1.0
    monitor: dict[str, Any] = field(default_factory=LossMonitor().to_dict)
    early_stopping: dict[str, Any] = field(default_factory=EarlyStopping().to_dict)
    last_step: int | None = None
    cycle_start: int = 0

    def __post_init__(self) -> None:
        if self.position.keys() != Position().to_dict().keys():
            raise ValueError(f"its position has {', '.join(self.position) or 'no'} keys")
        if min(self.step, self.cycle_start, *self.position.values()) < 0 or self.rate_factor <= 0:
            raise ValueError("steps and positions must be 0 or more, and the factor of the learning rate above 0")
        if any(len(row) != 4 or len(set(map(len, row))) != 1 for row in self.rows or ()):
            raise ValueError("each of its rows must have four lists of equally many words")


@dataclass(frozen=True)
class _Batch:
    """What a step reads and draws, prepared ahead, and the place in the text and the random state before it."""

    position: Position
    pending: PendingRows | PendingText
    draws: Tensor
    parts: list[Part]
    ids: list[Tensor]  # of the distinct words of each part
    samples: list[Samples]  # for each loss; none with the full softmax

    def to(self, device: torch.device) -> _Batch:
        """The batch with its tensors on a device, to which they are copied at once."""
        of_parts = [[part.tokens, part.targets, *([] if part.hidden is None else [part.hidden])] for part in self.parts]
        tensors = [*self.ids, *(drawn.ids for drawn in self.samples), *chain.from_iterable(of_parts)]
        moved = iter(upload(tensors, device))
        ids = [next(moved) for _ in self.ids]
        samples = [replace(drawn, ids=next(moved)) for drawn in self.samples]
        parts = []
        for part in self.parts:
            tokens, targets = next(moved), next(moved)
            hidden = None if part.hidden is None else next(moved)
            parts.append(replace(part, tokens=tokens, targets=targets, hidden=hidden))
        return replace(self, parts=parts, ids=ids, samples=samples)


def _damaged(error: Exception) -> ValueError:
    reason = str(error).strip().split("\n")[0] or type(error).__name__
    return ValueError(f"the snapshot cannot be resumed ({reason}): remove it to resume from the one before it")


def _first_sentences(file: Path, words: int | None) -> Iterator[list[str]]:
    count = 0
    for line in read_lines(file):
        if words is not None and count >= words:
            return
        sentence = line.split()
        if words is not None:
            sentence = sentence[: words - count]
        count += len(sentence)
        if sentence:
            yield sentence


def _hidden_matrices(bilm: BiLM) -> list[nn.Parameter]:
    """The weight matrices of the sequence encoder, highway layers and projections: neither embeddings nor softmax."""
    matrices: list[nn.Parameter] = []
    for module in bilm.modules():
        if isinstance(module, nn.Linear):
            matrices.append(cast(nn.Parameter, module.weight))
        elif isinstance(module, LSTMLayer):
            weights = (module.input_weight, module.recurrent_weight, module.projection_weight)
            matrices += [weight for weight in weights if weight is not None]
    return matrices


class Trainer:
    """A model in training: its weights, optimizer, text and random state, and the step that updates them."""

    def __init__(
        self,
        settings: PretrainConfig,
        config: BiLMConfig,
        vocab: Vocab,
        files: list[Path],
        total_steps: int | None,
        corpus: str = "",
        cool_down: CoolDown | None = None,
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
            cool_down: The end of a run with a constant schedule.
            processes: The processes that share each batch; all of them make the same calls.
        """
        check_predicts(config)
        torch.manual_seed(settings.seed)
        self.settings, self.config, self.vocab = settings, config, vocab
        self.identity = _identity(settings, config, vocab, corpus)
        self.device = pick_device(settings.device)
        self.dtype = pick_dtype(settings.dtype, self.device)
        if self.dtype == torch.bfloat16 and not multiplies_bfloat16(self.device):
            warnings.warn("bfloat16 is many times slower than float32 on this hardware: use dtype auto", stacklevel=2)
        self.bilm = BiLM(config).to(self.device)
        self.softmax = FullSoftmax(len(vocab), config.sequence_encoder.projection_dim).to(self.device)
        self.parameters: list[nn.Parameter] = [*self.bilm.parameters(), *self.softmax.parameters()]
        self.recipe = recipe_of(settings)
        self.schedule = Schedule(self.recipe.schedule, total_steps, settings.warm_up_steps, cool_down)
        self.last_step = total_steps if cool_down is None else cool_down.end
        self.optimizer = make_optimizer(
            settings.recipe, self.parameters, _hidden_matrices(self.bilm), self.recipe.learning_rate, self.dtype
        )
        self.gradient_norm, self.learning_rate = torch.zeros(()), 0.0  # of the last step
        self.rate_factor = 1.0  # lowered after divergence
        self.losses: list[Tensor] = []  # what `train_step` returned since the last entry of the log; kept by the loop
        # The loss of an untrained softmax.
        self.monitor, self.early_stopping = LossMonitor(lowest=math.log(len(vocab))), EarlyStopping()
        # With as many samples as words, the full softmax gives the same loss faster.
        samples = settings.num_samples if settings.num_samples < len(vocab) else 0
        self.sampler = LogUniformSampler(len(vocab), samples) if samples else None
        self.draws = torch.Generator().manual_seed(settings.seed)
        self.processes = processes
        state = self.bilm.initial_state(settings.batch_size)
        self.objective = objective_of(config, settings, vocab, self.recipe.fresh_starts, processes, state)
        self._files = files
        self._ahead: Future[_Batch] | None = None
        self.read_from(Position(), None)
        self.step = 0

    def read_from(self, position: Position, pending: Any) -> None:
        """Continue reading the corpus at `position`, after the objective's `pending` text, if any."""
        if self._ahead is not None:
            wait([self._ahead])  # it reads from what is replaced here
        self._ahead = None
        self.reader = SentenceReader(self._files, self.settings.seed, position)
        self.objective.read_from(self.reader, pending)

    def _prepare(self) -> _Batch:
        """Read and encode the text of the next step, and draw its negative classes."""
        before = self.reader.position, self.objective.pending, self.draws.get_state()
        parts, encoder = self.objective.next_parts(self.draws), self.bilm.token_encoder
        ids = [encoder.in_few_shapes(encoder.ids(part.words, self.vocab)) for part in parts]
        samples = [] if self.sampler is None else [self.sampler.sample(self.draws) for _ in self.objective.losses]
        return _Batch(*before, parts, ids, samples)

    def _next_batch(self) -> _Batch:
        """The batch of the next step, which is prepared on another thread during the one before."""
        self._ahead = self._ahead or run_ahead(self._prepare)
        return self._ahead.result()

    @property
    def cut_sentences(self) -> int:
        """Number of sentences so far that were cut because they were longer than a batch of whole ones."""
        pending = self._next_batch().pending
        return pending.cut if isinstance(pending, PendingText) else 0

    def train_step(self) -> Tensor:
        """Train on the next batch of text.

        Returns:
            The mean losses in nats per prediction, (K,), one for each of `Objective.losses`: the two directions, or
            hidden words.
        """
        batch = self._next_batch().to(self.device)
        self._ahead = run_ahead(self._prepare)
        of_parts = [torch.zeros(len(self.objective.losses), device=self.device)]
        for part, ids in zip(batch.parts, batch.ids, strict=True):
            if not part.share:  # a batch of few sentences may leave this part without any
                continue
            losses = part.share * self._losses(part, ids, batch.samples)
            loss = losses.mean()
            (loss * self.settings.unroll_steps if self.recipe.multiply_loss_by_steps else loss).backward()
            of_parts.append(losses.detach())
        losses = torch.stack(of_parts).sum(dim=0)
        self._exchange(losses, batch)
        self.gradient_norm = clip_gradients(self.parameters, self.recipe.clip_norm)
        self.learning_rate = self.recipe.learning_rate * self.rate_factor * self.schedule.factor(self.step)
        self.optimizer.step(self.learning_rate)
        for parameter in self.parameters:
            parameter.grad = None
        self.step += 1
        return losses

    def _exchange(self, losses: Tensor, batch: _Batch) -> None:
        """Sum losses and gradients over all processes; of a sampled softmax, only the rows that were read."""
        if self.processes.count == 1:
            return
        for parameter in self.parameters:
            if parameter.grad is None and parameter.requires_grad:  # this process had no text
                parameter.grad = torch.zeros_like(parameter)
        gradients = {parameter: parameter.grad for parameter in self.parameters if parameter.grad is not None}
        if batch.samples:
            targets = [part.targets.flatten() for part in batch.parts]
            ids = torch.cat([*(drawn.ids for drawn in batch.samples), *targets])
            self.processes.sum_rows([gradients.pop(each) for each in (self.softmax.weight, self.softmax.bias)], ids)
        self.processes.sum([losses, *gradients.values()])

    def _losses(self, part: Part, ids: Tensor, samples: Sequence[Samples]) -> Tensor:
        """Mean losses of a part, (K,); `ids` are those of its words."""
        if self.processes.count > 1 and self.settings.dropout:
            torch.manual_seed(hash((self.settings.seed, self.step, part.key)))  # another dropout for each part
        low = self.dtype != torch.float32
        with torch.autocast(self.device.type, self.dtype) if low else nullcontext():
            vectors = self.bilm.token_encoder(ids)
            outputs = self.objective.outputs(self.bilm, vectors, part, self.settings.dropout)
            if self.sampler is not None:
                return self.softmax.sampled_losses(outputs, part.targets, samples, self.sampler).mean(dim=1)
            losses = [self.softmax.log_losses(own, targets) for own, targets in zip(outputs, part.targets, strict=True)]
            return torch.stack(losses).mean(dim=1)

    def snapshot(self) -> Snapshot:
        """The complete state of the run, from which `restore` resumes exactly, on any number of processes."""
        batch = self._next_batch()  # which the resumed run will read again
        pending = batch.pending.to_words() if isinstance(batch.pending, PendingRows) else asdict(batch.pending)
        tensors = (
            add_prefix("bilm", self.bilm.state_dict())
            | add_prefix("softmax", self.softmax.state_dict())
            | add_prefix("optimizer", self.optimizer.tensors())
            | add_prefix("state", self.objective.tensors())
            | add_prefix("random", {"torch": torch.get_rng_state(), "draws": batch.draws})
        )
        if self.device.type == "cuda":
            tensors |= add_prefix("random", {"cuda": torch.cuda.get_rng_state(self.device)})
        progress = {
            "step": self.step,
            "losses": [losses.tolist() for losses in self.losses],
            "position": batch.position.to_dict(),
            self.objective.pending_name: pending,
            "run": self.identity,
            "rate_factor": self.rate_factor,
            "monitor": self.monitor.to_dict(),
            "early_stopping": self.early_stopping.to_dict(),
            "last_step": self.last_step,
            "cycle_start": self.schedule.start,
        }
        return Snapshot(tensors, progress)

    def restore(self, snapshot: Snapshot, of_any_cycle: bool = False) -> None:
        """Resume from a snapshot.

        A longer run with otherwise the same settings extends a snapshot at the planned end of a run: its schedule
        begins anew there.

        Args:
            snapshot: A snapshot of this run.
            of_any_cycle: Whether it may be from before the run was extended.

        Raises:
            ValueError: It is damaged, or of another run; then the message names every setting that differs.
        """
        try:
            progress: _Progress = from_json(_Progress, snapshot.progress)
        except ValueError as error:
            raise _damaged(error) from error
        is_finished = progress.last_step is not None and progress.step >= progress.last_step
        extends = is_finished and self.last_step is not None and self.last_step > progress.step
        _check_same(progress.run, self.identity, LENGTH if extends or of_any_cycle else ())
        try:
            self.monitor = LossMonitor.from_dict(progress.monitor)
            self.early_stopping = EarlyStopping.from_dict(progress.early_stopping)
            pending = getattr(progress, name := self.objective.pending_name)
            if pending is None:
                raise ValueError(f"it has no {name}")
            self.read_from(Position(**progress.position), pending)
            self._restore_tensors(snapshot)
            self.losses = list(torch.tensor(progress.losses, device=self.device))
        except torch.OutOfMemoryError:  # the snapshot is intact
            raise
        except (KeyError, RuntimeError, TypeError, ValueError) as error:  # as PyTorch finds it
            raise _damaged(error) from error
        self.schedule = replace(self.schedule, start=progress.step if extends else progress.cycle_start)
        self.step, self.rate_factor = progress.step, progress.rate_factor

    def start_from(self, model: Pretrained) -> None:
        """Replace the random weights by those of a model, including its softmax if it has one."""
        self.identity["start"] = fingerprint(model)
        self.bilm.load_state_dict(model.bilm.state_dict())
        if model.softmax is not None:
            self.softmax.load_state_dict(model.softmax.state_dict())

    def _restore_tensors(self, snapshot: Snapshot) -> None:
        numbers = {name: tensor for name, tensor in snapshot.tensors.items() if not name.startswith("random.")}
        if wrong := [name for name, tensor in numbers.items() if not tensor.is_floating_point()]:
            raise ValueError(f"its {', '.join(wrong)} are not floats")
        if wrong := non_finite(numbers):
            raise ValueError(f"its {', '.join(wrong)} are not finite")
        self.bilm.load_state_dict(snapshot.with_prefix("bilm"))
        self.softmax.load_state_dict(snapshot.with_prefix("softmax"))
        self.optimizer.restore(optimizer_tensors_of(snapshot, self.bilm, self.softmax, self.optimizer))
        self.objective.restore(snapshot.with_prefix("state"))
        random = snapshot.with_prefix("random")
        torch.set_rng_state(random["torch"])
        self.draws.set_state(random["draws"])
        if "cuda" in random and self.device.type == "cuda":
            torch.cuda.set_rng_state(random["cuda"], self.device)

    def measure_heldout(self, files: list[Path], words: int | None, check: Callable[[], None] | None = None) -> Measure:
        """The exact (pseudo-)perplexity of files, or of `words` words from their beginnings; see `measure`."""
        words_per_file = None if words is None else max(1, words // len(files))
        sentences = chain.from_iterable(_first_sentences(file, words_per_file) for file in files)
        return measure(self.bilm, self.softmax, self.vocab, sentences, batch_size=32, check=check)

    def pretrained(self, tokenizer: str | None, card: str = "") -> Pretrained:
        """The model with its current weights, which are shared, not copied."""
        return Pretrained(self.bilm, softmax=self.softmax, vocab=self.vocab, tokenizer=tokenizer, card=card)
