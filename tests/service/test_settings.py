from __future__ import annotations

from pathlib import Path

import pytest

from drimed.errors import ConfigError, UnknownNameError
from drimed.service.settings import Settings


def test_flags_come_before_the_environment_before_the_file_before_defaults(tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    file.write_text('port = 1\nworkers = 2\nburst = 3\nrate = 4\nstore = "file.db"\n')
    environment = {"DRIMED_PORT": "10", "DRIMED_WORKERS": "20", "DRIMED_STORE": "", "OTHER": "x"}
    found = Settings.resolve({"port": 100, "workers": None}, environment, file)
    assert (found.port, found.workers, found.burst, found.rate, found.store) == (100, 20, 3, 4.0, "file.db")
    assert found.host == "127.0.0.1"


def test_workers_see_what_the_first_process_was_told() -> None:
    told = Settings(store="postgresql://u:p@h/d", port=9, rate=2.5, largest_body=4096)
    assert Settings.resolve({}, told.environment()) == told


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("prot = 1", "prot"),
        ("port = 1.5", "port: Input should be a valid integer"),
        ("port = 99999", "port"),
        ("port =", "cannot read"),
        (f"port = {'9' * 5000}", "cannot read"),
        ('log_level = "loud"', "log_level: Input should be 'debug'"),
    ],
)
def test_a_bad_file_is_refused_with_what_is_wrong(tmp_path: Path, text: str, wrong: str) -> None:
    file = tmp_path / "serve.toml"
    file.write_text(text)
    with pytest.raises((ConfigError, UnknownNameError), match=wrong):
        Settings.resolve({}, {}, file)


def test_a_bad_variable_is_named() -> None:
    with pytest.raises(ConfigError, match=r"port: Input should be a valid integer.*got 'x'"):
        Settings.resolve({}, {"DRIMED_PORT": "x"})
    with pytest.raises(ConfigError, match="cannot read"):
        Settings.resolve({}, {}, Path("nowhere.toml"))
