# needs: sqlite3
sqlite3 t.db <<'END'
pragma journal_mode=wal;
create table t(id integer primary key, name text, n int);
with recursive c(x) as (select 1 union all select x + 1 from c where x < 20000) insert into t(name, n) select 'row' || x, x * 7 % 1000 from c;
create index i on t(n);
select count(*), sum(n) from t where n > 500;
begin; delete from t where n < 100; rollback;
update t set name = upper(name) where id % 10 = 0;
select name from t where id in (9, 10);
vacuum; pragma integrity_check;
.backup copy.db
END
for i in 1 2 3 4; do sqlite3 -cmd '.timeout 60000' t.db "begin immediate; insert into t(n) values($i); commit;" & done
wait
sqlite3 t.db 'select count(*) from t' && sqlite3 copy.db .dump | sha256sum && sqlite3 t.db 'pragma journal_mode=delete' && ls
