"""AllenNLP's way to build an object from settings (common/params.py, common/from_params.py, common/checks.py)."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any, TypeVar

from elmokit.fs.json_files import read_json

Built = TypeVar("Built", bound="FromParams")
BOOLEANS = {"true": True, "false": False}


class ConfigurationError(ValueError):
    """AllenNLP's error for wrong settings or arguments."""


REQUIRED: Any = object()  # stands for "no default", since None may be a default


class Params(dict[str, Any]):
    """AllenNLP's settings of a class, which are removed as they are read. Nested dictionaries become `Params`, too."""

    def __init__(self, params: Mapping[str, Any], history: str = "") -> None:
        """`history` is the prefix of the settings in those of a whole model, such as "model.text_field_embedder."."""
        super().__init__({key: _nested(value, f"{history}{key}.") for key, value in params.items()})
        self.history = history

    @classmethod
    def from_file(cls, params_file: str | Path) -> Params:
        """Read a JSON file. ConfigurationError if it is not JSON; Jsonnet has to be evaluated first."""
        try:
            return cls(read_json(params_file))
        except ValueError as error:
            raise ConfigurationError(f"{params_file} is not JSON ({error}): evaluate Jsonnet first") from None

    def pop(self, key: str, default: Any = REQUIRED, keep_as_dict: bool = False) -> Any:
        """Remove a setting, and return its value.

        Args:
            key: The name of the setting.
            default: The value to return if the setting is missing.
            keep_as_dict: Return `Params` as a plain dictionary.

        Raises:
            ConfigurationError: The setting is missing, and there is no default.
        """
        if key not in self and default is REQUIRED:
            raise ConfigurationError(f'the setting "{self.history}{key}" is required')
        value = super().pop(key, default)
        return _plain(value) if keep_as_dict else value

    def pop_int(self, key: str, default: Any = REQUIRED) -> int | None:
        """`pop` an integer, which may be written as a string; None stays None."""
        value = self.pop(key, default)
        return None if value is None else int(value)

    def pop_float(self, key: str, default: Any = REQUIRED) -> float | None:
        """`pop` a number, which may be written as a string; None stays None."""
        value = self.pop(key, default)
        return None if value is None else float(value)

    def pop_bool(self, key: str, default: Any = REQUIRED) -> bool | None:
        """`pop` True, False, "true" or "false"; None stays None. ValueError for anything else."""
        value = self.pop(key, default)
        if value is None or isinstance(value, bool):
            return value
        if not isinstance(value, str) or value not in BOOLEANS:
            raise ValueError(f'the setting "{self.history}{key}" must be true or false, not {value!r}')
        return BOOLEANS[value]

    def pop_choice(self, key: str, choices: Sequence[Any], default_to_first_choice: bool = False) -> Any:
        """`pop` a value that must be one of `choices`; with `default_to_first_choice` the first is the default.

        Raises:
            ConfigurationError: The value is none of them, or is missing without a default.
        """
        value = self.pop(key, choices[0] if default_to_first_choice else REQUIRED)
        if value not in choices:
            raise ConfigurationError(f'the setting "{self.history}{key}" must be one of {choices}, not {value!r}')
        return value

    def as_dict(self, quiet: bool = False, infer_type_and_cast: bool = False) -> dict[str, Any]:
        """The settings as a plain dictionary.

        Args:
            quiet: Ignored: nothing is logged.
            infer_type_and_cast: Convert strings that spell numbers or booleans.
        """
        return _plain(self, infer_type_and_cast)

    def assert_empty(self, class_name: str) -> None:
        """ConfigurationError if there are settings that the class has not read."""
        if self:
            raise ConfigurationError(f"{class_name} does not have the settings {dict(self)}")

    def duplicate(self) -> Params:
        """A deep copy."""
        return deepcopy(self)


def _nested(value: Any, history: str) -> Any:
    """A value with `Params` in place of dictionaries."""
    if isinstance(value, list):
        return [_nested(item, f"{history}{number}.") for number, item in enumerate(value)]
    return Params(value, history) if isinstance(value, dict) else value


def _plain(value: Any, cast: bool = False) -> Any:
    """A value with dictionaries in place of `Params`; with `cast`, strings that spell other values are converted."""
    if isinstance(value, dict):
        return {key: _plain(item, cast) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item, cast) for item in value]
    return _spelled(value) if cast and isinstance(value, str) else value


def _spelled(text: str) -> bool | int | float | str:
    """The boolean, int or float that a text spells; other text as it is."""
    if text.lower() in BOOLEANS:
        return BOOLEANS[text.lower()]
    for number in (int, float):
        with suppress(ValueError):
            return number(text)
    return text


class FromParams:
    """Gives a class `from_params`."""

    @classmethod
    def from_params(cls: type[Built], params: Any, vocab: Any = None, **others: Any) -> Built:
        """Build an object from settings.

        Args:
            params: Arguments of the constructor by name, in a dictionary, or in `Params`, which is emptied; `type` is
                ignored.
            vocab: AllenNLP's vocabulary, from which the words of the namespace in the setting `namespace_to_cache` are
                taken; or None. It may come first, and `params` second, as in AllenNLP 0.9.
            others: Ignored: arguments that AllenNLP passes to all classes.

        Raises:
            ConfigurationError: The class has no such setting, a required one is missing, or `namespace_to_cache` is set
                without `vocab`.
        """
        if isinstance(vocab, Mapping):
            params, vocab = vocab, params
        settings = {name: value for name, value in params.items() if name != "type"}
        if namespace := settings.pop("namespace_to_cache", None):
            if vocab is None:
                raise ConfigurationError(f"namespace_to_cache={namespace!r} needs the vocabulary: pass it as vocab")
            settings["vocab_to_cache"] = list(vocab.get_token_to_index_vocabulary(namespace))
        try:
            inspect.signature(cls).bind(**settings)
        except TypeError as error:
            raise ConfigurationError(f"the settings of {cls.__name__} are wrong: {error}") from None
        if isinstance(params, Params):
            params.clear()
        return cls(**settings)
