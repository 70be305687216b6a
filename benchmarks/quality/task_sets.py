"""The tasks that tasks.py measures: their data, networks and splits.

If a data set has no split of its own, examples or documents are split here, always in the same way:

- MR and SUBJ at random into 80, 10 and 10 %;
- CoNLL-2000: the last tenth of the training part is the development set;
- SNLI, whose training part is not available: the first 80 % of the development set are the training
  set;
- SQuAD: the development set by articles (36, 6 and 6). XQuAD cannot serve as a test set, since its
  passages are part of that set;
- LitBank by documents (80, 10 and 10).

Of Chinese entities, the development sets are the test sets here, and the last tenth of the training
sets the development sets. Those in words are the entities in characters, in the words of rjieba.
The titles' development set is the training set, without its last tenth.

The largest sets are read only a few times (`Benchmark.training`), so that a run takes half an hour
to an hour of one core.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from elmokit.data import TaggedSentence
from elmokit.tasks import FitConfig, WordsConfig
from elmokit.tasks.classification import ClassificationTask, LabelledText
from elmokit.tasks.coreference import CorefClusters, CorefDocument, CoreferenceTask
from elmokit.tasks.fitting.model import TaskModel
from elmokit.tasks.fitting.task import Task, find_task, read_examples
from elmokit.tasks.pairs import PairsConfig, PairsTask
from elmokit.tasks.reading import ReadingTask, word_offsets, words_of_answer
from elmokit.tasks.roles import RolesTask
from elmokit.tasks.tagging import TaggingConfig, TaggingTask
from elmokit.text.sentences import split_sentences
from elmokit.text.tokenizers import get_tokenizer

Sets = tuple[Sequence[Any], Sequence[Any], Sequence[Any]]  # training, development, test
CHARACTERS = WordsConfig(word_dim=100, character_dim=100)
WORDS = WordsConfig(word_dim=100)
PARTS = ("train", "dev", "test")
TRANSLATION = Path(__file__).parents[2] / "examples" / "tasks" / "translation.py"


@dataclass(frozen=True)
class Benchmark:
    """A task on a data set.

    Attributes:
        task: The task with its settings.
        read: The training, development and test examples, from the directory of all data sets.
        score: The score that is compared.
        words: Settings of the word encoder with ELMo; without ELMo, everything else is the same.
        paper: The ELMo paper's figures in percent, without and with ELMo, if it has any for the
            data set.
        more_scores: Further scores of a trained model, from the directory of all data sets.
        training: Training settings that differ from the task's defaults.
    """

    task: Task
    read: Callable[[Task, Path], Sets]
    score: str
    words: WordsConfig = WORDS
    paper: tuple[float, float] | None = None
    more_scores: Callable[[TaskModel, Path], dict[str, float]] | None = field(
        default=None, repr=False
    )
    training: Mapping[str, Any] = field(default_factory=dict)

    @property
    def fit_config(self) -> FitConfig:
        """The settings of the training."""
        return replace(self.task.fit_config, **self.training)

    def words_for(self, elmo: bool) -> WordsConfig:
        """The settings of the word encoder, with or without ELMo."""
        return self.words if elmo else replace(self.words, elmo="none", mix_l2=0.0)


# --- Data -----------------------------------------------------------------------------------------


def files(*names: str) -> Callable[[Task, Path], Sets]:
    """Read the training, development and test files of these names."""

    def read(task: Task, data: Path) -> Sets:
        return tuple(list(read_examples(task, data / name)) for name in names)  # type: ignore[return-value]

    return read


def split_at(examples: Sequence[Any], *ends: int) -> Sets:
    """Three consecutive parts of examples: up to the first end, from there to the second, and the
    rest.
    """
    first, second = ends
    return examples[:first], examples[first:second], examples[second:]


def random_parts(examples: Sequence[Any]) -> Sets:
    """80, 10 and 10 % of examples, at random, always in the same way."""
    order = np.random.default_rng(0).permutation(len(examples))
    shuffled = [examples[number] for number in order]
    return split_at(shuffled, len(examples) * 8 // 10, len(examples) * 9 // 10)


def conll2000(task: Task, data: Path) -> Sets:
    folder = data / "conll2000" / "conll2000"
    train = list(task.read(folder / "train.txt"))
    cut = len(train) * 9 // 10
    return train[:cut], train[cut:], list(task.read(folder / "test.txt"))


def senteval(name: str) -> Callable[[Task, Path], Sets]:
    """Lines "LABEL TEXT" in Latin-1, in random order."""

    def read(task: Task, data: Path) -> Sets:
        # Not splitlines, which would also split lines at the character 0x85 within the texts.
        lines = (data / "senteval" / name).read_text(encoding="latin-1").split("\n")
        texts = [
            LabelledText(tuple(line.split()[1:]), line.split()[0]) for line in lines if line.strip()
        ]
        return random_parts(texts)

    return read


def sst(kind: str) -> Callable[[Task, Path], Sets]:
    """Stanford Sentiment Treebank: all distinct phrases of the training trees (fine), or whole
    sentences (binary).
    """

    def read(task: Task, data: Path) -> Sets:
        names = ("train", "dev", "test")
        if kind == "binary":
            return files(*(f"sst/stsa.binary.{name}" for name in names))(task, data)
        train, dev, test = (data / "sst" / "trees" / f"{name}.txt" for name in names)
        return (
            list(dict.fromkeys(task.read(train, "train"))),
            list(task.read(dev)),
            list(task.read(test)),
        )

    return read


def snli(task: Task, data: Path) -> Sets:
    first, test = (
        list(read_examples(task, data / "snli_dev_test" / f"snli_1.0_{name}.jsonl"))
        for name in ("dev", "test")
    )
    cut = len(first) * 8 // 10
    return first[:cut], first[cut:], test


def squad(task: Task, data: Path) -> Sets:
    """SQuAD's development set, split by articles."""
    articles = json.loads(
        (data / "squad_v1.1_dev" / "dev-v1.1.reconstructed.json").read_text(encoding="utf-8")
    )["data"]
    contexts = [
        {paragraph["context"] for paragraph in article["paragraphs"]} for article in articles
    ]
    article_of = {
        context: number for number, of_article in enumerate(contexts) for context in of_article
    }
    parts: Sets = ([], [], [])
    for question in task.read(data / "squad_v1.1_dev" / "dev-v1.1.reconstructed.json"):
        number = article_of[question.text]
        parts[0 if number < 36 else 1 if number < 42 else 2].append(question)  # type: ignore[attr-defined]
    return parts


def litbank(task: Task, data: Path) -> Sets:
    documents = list(task.read(data / "litbank" / "coref" / "conll"))
    return split_at(documents, 80, 90)


def chinese_entities(
    train: str, dev: str, word: int = 0, tag: int = 1
) -> Callable[[Task, Path], Sets]:
    """Sentences of lines of a word and its tag; of Weibo's "科0", the position in a word goes."""

    def sentences(file: Path) -> Iterator[TaggedSentence]:
        for block in file.read_text(encoding="utf-8").split("\n\n"):
            lines = [line.split() for line in block.split("\n") if not line.startswith("# ")]
            if lines := [line for line in lines if len(line) > tag]:
                words = [line[word] for line in lines]
                if "ner_weibo" in file.parts:
                    words = [text[0] for text in words]
                yield TaggedSentence(tuple(words), tuple(line[tag] for line in lines))

    def read(task: Task, data: Path) -> Sets:
        training = list(sentences(data / train))
        cut = len(training) * 9 // 10
        return training[:cut], training[cut:], list(sentences(data / dev))

    return read


def in_words(read: Callable[[Task, Path], Sets]) -> Callable[[Task, Path], Sets]:
    """Entities in the words of rjieba, from those in characters.

    A word of which more than half lies in an entity is part of it: so borders within words, of 3 %
    of the entities in resumes and 8 % in Weibo, move to those of words.
    """
    split = get_tokenizer("rjieba-1").tokenize

    def sentence_in_words(sentence: TaggedSentence) -> TaggedSentence:
        entities = np.cumsum([tag[0] in "BS" for tag in sentence.tags])  # the number of the latest
        words, tags, start, last = tuple(split("".join(sentence.words))), [], 0, 0
        for word in words:
            end = start + len(word)
            inside = [at for at in range(start, end) if sentence.tags[at] != "O"]
            if len(inside) > len(word) / 2:
                entity = entities[inside[0]]
                tags.append(("I" if entity == last else "B") + sentence.tags[inside[0]][1:])
                last = entity
            else:
                tags.append("O")
            start = end
        return TaggedSentence(words, tuple(tags))

    return lambda task, data: tuple(  # type: ignore[return-value]
        [sentence_in_words(sentence) for sentence in part] for part in read(task, data)
    )


def gsdsimp_pos(task: Task, data: Path) -> Sets:
    """The development set, whose last tenth chooses the weights, and the test set."""
    first, test = (
        list(read_examples(task, data / "ud_gsdsimp" / f"zh_gsdsimp-ud-{part}.conllu"))
        for part in ("dev", "test")
    )
    cut = len(first) * 9 // 10
    return first[:cut], first[cut:], test


def titles(task: Task, data: Path) -> Sets:
    words = get_tokenizer("rjieba-1").tokenize

    def texts(part: str) -> list[LabelledText]:
        lines = (data / "cls_thucnews_titles" / f"{part}.txt").read_text(encoding="utf-8")
        pairs = [line.rsplit("\t", 1) for line in lines.splitlines()]
        return [LabelledText(tuple(words(text)), label) for text, label in pairs]

    first = texts("dev")
    return first[:9000], first[9000:], texts("test")


def reviews(task: Task, data: Path) -> Sets:
    words = get_tokenizer("rjieba-1").tokenize
    file = data / "cls_chnsenticorp_hotel" / "ChnSentiCorp_htl_all.csv"
    with file.open(encoding="utf-8", newline="") as opened:
        texts = [
            LabelledText(tuple(words(row["review"])), row["label"])
            for row in csv.DictReader(opened)
        ]
    texts = [text for text in texts if text.words]
    return random_parts(texts)


# --- GAP ------------------------------------------------------------------------------------------


def gap_document(row: dict[str, str]) -> tuple[CorefDocument, dict[str, tuple[int, int]]]:
    """A row of GAP as a document, and the word spans (start, end) of its pronoun and of the names A
    and B.
    """
    text, tokenize = row["Text"], get_tokenizer("english-1").tokenize
    sentences = [tuple(tokenize(sentence)) for sentence in split_sentences("en", text)]
    offsets = word_offsets(text, [word for sentence in sentences for word in sentence])
    spans = {}
    for name in ("Pronoun", "A", "B"):
        begin = int(row[f"{name}-offset"])
        if (words := words_of_answer(offsets, begin, begin + len(row[name]))) is not None:
            spans[name] = (words[0], words[1] + 1)
    return CorefDocument(row["ID"], tuple(sentences)), spans


def corefers(
    found: CorefClusters, left: tuple[int, int] | None, right: tuple[int, int] | None
) -> bool:
    """Whether a cluster has a mention equal to `left`, and one that overlaps `right`."""
    if left is None or right is None:
        return False
    return any(
        left in cluster and any(start < right[1] and right[0] < end for start, end in cluster)
        for cluster in found.clusters
    )


def gap_f1(
    rows: Iterable[tuple[dict[str, str], CorefClusters, dict[str, tuple[int, int]]]],
) -> float:
    """F1 of the decisions whether the pronoun refers to A, and whether it refers to B (Webster et
    al. 2018).
    """
    correct = predicted = gold = 0
    for row, found, spans in rows:
        for name in ("A", "B"):
            is_coreferent = row[f"{name}-coref"].lower() == "true"
            decided = corefers(found, spans.get("Pronoun"), spans.get(name))
            correct, predicted, gold = (
                correct + (is_coreferent and decided),
                predicted + decided,
                gold + is_coreferent,
            )
    return 2 * correct / max(predicted + gold, 1)


def gap(model: TaskModel, data: Path) -> dict[str, float]:
    """The score on GAP's test set of a model that was trained on LitBank."""
    with (data / "gap" / "gap-test.tsv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    documents, spans = zip(*map(gap_document, rows), strict=True)
    return {"gap f1": gap_f1(zip(rows, model.predict_examples(documents), spans, strict=True))}


# --- The tasks ------------------------------------------------------------------------------------

EWT = ("train.reassembled", "dev", "test")
BENCHMARKS = {
    "conll2003": Benchmark(
        TaggingTask(),
        files(*(f"conll2003/eng.{name}" for name in ("train", "testa", "testb"))),
        "f1",
        CHARACTERS,
        (90.15, 92.22),
    ),
    "conll2000": Benchmark(TaggingTask(), conll2000, "f1", CHARACTERS),
    "ewt_pos": Benchmark(
        TaggingTask(TaggingConfig(hidden_dim=128)),
        files(*(f"ud_english_ewt/en_ewt-ud-{name}.conllu" for name in EWT)),
        "accuracy",
        CHARACTERS,
    ),
    "wnut17": Benchmark(
        TaggingTask(),
        files(
            *(
                f"ner/WNUT17/CONLL-format/data/{name}"
                for name in (
                    "train/wnut17train.conll",
                    "dev/emerging.dev.conll",
                    "test/emerging.test.annotated",
                )
            )
        ),
        "f1",
        CHARACTERS,
    ),
    "sst5": Benchmark(
        ClassificationTask(),
        sst("fine"),
        "accuracy",
        paper=(51.4, 54.7),
        training={"batch_size": 128, "max_epochs": 2},
    ),
    "sst2": Benchmark(ClassificationTask(), sst("binary"), "accuracy"),
    "mr": Benchmark(ClassificationTask(), senteval("rt-polarity.all"), "accuracy"),
    "subj": Benchmark(ClassificationTask(), senteval("subj.all"), "accuracy"),
    "sick_entailment": Benchmark(
        PairsTask(),
        files(*(f"sick/SICK_{name}.txt" for name in ("train", "trial", "test_annotated"))),
        "accuracy",
    ),
    "sick_relatedness": Benchmark(
        PairsTask(PairsConfig(target="score")),
        files(*(f"sick/SICK_{name}.txt" for name in ("train", "trial", "test_annotated"))),
        "pearson",
    ),
    "mrpc": Benchmark(
        PairsTask(),
        files(*(f"mrpc/msr-para-{name}.tsv" for name in ("train", "val", "test"))),
        "accuracy",
    ),
    "snli": Benchmark(PairsTask(), snli, "accuracy", replace(WORDS, elmo="both")),
    "propbank": Benchmark(
        RolesTask(),
        files(*(f"propbank_ewt/ewt_srl_{name}.conll" for name in PARTS)),
        "f1",
        CHARACTERS,
        (81.4, 84.6),
        training={"max_epochs": 4},
    ),
    "squad": Benchmark(
        ReadingTask(),
        squad,
        "f1",
        replace(WORDS, elmo="both"),
        (81.1, 85.8),
        training={"max_epochs": 3},
    ),
    "litbank": Benchmark(
        CoreferenceTask(), litbank, "average", WORDS, (67.2, 70.4), gap, training={"max_epochs": 8}
    ),
    "multi30k": Benchmark(
        find_task(f"{TRANSLATION}:TranslationTask")(),
        files(*(f"multi30k/{name}.en.gz" for name in ("train", "val", "test_2016_flickr"))),
        "bleu",
        training={"max_epochs": 5},
    ),
}

GSD = "uner_gsdsimp/zh_gsdsimp-ud-{}.iob2"
RESUMES = chinese_entities("ner_resume/train.char.bmes", "ner_resume/dev.char.bmes")
WEIBO = chinese_entities(*(f"ner_weibo/weiboNER_2nd_conll.{part}" for part in ("train", "dev")))
CHINESE = {
    "uner_gsdsimp": Benchmark(
        TaggingTask(),
        chinese_entities(GSD.format("train"), GSD.format("dev"), 1, 2),
        "f1",
        CHARACTERS,
    ),
    "ner_resume": Benchmark(TaggingTask(), RESUMES, "f1"),
    "ner_resume_words": Benchmark(TaggingTask(), in_words(RESUMES), "f1", CHARACTERS),
    "ner_weibo": Benchmark(TaggingTask(), WEIBO, "f1"),
    "ner_weibo_words": Benchmark(TaggingTask(), in_words(WEIBO), "f1", CHARACTERS),
    "gsdsimp_pos": Benchmark(
        TaggingTask(TaggingConfig(hidden_dim=128)), gsdsimp_pos, "accuracy", CHARACTERS
    ),
    "titles": Benchmark(ClassificationTask(), titles, "accuracy"),
    "reviews": Benchmark(ClassificationTask(), reviews, "accuracy"),
}
BY_LANGUAGE = {"en": BENCHMARKS, "zh": CHINESE}
