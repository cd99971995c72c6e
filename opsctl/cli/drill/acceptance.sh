# `opsctl drill --acceptance`: trials of a cluster before a long run. Writes a line for each to the file TRIALS, with tabs
# between: trial, what is tried, passed, failed or unknown, seconds, and the last line that the trial printed. Fails unless
# all passed. Other variables: OPSCTL (how opsctl is called), FILE and NAME (the TRAIN.toml and its train), ROOT (of all
# trains), SLURM_NODES, SLURM_PARTITION ... (of the train), DRY_RUN (write the commands instead).
set -eu
: >"$TRIALS"
count=${SLURM_NODES:-1} partition=${SLURM_PARTITION:-}
if [ "${DRY_RUN:-}" ]; then
    nodes="NODES"
else
    nodes=$(sinfo --noheader --Node --states=idle ${partition:+--partition="$partition"} --format=%N | sort -u | head -n "$count" | paste -sd, -)
    idle=$(echo "$nodes" | tr , '\n' | grep -c .) || true
    [ "$idle" -ge "$count" ] || { echo "$idle nodes are idle, and $FILE asks for $count; try again later" >&2; exit 1; }
fi

# Name, what is tried, and the command.
try() {
    name=$1 says=$2 begun=$(date +%s)
    shift 2
    if [ "${DRY_RUN:-}" ]; then
        [ "$1" != bash ] || shift 4
        printf '%s\t%s\t\t\t%s\n' "$name" "$says" "$*" >>"$TRIALS"
        return
    fi
    echo "$name: $says" >&2
    result=passed
    printed=$(timeout 3600 "$@" 2>&1) || { [ $? = 3 ] && result=unknown || result=failed; }
    [ "$result" = passed ] || all_passed=1
    last=$(printf '%s\n' "$printed" | tail -n 1 | tr '\t' ' ' | iconv -c -f UTF-8 -t UTF-8 | cut -c 1-300)
    printf '%s\t%s\t%s\t%s\t%s\n' "$name" "$says" "$result" "$(($(date +%s) - begun))" "$last" >>"$TRIALS"
}

# A command about nodes: how many have which health, and the last evidence. Exits 3 if the health of a node is unknown.
judge_nodes() {
    code=0
    printed=$("$@" --json) || code=$?
    counts=$(printf '%s\n' "$printed" | sed -n 's/^ *"health": "\([a-z]*\)".*/\1/p' | sort | uniq -c | tr -s '\n ' ' ')
    echo "$counts$(printf '%s\n' "$printed" | sed -n 's/^ *"evidence": "\(.*\)",*$/; \1/p' | tail -n 1)"
    case "$code $counts" in "0 "*unknown*) exit 3 ;; esac
    exit "$code"
}

# Checkpoints of some trainers are thousands of files.
make_files() {
    place=$(mktemp -d "$ROOT/.acceptance-XXXXXX")
    for number in $(seq 1000); do : >"$place/$number"; done
    ls -l -- "$place" | grep -c '^-'
    rm -rf -- "$place"
}
export -f make_files judge_nodes

all_passed=0
try nodes "Health of every node" bash -uc 'judge_nodes "$@"' - $OPSCTL health "$nodes"
try all-reduce "All nodes sum together, and in pairs with new partners" bash -uc 'judge_nodes "$@"' - $OPSCTL test-nodes "$nodes"
try file-system "Large writes and reads, and small reads, from every node" bash -uc 'judge_nodes "$@"' - $OPSCTL health "$nodes" --fio "$ROOT"
try metadata "1,000 files are made, listed and removed" bash -euc make_files - make 1000 files
try queue "As many nodes start a program" srun --nodes="$count" --time=2 hostname
try alerts "A message to every channel" $OPSCTL alerts test
try switch "The kill switch ends the train" $OPSCTL drill "$FILE" --confirm "$NAME" --fault kill-switch
try restart "A rank is killed, and the train trains again" $OPSCTL drill "$FILE" --confirm "$NAME" --fault rank-killed
exit "$all_passed"
