# needs: git
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b GIT_CONFIG_NOSYSTEM=1
export GIT_AUTHOR_DATE='1700000000 +0000' GIT_COMMITTER_DATE='1700000000 +0000'
git init -q -b main r
cd r
for d in $(seq 1 40); do
    mkdir d$d
    for f in $(seq 1 50); do echo "file $d $f" >d$d/f$f; done
done
git add .
git commit -qm one
git status --short | wc -l
for d in $(seq 1 40); do echo changed >>d$d/f1; done
git diff --stat | tail -1
git commit -qam two
git log --oneline
git gc -q
git fsck
git count-objects -v | grep -v size-pack
git grep -c changed | wc -l
git clean -fdxq
git rm -rq d1 && git stash -q && git stash pop -q && git status --short | wc -l
