# What bash has beyond a POSIX shell.
shopt -s extglob
a=(one "two three" four); echo "${#a[@]} ${a[1]} ${a[-1]}"
declare -A m=([x]=1 [y]=2); for k in x y; do echo "$k=${m[$k]}"; done
diff <(seq 1 5) <(seq 2 6); echo "diff $?"
while read -r l; do echo "got $l"; done < <(printf 'a\nb\n')
cat <<< "here string"
set -o pipefail; false | true; echo "pipefail $?"; set +o pipefail
echo "${PIPESTATUS[@]}"; true | false | (exit 3); echo "${PIPESTATUS[@]}"
[[ abc123 =~ ([a-z]+)([0-9]+) ]] && echo "${BASH_REMATCH[1]} ${BASH_REMATCH[2]}"
printf -v padded '%05d' 42; echo "$padded"
coproc C { while read -r x; do echo "reply $x"; done; }
echo hello >&"${C[1]}"; read -r r <&"${C[0]}"; echo "$r"
eval "exec ${C[1]}>&-"; wait
exec {fd}> file; echo data >&"$fd"; exec {fd}>&-; cat file
mapfile -t lines < <(seq 1 4); echo "${lines[@]}"
sleep 0.05 & sleep 0.01 & wait -n; echo "first $?"; wait
echo {1..5} {a..e..2}; echo $((2 ** 10)) $((16#ff))
f() { trap 'echo return' RETURN; echo in f; }; f
time true 2> /dev/null
(ulimit -n 20; exec 3< /dev/null; echo "limited")
set -m; sleep 0.1 & wait %%; echo "job $?"; set +m
kill -l 9 15
trap 'echo debug exit' EXIT
for ((i = 0; i < 300; i++)); do :; done; echo "$i"
for i in $(seq 1 40); do /bin/true; done
echo "x y" | tee >(cat > teed) > /dev/null; sleep 0.1; cat teed
bash -c 'echo $0 $1' name arg
echo $(< file)
