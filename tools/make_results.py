"""Write the tables of docs/results.md, the READMEs and a tutorial from benchmarks/results/*.json.

    python tools/make_results.py           # writes them
    python tools/make_results.py --check   # status 1 if one is out of date, or a file is not shown

In a document, a table is between a line <!-- NAME, made by tools/make_results.py --> and the next
<!-- end -->; the function `NAME` below returns it. Needs only the standard library.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
DOCUMENTS = (
    "docs/results.md",
    "README.md",
    "README.zh-CN.md",
    "docs/tutorials/pretrain.md",
    "docs/zh/how-elmo-works.md",
    "docs/zh/classification.md",
)
ELSEWHERE = {"encoders", "tasks_avx2", "two_versions"}  # shown in docs/encoders.md and docs/log.md
sys.path.append(str(ROOT / "benchmarks" / "quality"))
from task_table import TITLES, WITHOUT, summary  # noqa: E402

PLACE = re.compile(
    r"(<!-- (\w+), made by tools/make_results\.py -->\n).*?(<!-- end -->)", flags=re.DOTALL
)
PEERS = {
    "bilm-tf": "bilm-tf",
    "simple-elmo": "simple_elmo",
    "allennlp": "AllenNLP",
    "elmoformanylangs": "ELMoForManyLangs",
    "torch-lstm": "`torch.nn.LSTM`",
}
# What a recorded command is shown without: where things lay on that machine, and how often it
# measured.
NOT_SHOWN = re.compile(
    r" --(minilm|output|results|environments|models?|eval|work|cache|data|files|run|test|beside|repeats|batches|orders"  # noqa: E501
    r"|peers|python|side|dtypes|store)( (?!--)\S+)+| TEXT| \S+\.txt(\.zst)?"
)
MODELS = ("en-small", "TF-IDF", "all-MiniLM-L6-v2")
SIDES = ("encode", "TF-IDF")  # the vectors of texts that chinese.py compares
CHINESE_TEXTS = {
    "titles": "Titles of news, ten classes, logistic regression, accuracy",
    "reviews": "Reviews of hotels, two classes, logistic regression, accuracy",
    "similarity": "STS-B in Chinese, cosine and similarity, Pearson",
}
SENTENCE = 20  # words in the sentence with which latency is measured

Figures = dict[str, Any]
used: set[str] = set()  # the names of the result files that were read
machines: list[str] = []  # in the order of their letters


class Row(NamedTuple):
    """A measurement: what, its value, and figures that carry the origin of both."""

    what: str
    value: str
    figures: Figures


def read(name: str) -> Figures:
    used.add(name)
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def origin(figures: Figures) -> list[str]:
    """Date, commit, letter of the machine, and command of figures."""
    name = "{processor}, {capability}".format(**figures["machine"])
    if name not in machines:
        machines.append(name)
    date, commit = (
        re.sub(r"unknown; recorded (on|in) ", "", figures[key]) for key in ("date", "commit")
    )
    command = NOT_SHOWN.sub("", re.sub(r"python benchmarks/(\w+/)?|\.py\b", "", figures["command"]))
    commit = commit[:7] + "+" * commit.endswith("-dirty")
    return [date, commit, "ABCDEFGH"[machines.index(name)], f"`{command}`"]


def table(head: str, rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table; `head` has the names of the columns, separated by "|"."""
    names = head.split("|")
    return "\n".join(f"|{'|'.join(line)}|" for line in (names, ["---"] * len(names), *rows))


def table_of(rows: Iterable[Row]) -> str:
    lines = ([row.what, row.value, *origin(row.figures)] for row in rows)
    return table("Measured|Value|Date|Commit|On|Command", lines)


# --- Speed and memory -----------------------------------------------------------------------------


def fastest_peer(name: str, case: str) -> tuple[str, Figures]:
    """The peer whose speed comes nearest to elmokit's in a case ("SIZE DTYPE ORDER"), and the
    figures.
    """
    found = {
        key.split()[-1]: figures
        for key, figures in read(name).items()
        if key.startswith(f"{case} ")
    }
    peer = min(found, key=lambda peer: found[peer]["ratio"]["median"])
    return PEERS[peer], found[peer]


def throughput(what: str, name: str, case: str) -> Row:
    peer, found = fastest_peer(name, case)
    speed = (
        f"{found['elmokit']['words_per_second']:,.0f} words/s, {found['ratio']['median']:.1f} "
        f"x {peer}"
    )
    return Row(what, speed, found)


def latency(size: str) -> Row:
    """One sentence in float32 and in int8, and the fastest peer."""
    (peer, found), (_, small) = (
        fastest_peer("latency", f"{size} {dtype}") for dtype in ("float32", "int8")
    )
    ours, narrow, theirs = (
        1000 * SENTENCE / side["words_per_second"]
        for side in (found["elmokit"], small["elmokit"], found["peer"])
    )
    return Row(
        f"One sentence, `{size}`, float32 / int8",
        f"{ours:.1f} / {narrow:.1f} ms; {peer}: {theirs:.1f}",
        found,
    )


def tagger(name: str) -> Row:
    sides = read(name)
    seconds = {side: mean(run["seconds"] for run in runs.values()) for side, runs in sides.items()}
    run = sides["elmokit"]["1"]
    what = f"A tagger on {run['sentences']:,} sentences, one thread"
    value = f"{seconds['elmokit']:,.0f} s; on AllenNLP's `Elmo`: {seconds['allennlp']:,.0f} s"
    return Row(what, value, run)


def speed_rows() -> Iterator[Row]:
    for size in ("small", "original"):
        for dtype in ("float32", "bfloat16", "int8"):
            yield throughput(
                f"Embedding, `{size}`, {dtype}", "embed_throughput", f"{size} {dtype} file"
            )
        sorted_case = f"{size} float32 sorted"
        yield throughput("The same, float32, sorted by length", "embed_throughput", sorted_case)
        yield throughput(
            "The same, float32, with AVX2 alone", "embed_throughput_avx2", f"{size} float32 file"
        )
    yield throughput(
        "Embedding Wikipedia, `small`, float32", "embed_throughput_wikipedia", "small float32 file"
    )
    yield from map(latency, ("small", "original"))
    for dtype in ("bfloat16", "float32"):
        yield throughput(f"Pretraining, `small`, {dtype}", "pretrain_throughput", f"small {dtype}")
    yield throughput(
        "The same, float32, with AVX2 alone", "pretrain_throughput_avx2", "small float32"
    )
    yield from map(tagger, ("allennlp_tagger", "allennlp_tagger_full"))
    found = read("proteins")["speed"]["original"]["bfloat16"]
    residues, ratio = found["elmokit"]["words_per_second"], found["allennlp"]["ratio"]["median"]
    yield Row(
        "Embedding proteins, `original`, bfloat16",
        f"{residues:,.0f} residues/s, {ratio:.1f} x AllenNLP",
        found,
    )
    found = read("file_to_file")["small bfloat16"]
    speed = (
        f"{found['words_per_second_file_to_file']:,.0f} words/s, {100 * found['ratio'] - 100:.0f} "
        "% more time"
    )
    yield Row("From file to file, `small`, bfloat16, beside in memory", speed, found)
    found = read("serve")
    share, p99 = found["throughput"]["share_of_embedder"], found["half_load"]["p99"]
    value = (
        f"{100 * share:.0f} % of its sentences/s; at half of that rate, 99th percentile "
        f"{1000 * p99:.0f} ms"
    )
    yield Row("Server, 64 clients, beside `Embedder`", value, found)
    started = read("import_time")
    names = ("import elmokit", "elmokit --help", "a first vector of en-small")
    value = " / ".join(f"{started[name]['median']:.2f}" for name in names) + " s"
    yield Row(
        "`import elmokit` / `elmokit --help` / a first vector", value, started["import elmokit"]
    )
    stored = read("stored_search")
    names = ("neighbors", "neighbors of any word", "senses")
    value = (
        " / ".join(f"{stored[name]['processor_seconds']:.2f}" for name in names) + " s on one core"
    )
    yield Row("In a million stored words: nearest uses / words / senses", value, stored)


def memory_rows() -> Iterator[Row]:
    measured = read("embed_throughput")
    found = measured["small float32 file bilm-tf"]
    peaks = (found[side]["peak_mib"] for side in ("elmokit", "peer"))
    yield Row("Embedding, `small`, float32", "{:,.0f} MiB; bilm-tf: {:,.0f}".format(*peaks), found)
    found = measured["original bfloat16 file allennlp"]
    peaks = found["elmokit"]["peak_mib"], found["peer_at_each_batch"]["32"]["peak_mib"]
    value = "{:,.0f} MiB; AllenNLP, 32 sentences at a time: {:,.0f}".format(*peaks)
    yield Row("Embedding, `original`, bfloat16", value, found)
    found = read("pretrain_throughput")["small bfloat16 bilm-tf"]
    peaks = (found[side]["peak_mib"] for side in ("elmokit", "peer"))
    yield Row(
        "Pretraining, `small`, bfloat16", "{:,.0f} MiB; bilm-tf: {:,.0f}".format(*peaks), found
    )
    found = read("embed_memory")
    what = (
        f"`elmokit embed`, `en-small`, {found['text_megabytes']:.0f} MB of text, {found['dtype']}"
    )
    yield Row(
        what,
        f"{found['peak_megabytes']:,} MB, for {found['vectors_megabytes']:,} MB of vectors",
        found,
    )
    fits = read("fit_cost")
    names = ("with ELMo, computed", "with ELMo, cached", "without ELMo")
    peaks, seconds = (
        " / ".join(f"{fits[name][field]:.0f}" for name in names)
        for field in ("peak_megabytes", "epoch_seconds")
    )
    value = f"{peaks} MB; an epoch: {seconds} s"
    yield Row("`fit`, CoNLL-2003, ELMo computed / cached / none", value, fits[names[0]])


# --- Quality --------------------------------------------------------------------------------------


def by_layer(scores: Figures) -> str:
    values = (
        score for method, score in scores.items() if method.startswith("layer ") or method.isdigit()
    )
    return " / ".join(
        f"{value:.1f}" if isinstance(value, float) else str(value) for value in values
    )


def text_score(scores: Figures) -> float:
    return scores["pearson"] if "pearson" in scores else scores["test"]


def model_rows() -> Iterator[Row]:
    found = read("heldout_perplexity")
    carry, zeros = (found[state]["all"]["mean"] for state in ("carry", "zeros"))
    yield Row(
        "Perplexity, seven domains, state carried", f"{carry:.1f} (from zeros {zeros:.1f})", found
    )
    parts = read("intrinsic")["en-small"]
    found = {name: part["by state"]["zeros"] for name, part in parts.items()}

    def row(what: str, value: str, part: str) -> Row:
        return Row(what, value, parts[part] | {"command": f"intrinsic --only {part}"})

    for part, key, what in (
        ("coarsewsd", "mean", "CoarseWSD-20, ten words"),
        ("wsd", "ALL", "All-words WSD, ALL"),
    ):
        scores, uses = found[part]["f1"][key], found[f"{part}_uses"]
        most = f"; most frequent sense {scores['most frequent']:.1f}"
        yield row(f"{what}: nearest centroid, F1", by_layer(scores) + most, part)
        yield row(f"{what}: five nearest uses", by_layer(uses["5"]["f1"][key]), f"{part}_uses")
    tags = {method: score["test"] for method, score in found["probe"]["scores"].items()}
    yield row("Parts of speech, UD EWT, linear probe, accuracy", by_layer(tags), "probe")
    for part, what in (
        ("pairs", "Sense pairs told apart"),
        ("uses", "Nearest other use has the same sense"),
    ):
        right = found[part]["right"]
        value = f"{by_layer(right)} of {found[part]['of']}; word beside text {right['use']}"
        yield row(what, value, part)
    held = (
        "yes" if layer["holds"] else "no"
        for name, layer in found["apples"].items()
        if name.startswith("layer ")
    )
    yield row(
        "An eaten apple is nearer to fruits than to *apple products*", " / ".join(held), "apples"
    )
    scores = {method: score["test"] for method, score in found["sst2"].items()}
    tf_idf = parts["sst2"]["by state"]["tf-idf"]["test"]
    value = f"{by_layer(scores)}; mix {scores['mix']:.1f}; TF-IDF {tf_idf:.1f}"
    yield row("SST-2, logistic regression on mean vectors, accuracy", value, "sst2")
    exported, other = read("allennlp_reads_export"), read("wikitext2")
    difference = f"{exported['largest_difference']:.1e}"
    yield Row("AllenNLP reads its export: largest difference", difference, exported)
    published = other["published"]["LSTM (Grave et al. 2017)"]
    value = f"{other['test']['forward']:.1f}; LSTM (Grave et al. 2017) {published}"
    yield Row("A model of WikiText-2 alone: forward test perplexity", value, other)


def chinese_by_layer() -> dict[str, Figures]:
    """Scores of zh-small by layer, of three of its parts."""
    parts = read("chinese")["zh-small"]
    return {
        "probe": {layer: score["test"] for layer, score in parts["probe"]["scores"].items()},
        "wsd": parts["wsd"]["f1"]["1"],
        "senses": {layer: sum(words.values()) for layer, words in parts["senses"]["right"].items()},
    }


def chinese_model_rows() -> Iterator[Row]:
    perplexities = read("heldout_perplexity_zh")
    carry, zeros = (perplexities[state]["all"]["mean"] for state in ("carry", "zeros"))
    value = f"{carry:.1f} (from zeros {zeros:.1f})"
    yield Row("Perplexity, nine domains, state carried", value, perplexities)
    domains = (
        f"{name} {found['mean']:.0f}"
        for name, found in perplexities["carry"].items()
        if name != "all"
    )
    yield Row("The same by domain", ", ".join(domains), perplexities)
    parts = read("chinese")["zh-small"]

    def row(what: str, value: str, part: str) -> Row:
        return Row(what, value, parts[part] | {"command": f"chinese --only {part}"})

    found = chinese_by_layer()
    of, right = sum(parts["senses"]["of"].values()), found["senses"]
    value = f"{by_layer(right)} of {of}; word beside text {right['use']}"
    yield row("Six words: nearest other use has the same sense", value, "senses")
    for neighbors, what in (("1", "nearest use"), ("5", "five nearest uses")):
        f1 = parts["wsd"]["f1"][neighbors]
        value = (
            f"{by_layer(f1)}; word beside text {f1['use']:.1f}; most frequent sense "
            f"{f1['most frequent']:.1f}"
        )
        yield row(f"Word senses, modern Chinese: {what}, F1", value, "wsd")
    what = "Parts of speech, UD GSDSimp, linear probe, accuracy"
    yield row(what, by_layer(found["probe"]), "probe")
    same, chance = parts["wic"]["accuracy"], parts["wic"]["always"]
    value = f"{by_layer(same)}; word beside text {same['use']:.1f}; by chance {chance:.1f}"
    yield row("One sense in two sentences, MCL-WiC, accuracy", value, "wic")
    for part, what in CHINESE_TEXTS.items():
        encoded, tf_idf = (text_score(parts[part][side]) for side in SIDES)
        yield row(what, f"{encoded:.1f}; TF-IDF {tf_idf:.1f}", part)


def task_rows(name: str) -> Iterator[list[str]]:
    results = read(name)
    without: dict[tuple[str, str], str] = {}
    for row in summary(results):
        key = row["task"], row["score"]
        if row["words"] == WITHOUT:
            without[key] = f"{row['mean']:.1f} ± {row['deviation']:.1f}"
            continue
        figures = next(iter(results[row["task"]][row["words"]].values()))
        paper = " / ".join(f"{score:.1f}" for score in row["paper"] or ())
        test, fewer = (
            f"{row['mean']:.1f} ± {row['deviation']:.1f}",
            f"{row['error_reduction']:.0f} %",
        )
        yield [TITLES[key[0]], key[1], without[key], test, fewer, paper, *origin(figures)[:3]]


# --- The tables -----------------------------------------------------------------------------------


def speed() -> str:
    return table_of(speed_rows())


def memory() -> str:
    return table_of(memory_rows())


def model() -> str:
    return table_of(model_rows())


def tasks() -> str:
    head = "Task|Score|Without|With ELMo|Fewer errors|Paper|Date|Commit|On"
    return table(head, task_rows("tasks"))


def chinese_model() -> str:
    return table_of(chinese_model_rows())


def chinese_tasks() -> str:
    head = "Task|Score|Without|With ELMo|Fewer errors|Date|Commit|On"
    return table(head, ([*row[:5], *row[6:]] for row in task_rows("tasks_zh")))


def beside_rows() -> Iterator[tuple[str, Figures, Figures]]:
    """What is measured, its value by model (the best layer, or word beside text; the best batch
    size), and figures with its origin.
    """
    if not (RESULTS / "beside_transformers.json").is_file():
        return
    parts = read("beside_transformers")
    for k, name in (("1", "nearest use"), ("5", "five nearest uses")):
        found = {
            model: max(parts["senses"][model][k]) for model in MODELS if model in parts["senses"]
        }
        yield f"Word senses, CoarseWSD-20, {name}, accuracy", found, parts["senses"]
    for name in ("SST-2", "SUBJ"):
        found = {model: each["test"] for model, each in parts["texts"][name].items()}
        yield f"{name}, logistic regression, accuracy", found, parts["texts"]
    if sick := parts["texts"].get("SICK"):
        yield "SICK, cosine and relatedness, correlation", sick, parts["texts"]
    if speeds := parts.get("speed"):
        rates = speeds["float32"].items()
        found = {
            model: max(rate for name, rate in rates if name.startswith(model))
            for model in ("en-small", MODELS[-1])
        }
        yield "Vectors of texts, words/s", found, speeds


def shown(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.1f}"


def beside() -> str:
    rows = (
        [
            what,
            *(shown(found[model]) if model in found else "" for model in MODELS),
            *origin(figures),
        ]
        for what, found, figures in beside_rows()
    )
    return table(f"Measured|{'|'.join(MODELS)}|Date|Commit|On|Command", rows)


def machine() -> str:
    return "\n".join(
        f"- {letter}: {name}" for letter, name in zip("ABCDEFGH", machines, strict=False)
    )


def hours() -> str:
    """The hours that a pretraining run takes, by the number of words that it reads."""
    rate = read("pretrain_throughput")["small bfloat16 bilm-tf"]["elmokit"]["words_per_second"]
    counts = [millions * 10**6 for millions in (10, 20, 100, 1000)]
    return table(
        "Words read|Hours", ([f"{count:,}", f"{count / rate / 3600:.1f}"] for count in counts)
    )


def readme(results: str = "tasks", task: str = "conll2003", model: str = "en-small") -> str:
    """Four figures, of which one is a task with and without a model."""
    rows = (
        throughput(
            "Embedding, `small`, float32, two cores", "embed_throughput", "small float32 file"
        ),
        throughput(
            "Pretraining, `small`, bfloat16, two cores", "pretrain_throughput", "small bfloat16"
        ),
    )
    lines = [[row.what, row.value] for row in rows]
    f1 = {row["words"]: row["mean"] for row in summary({task: read(results)[task]})}
    lines.append(
        [f"{TITLES[task]}, F1", f"{f1[model]:.1f} with `{model}`, {f1[WITHOUT]:.1f} without"]
    )
    for what, found, _ in beside_rows():
        if "five nearest" in what:
            lines.append(
                [what, ", ".join(f"{model} {score:.1f}" for model, score in found.items())]
            )
    return table("Measured|", lines)


def readme_zh() -> str:
    """The same in Chinese, with a Chinese task."""
    content = readme("tasks_zh", "uner_gsdsimp", "zh-small")
    for english, chinese in {
        "Measured": "测得",
        "Embedding, ": "计算向量，",
        "Pretraining, ": "预训练，",
        ", two cores": "，两个 CPU 核",
        "words/s, ": "词/秒，",
        " x bilm-tf": " 倍于 bilm-tf",
        "Entities in words, UNER GSDSimp, ": "命名实体，UNER GSDSimp 开发集，",
        "Word senses, ": "词义，",
        "five nearest uses, accuracy": "五个最近用例，准确率",
        " with `zh-small`, ": "（使用 `zh-small`），",
        " without": "（不使用）",
    }.items():
        content = content.replace(english, chinese)
    return content


def zh_layers() -> str:
    """What each layer of zh-small knows."""
    names = {
        "probe": "词性（UD GSDSimp，线性探针），准确率",
        "wsd": "词义（现代汉语，最近的用例），F1",
        "senses": "六个多义词，最近的用例同义，30 例中",
    }
    found = chinese_by_layer()
    lines = ([what, *by_layer(found[part]).split(" / ")] for part, what in names.items())
    return table("测得|第 0 层|第 1 层|第 2 层", lines)


def zh_texts() -> str:
    parts = read("chinese")["zh-small"]
    names = {"titles": "新闻标题，十类", "reviews": "酒店评论，好评和差评"}
    rows = (
        [what, *(f"{text_score(parts[part][side]):.1f}" for side in SIDES)]
        for part, what in names.items()
    )
    return table("准确率|zh-small|TF-IDF", rows)


def zh_tasks() -> str:
    names = {
        "uner_gsdsimp": "命名实体，按词（UNER GSDSimp）",
        "ner_resume": "命名实体，按字（简历）",
        "ner_weibo": "命名实体，按字（微博）",
        "ner_weibo_words": "命名实体，按词（微博）",
        "gsdsimp_pos": "词性（UD GSDSimp）",
    }
    found = {row[0]: row for row in task_rows("tasks_zh")}
    rows = ([what, *found[TITLES[name]][2:5]] for name, what in names.items())
    return table("任务|不用|用 zh-small|错误减少", rows)


TABLES: dict[str, Callable[[], str]] = {
    each.__name__: each
    for each in (
        speed,
        memory,
        model,
        tasks,
        beside,
        machine,
        hours,
        readme,
        readme_zh,
        chinese_model,
        chinese_tasks,
        zh_layers,
        zh_texts,
        zh_tasks,
    )
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing")
    is_check = parser.parse_args().check
    problems = []
    for name in DOCUMENTS:
        document = (ROOT / name).read_text(encoding="utf-8")
        made = PLACE.sub(lambda place: f"{place[1]}\n{TABLES[place[2]]()}\n\n{place[3]}", document)
        if made != document:
            problems.append(f"{name} is not what the result files say: run tools/make_results.py")
            if not is_check:
                (ROOT / name).write_text(made, encoding="utf-8")
    unused = {path.stem for path in RESULTS.glob("*.json")} - used - ELSEWHERE
    problems = (problems if is_check else []) + [
        f"nothing shows {name}.json" for name in sorted(unused)
    ]
    print("\n".join(problems), end="\n" if problems else "", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
