"""Reading tensors that a test changes and writes back."""

from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Copies of a file's tensors: older versions of safetensors map the file, which then cannot be written."""
    return {name: tensor.clone() for name, tensor in load_file(path).items()}
