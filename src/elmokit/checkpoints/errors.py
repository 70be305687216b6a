"""The error of a checkpoint that cannot be used, and the comparison of its keys with the expected ones."""

from collections.abc import Mapping

Shape = tuple[int, ...]


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; the message names every offending key."""


def check_shapes(source: object, expected: Mapping[str, Shape], actual: Mapping[str, Shape]) -> None:
    """Compare names and shapes of tensors.

    Args:
        source: The file or model, for the message.
        expected: The shapes by name that the configuration asks for.
        actual: The shapes by name in `source`.

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
