"""Kind `a`: a local agent. The same loop as a session, with the worker's tools and prompt."""

from pathlib import Path

from celeriac.common.context.assemble import TextSections
from celeriac.common.contract.kinds import Kind
from celeriac.common.contract.task import AgentSpec, Record
from celeriac.common.runtime.runner import Assignment, Runner
from celeriac.common.runtime.synthetic_output import SyntheticOutput
from celeriac.common.settings import Settings
from celeriac.common.substrate.leases import Lease
from celeriac.common.tools.base import describe
from celeriac.common.tools.toolbox import Toolbox
from celeriac.workers.shell.commands import Commands
from celeriac.workers.tools import worker_tools
from celeriac.workers.workspace import Workspace

PROMPT = describe(__file__)


async def run_agent(runner: Runner, commands: Commands, lease: Lease, record: Record) -> None:
    """Run one agent to its end."""
    await runner.run(lease, record, lambda current: assignment(current, runner.settings, commands))


def assignment(record: Record, settings: Settings, commands: Commands) -> Assignment:
    """What an agent gets."""
    assert isinstance(record.spec, AgentSpec)
    assert record.workspace is not None
    workspace = Workspace(Path(record.workspace.root))
    toolbox = Toolbox([*worker_tools(commands, settings.tool_environment()), SyntheticOutput()], kind=Kind.AGENT)
    return Assignment(
        prompt=record.spec.prompt,
        model=record.spec.model,
        effort=record.spec.effort,
        fallback_model=record.spec.fallback_model,
        toolbox=toolbox,
        sections=TextSections(PROMPT, f"# Workspace\nYour working directory is {workspace.root}."),
        workspace=workspace,
        default_turns=settings.limits.worker_turns,
    )
