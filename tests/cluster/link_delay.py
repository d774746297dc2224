#!/usr/bin/env python3
"""Hands every packet of one network interface to another, a fixed time later, both ways.

    link_delay.py LINK_A LINK_B SECONDS

Stands in for `tc netem delay` where the kernel lacks it. Waits for the interfaces to appear. Packets that the
kernel has not cut into frames yet pass whole (PACKET_VNET_HDR), so a link of 1 Gbit/s is some 2000 packets a second.
"""

import collections
import select
import socket
import sys
import time

SOL_PACKET, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING = 263, 15, 23
SO_RCVBUFFORCE, SO_SNDBUFFORCE = 33, 32
ALL_PROTOCOLS, LARGEST = 3, 1 << 17


def opened(link):
    taken = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
    taken.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    taken.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    for option, plain in ((SO_RCVBUFFORCE, socket.SO_RCVBUF), (SO_SNDBUFFORCE, socket.SO_SNDBUF)):
        try:
            taken.setsockopt(socket.SOL_SOCKET, option, 1 << 25)
        except PermissionError:  # in a user namespace only as much as the system allows everybody
            taken.setsockopt(socket.SOL_SOCKET, plain, 1 << 25)
    while True:
        try:
            taken.bind((link, ALL_PROTOCOLS))
            taken.setblocking(False)
            return taken
        except OSError:
            time.sleep(0.02)


def main():
    ends = [opened(link) for link in sys.argv[1:3]]
    delay = float(sys.argv[3])
    due = [collections.deque(), collections.deque()]  # towards ends[0], ends[1]: (time, packet)
    while True:
        first = min((queue[0][0] for queue in due if queue), default=None)
        wait = None if first is None else max(0.0, first - time.monotonic())
        ready, _, _ = select.select(ends, [], [], wait)
        now = time.monotonic()
        for i, end in enumerate(ends):
            if end in ready:
                try:
                    while True:
                        due[1 - i].append((now + delay, end.recv(LARGEST)))
                except OSError:  # nothing more; or, once, a link that was down when it was bound
                    pass
        now = time.monotonic()
        for end, queue in zip(ends, due):
            while queue and queue[0][0] <= now:
                try:
                    end.send(queue[0][1])
                except OSError:
                    pass  # a link that is down or full loses packets; TCP sends them again
                queue.popleft()


if __name__ == "__main__":
    main()
