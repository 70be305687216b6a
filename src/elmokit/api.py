"""The public names of elmokit."""

from elmokit.analysis.change import change
from elmokit.analysis.similarity import compare, neighbors
from elmokit.analysis.word_map import senses
from elmokit.checkpoints import CheckpointError, Pretrained, list_models, load, push_to_hub, save
from elmokit.config import BiLMConfig
from elmokit.data import prepare
from elmokit.embed import Embedder, Embeddings, embed_file, encode_file, fit_text_map
from elmokit.lm import evaluate, next_words, score, substitutes
from elmokit.nn import BiLM, Elmo, ScalarMix, batch_to_ids, prepack
from elmokit.ops import set_backend
from elmokit.storage import EmbeddingStore, collate
from elmokit.tasks import FitConfig, WordsConfig
from elmokit.tasks.fitting import fit
from elmokit.tasks.fitting.model import TaskModel, load_task_model
from elmokit.text import TruncationWarning, Vocab
from elmokit.train import FinetuneConfig, PretrainConfig, finetune, pretrain

__all__ = [
    "BiLM",
    "BiLMConfig",
    "CheckpointError",
    "Elmo",
    "Embedder",
    "EmbeddingStore",
    "Embeddings",
    "FinetuneConfig",
    "FitConfig",
    "PretrainConfig",
    "Pretrained",
    "ScalarMix",
    "TaskModel",
    "TruncationWarning",
    "Vocab",
    "WordsConfig",
    "batch_to_ids",
    "change",
    "collate",
    "compare",
    "embed_file",
    "encode_file",
    "evaluate",
    "finetune",
    "fit",
    "fit_text_map",
    "list_models",
    "load",
    "load_task_model",
    "neighbors",
    "next_words",
    "prepack",
    "prepare",
    "pretrain",
    "push_to_hub",
    "save",
    "score",
    "senses",
    "set_backend",
    "substitutes",
]
