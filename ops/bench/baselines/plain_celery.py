"""Plain Celery: the same pool, the same early acknowledgement, the work in the task's body. Worker: `URL MODEL_URL`."""

import subprocess
import sys
import time
from collections.abc import Callable

import anthropic
from anthropic.types import MessageParam, ToolResultBlockParam
from celery import Celery, signals
from redis import Redis

QUEUE, DONE, CONCURRENCY = "plain", "plain:done", 100
ON = "worker_disable_prefetch task_ignore_result task_track_started worker_send_task_events task_send_sent_event"
OFF = "task_acks_late worker_hijack_root_logger worker_redirect_stdouts"
HUSHED = {"without_mingle": True, "without_gossip": True, "quiet": True, "loglevel": "WARNING"}


def make_app(url: str) -> Celery:
    """With the settings that the measured facts of Celery ask for."""
    app = Celery("plain", broker=url, set_as_current=False)
    switches = dict.fromkeys(ON.split(), True) | dict.fromkeys(OFF.split(), False)
    app.conf.update(switches, worker_prefetch_multiplier=1, task_default_queue=QUEUE)
    return app


def ask(client: anthropic.Anthropic, session: str, path: str, turns: int) -> None:
    """An agent whose tool costs nothing: one model call a turn."""
    messages: list[MessageParam] = [{"role": "user", "content": "Look into it, then say what you found."}]
    for turn in range(1, turns + 1):
        headers = {"X-Celeriac-Session": session, "X-Celeriac-Call": f"{path};1;{turn};1"}
        with client.messages.stream(model="m", max_tokens=8000, messages=messages, extra_headers=headers) as stream:
            answer = stream.get_final_message()
        messages.append({"role": "assistant", "content": answer.content})
        for block in answer.content:
            if block.type == "tool_use":
                result: ToolResultBlockParam = {"type": "tool_result", "tool_use_id": block.id, "content": "1 entry"}
                messages.append({"role": "user", "content": [result]})


def main(url: str, model_url: str) -> None:
    """Run a worker; each task tells its end by a push to a list."""
    app, redis = make_app(url), Redis.from_url(url)
    client = anthropic.Anthropic(api_key="test-key", base_url=model_url, max_retries=0)
    works: dict[str, Callable[..., object]] = {
        "start": time.time,
        "agent": lambda *call: ask(client, *call),
        "command": lambda line: subprocess.run(["bash", "-c", line], capture_output=True, check=True).returncode,
    }

    @app.task(name="work")  # type: ignore[untyped-decorator]  # celery has no types
    def work(name: str, *arguments: str) -> None:
        redis.rpush(DONE, str(works[name](*arguments)))

    signals.worker_ready.connect(lambda **_: print("ready", file=sys.stderr, flush=True), weak=False)
    app.Worker(hostname="plain@bench", pool="threads", concurrency=CONCURRENCY, queues=[QUEUE], **HUSHED).start()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
