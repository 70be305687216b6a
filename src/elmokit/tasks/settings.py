"""The settings of a tagger and of its training, free of torch so that the command line can show them at once."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TaggerConfig:
    """What a tagger sees of a word, and the network on top of it."""

    word_dim: int = 100
    """Width of word vectors learned from the training set; 0: none."""
    character_dim: int = 0
    """Width of the output of a character CNN learned from the training set; 0: none."""
    elmo: bool = True
    """Give the LSTM ELMo's vectors: a learned mix of the layers of a pretrained biLM."""
    elmo_at_output: bool = False
    """Put ELMo once more, with a mix of its own, beside the LSTM's output."""
    elmo_dropout: float = 0.5
    """Dropout of ELMo's vectors."""
    layer_norm: bool = False
    """Normalise the biLM's layers before they are mixed; vectors then depend on their batch."""
    mix_l2: float = 0.0
    """Weight of the L2 penalty on the mix weights before the softmax (the paper tried 0 to 0.01)."""
    finetune: bool = False
    """Train the biLM too. Slow: it then runs in every epoch instead of once."""
    hidden_dim: int = 150
    """Width of the LSTM in each direction."""
    num_layers: int = 1
    """LSTM layers."""
    dropout: float = 0.5
    """Dropout of word vectors, character CNN and LSTM output."""
    rare_word_dropout: float = 0.5
    """How often, in training, a word that occurs once there becomes the unknown word."""
    crf: bool = False
    """Score whole tag sequences with a conditional random field instead of each tag by itself."""

    def __post_init__(self) -> None:
        if not (self.word_dim or self.character_dim or self.elmo):
            raise ValueError("a tagger needs to see something: give word_dim, character_dim or elmo")
        if (self.finetune or self.elmo_at_output) and not self.elmo:
            raise ValueError("finetune and elmo_at_output need elmo")


@dataclass(frozen=True)
class FitConfig:
    """How a tagger is trained. Equal settings and data give equal taggers."""

    seed: int = 1
    """Of the initial weights, dropout and the order of batches."""
    max_epochs: int = 30
    """Most passes over the training set."""
    patience: int = 4
    """Stop after so many epochs without a better score on the development set."""
    batch_size: int = 32
    """Sentences in a batch."""
    learning_rate: float = 2e-3
    """Adam's; halved after each epoch without a better score."""
    finetune_learning_rate: float = 1e-4
    """Adam's for the biLM, where it is trained too."""
    max_grad_norm: float = 5.0
    """Gradients are scaled down to this norm."""
    device: str | None = None
    """cpu, cuda or cuda:N; cuda where there is one when not given."""
