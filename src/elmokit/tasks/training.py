"""The training loop of a tagger, with early stopping, and its report."""

import json
import time
from dataclasses import asdict, dataclass, field
from typing import cast

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from elmokit.nn.bilm import BiLM
from elmokit.nn.scalar_mix import ScalarMix
from elmokit.runtime import pick_device
from elmokit.tasks.config import FitConfig, TaggerConfig
from elmokit.tasks.examples import Examples
from elmokit.tasks.metrics import accuracy, span_score
from elmokit.tasks.tagger import Tagger
from elmokit.tasks.trained import build_tagger, tag_examples


@dataclass(frozen=True)
class Epoch:
    """One pass over the training set: mean loss of the batches, development score after it, duration."""

    loss: float
    dev: float
    seconds: float


@dataclass(frozen=True)
class LearnedMix:
    """A trained scalar mix: the weights of the layers after the softmax, and gamma."""

    weights: list[float]
    gamma: float


@dataclass
class FitReport:
    """The result of training a tagger.

    Attributes:
        metric: "accuracy" or "span F1"; scores are from 0 to 1.
        best_epoch: Number of the best epoch, from 1.
        dev: Development score of the best epoch.
        test: Test score; None without test sentences.
        mixes: The scalar mixes: at the input, and with `elmo_at_output` at the output.
        parameters: Number of trained parameters.
        sentences: Number of training sentences.
        tokens: Number of training tokens.
        seconds: Duration of the training.
        tagger: Settings of the network.
        config: Settings of the training.
        epochs: All epochs.
    """

    metric: str
    best_epoch: int
    dev: float
    test: float | None
    mixes: list[LearnedMix]
    parameters: int
    sentences: int
    tokens: int
    seconds: float
    tagger: TaggerConfig
    config: FitConfig
    epochs: list[Epoch] = field(default_factory=list)

    def to_json(self) -> str:
        """The report as JSON."""
        return json.dumps(asdict(self), indent=2) + "\n"


def score(tagger: Tagger, examples: Examples) -> float:
    """Span F1 if the tags of the training set mark spans, otherwise accuracy; from 0 to 1."""
    gold = [sentence.tags for sentence in examples.sentences]
    predicted = tag_examples(tagger, examples)
    return span_score(gold, predicted).f1 if examples.vocab.scheme else accuracy(gold, predicted)


def train_epoch(
    tagger: Tagger, examples: Examples, optimizer: torch.optim.Optimizer, config: FitConfig, random: np.random.Generator
) -> float:
    """Train for one pass over the examples, and return the mean loss of its batches."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    device, losses = parameters[0].device, []
    tagger.train()
    for indices in examples.shuffled(config.batch_size, random):
        loss = tagger.loss(examples.batch(indices).to(device))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, config.max_grad_norm)
        optimizer.step()
        losses.append(loss.detach())
    return float(torch.stack(losses).mean())


def train_tagger(tagger: Tagger, train: Examples, dev: Examples, config: FitConfig) -> list[Epoch]:
    """Train in place until the development score stops improving, then restore the weights of the best epoch."""
    random = np.random.default_rng(config.seed)
    optimizer = torch.optim.Adam(_parameter_groups(tagger, config), fused=True)
    epochs: list[Epoch] = []
    best, best_weights = 0, _trained_weights(tagger)
    with tqdm(total=config.max_epochs, desc="fit", unit="epoch", disable=None) as progress:
        while len(epochs) < config.max_epochs and len(epochs) - best < config.patience:
            start_time = time.perf_counter()
            loss = train_epoch(tagger, train, optimizer, config, random)
            if not np.isfinite(loss):
                raise ValueError(f"the loss of epoch {len(epochs) + 1} is not finite: lower the learning rate")
            epochs.append(Epoch(loss, score(tagger, dev), time.perf_counter() - start_time))
            if best == 0 or epochs[-1].dev > epochs[best - 1].dev:
                best, best_weights = len(epochs), _trained_weights(tagger)
            else:
                for group in optimizer.param_groups:
                    group["lr"] /= 2
            progress.set_postfix(loss=f"{loss:.4f}", dev=f"{epochs[-1].dev:.4f}", best=f"{epochs[best - 1].dev:.4f}")
            progress.update()
    tagger.load_state_dict(best_weights, strict=False)
    return epochs


def _parameter_groups(tagger: Tagger, config: FitConfig) -> list[dict]:
    of_bilm = {id(parameter) for parameter in tagger.elmo.bilm.parameters()} if tagger.elmo is not None else set()
    trained = [parameter for parameter in tagger.parameters() if parameter.requires_grad]
    groups = [
        {"params": [parameter for parameter in trained if id(parameter) not in of_bilm], "lr": config.learning_rate}
    ]
    if tagger.config.finetune:
        bilm = [parameter for parameter in trained if id(parameter) in of_bilm]
        groups.append({"params": bilm, "lr": config.finetune_learning_rate})
    return groups


def _trained_weights(tagger: Tagger) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in tagger.named_parameters() if value.requires_grad}


def fit_examples(
    train: Examples,
    dev: Examples,
    test: Examples | None = None,
    bilm: BiLM | None = None,
    tagger_config: TaggerConfig | None = None,
    config: FitConfig | None = None,
) -> tuple[Tagger, FitReport]:
    """Train a new tagger on encoded examples.

    Args:
        train: Training examples.
        dev: Development examples for early stopping.
        test: Test examples to score.
        bilm: The biLM, if the tagger uses ELMo.
        tagger_config: The input features and the network.
        config: The training.

    Returns:
        The tagger and the report. The caller's random number generator is not affected.
    """
    tagger_config, config = tagger_config or TaggerConfig(), config or FitConfig()
    start_time = time.perf_counter()
    with torch.random.fork_rng():
        torch.manual_seed(config.seed)
        tagger = build_tagger(tagger_config, train.vocab, bilm).to(pick_device(config.device))
        epochs = train_tagger(tagger, train, dev, config)
    best = max(range(len(epochs)), key=lambda index: epochs[index].dev)
    report = FitReport(
        metric="span F1" if train.vocab.scheme else "accuracy",
        best_epoch=best + 1,
        dev=epochs[best].dev,
        test=None if test is None else score(tagger, test),
        mixes=_mixes(tagger),
        parameters=sum(parameter.numel() for parameter in tagger.parameters() if parameter.requires_grad),
        sentences=len(train),
        tokens=len(train.words),
        seconds=time.perf_counter() - start_time,
        tagger=tagger_config,
        config=config,
        epochs=epochs,
    )
    return tagger, report


def _mixes(tagger: Tagger) -> list[LearnedMix]:
    mixes = [] if tagger.elmo is None else [cast(ScalarMix, mix) for mix in tagger.elmo.mixes]
    return [LearnedMix(mix.layer_weights().tolist(), float(mix.gamma.detach())) for mix in mixes]
