"""Programs at a terminal: each is driven through a pseudo-terminal, as a person would, and what it shows is printed.

terminal.py NAME [ARG]: 127 if the program is not installed."""
import errno, fcntl, os, pty, re, select, shutil, signal, struct, subprocess, sys, tempfile, termios, time

ESCAPES = re.compile(r"\x1b(\[[0-9;?>=!]*[a-zA-Z@]|\][^\x07\x1b]*(\x07|\x1b\\)|[()][0-9A-B]|[=>78cDEHM])|[\x0e\x0f]")


class Terminal:
    """A program at a terminal of 24 lines and 80 columns."""

    def __init__(self, *argv, term="dumb"):
        if not shutil.which(argv[0]):
            print("not installed:", argv[0], file=sys.stderr)
            sys.exit(127)
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            keep = {name: os.environ[name] for name in ("PATH",) if name in os.environ}
            home = os.getcwd()
            os.execvpe(argv[0], argv, {**keep, "TERM": term, "HOME": home, "PS1": "$ ", "LC_ALL": "C.UTF-8", "SHELL": "/bin/sh"})
        self.resize(24, 80)
        self.text = ""

    def resize(self, rows, columns):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def send(self, text):
        os.write(self.fd, text.encode())

    def more(self, seconds):
        """Reads what comes; False at the end."""
        if not select.select([self.fd], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self.fd, 65536)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            data = b""
        self.text += data.decode("utf-8", "replace")
        return bool(data)

    def expect(self, wanted, seconds=30):
        """Waits until something is shown, without looking at escape sequences."""
        end = time.monotonic() + seconds
        while True:
            plain = ESCAPES.sub("", self.text)
            at = plain.find(wanted)
            if at >= 0:
                self.text = plain[at + len(wanted):]
                print("shown:", repr(wanted))
                return
            if time.monotonic() > end or not self.more(0.1):
                print("never shown:", repr(wanted), "but", repr(plain[-400:]))
                os.kill(self.pid, signal.SIGKILL)
                sys.exit(1)

    def line(self, text, wanted):
        self.send(text + "\r")
        self.expect(wanted)

    def command(self, text, wanted):
        """A line for a shell, which is ready for the next one afterwards: what came earlier would be echoed earlier."""
        self.line(text, wanted)
        self.expect("$ ")

    def keys(self, text):
        """One after the other, as fingers do."""
        for key in text:
            time.sleep(0.1)
            self.send(key)

    def insist(self, key, wanted):
        """Presses a key until it has an effect: some programs drop what comes while they draw."""
        for _ in range(20):
            self.send(key)
            end = time.monotonic() + 1
            while time.monotonic() < end:
                self.more(0.1)
                if wanted in ESCAPES.sub("", self.text):
                    return self.expect(wanted)
        self.expect(wanted)

    def end(self):
        while self.more(10):
            pass
        print("ended:", os.waitpid(self.pid, 0)[1])


def bash():
    # It says when it is there, so that keys are its own.
    with open("reader", "w") as reader:
        reader.write("#!/bin/sh\necho starts\nexec cat\n")
    os.chmod("reader", 0o755)
    t = Terminal("bash", "--norc", "--noprofile", "--noediting", "-i")
    t.expect("$ ")
    t.command("tty | sed 's/[0-9]*$//'", "/dev/pts/\r\n")
    t.command("stty size; echo si''ze", "24 80\r\nsize\r\n")
    t.line("./reader", "starts\r\n")
    t.line("one", "one\r\none\r\n")
    t.send("\x03")
    t.expect("^C")
    t.expect("$ ")
    t.command("echo co''de $?", "code 130\r\n")
    t.line("./reader", "starts\r\n")
    t.send("\x1a")
    t.expect("Stopped")
    t.expect("$ ")
    t.command("jobs; echo do''ne", "Stopped                 ./reader\r\ndone\r\n")
    t.line("fg", "fg\r\n./reader\r\n")
    t.line("two", "two\r\ntwo\r\n")
    t.send("\x04")
    t.expect("$ ")
    t.command("echo co''de $?", "code 0\r\n")
    # A background job that reads is stopped.
    t.command("cat &", "[1] ")
    t.command("echo ne''xt", "next\r\n")
    t.command("until jobs | grep -q Stopped; do sleep 0.1; done; jobs; echo do''ne", "Stopped                 cat\r\ndone\r\n")
    t.command("kill %1; wait; echo wai''ted", "waited\r\n")
    t.command("stty tostop; echo from the background & wait; echo st''ate $?", "state ")
    t.line("jobs -l | grep -c -i 'stopped (tty output)'; fg", "1\r\n")
    t.expect("from the background\r\n")
    t.expect("$ ")
    # A pipeline is one job.
    t.line("./reader | cat | cat", "starts\r\n")
    t.send("\x1a")
    t.expect("Stopped")
    t.expect("$ ")
    t.command("bg; kill -INT %1; wait; echo go''ne", "gone\r\n")
    t.command("trap 'echo resi''zed' WINCH; echo s''et", "set\r\n")
    t.resize(30, 100)
    t.command("stty size", "30 100\r\n")
    t.send("exec sleep 0\r")
    t.end()


def editing():
    """Readline reads byte by byte and echoes itself."""
    t = Terminal("bash", "--norc", "--noprofile", "-i")
    t.expect("$ ")
    t.command("ecko one\x02\x02\x02\x02\x02\x7fh\x05 two\x17three", "one three\r\n")
    t.command("echo 'é€x\x7f'", "é€\r\n")
    t.command("\x10", "é€\r\n")
    t.send("abandoned")
    t.expect("abandoned")
    # Readline forgets one that comes between its look for signals and its read(2).
    t.insist("\x03", "$ ")
    t.command("echo $?", "130\r\n")
    t.send("\x04")
    t.expect("exit")
    t.end()


def script():
    if not shutil.which("script"):
        sys.exit(127)
    out = subprocess.run(["script", "-q", "-e", "-c", "tty | sed 's/[0-9]*$//'; stty -a | grep -o 'isig icanon'; exit 7", "log"],
                         stdin=subprocess.DEVNULL, capture_output=True, env={**os.environ, "SHELL": "/bin/sh"})
    print(out.returncode, out.stdout, out.stderr)
    with open("log") as log:
        print([line for line in log.read().splitlines() if not line.startswith("Script")])
    t = Terminal("script", "-q", "-c", "echo ready; exec cat", "log2")
    t.expect("ready\r\n")
    t.line("hello", "hello\r\nhello\r\n")
    t.send("\x04")
    t.end()


def python_pty():
    def child():
        print(os.isatty(0), os.ttyname(0) == os.ttyname(1), os.getsid(0) == os.getpid(), os.tcgetpgrp(0) == os.getpid())
        print(input("name? ").upper())
        sys.stdout.flush()
        os._exit(4)

    pid, fd = pty.fork()
    if pid == 0:
        child()
    out = b""
    while b"name? " not in out:
        out += os.read(fd, 1000)
    os.write(fd, b"somebody\n")
    try:
        while data := os.read(fd, 1000):
            out += data
    except OSError as error:
        print(error.errno)
    print(out, os.waitpid(pid, 0)[1])
    master, slave = os.openpty()
    print(os.ttyname(slave).startswith("/dev/pts/"), os.isatty(master), termios.tcgetwinsize(slave))
    modes = termios.tcgetattr(slave)
    modes[3] &= ~(termios.ECHO | termios.ICANON)
    termios.tcsetattr(slave, termios.TCSAFLUSH, modes)
    os.write(master, b"x")
    print(os.read(slave, 9))
    termios.tcsendbreak(slave, 0)
    termios.tcdrain(slave)
    termios.tcflow(slave, termios.TCOOFF)
    print(select.select([], [slave], [], 0))
    termios.tcflow(slave, termios.TCOON)
    print(len(select.select([], [slave], [], 0)[1]))
    print(pty.spawn(["sh", "-c", "test -t 0 && test -t 1 && echo at a terminal; exit 3"]))


def test_pty():
    """CPython's own tests."""
    result = subprocess.run([sys.executable, "-m", "test.test_pty", "-v"], capture_output=True, text=True)
    if "No module named" in result.stderr:
        print("not installed: CPython's tests", file=sys.stderr)
        sys.exit(127)
    print(result.returncode, sorted(line for line in result.stderr.splitlines() if " ... " in line))


def python_repl():
    t = Terminal("/usr/bin/python3", "-q")
    t.expect(">>> ")
    t.line("6 * 7", "42\r\n>>> ")
    t.line("import os; os.isatty(0)", "True\r\n>>> ")
    t.send("'interrupted")
    t.expect("interrupted")
    t.insist("\x03", "KeyboardInterrupt\r\n>>> ")
    t.line("input('? ')", "\r\n? ")
    t.line("text", "'text'\r\n>>> ")
    t.send("\x04")
    t.end()


def less():
    with open("lines", "w") as lines:
        lines.write("".join(f"line {n} of many\n" for n in range(1, 201)))
    t = Terminal("less", "lines", term="xterm")
    t.expect("line 23 of many")
    t.send(" ")
    t.expect("line 46 of many")
    t.send("G")
    t.expect("line 200 of many")
    t.send("?line 77\r")
    t.expect("line 77 of many")
    t.resize(10, 80)
    t.insist("g", "line 9 of many")
    t.send("q")
    t.end()
    # Its keys come from /dev/tty when standard input is a pipe.
    t = Terminal("sh", "-c", "seq 1 500 | less", term="xterm")
    t.expect("\r\n23\r\n")
    t.send(" ")
    t.expect("\r\n46\r\n")
    t.send("q")
    t.end()


def vim(name):
    if not shutil.which(name):
        print("not installed:", name, file=sys.stderr)
        sys.exit(127)
    t = Terminal("bash", "--norc", "--noprofile", "--noediting", "-i", term="xterm")
    t.expect("$ ")
    t.line(f"{name} -u NONE -i NONE -n file", "[New")
    t.send("ihello\rworld\x1b")
    t.send(":set number\r")
    t.expect("2 world")
    # Stopped and continued, it draws itself anew.
    t.send("\x1a")
    t.expect("Stopped")
    t.expect("$ ")
    t.line("fg", "2 world")
    t.send(":wq\r")
    t.expect("$ ")
    t.command("cat file; stty -a | grep -o '[-]*icanon'", "hello\r\nworld\r\nicanon\r\n")
    t.line("exit", "exit")
    t.end()


def tmux():
    if not shutil.which("tmux"):
        print("not installed: tmux", file=sys.stderr)
        sys.exit(127)
    socket = os.path.join(tempfile.mkdtemp(), "socket")
    run = ["tmux", "-f", "/dev/null", "-S", socket]
    t = Terminal(*run, "new-session", "-x", "80", "-y", "24", "env PS1='$ ' bash --norc --noprofile --noediting -i", term="xterm")
    t.expect("$ ")
    t.line("echo in''side", "inside")
    t.line("tty | sed 's/[0-9]*$//'; stty size", "23 80")
    t.keys("\x02\"")
    time.sleep(0.5)
    t.line("echo sec''ond", "second")
    t.keys("\x02d")
    t.expect("detached")
    t.end()
    panes = subprocess.run([*run, "list-panes", "-F", "#{pane_height} #{pane_width}"], capture_output=True, text=True)
    print(panes.stdout, panes.returncode)
    t = Terminal(*run, "attach", term="xterm")
    t.expect("second")
    t.line("exit", "inside")
    time.sleep(0.5)
    t.line("exit", "exited")
    t.end()


sys.stdout.reconfigure(line_buffering=True)
globals()[sys.argv[1]](*sys.argv[2:])
