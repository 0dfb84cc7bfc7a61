# SPDX-License-Identifier: GPL-2.0
#
# Completions of hcablk for fish: the program itself knows them.

function __hcablk_complete
    set -l words (commandline -opc) (commandline -ct)
    set -lx PATH $PATH /usr/local/sbin /usr/sbin /sbin
    set -l lines (hcablk complete (math (count $words) - 1) -- $words[2..-1] 2>/dev/null)
    if test "$lines[1]" = :files
        __fish_complete_path (commandline -ct)
    else if set -q lines[1]
        printf '%s\n' $lines
    end
end

complete -c hcablk -f -a '(__hcablk_complete)'
