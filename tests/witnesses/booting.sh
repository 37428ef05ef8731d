#!/bin/bash
# Become the init of a Debian host: `booting.sh BASE EXTRA`, in namespaces of its own (mounts, processes, network, cgroups). What it mounts goes with
# them. The files of EXTRA lie over those of BASE, and what the host writes lies in memory. It waits for a line before systemd starts.
set -euo pipefail
base=$1 extra=$2
mount --make-rprivate /
scratch=$(mktemp -d)
mount -t tmpfs tmpfs "$scratch"
mkdir "$scratch/upper" "$scratch/work" "$scratch/root"
mount -t overlay overlay -o "lowerdir=$extra:$base,upperdir=$scratch/upper,workdir=$scratch/work" "$scratch/root"
root=$scratch/root
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for node in null zero full random urandom tty; do
  touch "$root/dev/$node"
  mount --bind "/dev/$node" "$root/dev/$node"
done
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
for folder in dev/shm run tmp; do mount -t tmpfs tmpfs "$root/$folder"; done
chmod 1777 "$root/tmp" "$root/dev/shm"
ip link set lo up
ip address add 169.254.169.254/32 dev lo
hostname ip-10-0-1-17
echo ready
read -r _
mkdir -p "$root/oldroot"
cd "$root"
pivot_root . oldroot
umount -l /oldroot
exec env -i container=crossover PATH=/usr/sbin:/usr/bin:/sbin:/bin /sbin/init --unit=multi-user.target --log-target=console
