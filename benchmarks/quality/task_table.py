"""The table of the results of tasks.py. Needs only the standard library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import mean, stdev
from typing import Any

WITHOUT = "without ELMo"
TITLES = {
    "conll2003": "Named entities, CoNLL-2003",
    "wnut17": "Named entities, WNUT17",
    "conll2000": "Chunks, CoNLL-2000",
    "ewt_pos": "Parts of speech, UD EWT",
    "sst5": "Sentiment, SST-5",
    "sst2": "Sentiment, SST-2",
    "mr": "Sentiment, MR",
    "subj": "Subjectivity, SUBJ",
    "sick_entailment": "Entailment, SICK",
    "sick_relatedness": "Relatedness, SICK",
    "mrpc": "Paraphrases, MRPC",
    "snli": "Entailment, SNLI (1,018 pairs)",
    "propbank": "Semantic roles, PropBank EWT",
    "squad": "Questions, SQuAD development set",
    "litbank": "Coreference, LitBank",
    "multi30k": "Translation, Multi30k en-de",
}
Figures = dict[str, Any]


def summary(results: Mapping[str, Any]) -> Iterator[Figures]:
    """A row for each score of each task and kind of word vectors: test scores in percent over the seeds."""
    for name, kinds in results.items():
        baselines: dict[str, float] = {}
        for kind in sorted(kinds, key=lambda kind: kind != WITHOUT):
            runs = list(kinds[kind].values())
            for score in runs[0]["scores"]:
                values = [100 * each["test"][score] for each in runs]
                average = mean(values)
                reduction = None
                if score in baselines:
                    reduction = round(100 * (average - baselines[score]) / (100 - baselines[score]), 1)
                if kind == WITHOUT:
                    baselines[score] = average
                yield {
                    "task": name,
                    "words": kind,
                    "score": score,
                    "seeds": len(runs),
                    "mean": round(average, 2),
                    "deviation": round(stdev(values), 2) if len(values) > 1 else None,
                    "error_reduction": reduction,
                    "paper": runs[0]["paper"] if score == runs[0]["scores"][0] else None,
                    "seconds": round(mean(each["seconds"] for each in runs)),
                    "words_per_second": round(mean(each["words_per_second"] for each in runs)),
                }


def table(results: Mapping[str, Any]) -> str:
    """The summary in Markdown."""
    lines = ["| Task | Words | Score | Seeds | Test | Fewer errors | Paper | Seconds | Words/s |", "|---" * 9 + "|"]
    for row in summary(results):
        test = f"{row['mean']:.2f}" + ("" if row["deviation"] is None else f" ± {row['deviation']:.2f}")
        fewer = "" if row["error_reduction"] is None else f"{row['error_reduction']:.1f} %"
        paper = "" if row["paper"] is None else f"{row['paper'][row['words'] != WITHOUT]:.1f}"
        cells = [TITLES.get(row["task"], row["task"]), row["words"], row["score"], row["seeds"], test, fewer, paper]
        lines.append("| " + " | ".join(map(str, [*cells, row["seconds"], row["words_per_second"]])) + " |")
    return "\n".join(lines)
