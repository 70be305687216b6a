"""A model in training: the training step, and saving and restoring everything that it reads and changes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from elmokit.checkpoints.pretrained import Pretrained
from elmokit.config import BiLMConfig
from elmokit.data.corpus import Position, SentenceReader
from elmokit.data.streams import TrainingStream, TrainingWindow
from elmokit.fs.reading import read_lines
from elmokit.lm.evaluate import Perplexity, check_predicts, perplexity
from elmokit.nn.bilm import BiLM, BiLMState
from elmokit.nn.lstm import LSTMLayer
from elmokit.nn.softmax import FullSoftmax, LogUniformSampler
from elmokit.nn.token_encoders import in_few_shapes
from elmokit.ops.packing import Packing
from elmokit.runtime import pick_device, pick_dtype, seed_everything
from elmokit.text.vocab import Vocab
from elmokit.train.config import PretrainConfig
from elmokit.train.divergence import LossMonitor
from elmokit.train.early_stopping import EarlyStopping
from elmokit.train.older_snapshots import optimizer_tensors_of
from elmokit.train.optim import Recipe, clip_gradients, make_optimizer, recipe
from elmokit.train.schedule import CoolDown, Schedule
from elmokit.train.snapshots import Snapshot, add_prefix

# Settings that may differ between a run and its resumption: paths, logging, hardware, when to stop.
FREE_SETTINGS = {
    "corpus", "output", "heldout", "vocab", "config", "device", "threads", "log_every", "evaluate_every",
    "evaluate_words", "checkpoint_every", "keep_checkpoints", "tokenize", "tokenizer", "language", "tensorboard",
    "max_hours", "patience", "cool_down", "cool_down_from",
}  # fmt: skip
# With a constant schedule, no step depends on the length of the run.
FREE_WITHOUT_END = {"epochs", "max_words"}


def recipe_of(settings: PretrainConfig) -> Recipe:
    """The recipe of the settings, with the values that they replace."""
    return recipe(settings.recipe, settings.learning_rate, settings.fresh_starts, settings.schedule)


def _identity(settings: PretrainConfig, config: BiLMConfig, vocab: Vocab, corpus: str) -> dict[str, Any]:
    """The settings that a snapshot and the run that resumes it must share, as JSON values."""
    values = asdict(settings) | asdict(recipe_of(settings))  # the recipe supplies the defaults
    free = FREE_SETTINGS | (FREE_WITHOUT_END if values["schedule"] == "constant" else set())
    values = {name: value for name, value in values.items() if name not in free}
    words = hashlib.sha256("\n".join(vocab.words).encode()).hexdigest()
    return json.loads(json.dumps(values | {"model": config.to_dict(), "vocabulary": words, "corpus": corpus}))


def _check_same(before: dict[str, Any], now: dict[str, Any]) -> None:
    if "schedule" not in before:  # a snapshot of elmokit before 0.1
        before = {**before, "schedule": "cosine" if before.get("decays") else "none"}
    differing = [
        f"{name} was {before.get(name)}, is {now.get(name)}" for name in now if before.get(name) != now.get(name)
    ]
    if differing:
        raise ValueError(
            "the checkpoint in the output directory belongs to another run: "
            + "; ".join(differing)
            + ". Use the same settings to resume it, or choose another output directory"
        )


def _first_sentences(file: Path, words: int | None) -> Iterator[list[str]]:
    count = 0
    for line in read_lines(file):
        if words is not None and count >= words:
            return
        sentence = line.split()
        count += len(sentence)
        if sentence:
            yield sentence


def _hidden_matrices(bilm: BiLM) -> list[nn.Parameter]:
    """The weight matrices of the LSTMs, highway layers and projections: all between embeddings and softmax."""
    matrices: list[nn.Parameter] = []
    for module in bilm.modules():
        if isinstance(module, nn.Linear):
            matrices.append(cast(nn.Parameter, module.weight))
        elif isinstance(module, LSTMLayer):
            weights = (module.input_weight, module.recurrent_weight, module.projection_weight)
            matrices += [weight for weight in weights if weight is not None]
    return matrices


class Trainer:
    """A model in training, with everything that a training step reads and changes."""

    def __init__(
        self,
        settings: PretrainConfig,
        config: BiLMConfig,
        vocab: Vocab,
        files: list[Path],
        total_steps: int | None,
        corpus: str = "",
        cool_down: CoolDown | None = None,
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
        """
        check_predicts(config)
        seed_everything(settings.seed)
        self.settings, self.config, self.vocab = settings, config, vocab
        self.identity = _identity(settings, config, vocab, corpus)
        self.device = pick_device(settings.device)
        self.dtype = pick_dtype(settings.dtype, self.device)
        self.bilm = BiLM(config).to(self.device)
        self.softmax = FullSoftmax(len(vocab), config.lstm.projection_dim).to(self.device)
        self.parameters: list[nn.Parameter] = [*self.bilm.parameters(), *self.softmax.parameters()]
        self.recipe = recipe_of(settings)
        self.schedule = Schedule(self.recipe.schedule, total_steps, cool_down)
        self.last_step = total_steps if cool_down is None else cool_down.end
        self.optimizer = make_optimizer(
            settings.recipe, self.parameters, _hidden_matrices(self.bilm), self.recipe.learning_rate
        )
        self.gradient_norm, self.learning_rate = torch.zeros(()), 0.0  # of the last step
        self.rate_factor = 1.0  # lowered after divergence
        self.monitor, self.early_stopping = LossMonitor(), EarlyStopping()
        # With as many samples as words, the full softmax gives the same loss faster.
        samples = settings.num_samples if settings.num_samples < len(vocab) else 0
        self.sampler = LogUniformSampler(len(vocab), samples) if samples else None
        self.draws = torch.Generator().manual_seed(settings.seed)
        self.state = self.bilm.initial_state(settings.batch_size)
        self.packing = Packing.rectangle(settings.unroll_steps, settings.batch_size)
        self._files = files
        self.read_from(Position(), None)
        self.step = 0

    def read_from(self, position: Position, rows: Any) -> None:
        """Continue reading the corpus at `position`; `rows` are the pending tokens of the stream's rows, if any."""
        settings = self.settings
        self.reader = SentenceReader(self._files, settings.seed, position)
        self.stream = TrainingStream(self.reader, self.vocab, settings.batch_size, settings.unroll_steps, rows)

    def train_step(self) -> Tensor:
        """Train on the next window.

        Returns:
            The mean losses of the two directions in nats per word, (2,).
        """
        losses = self._losses(next(self.stream))
        loss = losses.mean()
        (loss * self.settings.unroll_steps if self.recipe.multiply_loss_by_steps else loss).backward()
        self.gradient_norm = clip_gradients(self.parameters, self.recipe.clip_norm)
        self.learning_rate = self.recipe.learning_rate * self.rate_factor * self.schedule.factor(self.step)
        self.optimizer.step(self.learning_rate)
        for parameter in self.parameters:
            parameter.grad = None
        self.step += 1
        return losses.detach()

    def _losses(self, window: TrainingWindow) -> Tensor:
        ids = in_few_shapes(self.bilm.token_encoder.ids(window.words, self.vocab)).to(self.device)
        tokens, targets = window.tokens.to(self.device), window.targets.to(self.device)
        low = self.dtype != torch.float32
        with torch.autocast(self.device.type, self.dtype) if low else nullcontext():
            words = self.bilm.token_encoder(ids)
            packing = self._with_fresh_starts(window)
            layers, state = self.bilm.run(words, tokens, packing, self.state, dropout=self.settings.dropout)
            self.state = BiLMState(state.h.detach(), state.c.detach())
            return self._softmax_losses(layers[-1], targets).mean(dim=1)

    def _with_fresh_starts(self, window: TrainingWindow) -> Packing:
        if not self.recipe.fresh_starts:
            return self.packing
        drawn = torch.rand(window.begins.shape, generator=self.draws) < self.recipe.fresh_starts
        return replace(self.packing, resets=window.begins & drawn)

    def _softmax_losses(self, hidden: Tensor, targets: Tensor) -> Tensor:
        if self.sampler is None:
            return torch.stack([self.softmax.log_losses(hidden[d], targets[d]) for d in range(2)])
        samples = [self.sampler.sample(self.draws) for _ in range(2)]
        return self.softmax.sampled_losses(hidden, targets, samples, self.sampler)

    def snapshot(self) -> Snapshot:
        """The complete state of the run, from which `restore` resumes exactly."""
        tensors = (
            add_prefix("bilm", self.bilm.state_dict())
            | add_prefix("softmax", self.softmax.state_dict())
            | add_prefix("optimizer", self.optimizer.tensors())
            | add_prefix("state", {"h": self.state.h, "c": self.state.c})
            | add_prefix("random", {"torch": torch.get_rng_state(), "draws": self.draws.get_state()})
        )
        if self.device.type == "cuda":
            tensors |= add_prefix("random", {"cuda": torch.cuda.get_rng_state(self.device)})
        progress = {
            "step": self.step,
            "position": self.reader.position.to_dict(),
            "rows": self.stream.rows,
            "run": self.identity,
            "rate_factor": self.rate_factor,
            "monitor": self.monitor.to_dict(),
            "early_stopping": self.early_stopping.to_dict(),
        }
        return Snapshot(tensors, progress)

    def restore(self, snapshot: Snapshot) -> None:
        """Resume from a snapshot. ValueError names every setting that differs from those of the snapshot."""
        _check_same(snapshot.progress.get("run", {}), self.identity)
        self.bilm.load_state_dict(snapshot.with_prefix("bilm"))
        self.softmax.load_state_dict(snapshot.with_prefix("softmax"))
        self.optimizer.restore(optimizer_tensors_of(snapshot, self.bilm, self.softmax, self.optimizer))
        state = snapshot.with_prefix("state")
        self.state = BiLMState(**{name: tensor.to(self.device) for name, tensor in state.items()})
        random = snapshot.with_prefix("random")
        torch.set_rng_state(random["torch"])
        self.draws.set_state(random["draws"])
        if "cuda" in random and self.device.type == "cuda":
            torch.cuda.set_rng_state(random["cuda"], self.device)
        self.read_from(Position(**snapshot.progress["position"]), snapshot.progress["rows"])
        self.step = snapshot.progress["step"]
        self.rate_factor = snapshot.progress.get("rate_factor", 1.0)  # snapshots of elmokit before 0.1 lack these
        self.monitor = LossMonitor.from_dict(snapshot.progress.get("monitor", LossMonitor().to_dict()))
        self.early_stopping = EarlyStopping.from_dict(
            snapshot.progress.get("early_stopping", EarlyStopping().to_dict())
        )

    def heldout_perplexity(self, files: list[Path], words: int | None) -> Perplexity:
        """Exact perplexity of the files, or of about `words` words from their beginnings."""
        words_per_file = None if words is None else max(1, words // len(files))
        sentences = chain.from_iterable(_first_sentences(file, words_per_file) for file in files)
        return perplexity(self.bilm, self.softmax, self.vocab, sentences, batch_size=32)

    def pretrained(self, tokenizer: str | None, card: str = "") -> Pretrained:
        """The model with its present weights, which are shared, not copied."""
        return Pretrained(self.bilm, softmax=self.softmax, vocab=self.vocab, tokenizer=tokenizer, card=card)
