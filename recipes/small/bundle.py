"""Write the model of a finished cool-down in the form in which it is shipped: in half precision,
with its card.

    python recipes/small/bundle.py RUNS/en-small/cool-down-STEP-STEPS --output DIRECTORY
        --about recipes/small/en.md --language en [--perplexities JSON] [--intrinsic JSON]
        [--words-before N]

The figures on the card come from benchmarks/quality/heldout_perplexity.py and intrinsic.py (parts
uses and sst2), and have to be measured on the model in DIRECTORY. So run this script, measure, and
run it again with the figures.
"""

import argparse
import json
import sys
from dataclasses import replace
from datetime import date
from pathlib import Path

from elmokit.checkpoints.loading import load, save
from elmokit.checkpoints.pretrained import Pretrained

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
from run_log import read_events, training_records

CARD = """# {name}: {about}

A biLM over characters, {layers} LSTM layers of {cell_dim:,} cells projected to {projection_dim} dimensions: the vectors
of a word have {output_dim}. {parameters:.1f} million parameters and a softmax over {vocabulary:,} words. Trained and
bundled by elmokit; weights are stored in half precision, and vectors are computed in float32 by default. Of a
word of more than {max_bytes} bytes, only the first {max_bytes} are read.
{weaknesses}
{data}

- tokenizer: {tokenizer}
- words seen: {words_seen:,}, of a corpus of {corpus_words:,} ({passes:.2f} passes)

## Training
{runs}
- command: recipes/small/train.sh {language}, finished {date}
- recipe {recipe}, learning rate {learning_rate:g}, constant up to step {start:,}, then falling to zero over
  {cool_steps:,} steps
- batch {batch_size} x {unroll_steps}, {num_samples:,} negative samples, dropout {dropout}, {dtype} products,
  seed {seed}, on {device}
{perplexities}"""
CONTINUED = """
This run began with the weights of a model that had read {first:,} words, and read {second:,}. The files
recipes/small/*.env have the settings of all runs.
"""
WEAKNESSES = """
## Weak points

It separates senses that also differ in part of speech (*they play*, *the play*) better than two senses of one noun. In
a test of ten ambiguous words, with three sentences for each of two senses, the nearest other use has the same sense for
{right} of {of} uses (mean of the layers above 0); by chance it would be {chance:.0f}. The mean of a text's vectors says
little of its sentiment: a linear classifier on it is right for {mean_vectors:.1f} % of the test sentences of SST-2, one
on TF-IDF for {tf_idf:.1f} %.
"""
PERPLEXITIES = """
## Held-out perplexity

The first {most:,} words of each domain's held-out documents, to the end of a sentence, or all if there are fewer. Exact
softmax over the vocabulary, boundaries and unknown words counted, the state carried from sentence to sentence; the last
column starts each sentence from zeros. The recipe was chosen by the first 20,000 of these words of each domain.

| domain | words | unknown | forward | backward | mean | mean from zeros |
|---|---|---|---|---|---|---|
{rows}
"""
ROW = (
    "| {name} | {words:,} | {unknown_percent:.1f} % | {forward:.1f} | {backward:.1f} | "
    "{mean:.1f} | {zeros:.1f} |"
)


def perplexity_table(model: Pretrained, path: Path | None) -> str:
    """The card's section on perplexities; empty without a file.

    Raises:
        SystemExit: The perplexities are those of another model.
    """
    if path is None:
        return ""
    found = json.loads(path.read_text(encoding="utf-8"))
    if found.get("fingerprint") != model.fingerprint():
        raise SystemExit(
            f"{path} is of another model: run benchmarks/quality/heldout_perplexity.py again"
        )
    zeros = found["zeros"]
    rows = [
        ROW.format(name=name, zeros=zeros[name]["mean"], **values)
        for name, values in found["carry"].items()
    ]
    most = max(values["words"] for name, values in found["carry"].items() if name != "all")
    return PERPLEXITIES.format(most=round(most, -3), rows="\n".join(rows))


def weaknesses(model: Pretrained, path: Path | None) -> str:
    """The card's section on word senses and sentiment; empty without a file.

    Raises:
        SystemExit: The file has no measurements of this model.
    """
    if path is None:
        return ""
    for parts in json.loads(path.read_text(encoding="utf-8")).values():
        if {"uses", "sst2"} <= set(parts) and parts["uses"]["fingerprint"] == model.fingerprint():
            uses, sst2 = (parts[name]["by state"]["zeros"] for name in ("uses", "sst2"))
            tf_idf = parts["sst2"]["by state"]["tf-idf"]["test"]
            return WEAKNESSES.format(
                of=uses["of"], right=uses["right"]["contextual"], chance=0.4 * uses["of"],
                mean_vectors=sst2["mix"]["test"], tf_idf=tf_idf,
            )  # fmt: skip
    raise SystemExit(
        f"{path} has no `uses` and `sst2` of this model: run benchmarks/quality/intrinsic.py again"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="directory of the cool-down")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--about", type=Path, required=True, help="what the card says of the text")
    parser.add_argument("--language", required=True)
    parser.add_argument("--perplexities", type=Path)
    parser.add_argument("--intrinsic", type=Path)
    parser.add_argument(
        "--words-before", type=int, default=0, help="words that the run's initial model had read"
    )
    arguments = parser.parse_args()
    model = load(arguments.run / "model")
    model.bilm.half().float()  # as the shipped model will be read
    events = read_events(arguments.run)
    begun, last = events[0], training_records(arguments.run)[-1]
    settings, lstm = begun["settings"], model.bilm.config.lstm
    before = arguments.words_before
    about, data = arguments.about.read_text(encoding="utf-8").strip().split("\n\n", 1)
    card = CARD.format(
        name=arguments.output.name,
        about=about,
        data=data,
        language=arguments.language,
        layers=lstm.num_layers,
        cell_dim=lstm.cell_dim,
        projection_dim=lstm.projection_dim,
        output_dim=model.bilm.config.output_dim,
        max_bytes=model.bilm.config.char_cnn.max_characters - 2,
        parameters=sum(p.numel() for p in model.bilm.parameters()) / 1e6,
        vocabulary=len(model.vocab or ()),
        tokenizer=model.tokenizer,
        words_seen=before + last["words"],
        corpus_words=begun["words"],
        passes=(before + last["words"]) / begun["words"],
        runs=CONTINUED.format(first=before, second=last["words"]) if before else "",
        date=date.fromtimestamp(last["time"]),
        start=begun["step"],
        cool_steps=begun["total_steps"] - begun["step"],
        perplexities=perplexity_table(model, arguments.perplexities),
        weaknesses=weaknesses(model, arguments.intrinsic),
        **{
            name: settings[name]
            for name in (
                "recipe",
                "learning_rate",
                "batch_size",
                "unroll_steps",
                "num_samples",
                "dropout",
                "dtype",
                "seed",
                "device",
            )
        },
    )
    shipped = replace(model, card=card, language=arguments.language, state_policy="zeros")
    save(shipped, arguments.output, overwrite=True, storage_dtype="float16")


if __name__ == "__main__":
    main()
