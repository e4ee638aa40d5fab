#!/usr/bin/env python3
"""Compares resident memory per item beyond its key and value, in caches filled beyond their limit."""

import common


def main():
    parser = common.arguments(__doc__)
    parser.add_argument("--memory", type=int, default=64, help="memory limit (-m) in MiB")
    options = parser.parse_args()
    common.print_versions(options)
    for key, value in [(30, 200), (30, 1), (20, 50), (30, 1000), (30, 20_000)]:
        for name, command in common.contestants(options, ("-m", str(options.memory))).items():
            if name == "lull, epoll":
                continue
            server = common.Server(command)
            empty = server.resident()
            with server.connect() as stream:
                batch = []
                for index in range(int(1.6 * (options.memory << 20) / (key + value + 40))):
                    batch.append(b"set %0*d 0 0 %d noreply\r\n%s\r\n" % (key, index, value, b"v" * value))
                    if len(batch) * (value + 60) > 200_000:
                        stream.sendall(b"".join(batch))
                        batch.clear()
                stream.sendall(b"".join(batch) + b"get nosuch\r\n")
                stream.makefile("rb").readline()
            items, grown = int(server.stats()["curr_items"]), server.resident() - empty
            print(
                f"keys of {key}, values of {value:5}  {name:11}  {items:7} items in {grown / 2**20:5.1f} MiB"
                f"  {grown / items - key - value:6.1f} bytes more each",
                flush=True,
            )
            server.stop()


if __name__ == "__main__":
    main()
