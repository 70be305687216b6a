"""Home directories in paths, and files that are given twice."""

import os
from pathlib import Path

import pytest

from elmokit.checkpoints.loading import load
from elmokit.fs.paths import check_distinct, expand_user


def test_home_directory_is_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    assert expand_user("~/models/en") == Path("/home/ada/models/en")
    assert expand_user("models/~en") == Path("models/~en")


@pytest.mark.parametrize("use", [expand_user, load])
def test_home_directory_of_an_unknown_user_is_an_error_that_says_so(use: object) -> None:
    assert callable(use)
    with pytest.raises(FileNotFoundError, match=r"^~no-such-user/en: there is no home directory ~no-such-user here"):
        use("~no-such-user/en")


def test_check_distinct_names_a_file_that_is_given_twice(tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    (tmp_path / "link.txt").symlink_to(tmp_path / "a.txt")
    check_distinct([tmp_path / "a.txt", tmp_path / "b.txt"])
    with pytest.raises(ValueError, match=r"a\.txt is given more than once: give each"):
        check_distinct([tmp_path / "a.txt"] * 2)
    for other in (tmp_path / "link.txt", os.path.relpath(tmp_path / "a.txt")):
        with pytest.raises(ValueError, match=r"a?\.txt is given more than once, also as .*a\.txt: give each"):
            check_distinct([tmp_path / "a.txt", other])
