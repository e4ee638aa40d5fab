#!/usr/bin/env python3
"""Checks adapters::axum::ws against a second implementation of RFC 6455, Python's `websockets`:

    tests/clients/websocket.py [path of the example websocket_echo]

Valid messages are sent by its client. What no client sends is made by hand; the answers are parsed by its sans-I/O
protocol, which is strict about them. Runs once for each driver.
"""

import os
import socket
import struct
import subprocess
import sys
import time

from websockets.client import ClientProtocol
from websockets.exceptions import ConnectionClosed
from websockets.frames import Close, Opcode
from websockets.protocol import State
from websockets.sync.client import connect
from websockets.uri import parse_uri

PORT = 9001
URI = f"ws://127.0.0.1:{PORT}/echo"
# An answer that takes longer has been lost. Far above what a noisy machine needs.
LIMIT = 30
CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
MASK = bytes((0x12, 0x34, 0x56, 0x78))


def frame(opcode, data=b"", fin=True, reserved=0, masked=True, length=None):
    """A frame as a client sends it, right or wrong. `length`: what its header says."""
    length = len(data) if length is None else length
    head = bytes((fin << 7 | reserved << 4 | opcode,))
    mask_bit = masked << 7
    if length < 126:
        head += bytes((mask_bit | length,))
    elif length < 1 << 16:
        head += struct.pack("!BH", mask_bit | 126, length)
    else:
        head += struct.pack("!BQ", mask_bit | 127, length)
    if not masked:
        return head + data
    return head + MASK + bytes(byte ^ MASK[index % 4] for index, byte in enumerate(data))


class Raw:
    """A connection on which anything can be sent, and whose answers `websockets` parses."""

    def __enter__(self):
        self.protocol = ClientProtocol(parse_uri(URI), max_size=None)
        self.socket = socket.create_connection(("127.0.0.1", PORT), timeout=LIMIT)
        self.protocol.send_request(self.protocol.connect())
        self.socket.sendall(b"".join(self.protocol.data_to_send()))
        self.events = []
        while self.protocol.state is State.CONNECTING:
            self.receive()
        assert self.protocol.state is State.OPEN, self.protocol.handshake_exc
        self.events.clear()
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, *frames):
        self.socket.sendall(b"".join(frames))

    def receive(self):
        try:
            data = self.socket.recv(1 << 16)
        except ConnectionResetError:
            # The server has closed before it has read everything.
            data = b""
        if data:
            self.protocol.receive_data(data)
        else:
            self.protocol.receive_eof()
        self.events += self.protocol.events_received()
        return bool(data)

    def next(self):
        """The next frame of the server, or None at the end of the connection."""
        while not self.events:
            if not self.receive():
                return None
        return self.events.pop(0)

    def expect(self, opcode, data):
        got = self.next()
        assert got is not None and got.fin, got
        assert (got.opcode, bytes(got.data)) == (opcode, data), got

    def expect_close(self, *codes):
        """A close frame with one of the codes, and then the end of the connection, by the server."""
        got = self.next()
        assert got is not None and got.opcode is Opcode.CLOSE, got
        code = Close.parse(bytes(got.data)).code
        assert code in codes, code
        assert self.next() is None


def messages_of_all_lengths_are_echoed():
    # Around the lengths at which a frame's header grows.
    with connect(URI, max_size=None, compression=None, open_timeout=LIMIT) as client:
        for length in (0, 1, 125, 126, 127, 65535, 65536, 65537):
            client.send("x" * length)
            assert client.recv(LIMIT) == "x" * length
            client.send(b"\x80" * length)
            assert client.recv(LIMIT) == b"\x80" * length
        client.send("κόσμε \U0001f642")
        assert client.recv(LIMIT) == "κόσμε \U0001f642"


def a_client_that_offers_compression_is_served_without():
    with connect(URI, open_timeout=LIMIT) as client:
        assert client.protocol.extensions == []
        client.send("x" * 1000)
        assert client.recv(LIMIT) == "x" * 1000


def a_message_of_16_mib_is_echoed():
    data = os.urandom(1 << 20) * 16
    with connect(URI, max_size=None, compression=None, open_timeout=LIMIT) as client:
        client.send(data)
        assert client.recv(LIMIT) == data
        # In fragments of 1 MiB.
        client.send(data[start : start + (1 << 20)] for start in range(0, len(data), 1 << 20))
        assert client.recv(LIMIT) == data


def a_thousand_messages_in_one_go_are_echoed_in_order():
    with Raw() as raw:
        raw.send(*(frame(TEXT, b"%d" % number) for number in range(1000)))
        for number in range(1000):
            raw.expect(TEXT, b"%d" % number)


def fragments_are_put_together_and_pings_between_them_answered():
    with Raw() as raw:
        # A character is cut in the middle.
        raw.send(frame(TEXT, "é".encode()[:1], fin=False))
        raw.send(frame(PING, b"between"))
        raw.expect(PONG, b"between")
        raw.send(frame(CONTINUATION, b"", fin=False), frame(PONG, b"unasked"))
        raw.send(frame(CONTINUATION, "é".encode()[1:] + b"!"))
        raw.expect(TEXT, "é!".encode())
        # Byte by byte.
        for byte in frame(BINARY, b"slowly"):
            raw.send(bytes((byte,)))
        raw.expect(BINARY, b"slowly")


def pings_are_answered_with_their_data():
    with Raw() as raw:
        for data in (b"", b"\x00\xff" * 62, b"x" * 125):
            raw.send(frame(PING, data))
            raw.expect(PONG, data)
    with connect(URI, open_timeout=LIMIT) as client:
        assert client.ping().wait(LIMIT)


def close_codes_that_may_be_sent_are_returned():
    for code in (1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 3000, 3999, 4000, 4999):
        with Raw() as raw:
            raw.send(frame(CLOSE, struct.pack("!H", code) + "wegen é".encode()))
            raw.expect_close(code)
    with Raw() as raw:
        raw.send(frame(CLOSE))
        raw.expect(CLOSE, b"")
        assert raw.next() is None
    with connect(URI, open_timeout=LIMIT) as client:
        client.close(4321, "bye")
        assert (client.close_code, client.close_reason) == (4321, "bye")


def close_frames_that_are_wrong_are_a_protocol_error():
    for code in (0, 999, 1005, 1006, 1015, 1016, 2999, 5000, 65535):
        with Raw() as raw:
            raw.send(frame(CLOSE, struct.pack("!H", code)))
            raw.expect_close(1002)
    with Raw() as raw:
        raw.send(frame(CLOSE, b"\x03"))
        raw.expect_close(1002)
    # A reason that is not UTF-8.
    with Raw() as raw:
        raw.send(frame(CLOSE, struct.pack("!H", 1000) + b"\xff"))
        raw.expect_close(1002, 1007)


def invalid_utf8_closes_with_1007():
    # A lone continuation, a surrogate, an overlong form, more than U+10FFFF, an end in the middle.
    for data in (b"\x80", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf4\x90\x80\x80", b"abc\xce"):
        with Raw() as raw:
            raw.send(frame(TEXT, data))
            raw.expect_close(1007)
        with Raw() as raw:
            raw.send(frame(TEXT, data[:1], fin=False), frame(CONTINUATION, data[1:]))
            raw.expect_close(1007)
    # Binary messages may have any bytes.
    with Raw() as raw:
        raw.send(frame(BINARY, b"\x80\xff"))
        raw.expect(BINARY, b"\x80\xff")


def frames_that_break_the_protocol_close_with_1002():
    wrong = {
        "a ping of 126 bytes": [frame(PING, b"x" * 126)],
        "a close of 126 bytes": [frame(CLOSE, struct.pack("!H", 1000) + b"x" * 124)],
        "a ping in fragments": [frame(PING, b"a", fin=False), frame(CONTINUATION, b"b")],
        "the first reserved bit": [frame(TEXT, b"a", reserved=4)],
        "the second reserved bit": [frame(TEXT, b"a", reserved=2)],
        "the third reserved bit, on a ping": [frame(PING, b"a", reserved=1)],
        "a reserved data opcode": [frame(3, b"a")],
        "a reserved control opcode": [frame(11, b"a")],
        "a continuation of nothing": [frame(CONTINUATION, b"a")],
        "a message within a message": [frame(TEXT, b"a", fin=False), frame(TEXT, b"b")],
        "a frame without a mask": [frame(TEXT, b"a", masked=False)],
    }
    for what, frames in wrong.items():
        with Raw() as raw:
            raw.send(*frames)
            try:
                raw.expect_close(1002)
            except (AssertionError, OSError) as error:
                raise AssertionError(f"{what}: {error!r}") from error


def a_frame_above_the_limit_closes_with_1009():
    with Raw() as raw:
        raw.send(frame(BINARY, b"", length=(16 << 20) + 1))
        raw.expect_close(1009)
    with Raw() as raw:
        raw.send(frame(BINARY, b"", length=(1 << 63) - 1))
        raw.expect_close(1009)


def a_client_that_has_closed_its_half_gets_its_close_and_the_end():
    with Raw() as raw:
        raw.send(frame(TEXT, b"last"), frame(CLOSE, struct.pack("!H", 1000)))
        raw.socket.shutdown(socket.SHUT_WR)
        raw.expect(TEXT, b"last")
        raw.expect_close(1000)
    # Without a close frame, and within a message: the connection is lost.
    with Raw() as raw:
        raw.send(frame(TEXT, b"a", fin=False))
        raw.socket.shutdown(socket.SHUT_WR)
        while raw.next() is not None:
            pass


def data_after_a_close_is_not_echoed():
    with Raw() as raw:
        raw.send(frame(CLOSE, struct.pack("!H", 1000)), frame(TEXT, b"late"))
        raw.expect_close(1000)


def a_client_that_goes_away_leaves_the_others_alone():
    with connect(URI, open_timeout=LIMIT) as client:
        with Raw() as raw:
            raw.send(frame(TEXT, b"a", fin=False))
            # Closes with a reset.
            raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.send("still here")
        assert client.recv(LIMIT) == "still here"


CHECKS = [
    messages_of_all_lengths_are_echoed,
    a_client_that_offers_compression_is_served_without,
    a_message_of_16_mib_is_echoed,
    a_thousand_messages_in_one_go_are_echoed_in_order,
    fragments_are_put_together_and_pings_between_them_answered,
    pings_are_answered_with_their_data,
    close_codes_that_may_be_sent_are_returned,
    close_frames_that_are_wrong_are_a_protocol_error,
    invalid_utf8_closes_with_1007,
    frames_that_break_the_protocol_close_with_1002,
    a_frame_above_the_limit_closes_with_1009,
    a_client_that_has_closed_its_half_gets_its_close_and_the_end,
    data_after_a_close_is_not_echoed,
    a_client_that_goes_away_leaves_the_others_alone,
]


def run(server, driver):
    """The number of checks that failed on a driver."""
    process = subprocess.Popen([server, f"127.0.0.1:{PORT}"], env=os.environ | {"RUNTIME_DRIVER": driver})
    failures = 0
    try:
        for _ in range(200):
            assert process.poll() is None, f"the server has ended: {process.returncode}"
            try:
                socket.create_connection(("127.0.0.1", PORT)).close()
                break
            except ConnectionRefusedError:
                time.sleep(0.05)
        for check in CHECKS:
            try:
                check()
            except (AssertionError, OSError, ConnectionClosed) as error:
                failures += 1
                print(f"FAILED on {driver}: {check.__name__}: {error!r}")
        assert process.poll() is None, f"the server has ended: {process.returncode}"
    finally:
        process.terminate()
        code = process.wait(LIMIT)
    assert code == 0, f"the server has ended with {code}"
    print(f"{driver}: {len(CHECKS) - failures} passed, {failures} failed")
    return failures


def main():
    server = sys.argv[1] if len(sys.argv) > 1 else "target/debug/examples/websocket_echo"
    sys.exit(1 if sum(run(server, driver) for driver in ("epoll", "uring")) else 0)


main()
