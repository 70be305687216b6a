"""The error for a checkpoint that cannot be used, and the comparison of its keys with the expected ones."""

from collections.abc import Mapping

from torch import Tensor

Shape = tuple[int, ...]


class CheckpointError(ValueError):
    """A checkpoint that cannot be used: its files are damaged, or do not match; the message names offending keys."""


def check_shapes(source: object, expected: Mapping[str, Shape], actual: Mapping[str, Shape]) -> None:
    """Compare names and shapes of tensors.

    Args:
        source: The file or model, for the message.
        expected: The shapes that the configuration asks for, by name.
        actual: The shapes in `source`, by name.

    Raises:
        CheckpointError: They differ; the message lists every missing, unexpected and wrong-shaped key.
    """
    problems = [f"  missing: {key} {expected[key]}" for key in expected if key not in actual]
    problems += [f"  unexpected: {key} {actual[key]}" for key in actual if key not in expected]
    problems += [
        f"  wrong shape: {key} is {actual[key]}, the configuration asks for {shape}"
        for key, shape in expected.items()
        if key in actual and actual[key] != shape
    ]
    if problems:
        raise CheckpointError(f"{source} does not fit its configuration:\n" + "\n".join(problems))


def non_finite(tensors: Mapping[str, Tensor]) -> list[str]:
    """The names of the tensors with a number that is not finite."""
    # If a number is not finite, neither is the sum, which takes a fraction of the time; large numbers may overflow it.
    suspects = {name: tensor for name, tensor in tensors.items() if not tensor.sum().isfinite()}
    return [name for name, tensor in suspects.items() if not tensor.isfinite().all()]


def check_finite(source: object, tensors: Mapping[str, Tensor]) -> None:
    """CheckpointError that names every tensor with a number that is not finite."""
    if wrong := non_finite(tensors):
        raise CheckpointError(
            f"{source} has weights that are not finite: {', '.join(wrong)}; its vectors would not be numbers. Fetch "
            "it again, or load it with allow_non_finite=True to inspect it"
        )
