"""Metrics on small cases; taggers with every kind of input: training, saving, loading, predicting on files."""

import gzip
import json

import numpy as np
import pytest
import torch

from elmokit.checkpoints import loading
from elmokit.checkpoints.pretrained import Pretrained
from elmokit.config import BiLMConfig
from elmokit.data.readers import Layout, TaggedSentence, read_tagged
from elmokit.nn.bilm import BiLM
from elmokit.tasks.config import ColumnsConfig, FitConfig, TaggerConfig
from elmokit.tasks.data import TaskData, TaskFiles
from elmokit.tasks.examples import UNKNOWN, Examples, TaskVocab, batches_of
from elmokit.tasks.fit import fit, fit_files, load_task_model, predict_files
from elmokit.tasks.metrics import Span, accuracy, span_scheme, span_score, spans
from elmokit.tasks.trained import build_tagger, make_examples, tag_examples

# The tag of "x" depends on the word before it: A after an upper-case word, else B.
WORDS = ["Alpha", "Beta", "gamma", "delta", "x"]


def make_sentences(count, seed):
    random = np.random.default_rng(seed)
    sentences = []
    for _ in range(count):
        words = tuple(random.choice(WORDS, size=random.integers(1, 9)).tolist())
        before = ("", *words)
        tags = tuple(
            ("A" if before[i][:1].isupper() else "B") if word == "x" else ("UP" if word[0].isupper() else "LOW")
            for i, word in enumerate(words)
        )
        sentences.append(TaggedSentence(words, tags))
    return sentences


TRAIN, DEV = make_sentences(120, 1), make_sentences(30, 2)
TASK, FEW = TaskData(TRAIN, DEV), TaskData(TRAIN[:20], DEV)
ONE_EPOCH = FitConfig(max_epochs=1, device="cpu")
QUICK = FitConfig(max_epochs=12, batch_size=16, learning_rate=1e-2, device="cpu")
SMALL = TaggerConfig(word_dim=8, hidden_dim=16, dropout=0.1, elmo_dropout=0.1)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Pretrained(BiLM(BiLMConfig.preset("tiny")))


# --- Metrics -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tags, expected",
    [
        ("O O", []),
        ("B-X I-X O B-X", [(0, 2, "X"), (3, 4, "X")]),
        ("I-X I-X B-X I-Y", [(0, 2, "X"), (2, 3, "X"), (3, 4, "Y")]),  # IOB1
        ("B-X B-X I-X", [(0, 1, "X"), (1, 3, "X")]),
        ("B-X I-Y I-Y", [(0, 1, "X"), (1, 3, "Y")]),  # inconsistent: a new type starts a span
        ("S-X B-X I-X E-X S-Y", [(0, 1, "X"), (1, 4, "X"), (4, 5, "Y")]),  # BIOES
        ("E-X E-X I-X", [(0, 1, "X"), (1, 2, "X"), (2, 3, "X")]),
        ("B-C-A I-C-A", [(0, 2, "C-A")]),
    ],
)
def test_spans_equal_those_of_conlleval(tags, expected):
    assert spans(tags.split()) == {Span(*span) for span in expected}


def test_span_score_counts_exact_spans_of_the_same_type():
    gold = [["B-X", "I-X", "O", "B-Y"], ["B-X", "O"]]
    predicted = [["B-X", "I-X", "O", "B-X"], ["O", "O"]]
    result = span_score(gold, predicted)
    assert (result.precision, result.recall) == (1 / 2, 1 / 3)
    assert result.f1 == pytest.approx(2 * (1 / 2) * (1 / 3) / (1 / 2 + 1 / 3))
    assert span_score([["O"]], [["O"]]).f1 == 0


def test_accuracy_counts_tokens():
    assert accuracy([["A", "B"], ["A", "A"]], [["A", "A"], ["A", "A"]]) == 3 / 4
    with pytest.raises(ValueError):
        accuracy([["A", "B"]], [["A"]])


@pytest.mark.parametrize(
    "tags, scheme",
    [
        ("NOUN VERB", None),
        ("O O", None),
        ("B-X I-X O", "IOB2"),
        ("O I-X I-X B-X", "IOB1"),
        ("B-X I-Y", "IOB1"),
        ("B-X E-X S-X", "BIOES"),
        ("B-X S", None),
    ],
)
def test_span_scheme_recognizes_iob1_iob2_and_bioes(tags, scheme):
    assert span_scheme([tags.split()]) == scheme


# --- Batches -------------------------------------------------------------------------------------------------------


def test_task_vocab_sorts_by_frequency_and_counts_singletons():
    vocab = TaskVocab.of([TaggedSentence(("b", "a", "b", "c", "d", "a"), ("X",) * 6)])
    assert vocab.words == ("a", "b", "c", "d") and vocab.num_frequent == 2 and vocab.num_words == 6


def test_batches_contain_every_sentence_once_with_its_layers():
    lengths = [3, 0, 5, 1, 4, 2, 2]
    sentences = [TaggedSentence(tuple(f"{s}-{t}" for t in range(n)), ("T",) * n) for s, n in enumerate(lengths)]
    vocab = TaskVocab.of(sentences)
    layers = torch.randn(sum(lengths), 3, 4, generator=torch.Generator().manual_seed(0))
    examples = Examples(sentences, vocab, layers.half())
    by_sentence = layers.half().float().split(lengths)
    for batches in (examples.by_length(2), examples.shuffled(2, np.random.default_rng(0))):
        seen = []
        for chosen in batches:
            batch = examples.batch(chosen)
            assert batch.layers is not None
            seen += chosen.tolist()
            for row, index in enumerate(chosen):
                n = lengths[index]
                assert batch.mask[row].sum() == n
                words = [vocab.words[number - UNKNOWN - 1] for number in batch.words[row, :n]]
                assert tuple(words) == sentences[index].words
                torch.testing.assert_close(batch.layers[:, row, :n].transpose(0, 1), by_sentence[index])
                assert not batch.layers[:, row, n:].any()
        assert sorted(seen) == [0, 2, 3, 4, 5, 6]


def test_tagger_hides_rare_words_only_in_training():
    sentences = [TaggedSentence(("often", "once", "often"), ("A", "B", "A"))]
    vocab = TaskVocab.of(sentences)
    tagger = build_tagger(TaggerConfig(elmo=False, rare_word_dropout=1.0), vocab, None)
    words = Examples(sentences, vocab).batch(np.array([0])).words
    assert tagger._hide_rare(words).tolist() == [[2, UNKNOWN, 2]]
    assert tagger.eval()._hide_rare(words).tolist() == [[2, 3, 2]]


def test_batches_of_limits_padded_tokens(monkeypatch):
    monkeypatch.setattr("elmokit.tasks.examples.PADDED_TOKENS", 12)
    lengths = np.array([1, 2, 2, 3, 4, 4, 6, 7, 50])
    batches = list(batches_of(np.arange(9), lengths, 5))
    assert [batch.tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5], [6], [7], [8]]
    assert [len(batch) for batch in batches_of(np.arange(9), np.ones(9, int), 5)] == [5, 4]
    assert list(batches_of(np.arange(0), lengths, 5)) == []


def test_batches_do_not_pad_others_to_a_very_long_sentence(model):
    """If all 64 sentences were padded to its length, the batch would have 6.4 million tokens."""
    long = TaggedSentence(("x",) * 100_000, ("A",) * 100_000)
    sentences = [*TRAIN[:63], long]
    vocab = TaskVocab.of(sentences)
    config = TaggerConfig(word_dim=2, hidden_dim=2)
    bilm = model.bilm.config
    layers = torch.zeros(sum(len(s.words) for s in sentences), bilm.num_representations, bilm.output_dim).half()
    examples = Examples(sentences, vocab, layers)
    sizes = [examples.batch(chosen).mask.numel() for chosen in examples.by_length(64)]
    assert max(sizes) == 100_000 and sum(sizes) < 101_000
    assert sum(chosen.size for chosen in examples.shuffled(64, np.random.default_rng(0))) == 64
    tags = tag_examples(build_tagger(config, vocab, model.bilm), examples)
    assert [len(row) for row in tags] == [len(sentence.words) for sentence in sentences]


# --- Tagger --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "config",
    [
        TaggerConfig(word_dim=8, elmo=False, hidden_dim=16, dropout=0.1),
        TaggerConfig(word_dim=0, character_dim=16, elmo=False, hidden_dim=16, dropout=0.1),
        SMALL,
        TaggerConfig(word_dim=8, elmo_at_output=True, hidden_dim=16, dropout=0.1, elmo_dropout=0.1),
        TaggerConfig(word_dim=8, hidden_dim=16, num_layers=2, dropout=0.1, elmo_dropout=0.1, crf=True, mix_l2=0.001),
        TaggerConfig(word_dim=0, character_dim=8, finetune=True, elmo_at_output=True, hidden_dim=16, dropout=0.1),
    ],
    ids=["words", "characters", "elmo", "two-mixes", "crf", "finetune"],
)
@pytest.mark.filterwarnings("ignore:.*words are (too long|truncated)")
def test_fit_learns_and_tagger_survives_saving_for_every_input(config, model, tmp_path):
    bilm = model if config.elmo else None
    trained, report = fit(TaskData(TRAIN, DEV, DEV), tmp_path / "tagger", model=bilm, tagger=config, config=QUICK)
    assert report.dev > 0.95 and report.test == pytest.approx(report.dev) and report.metric == "accuracy"
    assert len(report.mixes) == (config.elmo + config.elmo_at_output)
    for mix in report.mixes:
        assert sum(mix.weights) == pytest.approx(1)
    words = [sentence.words for sentence in DEV] + [(), ("never", "seen" * 30)]
    loaded = load_task_model(tmp_path / "tagger")
    assert loaded.predict(words) == trained.predict(words)
    assert json.loads((tmp_path / "tagger" / "report.json").read_text())["best_epoch"] == report.best_epoch


def test_fit_is_deterministic_and_keeps_the_global_rng_state(model):
    state = torch.get_rng_state()
    runs = [fit(TASK, model=model, tagger=SMALL, config=QUICK) for _ in range(2)]
    assert torch.equal(torch.get_rng_state(), state)
    (first, first_report), (second, second_report) = runs
    assert [epoch.loss for epoch in first_report.epochs] == [epoch.loss for epoch in second_report.epochs]
    for left, right in zip(first.tagger.parameters(), second.tagger.parameters(), strict=True):
        assert torch.equal(left, right)


@pytest.mark.parametrize("finetune", [False, True])
def test_fit_does_not_modify_the_given_bilm(finetune, model):
    before = {name: value.clone() for name, value in model.bilm.state_dict().items()}
    config = TaggerConfig(hidden_dim=8, finetune=finetune)
    trained, _ = fit(FEW, model=model, tagger=config, config=ONE_EPOCH)
    assert all(torch.equal(before[name], value) for name, value in model.bilm.state_dict().items())
    assert trained.tagger.elmo is not None
    after = trained.tagger.elmo.bilm.state_dict()
    assert any(not torch.equal(before[name], value) for name, value in after.items()) == finetune


def test_tagger_scores_stored_layers_like_a_running_bilm(model):
    """A tagger gives the same scores with stored layers as with a running biLM."""
    vocab = TaskVocab.of(TRAIN)
    scores = {}
    for finetune in (False, True):
        config = TaggerConfig(hidden_dim=8, finetune=finetune, elmo_at_output=True)
        examples = make_examples(TRAIN, vocab, config, model)
        torch.manual_seed(1)
        tagger = build_tagger(config, vocab, model.bilm).eval()
        scores[finetune] = tagger(examples.batch(np.arange(10)))
    torch.testing.assert_close(scores[False], scores[True], atol=2e-3, rtol=0)  # layers are stored in float16


def test_tagger_scores_do_not_depend_on_the_batch(model):
    vocab = TaskVocab.of(TRAIN)
    config = TaggerConfig(hidden_dim=8, character_dim=8, elmo_at_output=True)
    examples = make_examples(TRAIN, vocab, config, model)
    tagger = build_tagger(config, vocab, model.bilm).eval()
    together = tagger(examples.batch(np.arange(10)))
    for index in range(10):
        alone = tagger(examples.batch(np.array([index])))[0]
        torch.testing.assert_close(together[index, : len(alone)], alone, atol=1e-6, rtol=1e-5)


# --- Files ---------------------------------------------------------------------------------------------------------


def write_columns(path, sentences):
    text = "\n".join("".join(f"{w} _ {t}\n" for w, t in zip(s.words, s.tags, strict=True)) for s in sentences)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def write_conllu(path, sentences):
    def token(number, word, tag):
        return "\t".join([str(number), word, "_", "_", tag, "_", "_", "_", "_", "_"])

    blocks = [[token(i, w, t) for i, (w, t) in enumerate(zip(s.words, s.tags, strict=True), 1)] for s in sentences]
    path.write_text("".join("# text\n" + "\n".join(block) + "\n\n" for block in blocks))
    return path


@pytest.mark.parametrize("write, suffix, column", [(write_columns, ".txt.gz", None), (write_conllu, ".conllu", "xpos")])
def test_fit_files_and_predict_files_round_trip(write, suffix, column, model, tmp_path):
    loading.save(model, tmp_path / "bilm")
    train, dev = write(tmp_path / f"train{suffix}", TRAIN), write(tmp_path / f"dev{suffix}", DEV)
    files = TaskFiles(train, dev, dev, ColumnsConfig(tag_column=column))
    report = fit_files(files, tmp_path / "tagger", model=tmp_path / "bilm", tagger=SMALL, config=QUICK)
    assert report.dev > 0.95
    assert not (tmp_path / "tagger" / "bilm").exists()  # recorded by its path, not copied
    sentences, tokens = predict_files(tmp_path / "tagger", dev, tmp_path / f"out{suffix}")
    assert (sentences, tokens) == (len(DEV), sum(len(sentence.words) for sentence in DEV))
    trained = load_task_model(tmp_path / "tagger")
    wrong = write(tmp_path / f"wrong{suffix}", [TaggedSentence(s.words, ("?",) * len(s.words)) for s in DEV])
    predict_files(tmp_path / "tagger", wrong, tmp_path / f"out2{suffix}")
    out = tmp_path / f"out2{suffix}"
    read = list(read_tagged(out, Layout.of(out, tag_column=column)))
    assert [sentence.tags for sentence in read] == trained.predict([sentence.words for sentence in DEV])


def test_fit_scores_span_tags_by_f1_and_crf_obeys_the_scheme(model):
    def spanned(sentence):
        inside = {"UP": "B-N", "LOW": "O", "A": "I-N", "B": "O"}
        return TaggedSentence(sentence.words, tuple(inside[tag] for tag in sentence.tags))

    train, dev = [spanned(s) for s in TRAIN], [spanned(s) for s in DEV]
    config = TaggerConfig(word_dim=8, hidden_dim=16, dropout=0.1, elmo=False, crf=True)
    trained, report = fit(TaskData(train, dev), tagger=config, config=QUICK)
    assert report.metric == "span F1" and report.dev > 0.9
    assert span_scheme(trained.predict([sentence.words for sentence in dev])) == "IOB2"


def test_load_task_model_refuses_another_bilm_and_finds_a_moved_one(model, tmp_path):
    loading.save(model, tmp_path / "bilm")
    fit(FEW, tmp_path / "tagger", model=tmp_path / "bilm", tagger=SMALL, config=ONE_EPOCH)
    torch.manual_seed(5)
    loading.save(Pretrained(BiLM(BiLMConfig.preset("tiny"))), tmp_path / "other")
    with pytest.raises(loading.CheckpointError, match="is not the biLM"):
        load_task_model(tmp_path / "tagger", model=tmp_path / "other")
    (tmp_path / "bilm").rename(tmp_path / "moved")
    with pytest.raises(FileNotFoundError, match="give its path as model"):
        load_task_model(tmp_path / "tagger")
    assert load_task_model(tmp_path / "tagger", model=tmp_path / "moved").predict([["x"]])


def test_fit_raises_for_invalid_input_before_training(tmp_path):
    plain = TaggerConfig(elmo=False)
    with pytest.raises(ValueError, match="the training set has no words"):
        fit(TaskData([], DEV), tagger=plain)
    with pytest.raises(ValueError, match="sentence 1 of the development set has 1 words and 0 tags"):
        fit(TaskData(TRAIN, [TaggedSentence(("a",))]), tagger=plain)
    with pytest.raises(FileNotFoundError):
        fit(TASK, model=tmp_path / "nothing")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    with pytest.raises(FileExistsError, match="taken"):
        fit(TASK, tmp_path / "taken", tagger=plain)
    with pytest.raises(FileExistsError, match="is not a tagger"):
        fit(TASK, tmp_path / "taken", tagger=plain, overwrite=True)
    with pytest.raises(ValueError, match="without ELMo has no use for a model"):
        fit(TASK, tagger=plain, model="en-small")
    with pytest.raises(ValueError, match="needs input features"):
        TaggerConfig(word_dim=0, elmo=False)
    of_words = Pretrained(BiLM(BiLMConfig(BiLMConfig.preset("tiny").lstm, char_cnn=None, num_words=5)))
    with pytest.raises(ValueError, match="with word-id input cannot be fine-tuned"):
        fit(TASK, model=of_words, tagger=TaggerConfig(finetune=True))
    with pytest.raises(FileNotFoundError, match="not a tagger"):
        load_task_model(tmp_path)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"hidden_dim": 0}, "hidden_dim must be at least 1, not 0"),
        ({"num_layers": 0}, "num_layers must be at least 1"),
        ({"word_dim": -1}, "word_dim must be at least 0"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1, not 1.0"),
        ({"elmo_dropout": float("nan")}, "elmo_dropout must be"),
        ({"rare_word_dropout": 1.5}, "rare_word_dropout must be from 0 to 1"),
        ({"mix_l2": -0.1}, "mix_l2 must be"),
        ({"max_epochs": 0}, "max_epochs must be at least 1, not 0"),
        ({"patience": 0}, "patience must be"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"learning_rate": 0.0}, "learning_rate must be a number above 0, not 0.0"),
        ({"finetune_learning_rate": float("inf")}, "finetune_learning_rate must be"),
        ({"max_grad_norm": float("nan")}, "max_grad_norm must be"),
        ({"seed": -1}, "seed must be"),
    ],
)
def test_tagger_configs_reject_values_out_of_range(settings, message):
    kind = TaggerConfig if next(iter(settings)) in TaggerConfig.__dataclass_fields__ else FitConfig
    with pytest.raises(ValueError, match=message):
        kind(**settings)


def test_predict_files_overwrites_only_when_asked(tmp_path):
    fit(FEW, tmp_path / "tagger", tagger=TaggerConfig(word_dim=4, elmo=False, hidden_dim=4), config=ONE_EPOCH)
    source, target = write_columns(tmp_path / "in.txt", DEV), tmp_path / "out.txt"
    target.write_text("mine")
    with pytest.raises(FileExistsError, match=r"out\.txt exists"):
        predict_files(tmp_path / "tagger", source, target)
    assert target.read_text() == "mine"
    before = source.read_bytes()
    (tmp_path / "link.txt").symlink_to(source)
    for same in (source, tmp_path / "link.txt"):
        with pytest.raises(ValueError, match="is the input"):
            predict_files(tmp_path / "tagger", source, same, overwrite=True)
    with pytest.raises(ValueError, match="is a directory"):
        predict_files(tmp_path / "tagger", source, tmp_path, overwrite=True)
    assert source.read_bytes() == before
    predict_files(tmp_path / "tagger", source, target, overwrite=True)
    assert len(target.read_text().splitlines()) == len(before.decode().splitlines())


def test_load_task_model_raises_for_an_unused_model(model, tmp_path):
    fit(FEW, tmp_path / "own", model=model, tagger=SMALL, config=ONE_EPOCH)
    with pytest.raises(ValueError, match="has its own biLM"):
        load_task_model(tmp_path / "own", model=tmp_path / "own" / "bilm")
    fit(FEW, tmp_path / "none", tagger=TaggerConfig(word_dim=4, elmo=False, hidden_dim=4), config=ONE_EPOCH)
    with pytest.raises(ValueError, match="has no biLM"):
        load_task_model(tmp_path / "none", model="en-small")


def test_load_task_model_names_a_damaged_config(tmp_path):
    fit(FEW, tmp_path / "tagger", tagger=TaggerConfig(word_dim=4, elmo=False, hidden_dim=4), config=ONE_EPOCH)
    path = tmp_path / "tagger" / "config.json"
    whole = json.loads(path.read_text())
    damages = {
        "unknown settings depth": {**whole, "tagger": {**whole["tagger"], "depth": 3}},
        "unknown settings colour": {**whole, "colour": "red"},
        "unknown settings tags": {name: value for name, value in whole.items() if name != "tags"},
        "hidden_dim must be": {**whole, "tagger": {**whole["tagger"], "hidden_dim": 0}},
        "format_version is 9": {**whole, "format_version": 9},
        "is not the configuration": [],
    }
    for message, damaged in damages.items():
        path.write_text(json.dumps(damaged))
        with pytest.raises(loading.CheckpointError, match=rf"tagger/config\.json .*{message}"):
            load_task_model(tmp_path / "tagger")
    path.write_text(json.dumps(whole)[:100])
    with pytest.raises(loading.CheckpointError, match=r"tagger/config\.json"):
        load_task_model(tmp_path / "tagger")
