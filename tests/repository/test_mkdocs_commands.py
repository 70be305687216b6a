"""The page on the command line: a section for a command, from its help."""

import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"


def test_a_section_has_text_examples_and_options_of_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TOOLS))
    import mkdocs_commands

    lines = mkdocs_commands.section("push").splitlines()
    assert lines[0] == "### elmokit push" and "Put a model on the Hugging Face Hub." in lines[2]
    console = lines.index("```console")
    assert lines[console + 1].startswith("elmokit push ") and lines[console + 2] == "```"
    options = lines[lines.index("```text") :]
    assert options[1].startswith("usage: elmokit push ") and any(line.startswith("  --private") for line in options)
    assert not set("╭│╰") & set("".join(lines)) and max(map(len, options)) <= 80
    monkeypatch.setattr(mkdocs_commands, "EXAMPLES_HEADING", "Examples:")
    with pytest.raises(ValueError, match="the help of elmokit push has no frames or no examples"):
        mkdocs_commands.section("push")
    sys.modules.pop("mkdocs_commands")
