"""Defaults are typed in the settings alone; where a text repeats one, it is the same."""

import re
from pathlib import Path

import pytest

from outbox.settings import Settings

ROOT = Path(__file__).parents[2]
_UNITS = {"": 1, "s": 1, "秒": 1, "days": 86400, "天": 86400, "MiB": 2**20}
#: A setting's name, and its default in brackets: ``OUTBOX_LEASE`` (30 s).
_DEFAULT = re.compile(rf"`OUTBOX_(\w+)`\s*[(\[（](\d+(?:\.\d+)?)\s*({'|'.join(filter(None, _UNITS))}|)[]),:;）：；，]")


@pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md", "docs/operations.md"])
def test_a_text_repeats_the_defaults_of_the_settings(name: str) -> None:
    # Given the settings whose defaults a text tells
    found = _DEFAULT.findall((ROOT / name).read_text(encoding="utf-8"))
    told = {setting.lower(): float(number) * _UNITS[unit] for setting, number, unit in found}
    # Then there are some, and they are as the code has them
    assert len(told) >= 5
    assert told == {setting: Settings.model_fields[setting].default for setting in told}
