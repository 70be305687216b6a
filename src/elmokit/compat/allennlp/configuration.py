"""AllenNLP's way to build an object from settings (common/params.py, common/from_params.py, common/checks.py)."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from elmokit.fs.json_files import read_json

Built = TypeVar("Built", bound="FromParams")
Number = TypeVar("Number", int, float)
BOOLEANS = {"true": True, "false": False}


class ConfigurationError(ValueError):
    """AllenNLP's error for wrong settings or arguments."""


REQUIRED: Any = object()  # stands for "no default", since None may be a default


class Params(dict[str, Any]):
    """AllenNLP's settings of a class, which are removed as they are read. Nested dictionaries become `Params`, too."""

    history: str = ""  # in the class, too, as pickle restores the settings before the attribute

    def __init__(self, params: Mapping[str, Any], history: str = "") -> None:
        """`history` is the prefix of the settings in those of a whole model, such as "model.text_field_embedder."."""
        super().__init__({key: _nested(value, f"{history}{key}.") for key, value in params.items()})
        self.history = history

    @classmethod
    def from_file(
        cls,
        params_file: str | Path,
        params_overrides: str | Mapping[str, Any] = "",
        ext_vars: Mapping[str, Any] | None = None,
    ) -> Params:
        """Read a JSON file.

        Args:
            params_file: The file.
            params_overrides: Settings that replace those of the file, as JSON or a dictionary; "model.dropout" stands
                for the setting "dropout" in "model".
            ext_vars: Ignored: variables of Jsonnet.

        Raises:
            ConfigurationError: The file or the overrides are not JSON (Jsonnet has to be evaluated first), or replace a
                setting in one that does not exist.
        """
        try:
            settings = read_json(params_file)
        except ValueError as error:
            raise ConfigurationError(f"{params_file} is not JSON ({error}): evaluate Jsonnet first") from None
        try:
            overrides = json.loads(params_overrides or "{}") if isinstance(params_overrides, str) else params_overrides
        except ValueError as error:
            raise ConfigurationError(f"params_overrides is not JSON ({error})") from None
        for path, value in overrides.items():
            _override(settings, path, value)
        return cls(settings)

    @property
    def params(self) -> Params:
        """The settings themselves, which AllenNLP keeps in this attribute."""
        return self

    def as_flat_dict(self) -> dict[str, Any]:
        """The settings as a dictionary without nested ones, whose names are joined by dots."""
        flat: dict[str, Any] = {}
        for name, value in self.items():
            inner = value.as_flat_dict() if isinstance(value, Params) else None
            flat |= {name: value} if inner is None else {f"{name}.{key}": item for key, item in inner.items()}
        return flat

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, _nested(value, f"{self.history}{key}."))

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a setting, or a default, which becomes `Params` if it is a dictionary."""
        return _nested(super().get(key, default), f"{self.history}{key}.")

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
        value = _nested(super().pop(key, default), f"{self.history}{key}.")
        return _plain(value) if keep_as_dict else value

    def _pop_number(self, key: str, default: Any, kind: type[Number]) -> Number | None:
        value = self.pop(key, default)
        try:
            return None if value is None else kind(value)
        except (TypeError, ValueError):
            message = f'the setting "{self.history}{key}" must be of type {kind.__name__}, not {value!r}'
            raise ConfigurationError(message) from None

    def pop_int(self, key: str, default: Any = REQUIRED) -> int | None:
        """`pop` an integer, which may be written as a string; None stays None. ConfigurationError for anything else."""
        return self._pop_number(key, default, int)

    def pop_float(self, key: str, default: Any = REQUIRED) -> float | None:
        """`pop` a number, which may be written as a string; None stays None. ConfigurationError for anything else."""
        return self._pop_number(key, default, float)

    def pop_bool(self, key: str, default: Any = REQUIRED) -> bool | None:
        """`pop` True, False, "true" or "false"; None stays None. ValueError for anything else."""
        value = self.pop(key, default)
        if value is None or isinstance(value, bool):
            return value
        if not isinstance(value, str) or value not in BOOLEANS:
            raise ValueError(f'the setting "{self.history}{key}" must be true or false, not {value!r}')
        return BOOLEANS[value]

    def pop_choice(
        self,
        key: str,
        choices: Sequence[Any],
        default_to_first_choice: bool = False,
        allow_class_names: bool = True,
    ) -> Any:
        """`pop` a value that must be one of `choices`.

        Args:
            key: The name of the setting.
            choices: The values.
            default_to_first_choice: Return the first one if the setting is missing.
            allow_class_names: Accept any value with a dot, which names a class.

        Raises:
            ConfigurationError: The value is none of them, or is missing without a default.
        """
        value = self.pop(key, choices[0] if default_to_first_choice else REQUIRED)
        names_class = allow_class_names and isinstance(value, str) and "." in value
        if value not in choices and not names_class:
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


def _override(settings: Any, path: str, value: Any) -> None:
    """Replace the setting at a path such as "model.encoders.0.dropout", in place."""
    name, _, rest = path.partition(".")
    if isinstance(settings, list) and name.isdecimal() and int(name) < len(settings):
        key: Any = int(name)
    elif isinstance(settings, dict) and (name in settings or not rest):
        key = name
    else:
        raise ConfigurationError(f"params_overrides replaces a setting {path!r}, which does not exist")
    if rest:
        _override(settings[key], rest, value)
    else:
        settings[key] = value


def _nested(value: Any, history: str) -> Any:
    """A value with `Params` in place of dictionaries, and None in place of "None", as AllenNLP reads settings."""
    if isinstance(value, str):
        return None if value == "None" else value
    if isinstance(value, Params):
        return value
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
            ValueError: A setting is not of the type of the argument, nor a string that spells one.
        """
        if isinstance(vocab, Mapping):
            params, vocab = vocab, params
        settings = Params({name: value for name, value in params.items() if name != "type"})
        if namespace := settings.pop("namespace_to_cache", None):
            if vocab is None:
                raise ConfigurationError(f"namespace_to_cache={namespace!r} needs the vocabulary: pass it as vocab")
            settings["vocab_to_cache"] = list(vocab.get_token_to_index_vocabulary(namespace))
        try:
            inspect.signature(cls).bind(**settings)
        except TypeError as error:
            raise ConfigurationError(f"the settings of {cls.__name__} are wrong: {error}") from None
        types = get_type_hints(cls.__init__)
        for name in list(settings):
            # External variables of Jsonnet are strings.
            for kind, pop in ((bool, Params.pop_bool), (int, Params.pop_int), (float, Params.pop_float)):
                if types.get(name) in (kind, kind | None):
                    settings[name] = pop(settings, name)
        if isinstance(params, Params):
            params.clear()
        return cls(**settings)
