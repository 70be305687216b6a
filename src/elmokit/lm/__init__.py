"""The language model as such: perplexity of a corpus, scores of words, substitutes, next words."""

from elmokit.lm.candidates import next_words, substitutes, substitutes_in
from elmokit.lm.evaluation import evaluate, measure
from elmokit.lm.losses import check_predicts, final_outputs, masked_outputs, target_ids
from elmokit.lm.measures import Measure, warn_of_unknown
from elmokit.lm.scoring import Score, perplexity_fields, score, score_file, scores

__all__ = [
    "Measure",
    "Score",
    "check_predicts",
    "evaluate",
    "final_outputs",
    "masked_outputs",
    "measure",
    "next_words",
    "perplexity_fields",
    "score",
    "score_file",
    "scores",
    "substitutes",
    "substitutes_in",
    "target_ids",
    "warn_of_unknown",
]
