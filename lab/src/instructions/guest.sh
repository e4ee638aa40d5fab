#!/bin/busybox sh
# Runs in the guest of `lab instructions`: serves and loads the guest's first link under each policy, and writes a line for
# each load to the second serial port. init starts it where the kernel's command line has COUNT_DRIVERS, and so on.
#
# Core 1 is the server's, core 2 packing's; the load and this script have core 0.
set -eu
exec >/dev/console 2>&1
taskset -p 1 $$ >/dev/null
named() { basename "$(dirname "$(grep -l "$1" /sys/class/net/*/address)")"; }
server=$(named 52:54:00:00:00:00)
client=$(named 52:54:00:00:00:01)

# The load's end of the link is in a namespace: packets between two addresses of one would not leave it.
unshare -n sleep 99999 &
namespace=$!
outside() { nsenter -t $namespace -n "$@"; }
sleep 0.1
client_irqs=$(ls "/sys/class/net/$client/device/../msi_irqs")
ip link set "$client" netns $namespace
outside ip addr add 10.9.0.1/24 dev "$client"
outside ip link set "$client" up
for irq in $client_irqs; do echo 1 >"/proc/irq/$irq/smp_affinity"; done
ip addr add 10.9.0.2/24 dev "$server"
ip link set "$server" up
until grep -q 1 "/sys/class/net/$server/carrier"; do sleep 0.1; done
load() { outside loadgen -s 10.9.0.2 -r 1000 --driver epoll --cores 0 --wait block --quiet "$@"; }

# The link's interrupts on all cores, its packets, the server's context switches: since the start.
counters() {
    grep -E "$server|$(basename "$(readlink "/sys/class/net/$server/device")")" /proc/interrupts |
        awk '{ sum += $3 + $4 } END { printf "%d ", sum }'
    cat "/sys/class/net/$server/statistics/rx_packets" "/sys/class/net/$server/statistics/tx_packets" | tr '\n' ' '
    cat /proc/"$(pidof memcached)"/task/*/status | awk '/ctxt_switches/ { sum += $2 } END { printf "%d", sum }'
}

for driver in $COUNT_DRIVERS; do
    for policy in $COUNT_POLICIES; do
        # NAME or NAME:GRACE_TIME_US, which keeps kernel polling in grace mode; the controller chooses otherwise.
        fixed=${policy#*:}
        [ "$fixed" != "$policy" ] || fixed=auto
        memcached -v -u root --policy "${policy%:*}" --gro-flush-timeout "$fixed" -t 1 --cores 1 --packing-cores 2 --driver "$driver" -l 10.9.0.2 \
            >/tmp/memcached 2>&1 &
        tries=0
        until grep -q 'listening on' /tmp/memcached; do
            tries=$((tries + 1))
            if [ $tries = 100 ]; then cat /tmp/memcached; exit 1; fi
            sleep 0.1
        done
        cat /tmp/memcached
        # A policy may just have reset the link.
        load --loadonly || load --loadonly
        # RATE:SECONDS, where a rate of 0 is the closed loop.
        for asked in $COUNT_LOADS; do
            flags="-q ${asked%:*} -t ${asked#*:}"
            # Sets the controller's mode, the caches and the connections' windows.
            load --noload -w 0 -c 16 $flags >/dev/null || true
            before=$(counters)
            mark
            load --noload -w 0 -c 16 $flags --format json >/tmp/report || true
            mark
            after=$(counters)
            requests=$(sed -n 's/^ *"requests": \([0-9]*\).*/\1/p' /tmp/report)
            echo "$driver $policy $asked $requests $before $after" >/dev/ttyS1
        done
        kill "$(pidof memcached)"
        while pidof memcached >/dev/null; do sleep 0.1; done
    done
done
# QEMU ends at a reset. Its main loop, which has to be told of a shutdown, waits for the cores.
reboot -f
