"""Home directories in paths."""

from pathlib import Path

import pytest

from elmokit.checkpoints.loading import load
from elmokit.fs.paths import expand_user


def test_home_directory_is_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    assert expand_user("~/models/en") == Path("/home/ada/models/en")
    assert expand_user("models/~en") == Path("models/~en")


@pytest.mark.parametrize("use", [expand_user, load])
def test_home_directory_of_an_unknown_user_is_an_error_that_says_so(use: object) -> None:
    assert callable(use)
    with pytest.raises(FileNotFoundError, match=r"^~no-such-user/en: ~no-such-user is the home directory of no user"):
        use("~no-such-user/en")
