"""AllenNLP's command line, with only the command `allennlp elmo` (commands/elmo.py of versions up to 0.9)."""

from __future__ import annotations

from typing import Any

from tyro.extras import subcommand_cli_from_dict

from elmokit.compat.commands import TYRO_CONFIG, AllenNLPElmo


def main(prog: str | None = None, **ignored: Any) -> None:
    """`allennlp.commands.main`: run the command in `sys.argv`."""
    subcommand_cli_from_dict({"elmo": AllenNLPElmo}, prog=prog or "allennlp", config=TYRO_CONFIG).run()


if __name__ == "__main__":
    main()
