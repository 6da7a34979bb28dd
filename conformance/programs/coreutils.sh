# Coreutils, findutils, grep, sed, awk, tar and the compressors.
export LC_ALL=C
seq 1 2000 | awk '{ printf "%d line %s\n", $1, ($1 * 7919) % 1000 }' > data
sort -k3 -n data | head -n 3; sort -u -k3,3n data | wc -l; sort -R --random-source=/dev/zero data | wc -l
cut -d' ' -f1,3 data | tail -n 2; tr a-z A-Z < data | sed -n 5p; tac data | head -n 1; rev data | sed -n 1p
uniq -c <<< "$(printf 'a\na\nb\n')" 2> /dev/null || printf 'a\na\nb\n' | uniq -c
paste -d: <(seq 3) <(seq 4 6) 2> /dev/null || true
seq 1 10 | paste -sd+ | sed 's/$/ sums/'; seq 10 | xargs -n 3 echo; printf 'x\0y z\0' | xargs -0 -I{} echo "[{}]"
md5sum data; sha256sum data; cksum data; base64 data | tail -n 1; base64 data | base64 -d | cmp - data && echo same
od -A d -t x1z data | head -n 2; wc data; nl data | tail -n 1; fold -w 20 data | head -n 1; expand data | wc -c
head -c 100000 /dev/zero | wc -c; dd if=data of=copy bs=100 count=5 skip=1 status=none; wc -c copy
split -l 500 data part-; ls part-*; cat part-* | cmp - data && echo joined; rm part-*
join <(seq 1 5) <(seq 3 8); comm -12 <(seq 1 5) <(seq 3 8) | tr '\n' ' '; echo
mkdir -p t/a/b t/c; cp data t/a/b/one; cp -a t u; mv u/a u/z; ln u/z/b/one u/hard; ln -s ../data u/soft
touch -d '2001-02-03 04:05:06 UTC' t/c/old; TZ=UTC stat -c '%n %s %a %y' t/c/old; stat -c '%h' u/hard
chmod 750 t/c; ls -l t | awk 'NR > 1 { print $1, $NF }'; find u | sort; find t -type f -name 'o*' -newermt 2000-01-01 | sort
find . -name one -exec wc -l {} + | tail -n 1; find u -type l -printf '%p -> %l\n'; du -s --apparent-size t/a/b/one | cut -f1
grep -c 'line 1' data; grep -rn '^1999 ' t u | sort; grep -E '^(12|34) ' data; grep -v line data; echo "grep $?"
grep -oP '\d+$' data | head -n 1; fgrep -x '1 line 919' data; sed -i 's/line/LINE/' copy; head -n 1 copy
sed -e '1,3d' -e '/9/!d' -e 's/\([0-9]*\) line \(.*\)/\2-\1/' data | head -n 2; sed '$!N;P;D' data | wc -l
awk '{ s += $3; c[$3 % 10]++ } END { print s; for (i = 0; i < 10; i++) printf "%d ", c[i]; print "" }' data
awk 'BEGIN { "echo from a command" | getline x; print x; system("exit 3"); print "to a pipe" | "cat" }'
tar cf t.tar t u; tar tf t.tar | sort | head -n 3; mkdir x; tar xf t.tar -C x; diff -r t x/t && echo "tar ok"
for z in gzip bzip2 xz; do command -v $z > /dev/null || continue; $z -k9 data 2> /dev/null || $z -k data; done
gzip -dc data.gz | cmp - data && echo "gzip ok"; xz -dc data.xz | cmp - data && echo "xz ok"
tar czf t.tgz t; tar xzOf t.tgz t/a/b/one | md5sum; tar cJf t.txz t; tar tJf t.txz | wc -l; xz -T2 -kc data | xz -d | md5sum
date -u -d @86400 +%F; basename /a/b.c .c; dirname /a/b/c; realpath --relative-to=t u/z; printf '%s %5.2f\n' x 3.14159
expr 6 \* 7; factor 1001; echo '2^64' | bc 2> /dev/null; numfmt --to=iec 1048576; seq -s, 5; shuf -i 1-9 | wc -l
test -x /bin/sh && id -u > /dev/null && echo id; timeout 0.1 sleep 5; echo "timeout $?"; timeout 5 true; echo "timeout $?"
nice -n 3 nice; nohup echo nohup 2> /dev/null; env | grep -c LC_ALL; mktemp -d XXXXXX | wc -c; yes | head -n 1000 | wc -l
truncate -s 1M big; stat -c %s big; cp --sparse=always big big2; cmp big big2 && rm big big2; df . > /dev/null && echo df
echo hello | tee a.txt b.txt > /dev/null; cat a.txt b.txt; install -m 700 data installed; stat -c %a installed
sync data; ls -la t > /dev/null; ls missing 2>&1 | sed 's/.*: //'; rmdir t 2>&1 | sed 's/.*: //'; rm -r t u x && ls -d t 2> /dev/null
cat data | (sleep 0.05; wc -l); kill -0 $$ && echo alive; stdbuf -oL echo stdbuf; cat /dev/null | wc -c
