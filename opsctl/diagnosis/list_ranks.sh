# Prints the state of every Python process of an attempt that has a rank, and its stack if py-spy is installed; also the
# ranks that have processes of other programs. The last line says how much this user sees.
# Leaves out processes that a rank forked to load data.
# Arguments: name for a node that no variable of Slurm names (as $0), attempt, program, mode of py-spy, the program to
# try next, and a text if none need be there.
self=${SLURMD_NODENAME:-$0}
is_here() { [ "$self" = "$0" ] || [ "${1:-$self}" = "$self" ]; } # several nodes may be on one machine
program=
for candidate in "$2" "$4"; do
  [ -z "$candidate" ] || ! command -v "$candidate" >/dev/null || { program=$candidate; break; }
done
read_status() { sed -n "s/^$2:[[:space:]]*\([^[:space:]]*\).*/\1/p" "$1/status"; }
count=0
read_variable() { tr '\0' '\n' <"$1/environ" | sed -n "s/^$2=//p"; }
is_python() { case "$(readlink "$1/exe")" in */python*) return 0 ;; esac; return 1; }
for environ in $(grep -lzFx -e "TRAIN_ATTEMPT=$1" /proc/[0-9]*/environ 2>/dev/null); do
  process=${environ%/environ} count=$((count + 1))
  rank=$(read_variable "$process" RANK) node=$(read_variable "$process" SLURMD_NODENAME)
  [ -n "$rank" ] && is_here "$node" || continue
  is_python "$process" || { echo "== other $self rank $rank"; continue; }
  parent=/proc/$(read_status "$process" PPid)
  if is_python "$parent" && [ "$(read_variable "$parent" RANK)" = "$rank" ]; then continue; fi
  state=$(read_status "$process" State)
  kernel=$(tr -cd '[:alnum:]_' <"$process/wchan")
  echo "== node $self rank $rank pid ${process#/proc/}${state:+ state $state in ${kernel:-0}}"
  # py-spy numbers the reasons of an error like srun numbers the lines of tasks.
  [ -z "$program" ] ||
    "$program" dump "$3" --pid "${process#/proc/}" 2>&1 | sed 's/^ *\([0-9][0-9]*: \)/Error \1/'
done 2>/dev/null
# A zombie has no environment; its parent, the wrapper of a rank, has Slurm's number of the rank.
for status in $(grep -lE '^State:[[:space:]]*Z' /proc/[0-9]*/status 2>/dev/null); do
  process=${status%/status} parent=/proc/$(read_status "${status%/status}" PPid)
  grep -qzF opsctl.guard.rank "$parent/cmdline" && grep -qzFx -e "TRAIN_ATTEMPT=$1" "$parent/environ" || continue
  rank=$(read_variable "$parent" SLURM_PROCID) node=$(read_variable "$parent" SLURMD_NODENAME)
  [ -n "$rank" ] && is_here "$node" || continue
  echo "== node $self rank $rank pid ${process#/proc/} state Z"
done 2>/dev/null
scope=$(cat /proc/sys/kernel/yama/ptrace_scope 2>/dev/null)
echo "== processes $count uid $(id -u) scope ${scope:-0} py-spy $(command -v py-spy 2>/dev/null)"
[ -n "$program$5" ] || [ -z "$2" ] || { echo "$2 is not installed" >&2; exit 127; }
exit 0
