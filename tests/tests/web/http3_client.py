"""HTTP/3 by aioquic, against a server with the site of http3.rs: http3_client.py PORT AUTHORITY PROCESS"""

import asyncio
import hashlib
import os
import signal
import sys

from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import ErrorCode, H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ConnectionTerminated, StreamDataReceived, StreamReset

# Frame, length, stream: aioquic does not tell its users.
GOAWAY_OF_THE_SECOND = bytes([7, 1, 4])


class Client(QuicConnectionProtocol):
    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.http = H3Connection(self._quic)
        self.streams = {}
        self.control = b""

    def quic_event_received(self, event):
        if isinstance(event, StreamDataReceived) and event.stream_id == 3:
            self.control += event.data
        if isinstance(event, StreamReset) and event.stream_id in self.streams:
            self.end(event.stream_id, ConnectionResetError(event.error_code))
        if isinstance(event, ConnectionTerminated):
            self.closed_by = event.error_code
            for stream in list(self.streams):
                self.end(stream, ConnectionAbortedError(event.reason_phrase))
        for received in self.http.handle_event(event):
            headers, body, _ = self.streams[received.stream_id]
            if isinstance(received, HeadersReceived):
                headers.update(received.headers)
            elif isinstance(received, DataReceived):
                body.extend(received.data)
            if received.stream_ended:
                self.end(received.stream_id, None)

    def end(self, stream, error):
        ended = self.streams[stream][2]
        if not ended.done():
            ended.set_exception(error) if error else ended.set_result(None)

    def begin(self, method, path, headers=(), end_stream=True):
        stream = self._quic.get_next_available_stream_id()
        self.streams[stream] = ({}, bytearray(), asyncio.get_running_loop().create_future())
        named = {b":method": method, b":scheme": "https", b":authority": "localhost", b":path": path}
        head = [(name, value.encode()) for name, value in named.items()]
        self.http.send_headers(stream, head + list(headers), end_stream=end_stream)
        return stream

    async def answer(self, stream):
        self.transmit()
        headers, body, ended = self.streams[stream]
        await asyncio.wait_for(ended, 30)
        return int(headers[b":status"]), headers, bytes(body)

    async def request(self, method, path, headers=(), body=b""):
        stream = self.begin(method, path, headers, end_stream=not body)
        if body:
            self.http.send_data(stream, body, end_stream=True)
        return await self.answer(stream)


async def files(client):
    status, headers, body = await client.request("GET", "/short")
    assert (status, body) == (200, b"short"), (status, body)
    assert headers[b"content-length"] == b"5" and b"date" in headers, headers
    # No HEAD: aioquic takes its content-length for that of a body.
    status, _, body = await client.request("GET", "/short", [(b"range", b"bytes=1-2")])
    assert (status, body) == (206, b"ho"), (status, body)
    assert (await client.request("GET", "/missing"))[0] == 404
    # More than may be open at the same time: the others wait.
    answers = await asyncio.gather(*(client.request("GET", "/long") for _ in range(20)))
    assert {(status, len(body)) for status, _, body in answers} == {(200, 300_000)}
    assert len({hashlib.sha256(body).digest() for _, _, body in answers}) == 1


async def proxied(client):
    for length in (0, 1, 100_000):
        body = bytes(range(256)) * (length // 256 + 1)
        status, _, echoed = await client.request("POST", "/api/echo", (), body[:length])
        assert (status, echoed) == (200, body[:length]), (status, len(echoed))
    status, _, echoed = await client.request("POST", "/api/echo", [(b"content-length", b"3")], b"abc")
    assert (status, echoed) == (200, b"abc"), (status, echoed)
    status, _, seen = await client.request("GET", "/api/head", [(b"cookie", b"a=1"), (b"cookie", b"b=2")])
    seen = seen.decode().lower()
    assert status == 200, status
    for line in ("x-forwarded-proto: https", "via: 3.0 lull", "cookie: a=1; b=2", "x-forwarded-host: localhost"):
        assert line in seen, (line, seen)
    assert "chunked" not in seen, seen


async def refused(client):
    assert (await client.request("POST", "/api/echo", (), b"x" * 200_001))[0] == 413
    assert (await client.request("GET", "/short", [(b"a", b"x" * 10_000)] * 20))[0] == 431
    assert (await client.request("GET", "/short", [(b"transfer-encoding", b"chunked")]))[0] == 400
    assert (await client.request("POST", "/api/echo", [(b"content-length", b"2,2")], b"ab"))[0] == 400
    # Of another length than it says, a body never arrives as if it were complete.
    for length in (b"1", b"5"):
        try:
            status, _, _ = await client.request("POST", "/api/echo", [(b"content-length", length)], b"abc")
        except ConnectionError:
            continue
        assert status == 400, (length, status)


async def closed_for_a_long_frame(client, on_control):
    # An unknown frame on the control stream, or a head.
    kind, stream = b"\x01", client._quic.get_next_available_stream_id()
    if on_control:
        kind, stream = b"\x21", client.http._local_control_stream_id
    client._quic.send_stream_data(stream, kind + (0xC0 << 56 | 1 << 40).to_bytes(8, "big"))
    client.transmit()
    await asyncio.wait_for(client.wait_closed(), 30)
    assert client.closed_by == ErrorCode.H3_EXCESSIVE_LOAD, client.closed_by


async def closed_for_heads_that_have_begun(client):
    # 240,000 of 250,000 bytes each.
    for _ in range(2):
        stream = client._quic.get_next_available_stream_id()
        head = b"\x01" + (2 << 30 | 250_000).to_bytes(4, "big") + bytes(240_000)
        client._quic.send_stream_data(stream, head)
    client.transmit()
    await asyncio.wait_for(client.wait_closed(), 30)
    assert client.closed_by == ErrorCode.H3_EXCESSIVE_LOAD, client.closed_by


async def main(port, authority, server):
    configuration = QuicConfiguration(is_client=True, alpn_protocols=["h3"], server_name="localhost")
    configuration.load_verify_locations(authority)

    def open_connection():
        return connect("127.0.0.1", port, configuration=configuration, create_protocol=Client)

    for on_control in (False, True):
        async with open_connection() as client:
            await closed_for_a_long_frame(client, on_control)
    async with open_connection() as client:
        await closed_for_heads_that_have_begun(client)
    async with open_connection() as client:
        await files(client)
        await proxied(client)
        await refused(client)
        assert (await client.request("GET", "/short"))[0] == 200
        # Two may be open. This one has been idle for longest when the third comes: a head that has begun is no request.
        client._quic.send_stream_data(client._quic.get_next_available_stream_id(), b"\x01")
        client.transmit()
        async with open_connection() as second:
            busy = second.begin("POST", "/api/echo", end_stream=False)
            second.http.send_data(busy, b"first ", end_stream=False)
            second.transmit()
            await asyncio.sleep(0.2)
            async with open_connection() as third:
                assert (await third.request("GET", "/short"))[0] == 200
                await asyncio.wait_for(client.wait_closed(), 30)
            # The server stops: requests in progress are answered, later ones are refused.
            os.kill(server, signal.SIGTERM)
            for _ in range(3000):
                if second.control.endswith(GOAWAY_OF_THE_SECOND):
                    break
                await asyncio.sleep(0.01)
            else:
                raise AssertionError(second.control)
            for _ in range(2):
                try:
                    answered = await second.request("GET", "/short")
                except ConnectionResetError as error:
                    assert error.args == (ErrorCode.H3_REQUEST_REJECTED,), error
                else:
                    raise AssertionError(answered)
            second.http.send_data(busy, b"last", end_stream=True)
            status, _, echoed = await second.answer(busy)
            assert (status, echoed) == (200, b"first last"), (status, echoed)
    print("all as expected")


asyncio.run(main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
