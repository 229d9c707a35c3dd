"""What must hold when a crowd of jobs has ended, whatever was killed on the way. Faults are sentences.

Looks at everything that is left: all keys of the server, transcripts, the stand-in's log, the files that commands
wrote, the processes of the machine.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from redis.asyncio import Redis

from celeriac.common.contract.ids import TaskId, session_of
from celeriac.common.contract.json import JsonObject
from celeriac.common.contract.kinds import SERVED, Kind
from celeriac.common.contract.task import State, Workspace
from celeriac.common.queue.routing import queue_for
from celeriac.common.runtime.resume import EFFECT_UNKNOWN
from celeriac.common.substrate.keys import Keys
from celeriac.common.testing.substrate_checker import Session, Task, World, faults, open_tasks, read_world
from celeriac.common.testing.waiting import until
from celeriac.ops.chaos.crowd import EFFECTS, Crowd
from celeriac.ops.chaos.watched import processes_in

QUIET_SECONDS = 40.0
"""How long the cluster may take to clear up after the last job: the list of sessions, late wake-ups in the queues."""
_OK = 200
INTERRUPTED = "interrupted: the command"
"""How the result of a Bash call begins whose command was killed with its worker's end."""


async def check(crowd: Crowd) -> list[str]:
    """Every fault: all tasks must have completed, but for commands that had started when their worker was killed."""
    await until(lambda: _cleared(crowd.redis), seconds=QUIET_SECONDS, what="an empty list of sessions, empty queues")
    world = await read_world(crowd.redis, Keys())
    found = [*faults(world), *(f"{task} is still open" for task in open_tasks(world))]
    found += [f"{task.id}: {fault}" for task in world.tasks.values() for fault in _task(world, task)]
    found += _counts(crowd, world)
    found += _requests(world, crowd.system.requests())
    found += _effects(crowd, world)
    found += [f"process {pid} is left in a workspace" for pid in processes_in(crowd.folder)]
    return found


async def _cleared(redis: Redis) -> bool:
    """Whether no session is listed and no wake-up waits."""
    waiting = [await redis.llen(queue_for(kind)) for kind in SERVED]
    return not any(waiting) and not await redis.hlen(Keys().listed)


def _task(world: World, task: Task) -> Iterator[str]:
    """Nothing of an ended task waits, is held, or lacks its fate."""
    session = world.sessions[session_of(task.id)]
    if task.record.count("lease_until") or task.record.word("owner"):
        yield "has a lease"
    cut_off = task.record.word("kind") == Kind.SHELL and task.record.count("fence") > 1 and _told_cut(task)
    if task.state is not State.COMPLETED and not cut_off:
        yield f"is {task.state}: {[outcome.reason for outcome in task.outcomes.values()]}"
    if task.state is State.COMPLETED:
        yield from (f"{entry} was never consumed" for entry in task.record.inbox)
        yield from _unanswered(task)
    yield from _fates(session, task)


def _unanswered(task: Task) -> Iterator[str]:
    blocks = [block for line in task.lines for block in line.content]
    asked = Counter(str(block["id"]) for block in blocks if block["type"] == "tool_use")
    answered = Counter(str(block["tool_use_id"]) for block in blocks if block["type"] == "tool_result")
    yield from (f"{call} was asked {count} times" for call, count in asked.items() if count > 1)
    for call in set(asked) ^ set(answered):
        yield f"{call} has no call or no result"
    yield from (f"{call} has {count} results" for call, count in answered.items() if count > 1)


def _fates(session: Session, task: Task) -> Iterator[str]:
    """Once, for the session: each notification and message has one."""
    if task.parent is None and task.state is State.COMPLETED:
        wakes = (entry for entry in session.entries if entry.startswith(("n:", "m:")))
        yield from (f"{entry} has no fate" for entry in wakes if entry not in session.fates)


def _counts(crowd: Crowd, world: World) -> Iterator[str]:
    """Each job has its tasks, and one notification for each of them in its transcript."""
    for job in crowd.jobs:
        below = world.children(job.id)
        if len(below) != crowd.load.tasks:
            yield f"{job.id} has {len(below)} tasks instead of {crowd.load.tasks}"
        told = Counter(
            entry for line in world.tasks[job.id].lines for entry in line.inbox_ids if entry.startswith("n:")
        )
        expected = {f"n:{task.id}:{run}" for task in below for run in task.outcomes}
        if set(told) != expected or any(count != 1 for count in told.values()):
            yield f"{job.id} was told {sum(told.values())} times of {len(expected)} ended runs"


def _requests(world: World, log: list[JsonObject]) -> Iterator[str]:
    """The model refused nothing, and was asked twice for the same only after a takeover."""
    requests = [entry for entry in log if entry["event"] == "request"]
    yield from (f"the stand-in refused {entry}" for entry in requests if entry["status"] != _OK)
    names = {(session_of(task.id), task.record.word("path")): task for task in world.tasks.values()}
    asked = Counter((TaskId(str(e["session"])), str(e["path"]), e["run"], e["turn"]) for e in requests)
    again: Counter[tuple[TaskId, str]] = Counter()
    for (session, path, _, _), count in asked.items():
        again[session, path] += count - 1
    for key, count in again.items():
        takeovers = names[key].record.count("fence") - names[key].run
        if count > takeovers:
            yield f"{names[key].id} asked {count} times for an answer that it had, after {takeovers} takeovers"


def _effects(crowd: Crowd, world: World) -> Iterator[str]:
    """Each command ran once; one that a takeover cut off may never have begun, if the model was told so."""
    for job in crowd.jobs:
        workspace = Workspace.model_validate_json(world.tasks[job.id].record.word("workspace"))
        lines = _lines(Path(workspace.root) / EFFECTS)
        for task in world.children(job.id):
            count = lines[task.record.word("path")]
            if count != 1 and not (count == 0 and _told_cut(task)):
                yield f"{task.id}: its command had its effect {count} times"


def _lines(file: Path) -> Counter[str]:
    return Counter(file.read_text().split()) if file.exists() else Counter()


def _told_cut(task: Task) -> bool:
    """Whether somebody is told that the command was cut off: by a takeover, or by the end of its worker."""
    if task.record.word("kind") == Kind.SHELL:
        return any(EFFECT_UNKNOWN in outcome.reason for outcome in task.outcomes.values())
    contents = [str(block.get("content", "")) for line in task.lines for block in line.content]
    return any(EFFECT_UNKNOWN in content or INTERRUPTED in content for content in contents)
