# Gather the data of a health check on one node. POSIX sh. opsctl puts lines with these settings before the script:
#   MARK        starts every line that separates sections, so that no program's output looks like a separator
#   LIMIT       time limit of a section in seconds
#   MOUNTS      paths of file systems, one a line
#   GRACE       seconds to wait for late sections after their time limit (default 3)
#   DCGM        level of DCGM's diagnostic, or 0;  DCGM_LIMIT  its time limit in seconds
#   FIO         directory to measure, or empty;    FIO_MIB     size of the file there;  FIO_LIMIT  time limit in seconds
# All sections run at the same time. A late section is abandoned: nothing can kill a program that hangs in the kernel.
PATH="${PATH:+$PATH:}/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
LC_ALL=C
export PATH LC_ALL
umask 077
work=$(mktemp -d /tmp/opsctl-health.XXXXXX 2>/dev/null || mktemp -d /dev/shm/opsctl-health.XXXXXX 2>/dev/null) || {
    echo "$MARK nowhere"
    exit 0
}
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT PIPE TERM
names=

gather() { # gather NAME SECONDS SCRIPT [ARGUMENT...]
    names="$names $1"
    (
        timeout -k 1 "$2" sh -c "$3" "$1" "${4:-}" "${5:-}" >"$work/$1.out" 2>"$work/$1.err" </dev/null
        echo $? >"$work/$1.new"
        mv "$work/$1.new" "$work/$1.code"
    ) >/dev/null 2>&1 </dev/null &
}

gather host "$LIMIT" '
    echo "name=$(uname -n)"
    echo "kernel=$(uname -r)"
    echo "boot=$(cat /proc/sys/kernel/random/boot_id)"
    echo "uptime=$(cut -d" " -f1 /proc/uptime)"
    echo "now=$(date +%s.%N)"
    echo "uid=$(id -u)"
    echo "job=$SLURM_JOB_ID"
    echo "memory=$(sed -n "s/^MemTotal: *\([0-9]*\) kB/\1/p" /proc/meminfo)"
    echo "driver=$(cat /sys/module/nvidia/version 2>/dev/null)"'
gather smi "$LIMIT" ' # without the list of clocks, which is most of the text and tells nothing about health
    nvidia-smi -q -x >"$1/smi.xml"
    code=$?
    sed "/<supported_clocks>/,/<\/supported_clocks>/d" "$1/smi.xml"
    exit $code' "$work"
gather nvlink "$LIMIT" 'exec nvidia-smi nvlink --status'
gather nvlink_errors "$LIMIT" 'exec nvidia-smi nvlink -e'
gather amd "$LIMIT" '
    command -v amd-smi >/dev/null || exit 127
    for command in list static metric; do
        echo "@$command"
        amd-smi $command --json || exit
    done'
gather pci "$LIMIT" '
    for device in /sys/bus/pci/devices/*; do
        read -r vendor <"$device/vendor" && read -r class <"$device/class" || continue
        case $vendor:$class in
            0x10de:0x0302* | 0x10de:0x0300* | 0x1002:0x1200* | 0x1002:0x0380*) echo "${device##*/}" ;;
        esac
    done 2>/dev/null
    exit 0'
gather kernel "$LIMIT" '
    cards="NVRM|fallen off the bus|ERREVENT_ATHUB|amdgpu.*(uncorrectable|[Rr]eset.*failed|ecovery [Ff]ailed|ret = -|GPU init|timeout|nrecoverable|with error)"
    nodes="SXid|mlx5_core.*(health|unrecoverable|firmware internal|leak of a command|temperature|insufficient power|TX timeout|with error)"
    nodes="$nodes|EDAC .*: [0-9]+ [CU]E |Memory failure: |[Mm]achine [Cc]heck|Hardware Error|context corrupt|mce: .*rror"
    nodes="$nodes|mce: .*temperature above|AER: |PCIe Bus Error: severity=Uncor|nvme nvme.*(down|probe failure|reset|timeout)"
    nodes="$nodes|I/O error|EXT4-fs error|EXT4-fs .*read-only|XFS .*([Ss]hut|orrupt)|blocked for more than|LustreError"
    for command in "dmesg" "journalctl -k -b --no-pager -q -o short-monotonic"; do
        if $command >"$1/kernel.log"; then
            echo "source=${command%% *}"
            # Each with a bound of its own: a flood of corrected errors hides no Xid.
            grep -E "$cards" "$1/kernel.log" | tail -n 2000
            grep -E "$nodes" "$1/kernel.log" | grep -vE "$cards" | tail -n 2000
            exit 0
        fi
    done
    exit 1' "$work"
gather libraries "$LIMIT" '
    ldconfig -p | grep -E "^[[:space:]]lib(c|cuda|cudart|nccl|rccl|ibverbs|mlx5|fabric|mpi)\.so\.[0-9.]* .*=> " |
        sed "s/.*=> //" | sort -u | while read -r path; do readlink -f "$path"; done | sed "s:.*/::" | sort -u'
gather shm "$LIMIT" 'exec df -kP /dev/shm'
gather processes "$LIMIT" '
    cd /proc || exit 1
    stat -c "%n %u" [0-9]* 2>/dev/null
    echo --
    cat [0-9]*/stat 2>/dev/null
    echo --
    getconf CLK_TCK'
gather infiniband "$LIMIT" '
    cd /sys/class/infiniband 2>/dev/null || exit 0
    grep -s "" */ports/*/state */ports/*/phys_state */ports/*/link_layer */ports/*/rate \
        */ports/*/counters/* */ports/*/hw_counters/*
    exit 0'
gather hardware "$LIMIT" '
    cd /sys || exit 0
    echo "cpu=$(sed -n "s/^model name[[:space:]]*: //p" /proc/cpuinfo | sort | uniq -c | head -n 1)"
    echo "fabric_service=$(systemctl is-active nvidia-fabricmanager 2>/dev/null)"
    grep -s "" class/dmi/id/product_name devices/system/clocksource/clocksource0/current_clocksource \
        devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor class/nvme/nvme*/state fs/lustre/health_check \
        devices/system/edac/mc/mc*/[cu]e_count
    grep -s "" devices/system/edac/mc/mc*/dimm*/dimm_[cu]e_count bus/pci/devices/*/aer_dev_* | grep -vE "[: ]0$"
    for device in bus/pci/devices/*; do
        read -r vendor <"$device/vendor" && read -r class <"$device/class" || continue
        case $vendor:$class in
            0x10de:0x0680*) echo "nvswitch=${device##*/}" ;;
            0x10de:0x0302* | 0x10de:0x0300* | 0x1002:0x1200* | 0x1002:0x0380*)
                read -r model <"$device/device" && echo "gpu_model=$vendor:$model"
                ;;
        esac
    done 2>/dev/null
    exit 0'
gather nvme "$LIMIT" '
    [ "$(id -u)" -eq 0 ] || { echo "needs root" >&2; exit 77; }
    command -v nvme >/dev/null || command -v smartctl >/dev/null || exit 127
    for device in /sys/class/nvme/nvme*; do
        [ -e "$device" ] || continue
        echo "@${device##*/}"
        nvme smart-log "/dev/${device##*/}" --output-format=json 2>/dev/null ||
            smartctl --json=c --log=smart -A -H "/dev/${device##*/}"
    done
    exit 0'
gather clock "$LIMIT" 'chronyc -n tracking 2>/dev/null || timedatectl show -p NTPSynchronized'
number=0
set -f
IFS='
'
for mount in $MOUNTS; do
    number=$((number + 1))
    gather "mount_$number" "$LIMIT" '
        echo "path=$1"
        while read -r device mount_point kind options rest; do
            [ "$mount_point" = "$1" ] && echo "mounted=$kind $options"
        done </proc/mounts
        df -kP "$1" && df -iP "$1"' "$mount"
done
unset IFS
set +f
[ "${DCGM:-0}" -eq 0 ] || gather dcgm "$DCGM_LIMIT" "exec dcgmi diag -r $DCGM -j"
export FIO_MIB
[ -z "${FIO:-}" ] || gather fio "$FIO_LIMIT" '
    command -v fio >/dev/null || exit 127
    [ -d "$1" ] || { echo "no such directory" >&2; exit 2; }
    free=$(df -kP "$1" | tail -n 1 | tr -s " " | cut -d " " -f 4)
    [ "${free:-0}" -gt $((FIO_MIB * 4096)) ] || { echo "has no room for four times $FIO_MIB MiB" >&2; exit 3; }
    file="$1/.opsctl-fio-${SLURMD_NODENAME:-$(uname -n)}-$$"
    trap "rm -f \"\$file\"" EXIT
    trap "exit 1" HUP INT TERM
    for direct in 1 0; do # some file systems allow no direct access
        fio --output-format=json --filename="$file" --size="${FIO_MIB}M" --direct="$direct" --ioengine=psync --runtime=10 \
            --name=write --rw=write --bs=1M --end_fsync=1 --name=read --stonewall --rw=read --bs=1M \
            --name=random --stonewall --rw=randread --bs=4k --runtime=3 >"$2" && break
    done
    code=$?
    cat "$2"
    exit $code' "$FIO" "$work/fio.json"

longest=$LIMIT
[ "${DCGM:-0}" -eq 0 ] || longest=$DCGM_LIMIT
[ -z "${FIO:-}" ] || [ "$FIO_LIMIT" -le "$longest" ] || longest=$FIO_LIMIT
ticks=$(((longest + ${GRACE:-3}) * 10))
for name in $names; do
    while [ ! -e "$work/$name.code" ] && [ "$ticks" -gt 0 ]; do
        sleep 0.1
        ticks=$((ticks - 1))
    done
    code=late
    [ ! -e "$work/$name.code" ] || code=$(cat "$work/$name.code")
    echo "$MARK begin $name $code"
    head -c 2000000 "$work/$name.out"
    echo
    echo "$MARK err"
    head -c 4000 "$work/$name.err"
    echo
done
echo "$MARK done"
