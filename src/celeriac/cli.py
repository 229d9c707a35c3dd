"""The `celeriac` command: wires sub-commands, each loaded when it is used, and turns errors into exit codes."""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise

import click
from click.shell_completion import CompletionItem

from celeriac import __version__
from celeriac.common.contract.errors import CeleriacError

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_PIPE = 1
"""The output could not be delivered; as click does for a pipe that breaks inside a command."""


@dataclass(frozen=True, slots=True)
class Lazy:
    """A sub-command that is not loaded yet."""

    target: str
    """`module:attribute`."""
    help: str


COMMANDS = {
    "run": Lazy("celeriac.ops.run:run", "Run one job here, on a cluster of its own (also: celeriac -p PROMPT)."),
    "up": Lazy("celeriac.ops.up:up", "Start server, coordinator, workers and Flower on this machine."),
    "submit": Lazy("celeriac.coordinator.commands.jobs:submit", "Give a job to a server and print its id."),
    "batch": Lazy("celeriac.coordinator.commands.batch:batch", "Submit a job for each JSON line of a file."),
    "follow": Lazy("celeriac.coordinator.commands.jobs:follow", "Show a job live until it ends."),
    "list": Lazy("celeriac.coordinator.commands.listing:list_jobs", "List the jobs of a server."),
    "show": Lazy("celeriac.coordinator.commands.views:show", "Show a task as it stands; for a job, its tree."),
    "transcript": Lazy("celeriac.coordinator.commands.views:transcript", "Print the history of a job or a task."),
    "result": Lazy("celeriac.coordinator.commands.jobs:result", "Print the final answer of a job or a task."),
    "send": Lazy("celeriac.coordinator.commands.jobs:send", "Send a message to a job or a task."),
    "stop": Lazy("celeriac.coordinator.commands.jobs:stop", "Stop a job or a task with everything below it."),
    "logs": Lazy("celeriac.coordinator.commands.logs:logs", "Print logs of `up`, or the live output of a task."),
    "worker": Lazy("celeriac.ops.processes:worker", "Start a worker."),
    "coordinator": Lazy("celeriac.ops.processes:coordinator", "Start a coordinator."),
    "flower": Lazy("celeriac.ops.processes:flower", "Start the Flower console."),
    "doctor": Lazy("celeriac.ops.doctor.command:doctor", "Look at everything Celeriac needs here, and say what to do."),
    "completion": Lazy("celeriac.ops.completion:completion", "Print the script that lets a shell complete commands."),
    "dev": Lazy("celeriac.ops.dev:dev", "Tools for developers: standin, notification, validate."),
}


class LazyGroup(click.Group):
    """Loads a command when it is asked for; the list of all of them needs none."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of use."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one."""
        lazy = COMMANDS.get(cmd_name)
        if lazy is None:
            return None
        module, _, attribute = lazy.target.partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names of commands from the table here: click's own way would load each of them for its help."""
        named = [CompletionItem(name, help=lazy.help) for name, lazy in COMMANDS.items() if name.startswith(incomplete)]
        return [*named, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The table, from the texts here."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, lazy.help) for name, lazy in COMMANDS.items()])


@click.command("celeriac", cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="celeriac")
def cli() -> None:
    """Run AI agents as a job: one coordinator, many workers, every result exactly once."""


def main(argv: Sequence[str] | None = None) -> None:
    """The console script."""
    arguments = prompt_first(list(sys.argv[1:] if argv is None else argv))
    try:
        code = run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read our output has gone; without this the flush at exit would complain again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = EXIT_PIPE
    sys.exit(code)


def prompt_first(arguments: list[str]) -> list[str]:
    """`celeriac -p PROMPT …` is `celeriac run PROMPT …`, wherever the -p stands."""
    if arguments and arguments[0].startswith("-") and {"-p", "--print"} & set(arguments):
        return ["run", *(argument for argument in arguments if argument not in {"-p", "--print"})]
    return arguments


def run(arguments: list[str]) -> int:
    """Run a command line; errors become one line and a code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # what replaces them in an embedding program may have none
            stream.reconfigure(errors="backslashreplace")
    try:
        code: object = cli.main(arguments, prog_name="celeriac", standalone_mode=False)
    except CeleriacError as error:
        return fail(str(error), error.exit_code, arguments)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return EXIT_USAGE
    except click.ClickException as error:
        return fail(f"{error.format_message()} (see {_help_of(error)})", EXIT_USAGE, arguments)
    except (click.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    return code if isinstance(code, int) else 0


def _help_of(error: click.ClickException) -> str:
    context = error.ctx if isinstance(error, click.UsageError) else None
    return f"{context.command_path if context is not None else 'celeriac'} --help"


def fail(message: str, code: int, arguments: list[str]) -> int:
    """Say what is wrong on stderr, and as a JSON document on stdout where one was asked for."""
    sys.stderr.write(f"celeriac: {message}\n")
    if wants_json(arguments):
        document = {
            "type": "result",
            "subtype": "error_during_execution",
            "is_error": True,
            "result": None,
            "error": message,
            "exit_code": code,
            "session_id": None,
            "total_cost_usd": None,
        }
        sys.stdout.write(json.dumps(document, ensure_ascii=False) + "\n")
    return code


def wants_json(arguments: list[str]) -> bool:
    """Whether the command line asks for JSON; it may be one that cannot be parsed."""
    chosen = [after for option, after in pairwise(arguments) if option == "--output-format"]
    chosen += [argument.partition("=")[2] for argument in arguments if argument.startswith("--output-format=")]
    return bool(chosen) and chosen[-1] in {"json", "stream-json"}
