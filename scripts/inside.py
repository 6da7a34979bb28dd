"""Runs commands natively and in sandboxes, and measures them: what the scripts run by hand have in common."""
import dataclasses
import os
import pathlib
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

TREE = pathlib.Path(__file__).resolve().parent.parent
SYSTEMS = ("native", "systrap", "ptrace")
# What every command sees, on every system.
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin", "LANG": "C.UTF-8", "TZ": "UTC"}


@dataclasses.dataclass
class Result:
    """How a command ended. `code` is negative for a signal, None after the time limit. Times are in seconds."""

    code: int | None
    out: str
    err: str
    wall: float
    cpu: float  # user and system, of everything that was waited for


def sentry() -> str:
    """The executable: $SENTRY, or what cargo builds."""
    if "SENTRY" in os.environ:
        return os.environ["SENTRY"]
    subprocess.run(["cargo", "build", "--release", "--quiet"], cwd=TREE, check=True)
    return str(pathlib.Path(os.environ.get("CARGO_TARGET_DIR", TREE / "target")) / "release" / "sentry")


def command(on, argv, env=(), options=()):
    """The command line that runs `argv` on a system."""
    env = {**ENVIRONMENT, **dict(env)}
    if on == "native":
        return ["env", "-i", *(f"{k}={v}" for k, v in env.items()), *argv]
    settings = [word for k, v in env.items() for word in ("--env", f"{k}={v}")]
    return [sentry_path(), "exec", "--platform", on, *settings, *options, "--", *argv]


_sentry = None


def sentry_path():
    global _sentry
    _sentry = _sentry or sentry()
    return _sentry


def run(on, argv, cwd, limit, env=(), options=()):
    """Runs a command to its end, or for `limit` seconds. Output goes to files: who inherits a pipe can keep it open."""
    if threading.current_thread() is threading.main_thread():
        # A job in a shell's background ignores it, and so would the command.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        words = command(on, argv, env, options)
        start = time.monotonic()
        child = subprocess.Popen(words, cwd=cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True)
        late = threading.Event()

        def end():
            late.set()
            for sig, patience in ((signal.SIGTERM, 5), (signal.SIGKILL, 0)):
                try:
                    os.killpg(child.pid, sig)
                except ProcessLookupError:
                    return
                ended.wait(patience)

        ended = threading.Event()
        timer = threading.Timer(limit, end)
        timer.start()
        _, status, usage = os.wait4(child.pid, 0)
        wall = time.monotonic() - start
        ended.set()
        timer.cancel()
        child.returncode = os.waitstatus_to_exitcode(status)
        if on == "native":
            try:
                os.killpg(child.pid, signal.SIGKILL)  # what it left behind
            except ProcessLookupError:
                pass
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="backslashreplace"))
        code = None if late.is_set() else child.returncode
        if on == "native" and code is not None and code < 0:
            code = 128 - code  # as a shell and as `sentry exec` say it
        return Result(code, *texts, wall, usage.ru_utime + usage.ru_stime)


def scratch():
    """A directory for a run, which sandboxes started by root can read too."""
    folder = tempfile.mkdtemp(prefix="sentry-run-")
    os.chmod(folder, 0o755)
    return folder


def remove(folder):
    shutil.rmtree(folder, ignore_errors=True)


def missing(programs):
    """Which of them are not installed."""
    path = ENVIRONMENT["PATH"]
    return [p for p in programs if not (os.path.exists(p) if p.startswith("/") else shutil.which(p, path=path))]


def machine():
    """A line that says where and what was measured."""
    git = lambda *words: subprocess.run(["git", *words], cwd=TREE, capture_output=True, text=True).stdout.strip()
    model = next((l.split(":", 1)[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")), "?")
    dirty = "+" if git("status", "--porcelain", "--untracked-files=no") else ""
    load = " ".join(f"{x:.2f}" for x in os.getloadavg())
    return (
        f"commit {git('rev-parse', '--short', 'HEAD')}{dirty}; {os.cpu_count()} × {model}; "
        f"Linux {platform.release()}; load {load}"
    )


def say(*words):
    print(*words, flush=True)


def progress(text):
    if sys.stderr.isatty():
        print(f"\r{text:70.70}", end="", file=sys.stderr, flush=True)
