"""The bundled model, which most tests compare with."""

import pytest

from elmokit.embed.embedder import Embedder


@pytest.fixture(scope="session")
def embedder() -> Embedder:
    return Embedder()
