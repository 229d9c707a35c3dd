"""One job as a test sees it: its tasks, what its transcripts say, and the processes that it has left."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import orjson

from celeriac.common.contract.ids import TaskId
from celeriac.common.contract.kinds import Kind
from celeriac.common.contract.notification import OPENING_TAG, Notification, parse
from celeriac.common.contract.task import Record
from celeriac.common.testing.waiting import until
from celeriac.coordinator.client import Client, Job
from celeriac.coordinator.jobs import JobResult

END_SECONDS = 40.0
"""How long a small job may take on a busy machine."""


class Result(NamedTuple):
    """A tool_result of a transcript."""

    text: str
    is_error: bool


@dataclass(frozen=True, slots=True)
class Watched:
    """A submitted job."""

    client: Client
    job: Job

    async def task(self, kind: Kind) -> Record:
        """The job's only task of this kind, as soon as it exists."""

        async def exists() -> bool:
            return any(record.kind is kind for record in await self.client.tree(self.job.id))

        await until(exists, seconds=END_SECONDS, what=f"a task of kind {kind}")
        (found,) = [record for record in await self.client.tree(self.job.id) if record.kind is kind]
        return found

    async def says(self, words: str, task_id: TaskId | None = None) -> None:
        """Wait until a transcript (of the session, if no other is named) holds these words."""

        async def said() -> bool:
            return words in await self.words(task_id)

        await until(said, seconds=END_SECONDS, what=f"{words!r} in the transcript")

    async def words(self, task_id: TaskId | None = None) -> str:
        """A whole transcript as JSON text."""
        lines = await self.client.transcript(task_id or self.job.id)
        return orjson.dumps([line.content for line in lines]).decode()

    async def results(self, task_id: TaskId | None = None) -> list[Result]:
        """All tool results of a transcript, in order."""
        lines = await self.client.transcript(task_id or self.job.id)
        blocks = [block for line in lines for block in line.content if block.get("type") == "tool_result"]
        return [Result(str(block["content"]), block.get("is_error") is True) for block in blocks]

    async def notified(self) -> list[Notification]:
        """The notifications in the session's transcript, in order."""
        lines = await self.client.transcript(self.job.id)
        texts = [str(block.get("text", "")) for line in lines for block in line.content if line.role == "user"]
        return [parse(text) for text in texts if text.startswith(OPENING_TAG)]

    async def end(self) -> JobResult:
        """Wait for the job's end."""

        async def ended() -> bool:
            return (await self.client.get(self.job.id)).state.terminal

        await until(ended, seconds=END_SECONDS, what="the job's end")
        return await self.job.result()


def processes_in(folder: Path) -> list[int]:
    """The processes whose current folder is `folder` or below it."""
    links = Path("/proc").glob("[0-9]*/cwd")
    return [int(link.parent.name) for link in links if _target(link).is_relative_to(folder)]


def _target(link: Path) -> Path:
    """Where a link leads; nowhere for a process that has ended or is not ours."""
    try:
        return link.readlink()
    except OSError:
        return Path()
