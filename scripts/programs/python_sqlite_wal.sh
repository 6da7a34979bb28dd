# needs: /usr/bin/python3
cat >t.py <<'END'
import multiprocessing, sqlite3
def work(n):
    db = sqlite3.connect("t.db", timeout=60, isolation_level=None)
    for i in range(40):
        db.execute("begin immediate")
        (total,) = db.execute("select coalesce(max(total), 0) from t").fetchone()
        db.execute("insert into t values (?, ?, ?)", (n, i, total + 1))
        db.execute("commit")
        db.execute("select count(*) from t").fetchone()
if __name__ == "__main__":
    db = sqlite3.connect("t.db")
    print(db.execute("pragma journal_mode=wal").fetchone())
    db.execute("create table t (worker, i, total unique)")
    db.commit()
    ps = [multiprocessing.Process(target=work, args=(n,)) for n in range(4)]
    [p.start() for p in ps]
    [p.join() for p in ps]
    print([p.exitcode for p in ps], db.execute("select count(*), sum(total), max(total) from t").fetchone())
    print(db.execute("pragma wal_checkpoint(truncate)").fetchone(), db.execute("pragma integrity_check").fetchone())
END
/usr/bin/python3 t.py
ls t.db*
