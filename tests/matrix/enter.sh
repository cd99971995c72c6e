set -e
root=$1 host=$2; shift 2
hostname "$host"
mount --bind "$root" "$root"  # or no mount namespace could be made inside
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for device in null zero full random urandom tty; do
    : >"$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$root/dev/pts"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
ln -s pts/ptmx "$root/dev/ptmx"; ln -s /proc/self/fd "$root/dev/fd"
ln -s /proc/self/fd/0 "$root/dev/stdin"; ln -s /proc/self/fd/1 "$root/dev/stdout"
ln -s /proc/self/fd/2 "$root/dev/stderr"
if [ -n "$PRIVATE_NETWORK" ]; then ip link set lo up; ip addr add 10.77.0.1/32 dev lo; fi
for path in $BINDS; do
    if [ -d "$path" ]; then mkdir -p "$root$path"; else mkdir -p "$root${path%/*}"; : >>"$root$path"; fi
    mount --bind -o ro "$path" "$root$path"
done
cd "$root"
pivot_root . mnt  # not chroot: in a chroot ordinary users may make no namespaces
umount -l /mnt
cd "$DIRECTORY"
"$@"
exit $?  # not exec: the first process must be a shell, which reaps orphans
