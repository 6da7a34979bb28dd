# needs: /usr/bin/python3
cat >t.py <<'END'
import concurrent.futures, os, signal, subprocess, sys
print(subprocess.run(["sh", "-c", "echo out; echo err >&2; exit 3"], capture_output=True))
with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as p:
    print(len(p.communicate(b"x" * 3_000_000)[0]))
first = subprocess.Popen(["seq", "1000"], stdout=subprocess.PIPE)
print(subprocess.check_output(["wc", "-l"], stdin=first.stdout), first.wait())
p = subprocess.Popen(["sleep", "100"])
p.send_signal(signal.SIGKILL)
print(p.wait())
r, w = os.pipe()
p = subprocess.Popen(["sh", "-c", f"echo through >&{w}"], pass_fds=[w], start_new_session=True, umask=0o77, cwd="/")
os.close(w)
print(os.read(r, 100), p.wait())
with concurrent.futures.ThreadPoolExecutor(8) as pool:
    codes = pool.map(lambda n: subprocess.run([sys.executable, "-c", f"import sys; sys.exit({n})"]).returncode, range(24))
    print(list(codes))
try:
    subprocess.run(["sleep", "10"], timeout=0.1)
except subprocess.TimeoutExpired:
    print("timed out")
END
/usr/bin/python3 t.py
