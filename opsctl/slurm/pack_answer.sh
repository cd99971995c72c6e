# Run a command on a node of a step, and print its answer: the node, the packed stdout, the exit code; to stderr, the
# packed stderr. srun mixes the output of the nodes by lines, and breaks lines of more than a kilobyte: so the output is
# compressed, and sent in short lines.
# Arguments: the stdin of the command, which srun would withhold until the last node is ready, and the command.
pack() { { gzip -c || cat; } 2>/dev/null | base64; }
run() { printf %s "$input" 2>/dev/null | "$@"; }
echo "@$SLURMD_NODENAME"
input=$1
shift
{ code=$({ { { run "$@" 3>&- 5>&- 6>&-; echo $? >&3; } | pack >&5; } 2>&1 >&5 | pack >&6; } 3>&1); } 5>&1 6>&2
echo "#$code"
