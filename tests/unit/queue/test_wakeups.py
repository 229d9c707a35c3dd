"""Wake-ups carry ids only, and a broker that fails harms nothing."""

from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from kombu.exceptions import OperationalError
from redis import Redis

from celeriac.common.contract.kinds import Kind
from celeriac.common.contract.task import Record
from celeriac.common.queue.celery_app import make_app
from celeriac.common.queue.event_line import EventLine
from celeriac.common.queue.wakeups import TITLE_WIDTH, WakeUps, shown
from celeriac.common.testing.servers import PrivateServer


class App(Celery):  # type: ignore[misc]  # celery has no types
    """Keeps what is sent, or fails as it is told."""

    def __init__(self, failure: Exception | None = None) -> None:
        super().__init__("test", broker="memory://", set_as_current=False)
        self.sent: list[dict[str, Any]] = []
        self.failure = failure

    def send_task(self, name: str, **options: Any) -> None:
        if self.failure is not None:
            raise self.failure
        self.sent.append(options)

    def connection_for_write(self) -> None:
        raise self.failure or AssertionError("no events are expected")


async def test_a_wake_up_holds_ids_and_no_prompt(record: Record) -> None:
    app = App()
    wakeups = WakeUps(app)
    await wakeups.send(record, run=1)
    await wakeups.send(record, run=2, attempt=3)
    wakeups.close()
    first, later = app.sent
    assert first["task_id"] == record.task_id and first["queue"] == "a"
    assert later["task_id"] == f"{record.task_id}.2.3"
    assert set(first["args"][0]) == {"v", "task_id", "run", "attempt", "ticket"}


@pytest.mark.parametrize("failure", [OperationalError("away"), ValueError("OOM command not allowed")])
async def test_a_broker_that_fails_is_not_the_callers_matter(record: Record, failure: Exception) -> None:
    wakeups = WakeUps(App(failure))
    await wakeups.send(record, run=1)
    await wakeups.session_started(record, "coordinator")
    await wakeups.session_ended(record, "coordinator")
    wakeups.close()


def test_events_go_out_on_one_connection_also_after_the_broker_was_restarted(tmp_path: Path) -> None:
    with PrivateServer(tmp_path) as server:
        line = EventLine(make_app(server.url))
        for _ in range(2):
            with Redis.from_url(server.url) as client, client.pubsub() as heard:
                heard.psubscribe("*celeryev*")
                opened = set()
                for number in range(3):
                    line.send("coordinator", ("task-received", "task-started"), {"uuid": f"s-{number}"})
                    opened.add(client.info("stats")["total_connections_received"])
                found = [heard.get_message(timeout=10) for _ in range(7)]
                assert [message["type"] for message in found if message] == ["psubscribe"] + ["pmessage"] * 6
                assert len(opened) == 1
            server.kill()
            server.start()
        line.close()


def test_a_title_is_one_short_line_without_secrets() -> None:
    line = shown(Kind.AGENT, "Fix\nit " + "x" * 500)
    assert line.startswith("agent: Fix it x") and len(line) <= TITLE_WIDTH + len("agent: ")
    assert "sk-ant-" not in shown(Kind.AGENT, "use sk-ant-api03-abcdefghijklmnopqrstuvwxyz0123456789")
