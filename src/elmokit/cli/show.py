"""Print results as lines of text."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from elmokit.cli.messages import discard_output


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_text(inner)}" for name, inner in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(f"({_text(item)})" if isinstance(item, list | tuple) else _text(item) for item in value)
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _lines(values: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield f"{indent}{name}:"
            yield from _lines(value, indent + "  ")
        elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
            yield f"{indent}{name}:"
            yield from (f"{indent}  {_text(item)}" for item in value)
        else:
            yield f"{indent}{name}: {_text(value)}".rstrip()


def show(result: Any) -> None:
    """Print a mapping, or a dataclass without a `__str__`, as lines `name: value`; anything else as `str` of it.

    Nothing fails if the output is closed, as by `head`: the job whose result is printed is complete.
    """
    if is_dataclass(result) and type(result).__str__ is object.__str__:
        result = asdict(result)  # pyright: ignore[reportArgumentType]  (an instance, not a class)
    try:
        print("\n".join(_lines(result)) if isinstance(result, Mapping) else result, flush=True)
    except BrokenPipeError:
        discard_output()


def check_outputs(outputs: Iterable[Path | None], inputs: Iterable[Path | None], overwrite: bool) -> None:
    """Check, before the work, that reports and pictures can be written; None stands for one that is not wanted.

    Raises:
        ValueError: Two of them are one file; or as `check_output`, as are FileExistsError and OSError.
    """
    from elmokit.fs.atomic import check_output

    files = [file for file in inputs if file is not None]
    seen: set[Path] = set()
    for output in filter(None, outputs):
        check_output(output, files, overwrite=overwrite)
        if output.resolve() in seen:
            raise ValueError(f"{output} would hold the report and the picture: name two files")
        seen.add(output.resolve())


def write_report(report: Any, path: Path | None, overwrite: bool) -> None:
    """Write a report, a dataclass or a mapping to `path` as JSON, and print the path; does nothing if `path` is None.

    Without `overwrite`, a file that appeared during the work is not replaced either.
    """
    if path is None:
        return
    from elmokit.fs.atomic import write_json  # imported here because it loads safetensors

    if hasattr(report, "to_json"):
        report = report.to_json()
    values = asdict(report) if is_dataclass(report) else report  # pyright: ignore[reportArgumentType]  (an instance)
    write_json(path, values, overwrite)
    show(f"{path}: report as JSON")
