# shellcheck shell=bash
# Sourced by tests with TRAIN as $1: two hosts on one machine, two network namespaces with hostnames of their own, joined by
# a veth of 1 Gbit/s, Open MPI over TCP between them. Starts the test anew inside of them; needs root or user namespaces,
# `ip` and `tc`; without them the test is skipped (77). Gives `on_b`, `limit`, `pair`, and the scratch folder of check.sh.
rate_mbit=1000
if [ "${2-}" != inside ]; then
  binary=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
  skip() {
    echo "skipped: $*" >&2
    exit 77
  }
  for tool in ip tc unshare nsenter mpirun; do command -v "$tool" >/dev/null || skip "no $tool here"; done
  # All of it lives in a process namespace of its own, so nothing outlives the test.
  spaces=(--net --uts --mount --ipc --pid --fork --kill-child --mount-proc)
  [ "$(id -u)" = 0 ] || spaces=(--map-root-user "${spaces[@]}")
  unshare "${spaces[@]}" sh -c '
    hostname oars-a && mount -t sysfs sys /sys && ip link add v0 type veth peer name v1 &&
    tc qdisc add dev v0 root tbf rate 1gbit burst 128kb latency 50ms' >/dev/null 2>&1 ||
    skip "this kernel or these rights allow no namespaces, veth or tc"
  exec unshare "${spaces[@]}" "$0" "$binary" inside
fi

binary=$1
. "$(dirname "${BASH_SOURCE[0]}")/check.sh"
cd "$scratch" || exit 1
export OMPI_MCA_btl_vader_single_copy_mechanism=none NO_COLOR=1 OMP_NUM_THREADS=1

printf '127.0.0.1 localhost\n10.77.0.1 oars-a\n10.77.0.2 oars-b\n' >hosts
cat /proc/sys/kernel/random/uuid >boot_of_b
mount --make-rprivate / && mount -t sysfs sys /sys && mount --bind hosts /etc/hosts && hostname oars-a || exit 1
# Ranks that share a kernel share memory; a start of its own makes host B another one.
unshare --net --uts --mount sh -c '
  hostname oars-b && mount --bind boot_of_b /proc/sys/kernel/random/boot_id && : >ready_b && exec sleep infinity' &
other=$!
wait_for ready_b
on_b() { nsenter --target "$other" --net --uts --mount "$@"; }

up() { # up ADDRESS LINK [on_b]
  local on=${3-}
  $on ip link set lo up
  # Jumbo frames: of standard ones the headers of TCP and IP alone are 4.6 %.
  $on ip link set "$2" mtu 9000
  $on ip address add "$1/24" dev "$2"
  $on ip link set "$2" up
}
ip link add v0 type veth peer name v1
delay=none
if tc qdisc add dev v0 root netem delay 1ms 2>/dev/null; then
  delay=netem
  tc qdisc del dev v0 root
elif command -v python3 >/dev/null; then
  # The kernel has no netem: v0 - m0, a program that hands packets on 1 ms late, m1 - v1.
  delay=program
  ip link del v0
  ip link add v0 type veth peer name m0
  ip link add m1 type veth peer name v1
  unshare --net python3 "$root/tests/cluster/link_delay.py" m0 m1 0.001 2>delay.log &
  between=$!
  until [ "$(readlink /proc/$between/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.05; done
  for link in m0 m1; do
    ip link set "$link" mtu 9000 netns "$between"
    nsenter --target "$between" --net ip link set "$link" up
  done
fi
ip link set v1 netns "$other"
up 10.77.0.1 v0
up 10.77.0.2 v1 on_b

limit() { # limit yes|no: 1 Gbit/s and 1 ms each way, or nothing but the rate of memory (and the program's delay)
  tc qdisc del dev v0 root 2>/dev/null
  on_b tc qdisc del dev v1 root 2>/dev/null
  [ "$1" = yes ] || return 0
  local on link
  for link in v0 v1; do
    [ $link = v0 ] && on= || on=on_b
    $on tc qdisc add dev $link root handle 1: tbf rate ${rate_mbit}mbit burst 128kb latency 50ms || exit 1
    [ $delay != netem ] || $on tc qdisc add dev $link parent 1:1 netem delay 1ms limit 10000 || exit 1
  done
}

# What mpirun calls in the place of ssh: AGENT HOST COMMAND...
cat >agent <<AGENT
#!/bin/sh
shift
exec nsenter --target $other --net --uts --mount sh -c "cd '$scratch'; \$*"
AGENT
chmod +x agent
pair() { # pair COMMAND...: one rank on each host, or as `hosts` says
  timeout 120 mpirun --allow-run-as-root --host "${hosts:-oars-a:1,oars-b:1}" --bind-to none \
    --mca plm_rsh_agent "$scratch/agent" --mca btl "${btl:-tcp,self}" --mca pml ob1 --mca btl_tcp_if_include 10.77.0.0/24 \
    --mca oob_tcp_if_include 10.77.0.0/24 -x NO_COLOR -x OMP_NUM_THREADS "$@" >out 2>log </dev/null
}
