"""One frozen dataclass per verb, whose fields are its options and whose docstrings are its help.

Nothing is computed here: a verb imports the function that does the job when it runs, so that `--help` loads no PyTorch.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg, subcommand

from elmokit.cli.show import show
from elmokit.tasks.settings import Columns, FitConfig, TaggerConfig
from elmokit.train.settings import FinetuneSettings, PretrainSettings

# The default, None, is no news: the text says what happens without the option.
UNSET = arg(help_behavior_hint="")
Model = Annotated[
    str | None,
    arg(help="Directory or name of the model, or OWNER/NAME on the Hugging Face Hub; the bundled English one if none."),
    UNSET,
]
Device = Annotated[str | None, arg(help="cpu, cuda or cuda:N; the best there is when not given."), UNSET]
State = Literal["zeros", "warm", "carry"]
OwnState = Annotated[
    State | None, arg(help="LSTM state at the start of a sentence; the model's own policy when not given."), UNSET
]
OneLayer = Literal["mix", "average", "top"] | int
Overwrite = Annotated[bool, arg(help="Replace the output where there is one.")]
Tokenize = Annotated[
    bool, arg(help="Split the lines as the model's training text was; with --no-tokenize at white space.")
]
Products = Annotated[
    Literal["float32", "bfloat16", "int8", "auto"],
    arg(
        help="Number type of the computation: float32 is exact, bfloat16 twice as fast, int8 faster still, but only on "
        "a CPU with AVX-512 VNNI; auto: bfloat16 where the machine multiplies it."
    ),
]


@dataclass(frozen=True)
class Prepare:
    """Split raw text into sentences and tokens: shards with one sentence a line."""

    inputs: Annotated[Positional[tuple[Path, ...]], arg(metavar="INPUT [INPUT ...]", help_behavior_hint="(required)")]
    """Text files (plain, .gz or .zst), a paragraph a line, a blank line between documents."""
    output: Path
    """Directory for the shards and their summary, corpus.json."""
    tokenizer: str = "english-1"
    """whitespace-1, english-1, characters-1 or spacy:MODEL. Models that are trained on the shards keep the name."""
    num_shards: Annotated[int | None, UNSET] = None
    """Number of shards; chosen from the size of the inputs when not given."""
    processes: Annotated[int | None, UNSET] = None
    """Worker processes, one per core when not given. The shards do not depend on it."""
    seed: int = 0
    """Seed of the assignment of documents to shards."""

    def run(self) -> None:
        from elmokit.data.prepare import prepare

        show(prepare(**vars(self)))


@dataclass(frozen=True)
class Pretrain:
    """Pretrain a bidirectional language model on tokenized text. The same command resumes a run that was stopped."""

    settings: Annotated[PretrainSettings, arg(name="")]

    def run(self) -> None:
        from elmokit.train.pretrain import pretrain

        print(f"model: {pretrain(self.settings)}")


@dataclass(frozen=True)
class Evaluate:
    """Exact perplexity of tokenized text under a model: forward, backward and their mean."""

    files: Annotated[Positional[tuple[Path, ...]], arg(metavar="FILE [FILE ...]", help_behavior_hint="(required)")]
    """Tokenized text (plain, .gz or .zst), one sentence a line; or directories as `elmokit prepare` writes them."""
    model: Model = None
    state: State = "carry"
    """LSTM state at the start of a sentence: zeros, the model's warm state, or carried on from the sentence before."""
    batch_size: int = 1
    """Rows read side by side. With carried state, sentence i belongs to row i mod batch size."""
    device: Device = None

    def run(self) -> None:
        from elmokit.lm.evaluate import evaluate_files

        show(evaluate_files(**vars(self)))


@dataclass(frozen=True)
class Embed:
    """Write the contextual vectors of every word of a file. The same command resumes a run that was stopped."""

    file: Positional[Path]
    """Text (plain, .gz or .zst), one sentence a line."""
    output: Path
    """Directory for the vectors, or a name that ends in .hdf5 for AllenNLP's layout."""
    model: Model = None
    layers: OneLayer | Literal["all"] = "mix"
    """The model's own mix, the average, the top, all of them, or the number of a layer (0 knows no context)."""
    state: OwnState = None
    dtype: Literal["float32", "float16"] = "float32"
    """Number type of the written vectors."""
    device: Device = None
    tokenize: Tokenize = True
    products: Products = "float32"
    sentences_per_part: int = 1000
    """Sentences in a part: what a stopped run repeats at most."""

    def run(self) -> None:
        from elmokit.embed.files import embed_file

        show(embed_file(**vars(self)))


@dataclass(frozen=True)
class Encode:
    """Write one vector for each line of a file. The same command resumes a run that was stopped."""

    file: Positional[Path]
    """Text (plain, .gz or .zst), one text a line."""
    output: Path
    """NumPy file (.npy) for the vectors, a row for each line."""
    model: Model = None
    pooling: Literal["mean", "max"] = "mean"
    """How the vectors of a text's words become one."""
    normalize_embeddings: bool = False
    """Scale every vector to length one."""
    layers: OneLayer = "mix"
    """The model's own mix, the average, the top, or the number of a layer (0 knows no context)."""
    state: OwnState = None
    device: Device = None
    tokenize: Tokenize = True
    products: Products = "float32"
    sentences_per_part: int = 1000
    """Lines in a part: what a stopped run repeats at most."""

    def run(self) -> None:
        from elmokit.embed.files import encode_file

        show(encode_file(**vars(self)))


@dataclass(frozen=True)
class Compare:
    """Print how alike the vectors of one word are across sentences."""

    word: Positional[str]
    """The word, as it is spelled in the sentences."""
    sentences: Annotated[
        Positional[tuple[str, ...]], arg(metavar="SENTENCE [SENTENCE ...]", help_behavior_hint="(required)")
    ]
    """Sentences with the word."""
    model: Model = None
    layers: OneLayer | Literal["all"] = "all"
    """The model's own mix, the average, the top, all of them, or the number of a layer (0 knows no context)."""
    device: Device = None

    def run(self) -> None:
        from elmokit.analysis.similarity import compare

        show(compare(**vars(self)))


@dataclass(frozen=True)
class Neighbors:
    """Find the uses of a word in a corpus that are nearest to its use in a sentence."""

    word: Positional[str]
    """The word, as it is spelled in the sentence."""
    sentence: Annotated[str, arg(name="in")]
    """The sentence that shows the use."""
    corpus: Path
    """Text to search (plain, .gz or .zst), one sentence a line; or a directory as `elmokit prepare` writes it."""
    count: int = 10
    """How many uses to show."""
    model: Model = None
    layers: OneLayer = "top"
    """The model's own mix, the average, the top, or the number of a layer (0 knows no context)."""
    device: Device = None
    any_word: bool = False
    """Search the uses of every word, not only of this one."""
    max_sentences: Annotated[int | None, UNSET] = None
    """Search at most this many sentences that contain the word."""

    def run(self) -> None:
        from elmokit.analysis.neighbors import Search, neighbors

        search = Search(self.count, self.any_word, self.max_sentences)
        show(neighbors(self.word, self.sentence, self.corpus, self.model, self.layers, self.device, search))


@dataclass(frozen=True)
class Fit:
    """Fit a sequence tagger on contextual vectors, until the development score stops rising."""

    train: Positional[Path]
    """Tagged sentences, one token a line: CoNLL-U, or columns at white space (plain, .gz or .zst)."""
    dev: Positional[Path]
    """Tagged sentences that decide when to stop, and which epoch's weights are kept."""
    output: Path
    """Directory for the tagger and report.json."""
    test: Annotated[Path | None, UNSET] = None
    """Tagged sentences for the final score."""
    model: Model = None
    columns: Annotated[Columns, arg(name="")] = Columns()  # noqa: RUF009 (it is frozen)
    overwrite: Overwrite = False
    tagger: Annotated[TaggerConfig, arg(name="")] = TaggerConfig()  # noqa: RUF009 (it is frozen)
    config: Annotated[FitConfig, arg(name="")] = FitConfig()  # noqa: RUF009 (it is frozen)

    def run(self) -> None:
        from elmokit.tasks.data import TaskFiles
        from elmokit.tasks.fit import fit_files

        files = TaskFiles(self.train, self.dev, self.test, self.columns)
        options = {"model": self.model, "tagger": self.tagger, "config": self.config, "overwrite": self.overwrite}
        show(fit_files(files, self.output, **options))
        print(f"{self.output}: the tagger and its report.json")


@dataclass(frozen=True)
class Predict:
    """Tag a file with a tagger that was fitted."""

    tagger: Positional[Path]
    """Directory that fit wrote."""
    file: Positional[Path]
    """Sentences, one token a line: CoNLL-U, or columns at white space (plain, .gz or .zst)."""
    output: Path
    """File for the sentences with their tags: CoNLL-U in the tag column, others in a new last column."""
    model: Annotated[str | None, UNSET] = None
    """Where the model lies that the tagger was fitted on, if it was moved."""
    columns: Annotated[Columns, arg(name="")] = Columns()  # noqa: RUF009 (it is frozen)
    device: Device = None
    overwrite: Overwrite = False

    def run(self) -> None:
        from elmokit.tasks.fit import predict_files

        sentences, tokens = predict_files(**vars(self))
        print(f"{self.output}: {sentences} sentences, {tokens} tokens")


@dataclass(frozen=True)
class Finetune:
    """Go on training a model on text of a domain. The same command resumes a run that was stopped."""

    settings: Annotated[FinetuneSettings, arg(name="")]

    def run(self) -> None:
        from elmokit.train.finetune import finetune

        show(finetune(self.settings))


@dataclass(frozen=True)
class Score:
    """Write the log-probability of every word of a file, given the words before it and given those after it."""

    file: Positional[Path]
    """Text (plain, .gz or .zst), one sentence a line. Blank lines are no sentences."""
    output: Path
    """File for the scores, a JSON line for each sentence (.jsonl, .jsonl.gz or .jsonl.zst)."""
    model: Model = None
    state: State = "zeros"
    """LSTM state at the start of a sentence: zeros, the model's warm state, or carried on from the one before."""
    batch_size: int = 1
    """Rows read side by side. With carried state, sentence i belongs to row i mod batch size."""
    device: Device = None
    tokenize: Tokenize = False

    def run(self) -> None:
        from elmokit.lm.scoring import score_file

        show(score_file(**vars(self)))


@dataclass(frozen=True)
class Substitutes:
    """Print the words that are likeliest in the place of each word of a sentence, with their log-probabilities."""

    sentence: Positional[str]
    """The sentence; it is split as the model's training text was."""
    positions: tuple[int, ...] = ()
    """Words to find substitutes for, from 0; all of them when not given."""
    top: int = 10
    """How many to print."""
    direction: Literal["both", "forward", "backward"] = "both"
    """Given the words on both sides (the sum of two log-probabilities), or those before or after it alone."""
    model: Model = None
    state: Literal["zeros", "warm"] = "zeros"
    """LSTM state at the start of the sentence: zeros, or the model's warm state."""

    def run(self) -> None:
        from elmokit.io.checkpoint import load
        from elmokit.lm.scoring import substitutes, words_of

        model = load(self.model)
        words = words_of(model, self.sentence)
        positions = self.positions or tuple(range(len(words)))
        found = substitutes(model, words, positions, self.top, self.direction, self.state)
        places = (f"{position} {words[position]}" for position in positions)
        show({place: ", ".join(map(str, row)) for place, row in zip(places, found, strict=True)})


@dataclass(frozen=True)
class NextWords:
    """Print the likeliest next words after the beginning of a sentence, with their log-probabilities."""

    sentence: Positional[str]
    """The words so far; they are split as the model's training text was."""
    top: int = 10
    """How many to print. </S> says that the sentence ends, <UNK> stands for all words outside the vocabulary."""
    direction: Literal["forward", "backward"] = "forward"
    """backward: the words before the end of a sentence."""
    model: Model = None
    state: Literal["zeros", "warm"] = "zeros"
    """LSTM state at the start of the sentence: zeros, or the model's warm state."""

    def run(self) -> None:
        from elmokit.io.checkpoint import load
        from elmokit.lm.scoring import next_words

        found = next_words(load(self.model), self.sentence, self.top, self.direction, self.state)
        show({each.word: each.log_probability for each in found})


@dataclass(frozen=True)
class Convert:
    """Write a model in another format: elmokit's own, or HDF5 as AllenNLP and bilm-tf read it."""

    input: Positional[str]
    """Model in any format that can be loaded."""
    output: Path
    """Directory for the model, or the HDF5 file for token-embeddings. It must not exist."""
    to: Literal["native", "hdf5", "token-embeddings"] = "native"
    """elmokit's directory, options.json with weights.hdf5, or bilm-tf's file of the vectors of single words."""
    vocab: Annotated[Path | None, UNSET] = None
    """Words for token-embeddings, one a line; the model's own when not given."""

    def run(self) -> None:
        from elmokit.io.convert import convert

        show(convert(**vars(self)))


@dataclass(frozen=True)
class Info:
    """Print what a model is: format, sizes, vocabulary, tokenizer and card; and whether there are compiled kernels."""

    model: Positional[Model] = None

    def run(self) -> None:
        from elmokit.io.checkpoint import describe
        from elmokit.nn.kernels.library import is_compiled

        found = describe(self.model)
        card = found.pop("card", [])
        show({**found, "compiled kernels": is_compiled()})
        if card:
            print("", *card, sep="\n")


@dataclass(frozen=True)
class AllenNLPElmo:
    """AllenNLP's command `allennlp elmo`: all layers, or one, of tokenized text to an HDF5 file."""

    input_file: Positional[Path]
    """Tokenized text (plain, .gz or .zst), one sentence a line, no blank lines."""
    output_file: Positional[Path]
    """HDF5 file for the vectors, a dataset a line."""
    all: bool = False
    """Write all layers of every word: exactly one of all, top and average."""
    top: bool = False
    """Write the top layer."""
    average: bool = False
    """Write the mean of the layers."""
    options_file: Annotated[str | None, UNSET] = None
    """options.json; AllenNLP's default, from its cache, when not given."""
    weight_file: Annotated[str | None, UNSET] = None
    """The weights in HDF5; AllenNLP's default, from its cache, when not given."""
    batch_size: int = 64
    """Sentences side by side: sentence i goes on from the state of sentence i - batch size."""
    cuda_device: int = -1
    """Number of the GPU; -1 for the CPU."""
    forget_sentences: bool = False
    """Leave out the table from sentences to lines."""
    use_sentence_keys: bool = False
    """Name the datasets by the sentences, not by the lines' numbers."""
    vocab_path: Annotated[str | None, UNSET] = None
    """Changes nothing, nor did it."""
    file_friendly_logging: bool = False
    """Changes nothing."""
    include_package: tuple[str, ...] = ()
    """Changes nothing."""

    def run(self) -> None:
        from elmokit.compat.allennlp import allennlp_elmo

        allennlp_elmo(**{name: value for name, value in vars(self).items() if value is not None})


@dataclass(frozen=True)
class ELMoForManyLangsTest:
    """ELMoForManyLangs' command `python -m elmoformanylangs test`: layers of tokenized text to HDF5 or text files."""

    command: Positional[Literal["test"]]
    """test, the one that embeds."""
    model: str
    """Directory of the model, or any other model that can be loaded."""
    input: Path
    """The text (plain, .gz or .zst)."""
    output_prefix: str
    """Beginning of the files' names: OUTPUT_PREFIX.ly{layer}.{format}."""
    output_layer: str
    """Layers with commas between them: 0 for the tokens, 1 and 2 for the LSTMs, -1 for the average of all."""
    output_format: str = "hdf5"
    """hdf5 (a dataset a sentence), txt (a line a word), or both with a comma between them."""
    input_format: Literal["plain", "conll", "conll_char", "conll_char_vi"] = "plain"
    """A sentence a line, words between tabs; CoNLL-U; CoNLL-U by characters, or by the parts of each word."""
    batch_size: Annotated[int, arg(aliases=("--batch",))] = 1
    """Sentences side by side: sentence i goes on from the state of sentence i - batch size."""
    gpu: int = -1
    """Number of the GPU; -1 for the CPU."""

    def run(self) -> None:
        from elmokit.compat.elmoformanylangs import elmoformanylangs_test

        elmoformanylangs_test(**{name: value for name, value in vars(self).items() if name != "command"})


@dataclass(frozen=True)
class Compat:
    """Run a command of an older library with its flags."""

    library: Annotated[
        Annotated[AllenNLPElmo, subcommand("allennlp-elmo")]
        | Annotated[ELMoForManyLangsTest, subcommand("elmoformanylangs")],
        arg(name=""),
    ]

    def run(self) -> None:
        self.library.run()


Verb = (
    Prepare | Pretrain | Finetune | Evaluate | Embed | Encode | Score | Substitutes | NextWords | Compare | Neighbors
    | Fit | Predict | Convert | Info | Compat
)  # fmt: skip

# What was stopped goes on when the command is given again.
RESUMED = (Pretrain, Finetune, Embed, Encode)
