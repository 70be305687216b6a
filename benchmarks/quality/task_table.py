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
    "uner_gsdsimp": "Entities in words, UNER GSDSimp",
    "ner_resume": "Entities in characters, resumes",
    "ner_resume_words": "Entities in words, resumes",
    "ner_weibo": "Entities in characters, Weibo",
    "ner_weibo_words": "Entities in words, Weibo",
    "gsdsimp_pos": "Parts of speech, UD GSDSimp",
    "titles": "Titles of news, ten classes",
    "reviews": "Reviews of hotels, two classes",
}
Figures = dict[str, Any]


def summary(results: Mapping[str, Any]) -> Iterator[Figures]:
    """A row for each score of each task and kind of word vectors: test scores in percent over the
    seeds.
    """
    for name, kinds in results.items():
        baselines: dict[str, float] = {}
        for kind in sorted(kinds, key=lambda kind: kind != WITHOUT):
            runs = list(kinds[kind].values())
            for score in runs[0]["scores"]:
                values = [100 * each["test"][score] for each in runs]
                average, baseline = mean(values), baselines.get(score)
                if kind == WITHOUT:
                    baselines[score] = average
                yield {
                    "task": name,
                    "words": kind,
                    "score": score,
                    "seeds": len(runs),
                    "mean": average,
                    "deviation": stdev(values) if len(values) > 1 else 0.0,
                    "error_reduction": None
                    if baseline is None
                    else 100 * (average - baseline) / (100 - baseline),
                    "paper": runs[0]["paper"] if score == runs[0]["scores"][0] else None,
                }


def table(results: Mapping[str, Any]) -> str:
    """The summary in Markdown."""
    lines = ["| Task | Words | Score | Seeds | Test | Fewer errors |", "|---" * 6 + "|"]
    for row in summary(results):
        fewer = "" if row["error_reduction"] is None else f"{row['error_reduction']:.1f} %"
        cells = (
            row["task"],
            row["words"],
            row["score"],
            row["seeds"],
            f"{row['mean']:.2f} ± {row['deviation']:.2f}",
            fewer,
        )
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)
