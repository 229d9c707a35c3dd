"""Queues, and the app that carries wake-ups."""

import pytest

from celeriac.common.contract.errors import UsageError
from celeriac.common.contract.kinds import Kind
from celeriac.common.queue.celery_app import make_app
from celeriac.common.queue.routing import queue_for, queues_for


def test_a_queue_is_named_by_kind_and_label() -> None:
    assert queue_for(Kind.AGENT) == "a"
    assert queue_for(Kind.SHELL, "ws-0123abcd") == "sh.ws-0123abcd"
    assert queues_for(["gpu"]) == ["a", "a.gpu", "sh", "sh.gpu"]


@pytest.mark.parametrize("label", ["", "A", "a b", "x" * 33, "a.b", "ü"])
def test_a_wrong_label_is_refused(label: str) -> None:
    with pytest.raises(UsageError):
        queue_for(Kind.AGENT, label)


def test_delivery_is_acknowledged_early_and_nothing_is_reserved() -> None:
    app = make_app("redis://127.0.0.1:1/0", "pre:", ours=True)
    assert app.conf.task_acks_late is False
    assert app.conf.worker_disable_prefetch is True and app.conf.worker_prefetch_multiplier == 1
    assert app.conf.accept_content == ["json"]
    assert app.conf.broker_transport_options["global_keyprefix"] == "pre:"
    assert app.conf.broker_transport == "celeriac.common.queue.transport:Transport"
    assert make_app("redis://127.0.0.1:1/0").conf.broker_transport != app.conf.broker_transport
