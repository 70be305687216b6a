"""Put a finished pretraining run into the package, in half precision, with its card.

    python benchmarks/bundle_model.py RUN NAME

Reads RUN/model and RUN/log.jsonl, writes src/elmokit/models/NAME. The table of perplexities on the card is that of
benchmarks/results/heldout_perplexity.json, where that was made from the bundled model: bundle, measure, bundle again.
"""

import argparse
import json
from datetime import date
from pathlib import Path

from elmokit.checkpoints.loading import BUNDLED_MODELS, load, save
from elmokit.checkpoints.pretrained import Pretrained, fingerprint

PERPLEXITIES = Path(__file__).parent / "results" / "heldout_perplexity.json"
CARD = """# {name}: an English ELMo

A biLM over characters, {layers} LSTM layers of {cell_dim:,} cells projected to {projection_dim} dimensions: the vectors
of a word have {output_dim}. Trained and bundled by elmokit. Weights are stored in half precision.

## Data

English text, tokenized by `{tokenizer}`: Wikipedia and Simple Wikipedia articles (CC BY-SA 3.0), Project Gutenberg
books (public domain in the US), United States government publications (public domain), OpenStax textbooks (CC BY 4.0),
MASC, inaugural addresses and Common Voice sentences (open, public domain, CC0). UN General Debate speeches were kept
out of training, for domain adaptation. Every shard of the corpus is a sample of all its documents, so what was read
is one too.

- words seen: {words_seen:,} of {corpus_words:,} ({passes:.2f} passes)
- vocabulary of the softmax: {vocabulary:,} words

## Licence

CC BY-SA 4.0, with attribution to Wikipedia contributors and to OpenStax; see NOTICE.

## Training

- command: benchmarks/train_en_small.sh, finished {date}; stopped and resumed {resumes} times, while the code was made
  faster (model, data and recipe stayed the same)
- {recipe} recipe, learning rate {learning_rate}, dropout {dropout}, {dtype} products, seed {seed}, {threads} CPU cores
- batch {batch_size} x {unroll_steps}, {steps:,} steps, {num_samples:,} negative samples

## Held-out perplexity

The first 100,000 words of each domain's held-out documents. Exact softmax over the vocabulary, boundaries and unknown
words counted, the state carried from sentence to sentence; the last column starts each sentence from zeros, which is
how vectors are made by default.

| domain | words | unknown | forward | backward | mean | mean from zeros |
|---|---|---|---|---|---|---|
{rows}
"""
ROW = "| {name} | {words:,} | {unknown_percent:.1f} % | {forward:.1f} | {backward:.1f} | {mean:.1f} | {zeros:.1f} |"


def rows(model: Pretrained) -> str:
    """A line of the card for each domain; none where another model was measured last."""
    found = json.loads(PERPLEXITIES.read_text(encoding="utf-8")) if PERPLEXITIES.is_file() else {}
    if found.get("fingerprint") != fingerprint(model):
        print(f"{PERPLEXITIES} is not of this model: run benchmarks/heldout_perplexity.py, then this again")
        return ""
    zeros = found["zeros"]
    return "\n".join(
        ROW.format(name=name, zeros=zeros[name]["mean"], **values) for name, values in found["carry"].items()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("name")
    arguments = parser.parse_args()
    model = load(arguments.run / "model")
    model.bilm.half().float()  # as the bundled model will be read
    events = [json.loads(line) for line in (arguments.run / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    start, end = events[0], events[-1]
    parts = [event for event in events if event["event"] in ("start", "resume")]
    threads = " to ".join(map(str, sorted({part["settings"]["threads"] for part in parts})))
    settings, lstm = start["settings"], model.bilm.config.lstm
    seen = end["step"] * settings["batch_size"] * settings["unroll_steps"]
    seen = round(seen * start["words"] / (start["words"] + start["sentences"]))  # boundaries are no words
    card = CARD.format(
        name=arguments.name, layers=lstm.num_layers, cell_dim=lstm.cell_dim, projection_dim=lstm.projection_dim,
        output_dim=model.bilm.config.output_dim, words_seen=seen,
        corpus_words=start["words"], passes=seen / start["words"], vocabulary=len(model.vocab or ()),
        steps=end["step"], rows=rows(model), date=date.fromtimestamp(end["time"]), resumes=len(parts) - 1,
        **{**settings, "threads": threads, "tokenizer": model.tokenizer},
    )  # fmt: skip
    bundled = Pretrained(
        model.bilm, softmax=model.softmax, vocab=model.vocab, tokenizer=model.tokenizer, card=card, mix=model.mix
    )
    save(bundled, BUNDLED_MODELS / arguments.name, overwrite=True, dtype="float16")


if __name__ == "__main__":
    main()
