# SPDX-License-Identifier: GPL-2.0
#
# Completions of hcablk for bash: the program itself knows them.

_hcablk() {
	local line lines
	COMPREPLY=()
	mapfile -t lines < <(
		PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
		hcablk complete "$COMP_CWORD" -- "${COMP_WORDS[@]:1}" 2>/dev/null
	)
	if [ "${lines[0]-}" = :files ]; then
		# No candidate: `-o default` completes names of files.
		return
	fi
	compopt +o bashdefault +o default 2>/dev/null
	for line in "${lines[@]}"; do
		COMPREPLY+=("${line%%$'\t'*}")
	done
}
complete -o bashdefault -o default -F _hcablk hcablk
