"""Measuring and exploring the vectors: similarity, neighbors, probes, clusters of a word's uses.

The results of analyses are frozen dataclasses that print as text, convert to JSON, and are
saved as tables and pictures.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, ClassVar

from elmokit.extras import import_extra
from elmokit.fs import TABLES, atomic_path, check_output, suffixes_of

PICTURES = (".svg", ".png", ".pdf")


def table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    note: str = "",
) -> str:
    """Lines with aligned columns, the first to the left, the others to the right; then a note."""
    lines = [header, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    texts = []
    for first, *others in lines:
        left = first.ljust(widths[0])
        right = map(str.rjust, others, widths[1:])
        texts.append("  ".join([left, *right]).rstrip())
    return "\n".join([*texts, f"({note})"] if note else texts)


def as_json(value: Any) -> Any:
    """A value as JSON values; dataclasses and named tuples as objects of their fields."""
    if hasattr(value, "to_json"):
        return value.to_json()
    if is_dataclass(value):
        return {field.name: as_json(getattr(value, field.name)) for field in fields(value)}
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {key: as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return list(map(as_json, value))
    return value.tolist() if hasattr(value, "tolist") else value  # NumPy's arrays and numbers


class Report:
    """The base of results, which a notebook shows as what they print.

    Attributes:
        FORMATS: The suffixes of files that it can be saved as.
    """

    FORMATS: ClassVar[tuple[str, ...]] = TABLES + PICTURES

    def __repr__(self) -> str:
        return str(self)

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return {field.name: as_json(getattr(self, field.name)) for field in fields(self)}  # pyright: ignore

    def rows(self) -> Iterator[dict[str, Any]]:
        """The rows of its table."""
        raise NotImplementedError

    def plot(self, figure: Any) -> None:
        """Draw it in a figure of matplotlib."""
        raise NotImplementedError

    def save(self, path: str | Path, overwrite: bool = False) -> None:
        """Write its table or its picture.

        Args:
            path: For a table .csv, .tsv, .jsonl or .parquet; for a picture .svg, .png or .pdf
                (extra plot).
            overwrite: Replace a file.

        Raises:
            ValueError: The suffix is another one.
            FileExistsError: The file exists, and is not to be overwritten.
        """
        from elmokit.data import write_table  # here, as it imports torch

        check_output(path, [], overwrite=overwrite, suffixes=self.FORMATS)
        kind = suffixes_of(path).kind
        if kind not in PICTURES:
            write_table(path, self.rows(), overwrite)
            return
        matplotlib = import_extra("matplotlib", "plot")
        fonts = import_extra("matplotlib.font_manager", "plot").fontManager.get_font_names()
        asian = sorted(filter(re.compile("CJK|Hei$|PingFang|Gothic$").search, fonts))
        # Texts of a corpus are no formulas; where a font has no Chinese, the next one may.
        options = {"text.parse_math": False, "font.family": ["DejaVu Sans", *asian]}
        with matplotlib.rc_context(options | {"svg.fonttype": "none"}):
            figure = import_extra("matplotlib.figure", "plot").Figure(layout="constrained")
            self.plot(figure)
            with atomic_path(path, overwrite) as partial:
                figure.savefig(partial, format=kind[1:], dpi=300)
