# needs: /usr/bin/python3
cat >t.py <<'END'
import queue, threading, time
lock, count, q = threading.RLock(), [0], queue.Queue(10)
def work():
    for _ in range(2000):
        with lock:
            count[0] += 1
threads = [threading.Thread(target=work) for _ in range(50)]
[t.start() for t in threads]
[t.join() for t in threads]
print(count)
def consume(total):
    while (x := q.get()) is not None:
        total.append(x)
totals = [[] for _ in range(4)]
threads = [threading.Thread(target=consume, args=(t,)) for t in totals]
[t.start() for t in threads]
[q.put(i) for i in range(5000)]
[q.put(None) for _ in threads]
[t.join() for t in threads]
print(sum(map(sum, totals)))
b = threading.Barrier(8)
threads = [threading.Thread(target=b.wait) for _ in range(8)]
[t.start() for t in threads]
[t.join() for t in threads]
e = threading.Event()
threading.Timer(0.05, e.set).start()
print(e.wait(10), threading.Semaphore(0).acquire(timeout=0.01))
END
/usr/bin/python3 t.py
