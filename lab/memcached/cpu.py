#!/usr/bin/env python3
"""CPU time per request of this project's server and of memcached: runs `lab memcached-cpu` with the same options."""

import os
import sys

import common

os.execv(common.ROOT / "target/release/lab", ["lab", "memcached-cpu", *sys.argv[1:]])
