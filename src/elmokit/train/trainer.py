"""A model in training: the training step, and the state to resume from exactly."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from elmokit.checkpoints import Pretrained
from elmokit.config import BiLMConfig
from elmokit.nn import BiLM, FullSoftmax
from elmokit.ops import upload
from elmokit.runtime import pick_device, pick_dtype
from elmokit.text import Vocab
from elmokit.threads import run_ahead
from elmokit.train.config import FinetuneConfig, PretrainConfig
from elmokit.train.corpus import SentenceReader
from elmokit.train.objectives import (
    LocalBatch,
    MaskedWords,
    Objective,
    SentenceLikelihood,
    WindowLikelihood,
)
from elmokit.train.optim import Schedule, clip_gradients, make_optimizer, recipe_of
from elmokit.train.processes import SINGLE_PROCESS, Processes
from elmokit.train.snapshots import Snapshot, add_prefix

Settings: TypeAlias = PretrainConfig | FinetuneConfig


@dataclass(frozen=True)
class _Prefetched:
    """The input of a step; reader and RNG state before it was built."""

    position: Any
    pending: Any
    generator_state: Tensor
    batch: LocalBatch
    ids: Tensor  # ids of the distinct words
    # For each loss the ids of the negative classes and the number of draws; none with full softmax.
    samples: list[tuple[Tensor, int]]

    def to(self, device: torch.device) -> _Prefetched:
        """Copy all tensors to a device at once."""
        batch, samples = self.batch, self.samples
        names = ("tokens", "targets", "slots", "vectors")
        held = {name: tensor for name in names if (tensor := getattr(batch, name)) is not None}
        ids, *moved = upload([self.ids, *held.values(), *(drawn for drawn, _ in samples)], device)
        batch = replace(batch, **dict(zip(held, moved, strict=False)))
        drawn, tries = moved[len(held) :], [num_tries for _, num_tries in samples]
        return replace(self, batch=batch, ids=ids, samples=list(zip(drawn, tries, strict=True)))


class Trainer:
    """A model in training: its weights, optimizer, text and random state, and the step.

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
        settings: Settings,
        config: BiLMConfig,
        vocab: Vocab,
        files: list[Path],
        total_steps: int | None,
        cool_down: tuple[int, int] | None = None,
        processes: Processes = SINGLE_PROCESS,
        objective: Callable[..., Objective] | None = None,
    ) -> None:
        """Initialize a model with random weights, at step 0.

        Args:
            settings: The optimization.
            config: The model.
            vocab: Vocabulary of the softmax.
            files: Files of the corpus.
            total_steps: Steps of the whole run; None without a planned end.
            cool_down: The end of a run with a constant schedule: its first step, and the number of
                its steps.
            processes: The processes that share each batch; all of them make the same calls.
            objective: What is minimized; None: what suits the encoder.
        """
        config.check_predicts_words()
        torch.manual_seed(settings.seed)
        self.settings, self.config, self.vocab, self.processes = settings, config, vocab, processes
        self.recipe = recipe_of(settings)
        self.device = pick_device(settings.device)
        self.dtype = pick_dtype(settings.dtype, self.device)
        encoder = config.sequence_encoder
        self.bilm = BiLM(config).to(self.device)
        self.softmax = FullSoftmax(len(vocab), encoder.projection_dim).to(self.device)
        # With as many samples as words, the full softmax gives the same loss faster.
        is_sampled = 0 < settings.num_samples < len(vocab)
        self.num_samples = settings.num_samples if is_sampled else 0
        self.generator = torch.Generator().manual_seed(settings.seed)
        if objective is None and encoder.carries_state:
            objective = WindowLikelihood
        elif objective is None:
            objective = MaskedWords if encoder.merges_directions else SentenceLikelihood
        self.objective = objective(
            self.bilm,
            vocab,
            processes,
            settings.batch_size,
            settings.unroll_steps,
            settings.dropout,
            self.recipe.fresh_starts,
        )
        self.loss_weights: Tensor | None = None
        if self.objective.weights:
            self.loss_weights = torch.tensor(self.objective.weights, device=self.device)
        self.parameters: list[nn.Parameter] = [
            *self.bilm.parameters(),
            *self.softmax.parameters(),
            *self.objective.parameters(),
        ]
        self.schedule = Schedule(
            self.recipe.schedule, total_steps, settings.warm_up_steps, cool_down
        )
        self.optimizer = make_optimizer(
            self.recipe, self.parameters, self.bilm.hidden_matrices(), self.dtype
        )
        self.step, self.learning_rate, self.rate_factor = 0, 0.0, 1.0
        self.gradient_norm = torch.zeros(())
        self._files = files
        self._ahead: Future[_Prefetched] | None = None
        self.read_from(None, None)

    @property
    def model(self) -> Pretrained:
        """The model with its current weights, which are shared, not copied."""
        return Pretrained(self.bilm, softmax=self.softmax, vocab=self.vocab)

    # --- Text

    def read_from(self, position: dict[str, int] | None, pending: Any) -> None:
        """Go on at a position of the corpus, after the objective's pending text, if any."""
        if self._ahead is not None:
            wait([self._ahead])  # it reads from what is replaced here
        self._ahead = None
        self.reader = SentenceReader(self._files, self.settings.seed, position)
        self.objective.read_from(self.reader, pending)

    def _prefetch(self) -> _Prefetched:
        """Read and encode the text of the next step, and draw its negative classes."""
        before = self.reader.position, self.objective.stream.pending, self.generator.get_state()
        batch, encoder = self.objective.next_batch(self.generator), self.bilm.token_encoder
        ids = encoder.pad_to_bucket(encoder.ids(batch.words, self.vocab))
        losses = batch.targets if self.num_samples else ()
        samples = [self.softmax.sample(self.num_samples, self.generator) for _ in losses]
        return _Prefetched(*before, batch, ids, samples)

    def _next_input(self) -> _Prefetched:
        """The input of the next step, which another thread prepares during the one before."""
        # this thread    prefetch 0   step 0       step 1       step 2
        # beside it                   prefetch 1   prefetch 2   prefetch 3
        self._ahead = self._ahead or run_ahead(self._prefetch)
        return self._ahead.result()

    # --- Step

    def train_step(self) -> Tensor:
        """Train on the next batch of text.

        Returns:
            The mean losses in nats per prediction, (K,), one for each of `objective.names`: the two
            directions, or masked words. Nothing waits for a GPU to compute them.
        """
        step_input = self._next_input().to(self.device)
        self._ahead = run_ahead(self._prefetch)
        # Each process weights the mean losses of its part of the batch by its share of the
        # predictions, so that sums over all processes are the means of the whole batch.
        losses = torch.zeros(len(self.objective.names), device=self.device)
        if weight := step_input.batch.weight:  # 0 if a small batch leaves nothing to this process
            losses = weight * self._losses(step_input)
            factor = self.settings.unroll_steps if self.recipe.multiply_loss_by_steps else 1
            weighted = losses if self.loss_weights is None else self.loss_weights * losses
            (weighted.mean() * factor).backward()
        losses = losses.detach()
        if self.processes.world_size > 1:
            # All processes must reduce the same tensors, also one that had no text.
            for parameter in self.parameters:
                if parameter.grad is None and parameter.requires_grad:
                    parameter.grad = torch.zeros_like(parameter)
            gradients = [p.grad for p in self.parameters if p.grad is not None]
            self.processes.all_reduce([losses, *gradients])
        self.gradient_norm = clip_gradients(self.parameters, self.recipe.clip_norm)
        self.learning_rate = (
            self.recipe.learning_rate * self.rate_factor * self.schedule.factor(self.step)
        )
        self.optimizer.step(self.learning_rate)
        # None, not zeros: the next backward pass then writes gradients without reading any.
        for parameter in self.parameters:
            parameter.grad = None
        self.step += 1
        return losses

    def _losses(self, step_input: _Prefetched) -> Tensor:
        """Mean losses of this process's batch, (K,)."""
        batch = step_input.batch
        if self.processes.world_size > 1 and self.settings.dropout:
            # Another dropout in each process.
            torch.manual_seed(hash((self.settings.seed, self.step, self.processes.rank)))

        def predict(outputs: Tensor) -> Tensor:
            """The mean losses (K,) of the targets, from inputs of the softmax (K, M, D)."""
            if self.num_samples:
                losses = self.softmax.sampled_losses(outputs, batch.targets, step_input.samples)
            else:
                pairs = zip(outputs, batch.targets, strict=True)
                losses = torch.stack([self.softmax.log_losses(*pair) for pair in pairs])
            return losses.mean(dim=1)

        is_low = self.dtype != torch.float32
        with torch.autocast(self.device.type, self.dtype) if is_low else nullcontext():
            vectors = self.bilm.token_encoder(step_input.ids)
            return self.objective.losses(vectors, batch, predict)

    # --- State

    def snapshot(self) -> Snapshot:
        """The complete state, from which `restore` goes on exactly, on any number of processes."""
        before = self._next_input()  # which the resumed run will read again
        random = {"torch": torch.get_rng_state(), "draws": before.generator_state}
        if self.device.type == "cuda":
            random["cuda"] = torch.cuda.get_rng_state(self.device)
        tensors = (
            add_prefix("bilm", self.bilm.state_dict())
            | add_prefix("softmax", self.softmax.state_dict())
            | add_prefix("optimizer", self.optimizer.tensors())
            | add_prefix("objective", self.objective.tensors())
            | add_prefix("random", random)
        )
        progress = {
            "step": self.step,
            "rate_factor": self.rate_factor,
            "position": asdict(before.position),
            "pending": before.pending.to_json(),
        }
        return Snapshot(tensors, progress)

    def restore(self, snapshot: Snapshot) -> None:
        """Go on from a snapshot of a trainer with the same settings."""
        progress, random = snapshot.progress, snapshot.with_prefix("random")
        self.step, self.rate_factor = progress["step"], progress["rate_factor"]
        self.read_from(progress["position"], progress["pending"])
        self.bilm.load_state_dict(snapshot.with_prefix("bilm"))
        self.softmax.load_state_dict(snapshot.with_prefix("softmax"))
        self.optimizer.restore(snapshot.with_prefix("optimizer"))
        self.objective.restore(snapshot.with_prefix("objective"))
        torch.set_rng_state(random["torch"])
        self.generator.set_state(random["draws"])
        if "cuda" in random and self.device.type == "cuda":
            torch.cuda.set_rng_state(random["cuda"], self.device)

    def start_from(self, model: Pretrained) -> None:
        """Replace the random weights by those of a model, including its softmax if it has one."""
        self.bilm.load_state_dict(model.bilm.state_dict())
        if model.softmax is not None:
            self.softmax.load_state_dict(model.softmax.state_dict())
