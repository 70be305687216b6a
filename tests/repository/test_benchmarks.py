"""The speed benchmarks: their count of operations, and the workers of the sides that need no other environment."""

import argparse
import importlib
import json
import os
import sys
from pathlib import Path

import pytest
import torch
from torch.nn.functional import conv1d, linear
from torch.utils.flop_counter import FlopCounterMode

from elmokit.config import BiLMConfig
from elmokit.embed.embedder import Embedder

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TEXT = "The cat sat .\nYes\nA dog and a cat sat on the mat .\n"


@pytest.fixture(autouse=True)
def scripts(monkeypatch):
    """The scripts' directories on the path, as where one of them is run."""
    folders = (BENCHMARKS / "speed", BENCHMARKS, BENCHMARKS / "peers")
    monkeypatch.setattr(sys, "path", [*map(str, folders), *sys.path])


@pytest.fixture
def arguments(tmp_path):
    from make_models import make_models

    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    make_models(tmp_path / "models", ["tiny"])
    return argparse.Namespace(text=tmp_path / "text.txt", models=tmp_path / "models", environments=None, sentences=None)


@pytest.mark.parametrize(
    ("limits", "count"), [({}, 3), ({"sentences": 2}, 2), ({"words": 5}, 2), ({"words": 4}, 1), ({"sentences": 0}, 0)]
)
def test_first_sentences_end_at_either_limit(limits, count, tmp_path):
    from sentences import first_sentences

    text = tmp_path / "text.txt"
    text.write_text(TEXT.replace("Yes", "\n  \nYes"), encoding="utf-8")
    assert first_sentences(text, **limits) == [line.split() for line in TEXT.splitlines()][:count]


def test_benchmarks_measure_the_number_types_of_the_tables(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS.parent / "tools"), *sys.path])
    import embed_throughput
    import latency
    import make_results

    for script in (embed_throughput, latency):
        assert set(script.DTYPES) == set(make_results.DTYPES)


def test_operations_of_the_published_size_are_the_known_ones():
    from roofline import input_operations, recurrent_operations

    config = BiLMConfig.preset("original")
    per_word = 4 * (recurrent_operations(config, 1) + input_operations(config, 1))
    assert per_word == pytest.approx(151e6, rel=0.01)
    assert per_word - 2 * input_operations(config, 1) == pytest.approx(118e6, rel=0.01)


def test_operations_of_a_long_word_are_those_that_pytorch_counts():
    from roofline import word_operations

    config = BiLMConfig.preset("small").char_cnn
    assert config is not None
    with FlopCounterMode(display=False) as counter:
        for width, number in config.filters:
            conv1d(torch.zeros(1, config.embedding_dim, 50), torch.zeros(number, config.embedding_dim, width))
        filters = config.num_filters
        linear(torch.zeros(1, filters), torch.zeros(2 * filters, filters))
        linear(torch.zeros(1, filters), torch.zeros(128, filters))
    assert word_operations(config, 128, "x" * 60) == counter.get_total_flops()
    assert word_operations(config, 128, "x") < counter.get_total_flops()


@pytest.mark.slow
def test_workers_answer_with_what_the_embedder_makes(arguments):
    from measuring import ELMOKIT, PEERS, Worker
    from worker import checksum

    text = TEXT + "Only line feeds\u2028end a sentence .\n"
    arguments.text.write_text(text, encoding="utf-8")
    expected = checksum(Embedder.load(arguments.models / "tiny").embed(text.strip().split("\n"), layers="all"))
    for side in (ELMOKIT, PEERS["torch-lstm"]):  # no clip binds in the random models
        with Worker(side, "tiny", arguments) as started:
            answer = started.ask(job="embed", batch=2, order="sorted")
            assert answer["words"] == len(text.split())
            assert answer["checksum"] == pytest.approx(expected, rel=1e-5)
            assert started.ask(job="one_sentence", length=4, calls=2)["seconds"] > 0
            with pytest.raises(RuntimeError, match="no sentence of the text has 99 words"):
                started.ask(job="one_sentence", length=99, calls=1)


def test_recorded_command_can_be_given_again_and_names_no_directories(monkeypatch):
    from result_files import command

    script = BENCHMARKS / "quality" / "senses.py"
    monkeypatch.setattr(sys, "argv", [str(script), "/home/me/text.txt", "--model=/home/me/a model", "--label", "1 + 1"])
    assert command() == "python benchmarks/quality/senses.py text.txt '--model=a model' --label '1 + 1'"


@pytest.mark.parametrize(
    ("script", "needed", "options"),
    [("two_versions", "--other", ["text.txt", "--models", "."]), ("proteins", "--environments", ["--models", "."])],
)
def test_a_comparison_without_its_other_side_is_refused(script, needed, options, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [script, *options])
    with pytest.raises(SystemExit):
        importlib.import_module(script).main()
    assert f"{needed} is required" in capsys.readouterr().err


def test_write_result_keeps_other_parts_and_adds_the_origin_to_each(tmp_path):
    from result_files import write_result

    path = tmp_path / "results.json"
    for part, seconds in ((("a",), 1), (("b", "x"), 2), (("a",), 3), (("b", "y"), 4)):
        write_result(path, {"seconds": seconds}, *part)
    report = json.loads(path.read_text(encoding="utf-8"))
    assert [report["a"]["seconds"], report["b"]["x"]["seconds"], report["b"]["y"]["seconds"]] == [3, 2, 4]
    assert report["a"]["machine"]["torch"] == torch.__version__
    assert {"commit", "date", "command", "machine", "seconds"} == set(report["b"]["x"])
    write_result(path, {"seconds": 5})
    assert json.loads(path.read_text(encoding="utf-8"))["seconds"] == 5


def test_write_result_names_files_without_their_directories(tmp_path):
    from result_files import write_result

    write_result(tmp_path / "r.json", {"model": "/home/me/models/en", "files": ["/data/a.txt", "b/c.txt"], "rate": 0.5})
    report = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    assert (report["model"], report["files"], report["rate"]) == ("en", ["a.txt", "b/c.txt"], 0.5)


def report_of(script, arguments, monkeypatch, *options):
    """What a benchmark writes that embeds the text in a process of its own."""
    output = arguments.text.with_name("report.json")
    given = [arguments.text, f"--model={arguments.models / 'tiny'}", f"--output={output}", *options]
    monkeypatch.setattr(sys, "argv", [script.__file__, *map(str, given)])
    script.main()
    return json.loads(output.read_text(encoding="utf-8"))


@pytest.mark.slow
def test_memory_is_that_of_a_process_of_its_own(arguments, monkeypatch):
    import embed_memory

    report = report_of(embed_memory, arguments, monkeypatch, f"--megabytes={(2 * len(TEXT) + 1) / 1e6}")
    assert report["text_megabytes"] == 2 * len(TEXT) / 1e6 and report["words"] == 2 * len(TEXT.split())
    assert (report["layers"], report["dtype"], report["sentences"]) == ("mix", "float32", 6)
    assert 50 < report["peak_megabytes"] < 2000 and "output" not in report


@pytest.mark.slow
def test_a_line_of_any_length_has_the_vectors_of_one_call(arguments, monkeypatch):
    import long_document

    report = report_of(long_document, arguments, monkeypatch, "--words", "30")
    assert [document["words"] for document in report["documents"]] == [30]
    assert report["compared_with_the_whole"]["largest_difference"] < 1e-4


def test_sequences_are_batched_as_in_the_script_of_seqvec():
    from worker import residue_batches

    lengths = [6000, 9000, 7600, 10, 20, 5000, 100]
    batches = list(residue_batches(["A" * length for length in lengths]))
    # Shortest first; a batch ends beyond 15,000 residues, or with a sequence of more than 7,500.
    assert [[lengths[number] for number in batch] for batch in batches] == [[10, 20, 100, 5000, 6000, 7600], [9000]]


@pytest.mark.slow
def test_proteins_are_measured_without_peers(arguments, monkeypatch):
    import proteins

    output = arguments.text.with_name("report.json")
    given = ["--quick", "--sizes=tiny", "--peers", f"--models={arguments.models}", f"--output={output}"]
    monkeypatch.setattr(sys, "argv", [proteins.__file__, *given])
    proteins.main()
    report = json.loads(output.read_text(encoding="utf-8"))
    speed = report["speed"]["tiny"]["float32"]["elmokit"]["words_per_second"]
    assert speed > 0
    assert [each["residues"] for each in report["memory"]["tiny"]["sequences"]] == [300]
    assert 0 < report["warm_up"]["tiny"]["relative_difference"]["0"] < 1
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS.parent / "tools"), *sys.path])
    import make_results

    output.rename(output.with_name("proteins.json"))
    monkeypatch.setattr(make_results, "RESULTS", output.parent)
    assert f"| `tiny`, float32 | 8 | {speed:,.0f} |" in make_results.proteins()


def test_limit_to_an_instruction_set_starts_the_benchmark_again_with_the_variables_of_all_libraries(
    monkeypatch, tmp_path
):
    from measuring import LIMITS, argument_parser, parse

    started = []
    monkeypatch.setattr(os, "execv", lambda python, command: started.append(command) or sys.exit())
    command = ["benchmark.py", "text", "--environments", ".", "--models", str(tmp_path), "--sizes", "tiny"]
    monkeypatch.setattr(sys, "argv", [*command, "--limit-to", "avx2"])
    for name in LIMITS["avx2"]:
        monkeypatch.setenv(name, "")
    with pytest.raises(SystemExit):
        parse(argument_parser(None, ()))
    assert started == [[sys.executable, *sys.argv]]
    assert {name: os.environ[name] for name in LIMITS["avx2"]} == LIMITS["avx2"]
    arguments = parse(argument_parser(None, ()))  # in the new process
    assert len(started) == 1 and arguments.output.name.endswith("_avx2.json")
