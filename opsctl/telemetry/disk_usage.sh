# Measures a directory with du. Arguments: the directory, and the file for the figures. Unreadable directories are left
# out; the exit code of du reports them and is ignored.
set -u
trap 'rm -f "$2.running"' EXIT
nice du -xd1 -B1 -- "$1" >"$2.bytes" 2>/dev/null
nice du -xd1 --inodes -- "$1" >"$2.inodes" 2>/dev/null
[ -s "$2.bytes" ] && { sed 's/^/B /' "$2.bytes"; sed 's/^/I /' "$2.inodes"; } >"$2.new" && mv "$2.new" "$2"
rm -f "$2.bytes" "$2.inodes"
