#!/usr/bin/env python3
"""Compares hit ratios of a look-aside cache: Zipf(0.99) over a million keys, with the value sizes of Facebook's ETC pool.

Both servers receive the same accesses. Each miss is followed by a set. Requires numpy.
"""

import numpy as np

import common


class Client:
    def __init__(self, server, sizes):
        self.sizes = sizes
        self.stream = server.connect()
        self.replies = self.stream.makefile("rb", 1 << 20)

    def access(self, keys):
        """Gets keys, and sets those that are missing. Returns the number of hits."""
        names = [b"key-%027d" % key for key in keys]
        self.stream.sendall(b"".join(b"mg " + name + b"\r\n" for name in names) + b"mn\r\n")
        missing = [index for index in range(len(keys)) if not self.replies.readline().startswith(b"HD")]
        self.replies.readline()
        sets = [(names[index], int(self.sizes[keys[index]])) for index in missing]
        values = b"".join(b"ms %s %d q\r\n%s\r\n" % (name, size, b"v" * size) for name, size in sets)
        self.stream.sendall(values + b"mn\r\n")
        while self.replies.readline() != b"MN\r\n":
            pass
        return len(keys) - len(missing)


def main():
    parser = common.arguments(__doc__)
    parser.add_argument("--shares", default="1,5,10,25,50", help="cache sizes in percent of the data")
    parser.add_argument("--accesses", type=int, default=1_200_000, help="number of accesses that count; the same number before them warms the cache")
    parser.add_argument("--keys", type=int, default=1_000_000)
    options = parser.parse_args()
    common.print_versions(options)
    random = np.random.default_rng(5)
    keys = options.keys
    # Atikoglu et al., "Workload analysis of a large-scale key-value store" (2012): values of ETC.
    sizes = 214.476 / 0.348238 * ((1 - random.random(keys)) ** -0.348238 - 1)
    sizes = sizes.astype(int).clip(1, 500_000)
    ranks = np.cumsum(1 / np.arange(1, keys + 1) ** 0.99)
    ranks /= ranks[-1]
    names = random.permutation(keys)
    data = int((sizes + 31).sum())
    print(f"{keys} keys, {data >> 20} MiB of keys and values")
    for share in map(float, options.shares.split(",")):
        memory = max(2, int(data * share / 100) >> 20)
        extra = ("-m", str(memory), "-I", f"{min(1024, memory * 512)}k")
        commands = common.contestants(options, extra)
        del commands["lull, epoll"]
        servers = {name: common.Server(command) for name, command in commands.items()}
        empty = {name: server.resident() for name, server in servers.items()}
        clients = {name: Client(server, sizes) for name, server in servers.items()}
        hits = dict.fromkeys(servers, 0)
        for done in range(0, 2 * options.accesses, 500):
            batch = names[np.searchsorted(ranks, random.random(500))].tolist()
            for name, client in clients.items():
                found = client.access(batch)
                hits[name] += found if done >= options.accesses else 0
        for name, server in servers.items():
            grown = (server.resident() - empty[name]) / 2**20
            print(
                f"{share:4.0f} % of the data, -m {memory:3}  {name:11}"
                f"  hit ratio {hits[name] / options.accesses:.4f}  {grown:5.1f} MiB resident",
                flush=True,
            )
            server.stop()


if __name__ == "__main__":
    main()
