# Run by bash, dash and busybox: what a POSIX shell does with processes, pipes, files and signals.
set -u
echo "== pipelines"
seq 1 1000 | grep 7 | sort -r | head -n 3
yes | head -n 2
echo "a b c" | { read x y z; echo "$z $y $x"; }
false | true; echo "status $?"
! true; echo "not $?"
seq 1 100000 | tail -n 1
echo "== here-documents"
cat <<EOF
two $((1 + 1)) $(echo nested)
EOF
cat <<'EOF'
literal $HOME
EOF
cat <<-EOF
	without a tab
EOF
echo "== redirections"
echo one > f; echo two >> f; cat < f
{ echo out; echo err >&2; } > both 2>&1; cat both
exec 3> three; echo third >&3; exec 3>&-; cat three
ls missing 2> /dev/null; echo "ls $?"
cat < missing 2> /dev/null || echo "no file"
(echo sub; exit 3); echo "subshell $?"
: > empty; test -s empty || echo empty
set -C; (echo x > f) 2> /dev/null || echo "noclobber"; set +C
echo "== variables"
v=$(printf 'a\nb\n'); echo "$v"
echo "${v#a}" "${undefined:-default}" "${#v}"
x=5; while [ $x -gt 0 ]; do x=$((x - 1)); done; echo "x $x"
for i in one "two three" four; do echo "<$i>"; done
case abc in a*) echo matched;; *) echo no;; esac
f() { local y=2 2> /dev/null; echo "f $# $1"; return 9; }
f a b; echo "returned $?"
echo "== background jobs"
sleep 0.05 & wait $!; echo "waited $?"
(exit 5) & p=$!; wait $p; echo "child $?"
for i in 1 2 3 4 5; do (sleep 0.0$i; echo "job $i" >> jobs) & done; wait; sort jobs
sleep 100 & kill $!; wait $!; echo "killed $?"
sleep 100 & kill -9 $!; wait $! 2> /dev/null; echo "killed $?"
{ sleep 0.02; echo late; } & echo early; wait
echo "== traps"
trap 'echo got USR1' USR1; kill -USR1 $$; echo after
trap '' TERM; kill -TERM $$; echo "still here"; trap - TERM
(trap 'echo bye' EXIT; echo inside)
(trap 'echo term; exit 4' TERM; kill -TERM $(sh -c 'echo $PPID'); sleep 0.1; echo never); echo "trap status $?"
sh -c 'kill -TERM $$'; echo "signal status $?"
sh -c 'exit 300'; echo "exit $?"
echo "== commands"
command -v cat > /dev/null && echo found
no-such-command 2> /dev/null; echo "not found $?"
echo 'exit 0' > notexec; ./notexec 2> /dev/null; echo "not executable $?"
printf '#!/bin/sh\necho script "$@"\n' > s; chmod +x s; ./s a 'b c'
env -i A=1 sh -c 'echo "$A"'
umask 077; : > private; ls -l private | cut -c1-10; umask 022
mkdir -p a/b/c; cd a/b; pwd | sed 's:.*/a:a:'; cd - > /dev/null
echo *.nothing f thr*
test -d a && test -f f && echo tests
ln -s f link; readlink link; cat link
mkfifo p; (echo through the fifo > p) & cat p; wait
ulimit -n > /dev/null && echo "ulimit"
echo 'echo from stdin; exit 6' | sh; echo "piped $?"
eval 'echo evaluated'
read line < f; echo "$line"
set -e; (false; echo never) || echo "errexit"; set +e
exit 17
