"""elmokit: pretrain, load and use ELMo, the deep contextual word vectors of Peters et al. (2018).

The public names are those of `elmokit.api`, which is imported when the first of them is used, so
that `import elmokit` does not load PyTorch.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elmokit.api import *  # noqa: F403

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # Python itself may look for special names, and for a module before it imports it.
    if (name.startswith("__") and name != "__all__") or find_spec(f"elmokit.{name}"):
        raise AttributeError(f"module 'elmokit' has no attribute {name!r}")
    return getattr(import_module("elmokit.api"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *import_module("elmokit.api").__all__})
