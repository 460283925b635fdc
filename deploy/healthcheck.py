"""Whether the party or coordinator with these settings serves on this host; the health check of the images.

A coordinator is asked over HTTP. A party answers nobody but its coordinators, and its audit log would count a
connection that leads to no call: so the kernel is asked whether the port is open. Only the standard library is
imported, since this runs every half minute.
"""

from __future__ import annotations

import os
import ssl
import sys
import urllib.request
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LISTENING = "0A"  # the state of a socket in /proc/net/tcp
EVERY = ("", "0.0.0.0", "::", "[::]")  # noqa: S104 (compared with, not bound)


def coordinator_lives(settings: dict, environment: dict[str, str]) -> bool:
    """Whether the coordinator answers over HTTP."""
    server = settings.get("server", {})
    prefix = "GAINROUTE_COORDINATOR_SERVER_"
    host = environment.get(f"{prefix}HOST", server.get("host", "127.0.0.1"))
    port = environment.get(f"{prefix}PORT", server.get("port", 8080))
    secure = f"{prefix}CERTIFICATE" in environment or "certificate" in server
    where = f"{'https' if secure else 'http'}://{'127.0.0.1' if host in EVERY else host}:{port}/v2/health/live"
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # its name is not that of this host
    try:
        with urllib.request.urlopen(where, timeout=4, context=context) as reply:  # noqa: S310 (http or https)
            return reply.status == 200
    except OSError:
        return False


def party_listens(settings: dict, environment: dict[str, str]) -> bool:
    """Whether a socket of this network namespace listens on the party's port."""
    listen = environment.get("GAINROUTE_PARTY_LISTEN", settings.get("listen", "127.0.0.1:7443"))
    port = int(listen.rpartition(":")[2])
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text(encoding="ascii").splitlines()[1:]:
            _, local, _, state = line.split()[:4]
            if state == LISTENING and int(local.rpartition(":")[2], 16) == port:
                return True
    return False


CHECKS = {"coordinator": coordinator_lives, "party": party_listens}


def main(kind: str, config: str) -> int:
    """Return the exit code: 0 if it serves."""
    settings = tomllib.loads(Path(config).read_text(encoding="utf-8"))
    return 0 if CHECKS[kind](settings, dict(os.environ)) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
