"""Look for known vulnerabilities of the locked versions with pip-audit: `make audit-deps`.

Usage: python tools/audit_dependencies.py PIP_AUDIT

Exit codes: 0 nothing was found, 1 vulnerabilities were found, 3 the dependencies were NOT audited, because pip-audit is
not there or its database cannot be reached.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

LOCK = Path(__file__).parent.parent / "requirements.lock"
SERVICES = ("pypi", "osv")  # databases that pip-audit asks, one after the other until one answers


def audit(program: str) -> int:
    """Run pip-audit on the lock file, print what it found, and return the exit code."""
    reasons = []
    for service in SERVICES:
        command = [
            program,
            "-r",
            str(LOCK),
            "--disable-pip",
            "--no-deps",
            "-f",
            "json",
            "-s",
            service,
            "--timeout",
            "15",
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)  # noqa: S603
            answered = json.loads(done.stdout)["dependencies"]
        except (OSError, subprocess.TimeoutExpired) as error:
            reasons.append(f"{service}: {error}")
            continue
        except (ValueError, KeyError, TypeError):
            reasons.append(f"{service}: {(done.stderr.strip().splitlines() or ['no answer'])[-1][:200]}")
            continue
        skipped = [entry for entry in answered if "skip_reason" in entry]
        known = [entry for entry in answered if "skip_reason" not in entry]
        if not known:
            reasons.append(f"{service}: it knows none of {len(skipped)} packages")
            continue
        found = [(entry, bug) for entry in known for bug in entry["vulns"]]
        for entry, bug in found:
            fixed = ", ".join(bug["fix_versions"]) or "no release"
            print(f"{entry['name']} {entry['version']}: {bug['id']}, fixed in {fixed}")
        for entry in skipped:
            print(f"{entry['name']}: not audited ({entry['skip_reason']})")
        print(f"{len(known)} packages audited against {service}: {len(found)} known vulnerabilities")
        return 1 if found else 0
    print("The dependencies were NOT audited: no database of vulnerabilities could be reached.", file=sys.stderr)
    print("\n".join(reasons), file=sys.stderr)
    return 3


if __name__ == "__main__":
    raise SystemExit(audit(sys.argv[1]))
