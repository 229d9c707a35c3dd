"""Logs: one line a record, no secrets."""

import io
import logging
from collections.abc import Iterator

import pytest

from celeriac.common.logs import configure, redact


class Held:
    log_level = "info"

    def secrets(self) -> tuple[str, ...]:
        return ("hunter2",)


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    root = logging.getLogger()
    handlers, level = tuple(root.handlers), root.level
    yield root
    root.handlers[:] = handlers
    root.setLevel(level)


def test_a_record_is_one_line_even_with_a_traceback(root: logging.Logger) -> None:
    stream = io.StringIO()
    configure(Held(), stream=stream)
    try:
        int("two\nlines")
    except ValueError:
        root.exception("it failed\r\nbadly")
    assert stream.getvalue().count("\n") == 1
    assert "Traceback" in stream.getvalue()


def test_secrets_and_what_looks_like_one_are_masked(root: logging.Logger) -> None:
    stream = io.StringIO()
    configure(Held(), stream=stream)
    root.info("keys %s and %s", "hunter2", "sk-" + "x1" * 12)
    assert "hunter2" not in stream.getvalue()
    assert "x1x1" not in stream.getvalue()
    assert redact("redis://user:pass@host/0") == "redis://[redacted]@host/0"


def test_the_level_may_be_overridden(root: logging.Logger) -> None:
    stream = io.StringIO()
    configure(Held(), level="warning", stream=stream)
    root.info("quiet")
    assert not stream.getvalue()


def test_a_request_that_went_well_is_told_at_level_debug_only(root: logging.Logger) -> None:
    stream = io.StringIO()
    configure(Held(), stream=stream)
    logging.getLogger("httpx2").info("HTTP Request: POST …")
    assert not stream.getvalue()
    configure(Held(), level="debug", stream=stream)
    logging.getLogger("httpx2").info("HTTP Request: POST …")
    assert stream.getvalue().count("HTTP Request") == 1
