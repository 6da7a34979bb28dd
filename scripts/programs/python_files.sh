# needs: /usr/bin/python3
cat >t.py <<'END'
import hashlib, mmap, os, pathlib, shutil, tempfile
with tempfile.TemporaryDirectory() as d, tempfile.NamedTemporaryFile(dir=d) as f, tempfile.TemporaryFile() as g:
    f.write(b"abc"), g.write(b"x" * 70000), g.seek(-10, 2)
    print(len(g.read()), os.path.exists(f.name), os.fstat(g.fileno()).st_nlink)
print(os.path.exists(d))
with tempfile.SpooledTemporaryFile(100) as s:
    s.write(b"y" * 1000), s.rollover(), s.seek(0)
    print(len(s.read()), s.fileno() > 2)
root = pathlib.Path("tree")
for i in range(200):
    p = root / f"d{i % 10}" / f"f{i}"
    p.parent.mkdir(parents=True, exist_ok=True)
    p.write_text(f"file {i}\n" * i)
os.symlink("d0/f10", root / "link"), os.link(root / "d0/f10", root / "hard")
os.chmod(root / "d1/f11", 0o600), os.utime(root / "d1/f11", (1, 2))
shutil.copytree(root, "copy", symlinks=True)
digest = lambda d: hashlib.sha256("".join(f"{p.relative_to(d)} {oct(p.lstat().st_mode)} {p.lstat().st_mtime_ns if p.is_file() and p.stat().st_mtime < 9 else ''}" + (p.read_text() if p.is_file() else "") for p in sorted(pathlib.Path(d).rglob("*"))).encode()).hexdigest()
print(digest("tree"), digest("tree") == digest("copy"))
archive = shutil.make_archive("a", "gztar", "tree")
shutil.unpack_archive(archive, "unpacked")
print(digest("unpacked") == digest("tree"))
shutil.move("copy", "moved"), shutil.rmtree("tree")
print(sorted(os.listdir()))
with open("m", "wb+") as f:
    f.truncate(1 << 20)
    with mmap.mmap(f.fileno(), 0) as m:
        m[4096:4101] = b"hello"
        m.flush()
        f.seek(4096)
        print(f.read(5), m.find(b"llo"))
        f.seek(0), f.write(b"WRITE"), f.flush()
        print(m[:5])
        m.resize(2 << 20)
        print(len(m), os.fstat(f.fileno()).st_size)
with mmap.mmap(-1, 8192) as m:
    if os.fork() == 0:
        m[:5] = b"child"
        os._exit(0)
    os.wait()
    print(m[:5])
END
/usr/bin/python3 t.py
