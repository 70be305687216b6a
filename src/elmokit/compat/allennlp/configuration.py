"""AllenNLP's way to build a class from settings (common/params.py, common/from_params.py, common/checks.py)."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, TypeVar

Built = TypeVar("Built", bound="FromParams")


class ConfigurationError(ValueError):
    """AllenNLP's error of wrong settings or arguments."""


class Params(dict[str, Any]):
    """AllenNLP's settings of a class: a dictionary is all that `from_params` needs."""

    def as_dict(self) -> dict[str, Any]:
        """The settings."""
        return dict(self)


class FromParams:
    """Gives a class `from_params`."""

    @classmethod
    def from_params(cls: type[Built], params: Any, vocab: Any = None, **others: Any) -> Built:
        """Build an object from settings.

        Args:
            params: Arguments of the constructor by name, in a dictionary or AllenNLP's `Params`; `type` is ignored.
            vocab: AllenNLP's vocabulary, whose words `namespace_to_cache` names; or None. It may be the first argument,
                and `params` the second, as in AllenNLP 0.9.
            others: Ignored, as what AllenNLP passes to all classes.

        Raises:
            ConfigurationError: There is a setting that the class does not have, or one is missing.
        """
        if isinstance(vocab, Mapping):
            params, vocab = vocab, params
        settings = {name: value for name, value in params.items() if name != "type"}
        if namespace := settings.pop("namespace_to_cache", None):
            settings["vocab_to_cache"] = list(vocab.get_token_to_index_vocabulary(namespace))
        try:
            inspect.signature(cls).bind(**settings)
        except TypeError as error:
            raise ConfigurationError(f"the settings of {cls.__name__} are wrong: {error}") from None
        return cls(**settings)
