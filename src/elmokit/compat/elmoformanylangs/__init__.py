"""ELMoForManyLangs' `Embedder`, and its command `test`."""

from elmokit.compat.elmoformanylangs.command import elmoformanylangs_test
from elmokit.compat.elmoformanylangs.embedder import Embedder

__all__ = ["Embedder", "elmoformanylangs_test"]
