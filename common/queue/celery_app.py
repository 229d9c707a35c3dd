"""The Celery app: a carrier of wake-ups with early acknowledgement (CELERY.md says why each line is as it is)."""

from celery import Celery

RUN_TASK = "celeriac.run_task"
"""Name of the one task that workers register."""

ANSWER_SECONDS = 5.0
"""How long a broker may take to answer: a frozen one must keep neither a sender nor the end of a process. What was not
sent is sent again by a supervisor; a consumer connects anew."""


def make_app(redis_url: str, prefix: str = "", *, ours: bool = False) -> Celery:
    """Build the app for this broker; opens no connection.

    `prefix` stands before every key that Celery uses. `ours`: the app of a worker or coordinator, whose transport
    outlives rubbish in a queue and a failover (Flower, which reads the transport's name, gets the ordinary one).
    """
    app = Celery("celeriac", broker=redis_url, set_as_current=False)
    app.conf.update(
        task_acks_late=False,  # ownership is the lease; late acknowledgement crashes workers when Redis restarts
        worker_prefetch_multiplier=1,
        worker_disable_prefetch=True,  # nothing sits reserved behind a long task
        task_ignore_result=True,  # results live on the substrate
        task_track_started=True,
        worker_send_task_events=True,
        task_send_sent_event=True,
        task_serializer="json",
        result_serializer="json",
        accept_content=["json"],
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        worker_proc_alive_timeout=30,
        enable_utc=True,
        broker_transport_options={
            "global_keyprefix": prefix,
            "health_check_interval": 25,
            "socket_keepalive": True,
            "socket_timeout": ANSWER_SECONDS,
        },
    )
    if ours and redis_url.startswith(("redis://", "rediss://")):
        app.conf.broker_transport = "celeriac.common.queue.transport:Transport"
    return app
