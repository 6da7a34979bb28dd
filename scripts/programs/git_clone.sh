# needs: git
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b GIT_CONFIG_NOSYSTEM=1
export GIT_AUTHOR_DATE='1700000000 +0000' GIT_COMMITTER_DATE='1700000000 +0000'
git init -q -b main r
cd r
for i in $(seq 1 12); do
    echo $i >>count
    echo "test $i -lt 8" >check
    git add . && git commit -qm "commit $i"
done
git checkout -qb topic HEAD~4
for i in 1 2 3; do echo $i >topic$i && git add . && git commit -qm "topic $i"; done
git rebase main 2>&1 | tail -1
git log --oneline
git checkout -q main && git merge -q --no-ff -m merged topic
git worktree add -q ../tree HEAD~2
git -C ../tree log --oneline -1
git worktree list | sed 's/ .*//' | wc -l
git worktree remove ../tree
git checkout -q main~1
git bisect start main~1 main~1~11 >/dev/null
git bisect run sh check | grep 'first bad'
git bisect reset 2>/dev/null
git checkout -q main
cd ..
git clone -q r clone && git clone -q --bare r bare.git && git clone -q "file://$PWD/bare.git" again
cd clone && echo more >>count && git commit -qam pushed && git push -q ../bare.git HEAD:main
git -C ../again pull -q --ff-only && git -C ../again log --oneline -1
git archive HEAD | tar t | wc -l
