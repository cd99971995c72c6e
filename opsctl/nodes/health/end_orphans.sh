# End the processes given as PID:START, their start time in clock ticks; print the PIDs.
for process in "$@"; do
    pid=${process%:*}
    # The start time follows the name in brackets. A later process with the same PID has another start time.
    ticks=$(sed 's/.*) //' "/proc/$pid/stat" 2>/dev/null | cut -d' ' -f20)
    [ "$ticks" = "${process#*:}" ] && kill -9 "$pid" && echo "$pid"
done
exit 0
