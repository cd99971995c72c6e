# `opsctl drill` on a sandbox, which is removed afterwards. The files of the site stay. Arguments: the directory of the
# site, Python, the TRAIN.toml (train.toml: the one of the drill), and the options of the drill.
set -eu
place=$1 python=$2 file=$3 here=$(dirname "$0")
shift 3
opsctl() { "$python" -P -m opsctl "$@"; }
finish() {
    code=$?
    trap - EXIT
    kill $(jobs -p) 2>/dev/null || true
    wait || true
    opsctl sandbox down --name drill >/dev/null
    exit "$code"
}

mkdir -p -- "${place%/*}"
exec 9>"$place.lock"
flock --nonblock 9 || { echo "opsctl: another drill on a sandbox is running" >&2; exit 75; }
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
# What an interrupted drill left may still write.
opsctl sandbox down --name drill >/dev/null
rm -rf -- "$place"
mkdir -- "$place"
for program in sendmail sendmail-backup nvidia-smi; do
    cp "$here/${program%-backup}.sh" "$place/$program"
    chmod 755 "$place/$program"
done
export PATH="$place:$PATH"
for name in site train; do sed "s|{place}|$place|; s|{here}|$here|" "$here/$name.toml" >"$place/$name.toml"; done
opsctl sandbox up --name drill --nodes 16 --gpus-per-node 0 --fast >&2
eval "$(opsctl sandbox env --name drill)"
export OPSCTL_SITE=$place/site.toml
[ "$file" != train.toml ] || file=$place/train.toml
# Not by the function, whose subshell would get the signals in place of opsctl.
"$python" -P -m opsctl watch --every 1s >"$place/watch.txt" 2>&1 9>&- &
echo $! >"$place/watch.pid"
"$python" -P -m opsctl drill "$file" "$@" 9>&- &
wait $!
