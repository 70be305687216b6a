"""The public names of elmokit."""

from elmokit.analysis.change import change
from elmokit.analysis.similarity import compare, neighbors
from elmokit.analysis.word_map import senses
from elmokit.checkpoints.loading import CheckpointError, Pretrained, list_models, load, save
from elmokit.checkpoints.push import push_to_hub
from elmokit.config import BiLMConfig
from elmokit.data.prepare import prepare
from elmokit.embed.embedder import Embedder, Embeddings
from elmokit.embed.files import embed_fasta, embed_file, encode_file
from elmokit.lm.candidates import next_words, substitutes
from elmokit.lm.evaluate import evaluate
from elmokit.lm.scoring import score
from elmokit.nn.bilm import BiLM
from elmokit.nn.elmo import Elmo, batch_to_ids
from elmokit.nn.inference import prepack
from elmokit.nn.scalar_mix import ScalarMix
from elmokit.ops.dispatch import set_backend
from elmokit.storage.collate import collate
from elmokit.storage.store import EmbeddingStore
from elmokit.tasks.config import FitConfig, WordsConfig
from elmokit.tasks.fitting.fit import fit
from elmokit.tasks.fitting.model import TaskModel, load_task_model
from elmokit.text.characters import TruncationWarning
from elmokit.text.vocab import Vocab
from elmokit.train.config import FinetuneConfig, PretrainConfig
from elmokit.train.finetune import finetune
from elmokit.train.pretrain import pretrain

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
    "embed_fasta",
    "embed_file",
    "encode_file",
    "evaluate",
    "finetune",
    "fit",
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
