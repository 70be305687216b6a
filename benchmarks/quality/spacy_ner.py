"""Entity recognition on WNUT17 by `spacy train`, with ELMo (examples/spacy/ner_elmo.cfg) and without.

    python benchmarks/quality/spacy_ner.py --eval DIRECTORY --work DIRECTORY [--seeds 1 2 3] [--max-steps 20000]

DIRECTORY/ner/WNUT17 is the repository of the shared task. spaCy stops a run by the F1 of the development set, and the
best model of each run is scored on the test set. A run is written to the results as soon as it is finished, and not
repeated; results of another configuration, model or number of steps are refused.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import spacy
from spacy.cli.train import train
from spacy.tokens import Doc, DocBin
from spacy.training import Corpus, iob_to_biluo
from spacy.training.iob_utils import biluo_tags_to_spans

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(HERE.parent)]
from result_files import RESULTS, Figures, write_result  # noqa: E402

from elmokit.checkpoints.loading import load  # noqa: E402
from elmokit.checkpoints.pretrained import fingerprint  # noqa: E402
from elmokit.data.readers import TaggedSentence  # noqa: E402
from elmokit.tasks.tagging import TaggingTask  # noqa: E402

CONFIGS = {"ELMo": "ner_elmo.cfg", "without ELMo": "ner_hash_embed.cfg"}
FOLDER = Path("ner") / "WNUT17" / "CONLL-format" / "data"
FILES = {
    "train": FOLDER / "train" / "wnut17train.conll",
    "dev": FOLDER / "dev" / "emerging.dev.conll",
    "test": FOLDER / "test" / "emerging.test.annotated",
}
PART = "spaCy"


def write_docs(sentences: Iterable[TaggedSentence], path: Path) -> None:
    """Write sentences with IOB tags in the format of spaCy's training data."""
    vocab, docs = spacy.blank("en").vocab, DocBin()
    for sentence in sentences:
        doc = Doc(vocab, words=list(sentence.words))
        doc.set_ents(biluo_tags_to_spans(doc, iob_to_biluo(sentence.tags)))
        docs.add(doc)
    docs.to_disk(path)


def run(config: str, corpora: dict[str, Path], seed: int, max_steps: int, output: Path) -> Figures:
    """Train, and return the F1 of the best model in percent and the time in seconds."""
    overrides = {"paths.train": str(corpora["train"]), "paths.dev": str(corpora["dev"])}
    settings = {"training.seed": seed, "training.max_steps": max_steps}
    started = time.perf_counter()
    train(ROOT / "examples" / "spacy" / config, output, overrides=overrides | settings)
    seconds = time.perf_counter() - started
    nlp = spacy.load(output / "model-best")
    scores = {part: nlp.evaluate(list(Corpus(corpora[part])(nlp)))["ents_f"] for part in ("dev", "test")}
    return {part: round(100 * score, 2) for part, score in scores.items()} | {"seconds": round(seconds)}


def setup_of(config: str, max_steps: int) -> str:
    """A hash of everything that the scores depend on except the seed; different setups are never averaged."""
    content = (ROOT / "examples" / "spacy" / config).read_bytes() + fingerprint(load("en-small")).encode()
    return hashlib.sha256(content + str(max_steps).encode()).hexdigest()[:16]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--eval", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="directory for corpora and models")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--max-steps", type=int, default=20_000)
    parser.add_argument("--output", type=Path, default=RESULTS / "integrations.json")
    arguments = parser.parse_args(argv)
    arguments.work.mkdir(parents=True, exist_ok=True)
    corpora = {part: arguments.work / f"{part}.spacy" for part in FILES}
    for part, file in FILES.items():
        write_docs(TaggingTask().read(arguments.eval / file), corpora[part])
    for seed in arguments.seeds:
        for name, config in CONFIGS.items():
            report = json.loads(arguments.output.read_text(encoding="utf-8")) if arguments.output.is_file() else {}
            runs = report.get(PART, {}).get(name, {})
            setup = setup_of(config, arguments.max_steps)
            if any(run.get("setup") != setup for run in runs.values()):
                raise SystemExit(f"{arguments.output} has results of {name} of another setup: give another --output")
            if str(seed) in runs:
                continue
            output = arguments.work / f"{Path(config).stem}-{seed}"
            figures = run(config, corpora, seed, arguments.max_steps, output)
            print(name, seed, figures, flush=True)
            write_result(
                arguments.output, figures | {"max_steps": arguments.max_steps, "setup": setup}, PART, name, str(seed)
            )


if __name__ == "__main__":
    main()
