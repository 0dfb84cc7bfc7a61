# rename-branch.sh BASE TIP NAME: makes branch NAME: the renamed BASE (a commit without parent but 94b501fb) and on it the renamed TIP
set -e
wt=/work/renwt
git -C /work/main worktree remove --force $wt 2>/dev/null || true
git -C /work/main worktree add --detach $wt $1 >/dev/null
cd $wt
one() {
	git checkout -q --detach $1
	python3 /work/notes/rename-once.py --no-fmt
	python3 /work/notes/rename2.py
	make fmt
	git add -A
	git commit -q -m "renamed $1"
	git rev-parse HEAD
}
b=$(one $1 | tail -1); t=$(one $2 | tail -1)
c=$(git commit-tree "$t^{tree}" -p $b -m "init8 as of $2, with the names of today, in one commit")
git branch -f $3 $c
echo "$b $c"
