"""The command `python -m elmoformanylangs`, with the subcommand `test`."""

import tyro

from elmokit.compat.commands import TYRO_CONFIG, ELMoForManyLangsTest

if __name__ == "__main__":
    tyro.cli(ELMoForManyLangsTest, prog="python -m elmoformanylangs", config=TYRO_CONFIG).run()
