# needs: /usr/bin/python3
cat >t.py <<'END'
import multiprocessing as mp, os, sys
from multiprocessing import shared_memory
def square(x):
    return x * x
def child(conn, lock, value, queue):
    for _ in range(100):
        with lock:
            value.value += 1
    queue.put(conn.recv() * 2)
    conn.send("done")
def fill(name):
    memory = shared_memory.SharedMemory(name)
    memory.buf[:5] = b"hello"
    memory.close()
if __name__ == "__main__":
    for method in "fork", "spawn", "forkserver":
        c = mp.get_context(method)
        with c.Pool(3) as pool:
            print(method, sum(pool.map(square, range(1000), 50)), pool.apply(square, (7,)))
        lock, value, queue = c.Lock(), c.Value("i", 0, lock=False), c.Queue()
        pipes = [c.Pipe() for _ in range(3)]
        ps = [c.Process(target=child, args=(theirs, lock, value, queue)) for _, theirs in pipes]
        [p.start() for p in ps]
        [ours.send(i) for i, (ours, _) in enumerate(pipes)]
        print(sorted(queue.get() for _ in ps), [ours.recv() for ours, _ in pipes])
        [p.join() for p in ps]
        print(value.value, [p.exitcode for p in ps])
        memory = shared_memory.SharedMemory(create=True, size=100)
        p = c.Process(target=fill, args=(memory.name,))
        p.start(), p.join()
        print(bytes(memory.buf[:5]), p.exitcode)
        memory.close(), memory.unlink()
    with mp.Manager() as manager:
        d = manager.dict()
        p = mp.Process(target=d.update, args=({"a": 1},))
        p.start(), p.join()
        print(d)
END
/usr/bin/python3 t.py
