"""The interfaces of older ELMo libraries: their code runs after changing the imports.

    allennlp.modules.elmo, allennlp.commands.elmo   ->  elmokit.compat.allennlp
    bilm                                            ->  elmokit.compat.bilm_tf
    tensorflow_hub as hub                           ->  elmokit.compat.tf_hub as hub
    elmoformanylangs                                ->  elmokit.compat.elmoformanylangs
    simple_elmo                                     ->  elmokit.compat.simple_elmo
    bio_embeddings.embed                            ->  elmokit.compat.seqvec

`elmokit.compat.install()` makes the old imports work unchanged; `python -m elmokit.compat SCRIPT`
runs a script that uses them. docs/migrating.md lists the differences from the original libraries,
and the reasons for them.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

__all__ = ["install"]

# Old modules, and the modules of `elmokit.compat` that define their names.
MODULES = {
    "allennlp.commands": "allennlp.embedder",
    "allennlp.commands.elmo": "allennlp.embedder",
    "allennlp.common": "allennlp.common",
    "allennlp.common.checks": "allennlp.common",
    "allennlp.common.file_utils": "allennlp.common",
    "allennlp.common.params": "allennlp.common",
    "allennlp.common.util": "allennlp.common",
    "allennlp.data.token_indexers": "allennlp.elmo",
    "allennlp.data.token_indexers.elmo_indexer": "allennlp.elmo",
    "allennlp.modules": "allennlp",
    "allennlp.modules.elmo": "allennlp.elmo",
    "allennlp.modules.elmo_lstm": "allennlp.bilm",
    "allennlp.modules.scalar_mix": "allennlp.elmo",
    "allennlp.modules.token_embedders": "allennlp.elmo",
    "allennlp.modules.token_embedders.elmo_token_embedder": "allennlp.elmo",
    "allennlp.nn.util": "allennlp.bilm",
    "bilm": "bilm_tf",
    "bilm.data": "bilm_tf.data",
    "bilm.elmo": "bilm_tf",
    "bilm.model": "bilm_tf",
    "bilm.training": "bilm_tf.training",
    "bio_embeddings.embed": "seqvec",
    "bio_embeddings.embed.seqvec_embedder": "seqvec",
    "elmoformanylangs": "elmoformanylangs",
    "elmoformanylangs.elmo": "elmoformanylangs",
    "simple_elmo": "simple_elmo",
    "simple_elmo.elmo_helpers": "simple_elmo",
}
TENSORFLOW_HUB = {"tensorflow_hub": "tf_hub"}
# Classes that a real AllenNLP builds from settings: the class, its base class with its module, its
# name in settings.
REGISTERED = {
    "allennlp.data.token_indexers.elmo_indexer": (
        "ELMoTokenCharactersIndexer token_indexer TokenIndexer elmo_characters"
    ),
    "allennlp.modules.token_embedders.elmo_token_embedder": (
        "ElmoTokenEmbedder token_embedder TokenEmbedder elmo_token_embedder"
    ),
}


def _missing(name: str) -> str:
    return (
        f"elmokit has no {name}: docs/migrating.md lists what it has, and what to use instead "
        f"of the rest"
    )


def is_installed(library: str) -> bool:
    """Whether a library is the original one, not that of `install`."""
    spec = find_spec(library)
    return spec is not None and not isinstance(spec.loader, _OldModules)


class _OldModules(MetaPathFinder, Loader):
    """Finds the modules of a table, and gives each the names of its counterpart."""

    def __init__(self, modules: dict[str, str]) -> None:
        self._modules = modules

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> Any:
        is_package = any(name.startswith(f"{fullname}.") for name in self._modules)
        if is_package or fullname in self._modules:
            return ModuleSpec(fullname, self, origin=__file__, is_package=is_package)
        parent = sys.modules.get(fullname.rpartition(".")[0])
        if parent is not None and parent.__loader__ is self:
            raise ModuleNotFoundError(_missing(fullname), name=fullname)
        return None

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        module.__file__ = (
            __file__  # for Python's message if a name cannot be imported from the module
        )
        if counterpart := self._modules.get(name):
            source = import_module(f"elmokit.compat.{counterpart}")
            vars(module).update(
                {key: value for key, value in vars(source).items() if not key.startswith("__")}
            )
            module.__doc__, module.__file__ = source.__doc__, source.__file__
        if name in REGISTERED and is_installed("allennlp"):
            ours, base_module, base, registered = REGISTERED[name].split()
            real = import_module(f"{name.rpartition('.')[0]}.{base_module}")
            getattr(real, base).register(registered)(getattr(module, ours))

        def missing(attribute: str) -> Any:
            message = _missing(f"{name}.{attribute}")
            if not attribute.startswith("__"):
                warnings.warn(message, stacklevel=2)  # as `from` imports swallow the error
            raise AttributeError(message)

        vars(module)["__getattr__"] = missing


def install(*, tensorflow_hub: bool = False) -> None:
    """Let imports of the old libraries find the modules of `elmokit.compat`.

    Installed libraries take precedence; only modules that they lack, as AllenNLP 1 and 2 lack
    `allennlp.commands.elmo`, are found here.

    Args:
        tensorflow_hub: Stand in for `tensorflow_hub`, too. Off by default, since that library is
            not only for ELMo.
    """
    tables = [MODULES, TENSORFLOW_HUB] if tensorflow_hub else [MODULES]
    installed = [finder._modules for finder in sys.meta_path if isinstance(finder, _OldModules)]
    sys.meta_path.extend(_OldModules(table) for table in tables if table not in installed)
