"""The artifact made by hand that most tests here run."""

from __future__ import annotations

import pytest

from tests.runtime import made


@pytest.fixture(scope="session")
def artifact() -> bytes:
    return made.cpu_artifact()
