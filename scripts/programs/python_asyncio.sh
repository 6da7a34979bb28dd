# needs: /usr/bin/python3
cat >t.py <<'END'
import asyncio, os, signal, sys
async def serve(reader, writer):
    while line := await reader.readline():
        writer.write(line.upper())
    writer.close()
async def client(n):
    reader, writer = await asyncio.open_unix_connection("socket")
    for i in range(50):
        writer.write(b"client %d line %d\n" % (n, i))
        line = await reader.readline()
    writer.close()
    return line
async def main():
    server = await asyncio.start_unix_server(serve, "socket")
    print(await asyncio.gather(*(client(n) for n in range(10))))
    server.close()
    p = await asyncio.create_subprocess_exec("cat", stdin=-1, stdout=-1)
    print((await p.communicate(b"to a child"))[0], p.returncode)
    got = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, got.set)
    os.kill(os.getpid(), signal.SIGUSR1)
    await got.wait()
    print(await asyncio.to_thread(sum, range(1000)))
    try:
        await asyncio.wait_for(asyncio.sleep(10), 0.05)
    except asyncio.TimeoutError:
        print("timed out")
    order = []
    async def later(s):
        await asyncio.sleep(s / 20)
        order.append(s)
    await asyncio.gather(*map(later, [3, 1, 2]))
    print(order)
asyncio.run(main())
END
/usr/bin/python3 t.py
