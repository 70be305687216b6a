"""Check that names and prose use the terms of the field, and that tests choose backends only through the dispatcher.

    python tools/check_words.py               # prints file:line for every violation; status 1 if there is one
    python tools/check_words.py FILE ...      # check only these files

There are three checks. Source and documentation files, except records of the past (HISTORY), are searched for
expressions of the project's former private vocabulary (RULES). Variables and arguments of the package must not have
vague names (VAGUE_NAMES). Tests must not patch private names of `elmokit.ops`, `elmokit.nn` and `elmokit.embed`, since
kernels are chosen by `ELMOKIT_BACKEND`, `elmokit.set_backend` or the fixtures of `tests/conftest.py`. Needs only the
standard library.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
CHECKED = (
    "src", "tests", "docs", "benchmarks", "recipes", "examples", "tools", "hatch_build.py", "README.md",
    "README.zh-CN.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md",
)  # fmt: skip
SUFFIXES = {".py", ".c", ".h", ".md", ".sh", ".html"}
# Records of the past, which may use the terms of their time.
HISTORY = ("docs/log.md", "docs/decisions/")
# Files with the rules and examples of this check.
OWN_FILES = ("tools/check_words.py", "tests/repository/test_check_words.py")

# The code that computes the network: some plain English words had a private sense only there.
COMPUTATION = ("src/elmokit/ops/", "src/elmokit/nn/", "src/elmokit/embed/", "tests/ops/", "tests/nn/", "tests/embed/")


class Rule(NamedTuple):
    """An expression that must not be used.

    Attributes:
        pattern: Regular expression; case is ignored.
        sense: The sense in which the expression was used.
        instead: The term of the field.
        where: Path prefixes to which the rule applies; everywhere by default.
    """

    pattern: str
    sense: str
    instead: str
    where: tuple[str, ...] = ("",)


RULES = (
    Rule(r"\b(\w+_)?rooms?(_\w+)?\b", "memory of a call", "workspace", COMPUTATION),
    Rule(r"\b(lend|lends|lent|lending|loan|loans|loaned)\b", "memory that is reused", "allocate", COMPUTATION),
    Rule(r"\blets?[ _]go\b|\bgiv(e|es|ing|en)[ _]back|\bgave back\b|_back_freed", "freed memory", "release"),
    Rule(r"\bbeside\b", "an operand of a matrix product, [x; h]", "the layer input x; [x; h]; next to", COMPUTATION),
    Rule(r"\bbehind\b", "run by another thread", "background consumer, bounded queue, after", COMPUTATION),
    Rule(r"\b(comes?|came|coming) back\b", "a returned value or future", "is returned, a future"),
    Rule(r"\bthen_leave\b|\bbegin_and_then\b", "stages of a pipeline", "submit, finalize, result()"),
    Rule(r"\bcall(s|ed|ing)?_for\b", "memory that is needed soon", "prefetch"),
    Rule(r"\bpacked[ _](weights?|matri(x|ces)|products?|linear|logsumexp)\b", "converted weights", "prepacked"),
    Rule(r"\b(made|make|makes) ready\b|\bPreparedBiLM\b", "converted for inference", "prepacked, converted"),
    Rule(r"\bwhole numbers?\b", "integers", "integers, int8"),
    Rule(r"\b(rows?|columns?|addresses|bytes|elements) apart\b", "the distance of rows in memory", "stride"),
    Rule(r"\bkept[ _]graph\b", "a graph for a second backward pass", "retain_graph"),
    Rule(
        r"\btext[ _]order\b|\bback to (the )?text\b", "the inverse of packing", "unpacked, the order of the sentences"
    ),
    Rule(
        r"\bjoin(s|ed|ing)?[ _]directions?\b|\bdirections? (that )?join\b|\bJoined\w*LSTM\b",
        "a layer that reads both directions of the layer below",
        "interleaved",
    ),
    Rule(r"\bwords_and_characters\b|\bWordsAndCharacters", "a token encoder", "ELMoForManyLangs token encoder"),
    Rule(r"lexicon", "word lists of that encoder, or of a tagger", "dictionaries, vocabulary"),
    Rule(r"\b(tell|tells|told) of\b|\bis told\b|\bare told\b|_told\b", "a reported error", "reported, raises"),
    Rule(r"\bas one likes\b|\bwith a name of its own\b", "vague phrases", "the plain term"),
    Rule(r"\boptions?\.products\b|--products\b|\bproducts=", "the number type to compute in", "dtype"),
)


class Exemption(NamedTuple):
    """Lines that a rule does not apply to: files whose path matches `path`, lines that match `line`."""

    path: str
    line: str
    reason: str


EXEMPTIONS = (
    Exemption(
        r"^(src/elmokit/(config|checkpoints/.*|nn/token_encoders)\.py|tests/(config|checkpoints/.*|text/test_efml.*|test_config)\.py|"
        r"tests/(repository/test_formats|support/.*)\.py|docs/formats(\.template)?\.md)$",
        r"words_and_characters|joins_directions",
        "keys of files that older versions wrote, which are still read and specified",
    ),
    Exemption(r"^tests/", r"^\s*(\(|\[|\*|\w+ = )?\[?\"[^\"]*\blent\b", "sample sentences about banks"),
)


class Violation(NamedTuple):
    """A line with a forbidden expression or patch."""

    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


def _is_exempt(path: str, line: str) -> bool:
    return any(re.search(each.path, path) and re.search(each.line, line) for each in EXEMPTIONS)


def check_text(path: str, text: str) -> Iterator[Violation]:
    """The forbidden expressions in a file; `path` is relative to the repository."""
    rules = [rule for rule in RULES if path.startswith(rule.where)]
    for number, line in enumerate(text.splitlines(), start=1):
        for rule in rules:
            match = re.search(rule.pattern, line, re.IGNORECASE)
            if match and not _is_exempt(path, line):
                yield Violation(path, number, f'"{match.group()}" ({rule.sense}): write {rule.instead}')


# --- Names -----------------------------------------------------------------------------------------------------------

VAGUE_NAMES = {"found", "made", "wanted", "room", "rooms", "piece", "pieces"}  # instead: a noun that names it


def check_names(path: str, text: str) -> Iterator[Violation]:
    """The variables and arguments in a Python file that have vague names."""
    for node in ast.walk(ast.parse(text, path)):
        if isinstance(node, ast.arg):
            name = node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        else:
            continue
        if name in VAGUE_NAMES:
            yield Violation(path, node.lineno, f'the name "{name}": write the noun of what it is')


# --- Patches of private names ----------------------------------------------------------------------------------------

PATCHED_PACKAGES = ("elmokit.ops", "elmokit.nn", "elmokit.embed")
# Patches that do not choose a kernel, by the last part of the private name, with their purpose.
ALLOWED_PATCHES = {
    "_write_npy": "an interruption while the output is written",
    "_Block": "a failing allocation",
    "_library": "a library file that cannot be loaded, for the tests of the loader",
    "_table": "an empty cache",
}


def _imported_names(tree: ast.Module) -> dict[str, str]:
    """The full name of every module, class or function of elmokit that a file imports, by its name in the file."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                names[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return names


def _full_name(node: ast.expr, imported: dict[str, str]) -> str | None:
    """The full name of an expression `module.attribute`; None for other expressions."""
    attributes: list[str] = []
    while isinstance(node, ast.Attribute):
        attributes.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in imported:
        return None
    return ".".join([imported[node.id], *reversed(attributes)])


def _patch_target(call: ast.Call, imported: dict[str, str]) -> str | None:
    """The full name that a call patches: `setattr`, `delattr`, `patch` or `patch.object`, by string or by object."""
    if not isinstance(call.func, ast.Attribute | ast.Name) or not call.args:
        return None
    name = call.func.attr if isinstance(call.func, ast.Attribute) else call.func.id
    if name not in ("setattr", "delattr", "patch", "object"):
        return None
    first, *others = call.args
    if isinstance(first, ast.Constant) and isinstance(first.value, str):
        return first.value
    owner = _full_name(first, imported)
    attribute = others[0] if others else None
    if owner is None or not isinstance(attribute, ast.Constant) or not isinstance(attribute.value, str):
        return None
    return f"{owner}.{attribute.value}"


def check_patches(path: str, text: str) -> Iterator[Violation]:
    """The patches in a test file of private names in `PATCHED_PACKAGES`."""
    tree = ast.parse(text, path)
    imported = _imported_names(tree)
    for node in ast.walk(tree):
        target = _patch_target(node, imported) if isinstance(node, ast.Call) else None
        if target is None or not target.startswith(PATCHED_PACKAGES):
            continue
        names = target.split(".")
        if names[-1] not in ALLOWED_PATCHES and any(re.match("_(?!_)", name) for name in names):
            yield Violation(path, node.lineno, f"patches the private name {target}: choose a backend instead")


# --- The command -----------------------------------------------------------------------------------------------------


def _files() -> Iterator[Path]:
    for name in CHECKED:
        path = ROOT / name
        candidates = sorted(path.rglob("*")) if path.is_dir() else [path]
        yield from (file for file in candidates if file.suffix in SUFFIXES and file.is_file())


def check(files: Iterable[Path]) -> list[Violation]:
    """The violations in some files of the repository."""
    violations: list[Violation] = []
    for file in files:
        path = file.resolve().relative_to(ROOT).as_posix()
        if path.startswith(HISTORY) or path in OWN_FILES:
            continue
        text = file.read_text(encoding="utf-8")
        violations += check_text(path, text)
        if path.startswith("src/") and file.suffix == ".py":
            violations += check_names(path, text)
        if path.startswith("tests/") and file.suffix == ".py":
            violations += check_patches(path, text)
    return violations


def main(arguments: Sequence[str] | None = None) -> int:
    """Print all violations, and return 1 if there are any."""
    arguments = sys.argv[1:] if arguments is None else arguments
    violations = check(map(Path, arguments) if arguments else _files())
    for violation in violations:
        print(violation)
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
