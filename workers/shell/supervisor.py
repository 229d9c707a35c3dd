"""The small process that owns one command: runs it, and leaves nothing of it behind (SECURITY, PTY tasks).

Started as a file (`python -I -S supervisor.py CONTROL OUT`), so it imports nothing of this package and little else: a
command must not wait for it. Its runner is at the other end of CONTROL, a socket with one JSON object a line:

    from the runner   first {argv, env, pty, timeout_s, max_silence_s, beat_at, drain_s, grace_s}
                      then  {beat: seconds of CLOCK_BOOTTIME} | {kill: term|now} | {stdin: base64}
    to the runner     one {exit, signal, cause, left} when everything has ended

The command runs in a session of its own below this process, which is its subreaper: whatever it starts, setsid or not,
stays a descendant and is found by walking /proc. All of it is killed when the command ends, at the time limit, on
request, when the runner is gone (end of file), and when the runner's lease has not been renewed for `max_silence_s`: by
then the runner may be stopped, and the next owner is about to start.
"""

# pathlib would cost milliseconds of every command; a supervisor that fails must still kill what it started
# ruff: noqa: PTH123, PTH208, BLE001

import binascii
import ctypes
import fcntl
import json
import os
import resource
import select
import signal
import struct
import sys
import termios
import time

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 36, 38
_READ = 4095
"""What a read of a PTY returns at most."""
_PENDING = 1 << 16
"""Bytes of output that wait for the runner before the PTY is read no further."""
_STDIN_PENDING = 1 << 22
"""Bytes of input that wait for the command; what is on top is dropped: the control channel must never be blocked."""
_TICK_SECONDS = 0.2
"""Longest sleep: poll(2) does not count the time that a machine is suspended, CLOCK_BOOTTIME does."""
_KILL_TICK_SECONDS = 0.02
_GIVE_UP_SECONDS = 5.0
"""After this much killing what is left cannot be killed (a process stuck in the kernel)."""
_FLUSH_SECONDS = 1.0
_ROWS, _COLUMNS = 40, 120


class Supervisor:
    """One command from start to the death of everything that it started."""

    def __init__(self, control: int, out: int, config: dict[str, object], early: bytes) -> None:
        # what came right behind the configuration is in `early`
        self.control, self.out, self.config = control, out, config
        self.master, self.slave = os.openpty() if config["pty"] else (-1, -1)
        self.began = time.monotonic()
        self.beat_at = _number(config["beat_at"])
        self.main = 0
        self.status: int | None = None
        self.exited_at = 0.0
        self.childless = False
        self.cause = ""
        self.asked = ""
        self.hurried = False
        self.kill_at = 0.0
        self.gone = False
        self.lines = early
        self.stdin = bytearray()
        self.pending = bytearray()
        self.wake_r, self.wake_w = os.pipe()

    def run(self) -> None:
        """Run it, and report."""
        self.obey()
        self.start()
        while not self.over():
            self.wait()
            self.reap()
            self.act()
        self.flush()
        left = [] if self.childless else sorted(descendants())
        self.report({**_ending(self.status), "cause": self.cause, "left": left})

    def start(self) -> None:
        """Fork the command."""
        for end in (self.wake_r, self.wake_w):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self.wake_w, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self.on_term)
        if self.master >= 0:
            os.set_blocking(self.master, False)
            fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))
        self.main = os.fork()
        if self.main == 0:
            self.become()
        if self.master < 0:
            os.close(self.out)
        else:
            os.set_blocking(self.out, False)

    def on_term(self, *_: object) -> None:
        """SIGTERM to the supervisor is a request to end."""
        self.asked = self.asked or "kill"

    def become(self) -> None:
        """In the child: turn into the command. Never returns."""
        try:
            os.setsid()
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            for number in (
                signal.SIGINT,
                signal.SIGHUP,
                signal.SIGPIPE,
                signal.SIGXFSZ,
                signal.SIGTERM,
                signal.SIGCHLD,
            ):
                signal.signal(number, signal.SIG_DFL)
            if self.slave >= 0:
                fcntl.ioctl(self.slave, termios.TIOCSCTTY, 0)
            output = self.out if self.slave < 0 else self.slave
            if self.slave >= 0:
                os.dup2(self.slave, 0)
            os.dup2(output, 1)
            os.dup2(output, 2)
            argv, env = self.config["argv"], self.config["env"]
            assert isinstance(argv, list) and isinstance(env, dict)  # written by our runner
            os.execvpe(argv[0], argv, env)  # noqa: S606 - the command is what this process is for
        except BaseException as error:
            os.write(2, f"the command could not be started: {error}\n".encode(errors="replace"))
        finally:
            os._exit(127)

    def over(self) -> bool:
        """Whether nothing of the command is left, or what is left cannot be killed."""
        if self.status is not None and self.childless:
            return True
        return bool(self.cause) and time.monotonic() > self.kill_at + _GIVE_UP_SECONDS

    def wait(self) -> None:
        """Sleep until something happens, and move bytes."""
        poll = select.poll()
        poll.register(self.wake_r, select.POLLIN)
        if not self.gone:
            poll.register(self.control, select.POLLIN)
        if self.master >= 0:
            wanted = (select.POLLIN if len(self.pending) < _PENDING else 0) | (select.POLLOUT if self.stdin else 0)
            poll.register(self.master, wanted)
            if self.pending:
                poll.register(self.out, select.POLLOUT)
        ready = dict(poll.poll(self.pause() * 1000))
        if self.wake_r in ready:
            _read(self.wake_r)
        if self.control in ready:
            self.listen()
        self.pump()

    def pause(self) -> float:
        """Seconds to sleep at most."""
        if self.cause and time.monotonic() >= self.kill_at:
            return _KILL_TICK_SECONDS
        return min(_TICK_SECONDS, max(0.0, self.deadline() - time.monotonic()) + 0.001)

    def deadline(self) -> float:
        """The next moment at which something is due."""
        if self.cause:
            return self.kill_at
        if self.status is not None:
            return self.exited_at + _number(self.config["drain_s"])
        limit = self.config["timeout_s"]
        return self.began + (_number(limit) if limit is not None else _TICK_SECONDS * 1e6)

    def listen(self) -> None:
        """Take what the runner sent; end of file means that it is gone."""
        chunk = _read(self.control)
        if chunk is None:
            return
        self.gone = not chunk
        self.lines += chunk
        self.obey()

    def obey(self) -> None:
        """Do what the complete lines say."""
        *lines, self.lines = self.lines.split(b"\n")
        for line in lines:
            order = json.loads(line)
            if "beat" in order:
                self.beat_at = max(self.beat_at, _number(order["beat"]))
            elif "kill" in order:
                self.asked = self.asked or "kill"
                self.hurried = self.hurried or order["kill"] == "now"
            elif len(self.stdin) < _STDIN_PENDING:
                self.stdin += binascii.a2b_base64(order["stdin"])

    def pump(self) -> bool:
        """Move what can be moved between the PTY and the runner; whether output moved."""
        if self.master < 0:
            return False
        if self.stdin:
            del self.stdin[: _write(self.master, self.stdin)]
        chunk = _read(self.master) if len(self.pending) < _PENDING else None
        self.pending += chunk or b""
        if self.pending:
            del self.pending[: _write(self.out, self.pending)]
        return bool(chunk)

    def reap(self) -> None:
        """Collect everything that has ended, adopted orphans too."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self.childless = True
                return
            if pid == 0:
                return
            if pid == self.main:
                self.status, self.exited_at = status, time.monotonic()

    def act(self) -> None:
        """Decide whether it is time to kill, and do it."""
        hard = self.hard_cause()
        cause = hard or self.soft_cause()
        if cause and not self.cause:
            self.cause = cause
            self.kill_at = time.monotonic() + _number(self.config["grace_s"])
            if not hard:
                _signal_all(signal.SIGTERM)
        if hard:
            self.kill_at = min(self.kill_at, time.monotonic())
        if self.cause and time.monotonic() >= self.kill_at:
            _signal_all(signal.SIGKILL)

    def hard_cause(self) -> str:
        """Causes without grace: the lease may be over soon."""
        if self.gone:
            return "orphan"
        if self.hurried:
            return "kill"
        limit = self.config["max_silence_s"]
        return "silence" if limit is not None and _boottime() - self.beat_at >= _number(limit) else ""

    def soft_cause(self) -> str:
        """Causes that give the command its grace."""
        now, limit = time.monotonic(), self.config["timeout_s"]
        if self.asked:
            return self.asked
        if self.status is not None:
            return "leftover" if now >= self.exited_at + _number(self.config["drain_s"]) else ""
        return "timeout" if limit is not None and now >= self.began + _number(limit) else ""

    def flush(self) -> None:
        """Hand over what the PTY still holds."""
        until = time.monotonic() + _FLUSH_SECONDS
        while self.master >= 0 and not self.gone and time.monotonic() < until:
            moved = self.pump()
            if not moved and not self.pending:
                return
            if self.pending:
                select.select([], [self.out], [], _KILL_TICK_SECONDS)

    def report(self, ending: dict[str, object]) -> None:
        """Tell the runner, if there is one."""
        try:
            os.set_blocking(self.control, True)
            os.write(self.control, json.dumps(ending).encode() + b"\n")
        except OSError:
            self.gone = True


def _number(value: object) -> float:
    assert isinstance(value, int | float)  # written by our runner
    return float(value)


def _boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _ending(status: int | None) -> dict[str, object]:
    if status is None:
        return {"exit": None, "signal": None}
    code = os.waitstatus_to_exitcode(status)
    return {"exit": code, "signal": None} if code >= 0 else {"exit": None, "signal": _signal_name(-code)}


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name.removeprefix("SIG")
    except ValueError:  # a real-time signal
        return str(number)


def _read(fd: int) -> bytes | None:
    """What is there; empty at the end of file, None if nothing can be read now."""
    try:
        return os.read(fd, _READ)
    except OSError:  # EAGAIN; EIO while no process has the terminal open
        return None


def _write(fd: int, data: bytearray) -> int:
    """How many bytes went out; all of them if nobody reads any more."""
    try:
        return os.write(fd, data[:_READ])
    except BlockingIOError:
        return 0
    except OSError:
        return len(data)


def _parents() -> dict[int, int]:
    """Process → parent, of every process that can be seen."""
    found: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
        except OSError:  # ended meanwhile
            continue
        if state != b"Z":
            found[int(name)] = int(parent)
    return found


def descendants() -> set[int]:
    """Everything below this process that still runs."""
    parents = _parents()
    below: set[int] = set()
    grown = True
    while grown:
        fresh = {pid for pid, parent in parents.items() if parent == os.getpid() or parent in below} - below
        below |= fresh
        grown = bool(fresh)
    return below


def _signal_all(number: int) -> None:
    for pid in descendants():
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
        except PermissionError:  # a set-uid program: no-new-privs makes it rare
            continue


def _first_line(control: int) -> tuple[bytes, bytes]:
    """The configuration and what came right behind it; empty if the runner is gone already."""
    text = b""
    while b"\n" not in text:
        chunk = os.read(control, 1 << 16)
        if not chunk:
            return b"", b""
        text += chunk
    line, _, early = text.partition(b"\n")
    return line, early


def main() -> None:
    """Run as a file: CONTROL OUT are numbers of inherited descriptors."""
    control, out = int(sys.argv[1]), int(sys.argv[2])
    for fd in (control, out):
        os.set_inheritable(fd, False)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    line, early = _first_line(control)
    if not line:
        return
    os.set_blocking(control, False)
    supervisor = Supervisor(control, out, json.loads(line), early)
    try:
        supervisor.run()
    except BaseException as error:
        _signal_all(signal.SIGKILL)
        supervisor.report({"exit": None, "signal": None, "cause": f"supervisor: {error!r}", "left": []})


if __name__ == "__main__":
    main()
