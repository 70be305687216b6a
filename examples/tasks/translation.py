"""Translation: an LSTM encoder and an LSTM decoder with attention and input feeding (Luong et al.
2015), beam search.

ELMo enters the encoder. Rare target words are unknown; where the decoder predicts the unknown word,
the source word that it attends to most is copied (Luong et al. 2015, "Addressing the rare word
problem").

Translation is no task of elmokit's: this file is an example of a task of one's own, as in
docs/extending.md, and needs sacrebleu.

    python examples/tasks/translation.py
    elmokit fit examples/tasks/translation.py:TranslationTask train.en dev.en --output translator
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from sacrebleu.metrics.bleu import BLEU
from torch import Tensor, nn

import elmokit
from elmokit.fs.reading import read_lines
from elmokit.settings import Count, DropoutRate, NonNegative, check
from elmokit.tasks import DEFAULT_FIT, FitConfig
from elmokit.tasks.fitting.task import (
    BatchOfWords,
    Task,
    TaskNetwork,
    TaskScores,
    Use,
    words_of,
)
from elmokit.tasks.fitting.words import (
    BiLSTM,
    EncodedWords,
    WordBatch,
    WordEncoder,
    Words,
    masked_mean,
    masked_softmax,
)

DATA = Path(__file__).parent / "data"
PADDING, BEGIN, END, UNKNOWN = range(4)  # numbers of target words; those of the vocabulary follow
SPECIALS = 4


@dataclass(frozen=True)
class TranslationConfig:
    """The network for translation, and its files: a target file has the target language in place of
    the source in its name.
    """

    source: str = "en"
    """The source language, as in file names (train.en.gz)."""
    target: str = "de"
    """The target language, as in file names (train.de.gz)."""
    hidden_dim: Count = 256
    """Width of the encoder's LSTM in each direction, and of the decoder's."""
    target_dim: Count = 256
    """Width of the target words' vectors."""
    dropout: DropoutRate = 0.3
    """Dropout of the input of each layer; word vectors have a dropout of their own."""
    min_count: Count = 2
    """Minimum count of target words in the training set; rarer ones are unknown."""
    beam: Count = 5
    """Width of the beam search."""
    length_penalty: NonNegative = 0.6
    """Exponent of the length by which a translation's score is divided (Wu et al. 2016 without
    their constant).
    """
    lowercase: bool = True
    """Translate into lower case. The source keeps its case, as in the text that ELMo was trained
    on.
    """
    tokenizer: str = "english-1"
    """Tokenizer for the lines of files, and for strings; whitespace-1 if they are tokenized
    already.
    """

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True)
class ParallelSentence:
    """A sentence, and its translation if it is known."""

    source: tuple[str, ...]
    target: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Translation:
    """A translation and its score: its log-probability, divided by its length to the power of
    `length_penalty`.

    The log-probability and the length, in words, include the end of the sentence.
    """

    source: tuple[str, ...]
    words: tuple[str, ...]
    score: float


class TranslationBatch(NamedTuple):
    """Sentences, and the target word indices from BEGIN to END, then PADDING, (B, T) int64."""

    words: WordBatch
    target: Tensor | None


class DecoderState(NamedTuple):
    """State of the decoder: h and c of its LSTM, and the attentional vector of the previous step,
    each (B, H).
    """

    h: Tensor
    c: Tensor
    fed: Tensor


class Source(NamedTuple):
    """The sentences that the decoder attends to: the encoder's vectors (B, S, E), their keys (B, S,
    H), mask (B, S).
    """

    vectors: Tensor
    keys: Tensor
    mask: Tensor


class Translator(TaskNetwork):
    """Encoder, decoder, attention, output."""

    def __init__(self, config: TranslationConfig, words: WordEncoder, num_targets: int) -> None:
        super().__init__(words)
        self.config = config
        self.dropout = nn.Dropout(config.dropout)
        hidden = config.hidden_dim
        self.encoder = BiLSTM(words.dim, hidden)
        encoded = self.encoder.output_dim + words.output_dim
        self.targets = nn.Embedding(num_targets, config.target_dim, padding_idx=PADDING)
        self.start = nn.Linear(encoded, 2 * hidden)
        self.cell = nn.LSTMCell(config.target_dim + hidden, hidden)
        self.keys = nn.Linear(encoded, hidden, bias=False)
        self.attended = nn.Linear(hidden + encoded, hidden)
        self.output = nn.Linear(hidden, num_targets)

    # --- Steps ------------------------------------------------------------------------------------

    def encode(self, batch: WordBatch) -> tuple[Source, DecoderState]:
        """The vectors to attend to, and the decoder's initial state, from the mean of the encoder's
        vectors.
        """
        words: EncodedWords = self.words(batch)
        vectors = words.join(self.encoder(words.vectors, words.mask))
        h, c = torch.tanh(self.start(masked_mean(vectors, words.mask))).chunk(2, dim=1)
        return Source(vectors, self.keys(vectors), words.mask), DecoderState(
            h, c, torch.zeros_like(h)
        )

    def step(
        self, word: Tensor, state: DecoderState, source: Source
    ) -> tuple[DecoderState, Tensor]:
        """Read a target word's vector (B, E) -> the new state, whose `fed` the output layer reads;
        attention (B, S).
        """
        h, c = self.cell(torch.cat([word, state.fed], dim=1), (state.h, state.c))
        attention = masked_softmax((source.keys @ h[:, :, None]).squeeze(2), source.mask)
        context = (attention[:, None, :] @ source.vectors).squeeze(1)
        fed = self.dropout(torch.tanh(self.attended(torch.cat([h, context], dim=1))))
        return DecoderState(h, c, fed), attention

    # --- Training ---------------------------------------------------------------------------------

    def loss(self, batch: TranslationBatch) -> Tensor:
        """Mean negative log-likelihood of the target words and END, given the correct previous
        words.
        """
        assert batch.target is not None
        source, state = self.encode(batch.words)
        vectors = self.dropout(self.targets(batch.target[:, :-1]))
        fed = []
        for word in vectors.unbind(1):
            state, _ = self.step(word, state, source)
            fed.append(state.fed)
        scores = self.output(torch.stack(fed, dim=1))
        return F.cross_entropy(
            scores.flatten(0, 1), batch.target[:, 1:].flatten(), ignore_index=PADDING
        )

    # --- Beam search ------------------------------------------------------------------------------

    def decode(self, batch: TranslationBatch) -> list[tuple[list[tuple[int, int]], float]]:
        """For each sentence its translation, as pairs (index of a target word, position of the
        source word that it attends to most), and its score.
        """
        source, state = self.encode(batch.words)
        return [self._search(*_row(number, source, state)) for number in range(len(source.mask))]

    def _search(self, source: Source, state: DecoderState) -> tuple[list[tuple[int, int]], float]:
        """The best translation of one sentence."""
        beam, longest = self.config.beam, 2 * int(source.mask.sum()) + 10
        words = torch.tensor([BEGIN], device=source.mask.device)
        scores = torch.zeros(1, device=source.mask.device)
        paths: list[list[tuple[int, int]]] = [[]]
        finished: list[tuple[float, list[tuple[int, int]]]] = []
        for length in range(1, longest + 1):
            wide = Source(*(field.expand(len(words), *field.shape[1:]) for field in source))
            state, attention = self.step(self.targets(words), state, wide)
            steps = self.output(state.fed).log_softmax(dim=1)
            steps[:, [PADDING, BEGIN]] = -torch.inf
            total, place = (scores[:, None] + steps).flatten().topk(min(2 * beam, steps.numel()))
            origin, word = place // steps.shape[1], place % steps.shape[1]
            attended = attention.argmax(dim=1).tolist()
            chosen = []
            candidates = zip(origin.tolist(), word.tolist(), total.tolist(), strict=True)
            for index, (row, number, score) in enumerate(candidates):
                if number == END and index >= beam:
                    continue  # not among the best continuations
                if number == END:
                    finished.append((score / length**self.config.length_penalty, paths[row]))
                elif len(chosen) < beam:
                    chosen.append((index, [*paths[row], (number, attended[row])]))
            if not chosen:
                break
            # A continuation only lowers the log-probability, and is divided by the maximum length
            # at most.
            best_to_come = float(total[chosen[0][0]]) / longest**self.config.length_penalty
            if finished and max(score for score, _ in finished) >= best_to_come:
                break
            index = torch.tensor([place for place, _ in chosen], device=words.device)
            words, scores, paths = word[index], total[index], [path for _, path in chosen]
            state = DecoderState(*(field[origin[index]] for field in state))
        if not finished:
            finished = [(float(scores[0]) / longest**self.config.length_penalty, paths[0])]
        score, path = max(finished, key=lambda scored_path: scored_path[0])
        return path, score


def _row(number: int, source: Source, state: DecoderState) -> tuple[Source, DecoderState]:
    """One sentence of a batch, without padding."""
    words = int(source.mask[number].sum())
    row = slice(number, number + 1)
    cut = Source(*(field[row, :words] for field in source))
    return cut, DecoderState(*(field[row] for field in state))


class TranslationTask(Task[ParallelSentence, Translation]):
    """The translation of a sentence. Files have one sentence per line; the target file is next to
    the source file.
    """

    name = "translation"
    Config = TranslationConfig
    fit_config = FitConfig(max_epochs=15, batch_size=64, learning_rate=1e-3, patience=3).over(
        DEFAULT_FIT
    )
    config: TranslationConfig

    # --- Examples ---------------------------------------------------------------------------------

    def read(self, path: Path, use: Use = "score") -> Iterator[ParallelSentence]:
        with_answers = use != "predict"
        targets: Iterable[str | None] = iter(())
        if with_answers:
            target_path = self._target_of(path)
            if target_path == path or not target_path.is_file():
                raise ValueError(
                    f"{path} has no translation: {target_path.name} is expected next to it"
                )
            targets = read_lines(target_path)
        for number, (line, target) in enumerate(zip_longest(read_lines(path), targets), start=1):
            if line is None or (with_answers and target is None):
                raise ValueError(
                    f"{path} and its translation differ in length: one of them ends before line "
                    f"{number}"
                )
            yield ParallelSentence(
                self._words(line),
                None
                if target is None
                else self._words(target.lower() if self.config.lowercase else target),
            )

    def _target_of(self, path: Path) -> Path:
        """The file of translations: the name of `path` with the last mention of the source language
        replaced.
        """
        before, language, after = f"{path.name}.".rpartition(f".{self.config.source}.")
        if not language:
            raise ValueError(
                f"{path} does not name its language: call it *.{self.config.source}, or set source"
            )
        return path.with_name(f"{before}.{self.config.target}.{after}"[:-1])

    def _words(self, text: str | Words) -> tuple[str, ...]:
        return words_of(text, self.config.tokenizer)

    def make_example(self, inputs: str | Words, answer: str | None = None) -> ParallelSentence:
        """From a string, which is tokenized as the training set was, or a list of words."""
        return ParallelSentence(
            self._words(inputs), None if answer is None else self._words(answer)
        )

    def sentences(self, example: ParallelSentence) -> Iterable[Words]:
        return (example.source,)

    def check(self, example: ParallelSentence) -> None:
        if example.target is None:
            raise ValueError("the sentence has no translation")

    def learn(self, examples: Sequence[ParallelSentence]) -> dict[str, Any]:
        counts = Counter(word for example in examples for word in example.target or ())
        frequent = [word for word, count in counts.items() if count >= self.config.min_count]
        return {"targets": sorted(frequent, key=lambda word: (-counts[word], word))}

    # --- The network ------------------------------------------------------------------------------

    def network(self, words: WordEncoder) -> Translator:
        return Translator(self.config, words, len(self.labels["targets"]) + SPECIALS)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.labels["targets"], start=SPECIALS)}

    def collate(
        self, examples: Sequence[ParallelSentence], words: BatchOfWords
    ) -> TranslationBatch:
        batch = words([example.source for example in examples])
        targets = [example.target for example in examples]
        if any(target is None for target in targets):
            return TranslationBatch(batch, None)
        rows = [
            [BEGIN, *(self._numbers.get(word, UNKNOWN) for word in target or ()), END]
            for target in targets
        ]
        longest = max(map(len, rows))
        return TranslationBatch(
            batch, torch.tensor([row + [PADDING] * (longest - len(row)) for row in rows])
        )

    # --- Answers ----------------------------------------------------------------------------------

    def predictions(
        self, examples: Sequence[ParallelSentence], decoded: Sequence[Any]
    ) -> list[Translation]:
        translations = []
        for example, answer in zip(examples, decoded, strict=True):
            path, score = answer or ([], 0.0)
            source = (
                [word.lower() for word in example.source]
                if self.config.lowercase
                else example.source
            )
            words = (
                source[attended] if number == UNKNOWN else self.labels["targets"][number - SPECIALS]
                for number, attended in path
            )
            translations.append(Translation(example.source, tuple(words), score))
        return translations

    def score(
        self, examples: Sequence[ParallelSentence], predictions: Sequence[Translation]
    ) -> TaskScores:
        """BLEU of the task's own tokens, from 0 to 1, as computed by sacrebleu.

        Published figures are of text that is tokenized differently, and cannot be compared.
        """
        bleu = BLEU(tokenize="none", force=True)
        gold = [" ".join(example.target or ()) for example in examples]
        translations = [" ".join(prediction.words) for prediction in predictions]
        return TaskScores({"bleu": bleu.corpus_score(translations, [gold]).score / 100})


def main() -> None:
    task = TranslationTask(
        TranslationConfig(source="en", target="de", hidden_dim=64, target_dim=64, min_count=1)
    )
    words = elmokit.WordsConfig(elmo="input", word_dim=0, elmo_dropout=0.2)
    config = elmokit.FitConfig(
        max_epochs=20, patience=20, batch_size=8, learning_rate=5e-3, device="cpu"
    )
    # The German sentences are in captions.train.de and captions.dev.de, next to the English files.
    model, report = elmokit.fit(
        task, DATA / "captions.train.en", DATA / "captions.dev.en", words=words, config=config
    )
    print(report)

    for translation in model.predict(["A cat sings in the park.", "The girl waits by the river."]):
        print(f"{' '.join(translation.source)} -> {' '.join(translation.words)}")


if __name__ == "__main__":
    main()
