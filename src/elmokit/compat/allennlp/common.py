"""AllenNLP's `common` package, as far as programs with ELMo use it."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

from elmokit.compat import is_installed
from elmokit.compat.shared import local_path
from elmokit.fs import read_json

Built = TypeVar("Built", bound="FromParams")
REQUIRED: Any = object()  # stands for "no default", since None may be a default

if TYPE_CHECKING or not ("allennlp" in sys.modules and is_installed("allennlp")):

    class ConfigurationError(ValueError):
        """AllenNLP's error for wrong settings: the real one, if the program has imported it."""

else:
    ConfigurationError = import_module("allennlp.common.checks").ConfigurationError


def lazy_groups_of(iterable: Iterable[Any], group_size: int) -> Iterator[list[Any]]:
    """Yield lists of `group_size` items; the last one may be shorter."""
    iterator = iter(iterable)
    return iter(lambda: list(islice(iterator, group_size)), [])


def cached_path(url_or_filename: str | Path, *ignored: Any, **also_ignored: Any) -> str:
    """`local_path` as a string; FileNotFoundError if there is no such file."""
    path = local_path(url_or_filename)
    if not path.exists():
        raise FileNotFoundError(f"file {path} not found")
    return str(path)


class Params(dict[str, Any]):
    """Settings of a class, which are removed as they are read; nested ones are `Params`, too."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        super().__init__(
            {
                key: Params(value) if isinstance(value, dict) else value
                for key, value in params.items()
            }
        )

    @classmethod
    def from_file(cls, params_file: str | Path) -> Params:
        """Read a JSON file; Jsonnet has to be evaluated first."""
        return cls(read_json(params_file))

    def pop(self, key: str, default: Any = REQUIRED) -> Any:
        """Remove a setting; ConfigurationError if it is missing and there is no default."""
        if key not in self and default is REQUIRED:
            raise ConfigurationError(f'the setting "{key}" is required')
        return super().pop(key, default)

    def assert_empty(self, class_name: str) -> None:
        """ConfigurationError if there are settings that the class has not read."""
        if self:
            raise ConfigurationError(f"{class_name} does not have the settings {dict(self)}")


class FromParams:
    """Gives a class `from_params`."""

    @classmethod
    def from_params(cls: type[Built], params: Any, vocab: Any = None, **ignored: Any) -> Built:
        """Build an object from settings.

        Args:
            params: Arguments of the constructor by name, in a dictionary, or in `Params`, which is
                emptied; `type` is ignored.
            vocab: AllenNLP's vocabulary, from which the words of the namespace in the setting
                `namespace_to_cache` are taken; or None. It may come first, and `params` second, as
                in AllenNLP 0.9.
            ignored: Arguments that AllenNLP passes to all classes.

        Raises:
            ConfigurationError: The class has no such setting, or a required one is missing.
            ValueError: A setting is not of the type of the argument, nor a string that spells one.
        """
        if params is None or hasattr(params, "get_token_to_index_vocabulary"):
            params, vocab = vocab, params
        settings = {name: params[name] for name in params if name != "type"}
        if namespace := settings.pop("namespace_to_cache", None):
            settings["vocab_to_cache"] = list(vocab.get_token_to_index_vocabulary(namespace))
        try:
            inspect.signature(cls).bind(**settings)
        except TypeError as error:
            raise ConfigurationError(f"the settings of {cls.__name__} are wrong: {error}") from None
        types = get_type_hints(cls.__init__)
        for name, value in settings.items():  # external variables of Jsonnet are strings
            if isinstance(value, str) and types.get(name) in (bool, int, float, int | None):
                settings[name] = json.loads(value)
        if not isinstance(params, dict) or isinstance(params, Params):
            for name in list(params):
                params.pop(name)
        return cls(**settings)
