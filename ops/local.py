"""A whole cluster for one job: a private server, a coordinator and a worker as child processes, gone when it ends."""

import asyncio
import os
import shutil
import signal
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from celeriac.common.settings import Settings
from celeriac.common.substrate.embedded import EmbeddedServer
from celeriac.ops.children import Child
from celeriac.ops.folders import child_environment, run_folder

READY_SECONDS = 30.0
"""How long server, coordinator and worker may take to start; importing the model's SDK takes 3 s on a slow machine."""


class LocalCluster:
    """Server, coordinator and worker for the life of one block."""

    def __init__(self, settings: Settings, environ: dict[str, str]) -> None:
        """`environ`: what the children inherit; it is where they find the model's key."""
        self._settings = settings
        self._environ = environ
        self._children: list[Child] = []
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def start(self) -> Settings:
        """Start all three and wait until they are ready; settings with the URL of the server. Raises DidNotStart."""
        folder = run_folder(self._settings.home)
        self._stack.callback(shutil.rmtree, folder, ignore_errors=True)
        server = await self._stack.enter_async_context(
            EmbeddedServer.start(folder / "server", search_path=self._environ.get("PATH", os.defpath))
        )
        environment = child_environment(self._settings, self._environ, folder, server.url)
        self._stack.push_async_callback(self._end_children)
        for role in ("coordinator", "worker"):
            self._children.append(await Child.start(role, folder, environment))
        await self._all_ready()
        return self._settings.model_copy(update={"redis": self._settings.redis.model_copy(update={"url": server.url})})

    def kill(self) -> None:
        """SIGKILL the children now; leaving the block then cleans up without waiting for them."""
        for child in self._children:
            child.signal(signal.SIGKILL)

    async def _all_ready(self) -> None:
        waiting = [asyncio.create_task(child.ready(), name=f"{child.role} starts") for child in self._children]
        try:
            async with asyncio.timeout(READY_SECONDS):
                await asyncio.gather(*waiting)
        except TimeoutError:
            late = next(child for child, task in zip(self._children, waiting, strict=True) if not _went_well(task))
            raise late.failure(f"was not ready within {READY_SECONDS:.0f} s") from None
        finally:
            for task in waiting:
                task.cancel()

    async def _end_children(self) -> None:
        await asyncio.gather(*(child.end() for child in self._children))


def _went_well(task: asyncio.Task[None]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None
