"""What Python programs use of a system. Each test prints what it found."""
import array, asyncio, base64, concurrent.futures, contextlib, ctypes, fcntl, glob, hashlib, io, json, mmap, os, pathlib
import queue, resource, select, selectors, shutil, signal, socket, sqlite3, stat, struct, subprocess, sys, tempfile, threading, time, zlib


def test_json():
    data = {"list": list(range(100)), "text": "ünïcödé", "nested": {"a": [None, True, 1.5]}}
    print(hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16], json.loads(json.dumps(data)) == data)


def test_subprocess():
    print(subprocess.run(["sh", "-c", "echo out; echo err >&2; exit 3"], capture_output=True))
    print(subprocess.check_output("seq 1 5 | paste -sd+ | bc || echo 15", shell=True, stderr=subprocess.DEVNULL))
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as p:
        print(len(p.communicate(b"x" * 300000)[0]))
    try:
        subprocess.run(["sleep", "10"], timeout=0.1)
    except subprocess.TimeoutExpired:
        print("timed out")
    p = subprocess.Popen(["sleep", "100"])
    p.terminate()
    print(p.wait())
    try:
        subprocess.run(["/does/not/exist"])
    except FileNotFoundError as e:
        print(e.errno)
    print(subprocess.run([sys.executable, "-c", "import sys; sys.exit(42)"], start_new_session=True).returncode)


def test_threading():
    lock, n, q = threading.Lock(), [0], queue.Queue()

    def work(i):
        for _ in range(1000):
            with lock:
                n[0] += 1
        q.put(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(20)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    print(n[0], sorted(q.get() for _ in range(20)) == list(range(20)))
    event = threading.Event()
    threading.Timer(0.02, event.set).start()
    print(event.wait(10))
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        print(sum(pool.map(lambda x: x * x, range(200))))
    barrier = threading.Barrier(4)
    ts = [threading.Thread(target=barrier.wait) for _ in range(4)]
    [t.start() for t in ts]
    [t.join() for t in ts]
    cond = threading.Condition()
    with cond:
        print(cond.wait(0.01))


def test_fork():
    r, w = os.pipe()
    for i in range(10):
        if os.fork() == 0:
            os.write(w, b"%d" % i)
            os._exit(i)
    codes = sorted(os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(10))
    print(codes, sorted(os.read(r, 100)))
    pid = os.fork()
    if pid == 0:
        signal.pause()
    os.kill(pid, signal.SIGKILL)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    print(os.spawnlp(os.P_WAIT, "sh", "sh", "-c", "exit 5"))


def test_signal():
    seen = []
    signal.signal(signal.SIGUSR1, lambda s, f: seen.append(s))
    for _ in range(100):
        os.kill(os.getpid(), signal.SIGUSR1)
    print(len(seen))
    signal.signal(signal.SIGALRM, lambda s, f: seen.append("alarm"))
    signal.setitimer(signal.ITIMER_REAL, 0.02)
    time.sleep(0.1)
    print(seen[-1])
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    os.kill(os.getpid(), signal.SIGUSR2)
    print(signal.sigpending(), signal.sigwait([signal.SIGUSR2]))

    class Stop(Exception):
        pass

    def stop(s, f):
        raise Stop

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 0.02)
    try:
        os.read(os.pipe()[0], 1)
    except Stop:
        print("interrupted")


def test_sqlite3():
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "db")
        db = sqlite3.connect(path)
        db.execute("pragma journal_mode=wal")
        db.execute("create table t(a integer primary key, b text)")
        with db:
            db.executemany("insert into t values(?, ?)", ((i, "x" * (i % 50)) for i in range(3000)))
        print(db.execute("select count(*), sum(length(b)) from t").fetchone())
        other = sqlite3.connect(path, timeout=0.05)
        db.execute("begin immediate")
        try:
            other.execute("begin immediate")
        except sqlite3.OperationalError as e:
            print(e)
        db.rollback()
        print(other.execute("pragma integrity_check").fetchone())
        code = "import sqlite3,sys; d=sqlite3.connect(sys.argv[1]); d.execute('delete from t where a%2'); d.commit()"
        subprocess.run([sys.executable, "-c", code, path], check=True)
        print(other.execute("select count(*) from t").fetchone())
        db.close(), other.close()
        print(os.listdir(d))


def test_files():
    with tempfile.TemporaryDirectory() as d:
        p = pathlib.Path(d)
        for i in range(50):
            (p / f"f{i}").write_text(str(i) * i)
        print(len(list(p.iterdir())), sum(f.stat().st_size for f in p.iterdir()))
        (p / "sub" / "deep").mkdir(parents=True)
        shutil.copytree(p, p / "sub" / "deep" / "copy", ignore=shutil.ignore_patterns("sub"))
        print(len(glob.glob(d + "/**", recursive=True)))
        os.rename(p / "f1", p / "g1")
        os.symlink("g1", p / "l")
        print(os.readlink(p / "l"), (p / "l").read_text(), oct(stat.S_IMODE(os.lstat(p / "g1").st_mode)))
        with open(p / "m", "w+b") as f:
            f.truncate(10000)
            with mmap.mmap(f.fileno(), 0) as m:
                m[5000:5005] = b"hello"
                print(m.find(b"hello"), os.pread(f.fileno(), 5, 5000))
        with open(p / "locked", "w") as a, open(p / "locked", "w") as b:
            fcntl.flock(a, fcntl.LOCK_EX)
            try:
                fcntl.flock(b, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print("locked")
        os.utime(p / "m", (1, 2))
        print(os.stat(p / "m").st_mtime, os.access(p / "m", os.X_OK))
        fd = os.memfd_create("x")
        os.sendfile(fd, os.open(p / "f49", os.O_RDONLY), 0, 98)
        print(os.fstat(fd).st_size)
        with contextlib.suppress(OSError):
            print(os.statvfs(d).f_namemax)


def test_polling():
    r, w = os.pipe()
    p = select.poll()
    p.register(r, select.POLLIN)
    print(p.poll(10))
    os.write(w, b"x")
    print(len(p.poll()), select.select([r], [w], [], 1)[1] == [w])
    e = select.epoll()
    e.register(r, select.EPOLLIN | select.EPOLLET)
    print(len(e.poll(1)), len(e.poll(0)))
    a, b = socket.socketpair()
    with selectors.DefaultSelector() as s:
        s.register(a, selectors.EVENT_READ)
        b.send(b"hi")
        print([k.fileobj is a for k, _ in s.select(1)], a.recv(10))
    array_ = array.array("i", [r])
    b.sendmsg([b"fd"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array_)])
    data, anc, _, _ = a.recvmsg(10, 100)
    print(data, os.read(struct.unpack("i", anc[0][2][:4])[0], 1))


def test_asyncio():
    async def main():
        p = await asyncio.create_subprocess_exec("sh", "-c", "cat; exit 2", stdin=-1, stdout=-1)
        out, _ = await p.communicate(b"through")
        print(out, p.returncode)
        print(await asyncio.gather(*(asyncio.sleep(0.001 * (9 - i), i) for i in range(10))))
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.sleep(10), 0.02)
            print("never")
        server = await asyncio.start_unix_server(echo, "sock")
        r, w = await asyncio.open_unix_connection("sock")
        w.write(b"line\n")
        print(await r.readline())
        w.close()
        server.close()

    async def echo(r, w):
        w.write((await r.readline()).upper())
        w.close()

    asyncio.run(main())


def test_processes():
    import multiprocessing
    with multiprocessing.Pool(3) as pool:
        print(pool.map(abs, range(-20, 0))[:3])
    q = multiprocessing.Queue()
    p = multiprocessing.Process(target=q.put, args=([1, 2],))
    p.start()
    print(q.get(timeout=10))
    p.join()
    print(p.exitcode)


def test_system():
    print(os.uname().sysname, os.cpu_count() > 0, resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 10)
    print(zlib.crc32(b"x" * 1000), len(os.urandom(16)), base64.b64encode(b"abc"))
    print(ctypes.CDLL(None).getpid() == os.getpid(), time.monotonic() > 0)
    print(os.path.exists("/proc/self/status"), len(os.listdir("/proc/self/fd")) > 2)
    try:
        open("/proc/1/does-not-exist")
    except FileNotFoundError:
        print("missing")
    print(sum(range(10)), sys.getrecursionlimit())
    buf = io.StringIO()
    print("text", file=buf)
    print(repr(buf.getvalue()))


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)
    for name in sys.argv[1:] or [n for n in dir() if n.startswith("test_")]:
        print("==", name)
        globals()[name]()
