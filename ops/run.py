"""`celeriac run`: one job on a cluster of its own, from the prompt to the answer, with nothing left afterwards."""

from typing import Unpack

import click

from celeriac.common.contract.errors import CeleriacError, UsageError
from celeriac.common.settings import Settings, environment
from celeriac.coordinator.client import Client, Job
from celeriac.coordinator.commands import options
from celeriac.coordinator.commands.jobs import STOPPED, finish, show_stop
from celeriac.coordinator.follow import Follower, OutputFormat, Streams
from celeriac.coordinator.interrupts import Interrupts
from celeriac.coordinator.jobs import JobResult, Submission, prepare
from celeriac.coordinator.questions import Questions
from celeriac.coordinator.stopping import StopVerdict
from celeriac.ops.local import LocalCluster


@click.command()
@click.argument("prompt", required=False)
@options.job_options
@options.output_format
def run(prompt: str | None, output_format: OutputFormat, **flags: Unpack[options.JobFlags]) -> int:
    """Run one job here: starts a server, a coordinator and a worker, follows the job, and cleans up.

    Ctrl-C once: stop the job and clean up; twice: kill.
    """
    settings = options.settings_for({}, flags["cwd"])
    job = options.options_of(flags)
    submission = prepare(options.read_prompt(prompt, job), job, settings)
    check_key(settings, submission)
    return options.run_async(LocalRun(settings, submission, output_format, options.streams()).run())


def check_key(settings: Settings, submission: Submission) -> None:
    """A model is asked only with a key, unless answers are scripted or come from a server that was named."""
    llm = settings.llm
    if submission.replay is None and llm.api_key is None and llm.base_url is None:
        raise UsageError(
            "no key for the model: set ANTHROPIC_API_KEY, or ANTHROPIC_BASE_URL for a server of your own, "
            "or give --replay FILE to run without a model"
        )


class NotStopped(CeleriacError):
    """A job that was told to stop did not end in time."""

    exit_code = STOPPED


class LocalRun:
    """One `run`."""

    def __init__(
        self,
        settings: Settings,
        submission: Submission,
        output: OutputFormat,
        streams: Streams,
        environ: dict[str, str] | None = None,
    ) -> None:
        """Nothing is started yet. `environ`: what the cluster's processes inherit; None: what this one has."""
        self.result: JobResult | None = None
        self._settings = settings
        self._submission = submission
        self._output = output
        self._streams = streams
        self._cluster = LocalCluster(settings, environment() if environ is None else environ)

    async def run(self) -> int:
        """Start, submit, follow, clean up; the exit code."""
        with Interrupts() as interrupts:
            code = await interrupts.attend(self._on_cluster(interrupts), until=2, at_signal=self._cluster.kill)
        return STOPPED if code is None else code

    async def _on_cluster(self, interrupts: Interrupts) -> int:
        async with self._cluster as cluster:
            settings = await interrupts.attend(cluster.start())
            if settings is None:
                return STOPPED
            if self._output is OutputFormat.TEXT:
                self._streams.say(f"celeriac: commands run without a sandbox (sandbox.mode {settings.sandbox.mode})")
            async with Client.connect(settings) as client:
                self.result = await self._job(client, interrupts)
        return finish(self.result, self._output, self._streams)

    async def _job(self, client: Client, interrupts: Interrupts) -> JobResult:
        job = await client.create(self._submission)
        follower = Follower(client, job.id, self._streams, self._output)
        questions = Questions(client, job.id, self._streams, ends_job=True)
        result = await interrupts.attend(follower.run(questions))
        if result is None:
            result = await self._stop(job)
        elif questions.asked and result.reason == "question":
            result = result.model_copy(update={"question": questions.asked[-1]})
        return result.model_copy(update={"replay_unused": await self._unused(client, job)})

    async def _stop(self, job: Job) -> JobResult:
        self._streams.say("celeriac: stopping the job; Ctrl-C again kills it")
        lines = await job.stop("user")
        show_stop(lines, self._streams)
        if any(line.verdict is StopVerdict.UNCONFIRMED for line in lines if line.task_id == job.id):
            raise NotStopped(f"{job.id} did not confirm its stop; its processes are killed")
        return await job.result()

    async def _unused(self, client: Client, job: Job) -> tuple[str, ...]:
        """What the replay file holds for calls that were never made."""
        script = self._submission.script
        return () if script is None else tuple(script.unused(await client.replay_attempts(job.id)))
